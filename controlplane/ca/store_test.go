// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package ca_test

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outrigger-mesh/outrigger/certs"
	"github.com/outrigger-mesh/outrigger/controlplane/ca"
)

// memory is a Store that replicas share, like a Kubernetes Secret.
type memory struct {
	mu      sync.Mutex // guards the fields below
	m       ca.Material
	version int
	loadErr error
	saveErr error
	saves   int
}

func (s *memory) Load(context.Context) (ca.Material, string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.loadErr != nil || s.m == nil {
		return nil, "", s.loadErr
	}
	return maps.Clone(s.m), strconv.Itoa(s.version), nil
}

func (s *memory) Save(_ context.Context, m ca.Material, version string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	current := ""
	if s.m != nil {
		current = strconv.Itoa(s.version)
	}
	switch {
	case s.saveErr != nil:
		return s.saveErr
	case version != current:
		return ca.ErrConflict
	}
	s.m = maps.Clone(m)
	s.version++
	s.saves++
	return nil
}

func (s *memory) set(change func(*memory)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(s)
}

// replica opens an authority on a store and runs it until the test ends.
func replica(t *testing.T, change func(*ca.Config)) *ca.Authority {
	t.Helper()
	a := open(t, func(c *ca.Config) {
		c.Poll = 20 * time.Minute // the clock is fake, so hours pass in milliseconds
		change(c)
	})
	a.Unwatch()
	run(t, a)
	return a
}

func run(t *testing.T, a *ca.Authority) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestReplicasShareOneRoot(t *testing.T) {
	t.Parallel()
	store := &memory{}
	roots := make([]string, 8)
	var wg sync.WaitGroup
	for i := range roots {
		wg.Go(func() {
			a, err := ca.Open(t.Context(), ca.Config{Store: store, TrustDomain: "cluster.local", Logger: quiet()})
			if err != nil {
				t.Error(err)
				return
			}
			roots[i] = string(a.RootPEM())
		})
	}
	wg.Wait()
	for _, r := range roots {
		if r == "" || r != roots[0] {
			t.Fatal("concurrent starts have different roots")
		}
	}
	if store.saves != 1 {
		t.Errorf("the store was written %d times, want once", store.saves)
	}
}

// TestReplicasRotateTogether runs three replicas until a root expires.
func TestReplicasRotateTogether(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &memory{}
		var all []*ca.Authority
		for range 3 {
			all = append(all, replica(t, func(c *ca.Config) { c.Store, c.Root.TTL = store, 200*time.Hour }))
		}
		signers := map[string]bool{}
		apart := 0
		for range 300 {
			time.Sleep(time.Hour)
			synctest.Wait()
			if !agree(t, all, signers) {
				apart++
				time.Sleep(21 * time.Minute) // all replicas have read the store again
				synctest.Wait()
				if !agree(t, all, signers) {
					t.Fatal("replicas that have read the same store distribute different roots or sign with different roots")
				}
			}
		}
		if len(signers) != 2 || apart > 10 {
			t.Errorf("%d roots signed within one and a half lifetimes of a root, want 2; the replicas differed %d times, want at most 10", len(signers), apart)
		}
	})
}

// agree reports whether all replicas distribute the same roots and sign with the same root. It
// fails the test unless all of them trust what each one signs.
func agree(t *testing.T, all []*ca.Authority, signers map[string]bool) bool {
	t.Helper()
	now := map[string]bool{}
	same := true
	for _, a := range all {
		elements, err := sign(t, a, newCSR(t, newKey(t, ""), web()), time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		leaf := parse(t, elements[0])[0]
		key := string(leaf.AuthorityKeyId)
		now[key], signers[key] = true, true
		for _, b := range all {
			roots := x509.NewCertPool()
			roots.AppendCertsFromPEM(b.RootPEM())
			if _, err := leaf.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: time.Now(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}); err != nil {
				t.Fatalf("a replica does not trust a certificate of another one: %v", err)
			}
			same = same && bytes.Equal(a.RootPEM(), b.RootPEM()) && a.Phase() == b.Phase()
		}
	}
	return same && len(now) == 1
}

func TestStoreIsRewritten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &memory{}
		a := replica(t, func(c *ca.Config) { c.Store = store })
		before := a.RootPEM()
		store.set(func(s *memory) { s.m = nil })
		time.Sleep(time.Hour)
		synctest.Wait()
		m, _, err := store.Load(t.Context())
		if err != nil || len(m["ca-key.pem"]) == 0 || !bytes.Equal(a.RootPEM(), before) {
			t.Errorf("the store was not written again, or the root changed, error %v", err)
		}
		store.set(func(s *memory) { s.m["ca-key.pem"] = []byte("x") })
		time.Sleep(time.Hour)
		synctest.Wait()
		if _, err := sign(t, a, newCSR(t, newKey(t, ""), web()), time.Hour); err != nil {
			t.Errorf("Sign with a store that became invalid = %v, want nil", err)
		}
	})
}

func TestSigningWithFailingStore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &memory{}
		log := &syncBuffer{}
		a := replica(t, func(c *ca.Config) { c.Store, c.Logger, c.Root.TTL = store, textLog(log), 400*time.Hour })
		for name, spoil := range map[string]func(*memory){
			"save": func(s *memory) { s.loadErr, s.saveErr = nil, errors.New("the disk is full") },
			"load": func(s *memory) { s.loadErr, s.saveErr = errors.New("no response"), nil },
		} {
			store.set(spoil)
			for range 20 {
				time.Sleep(time.Hour)
				if _, err := sign(t, a, newCSR(t, newKey(t, ""), web()), 2*time.Hour); err != nil {
					t.Errorf("%s: Sign with a failing store = %v, want nil", name, err)
				}
			}
		}
		if n := strings.Count(log.String(), "the disk is full"); n < 1 || n > 2 {
			t.Errorf("the full disk was logged %d times, want once or twice:\n%s", n, log)
		}
		// No root may be distributed that would be lost after a restart.
		time.Sleep(320 * time.Hour)
		if n := len(parse(t, a.RootPEM())); n != 1 {
			t.Errorf("%d roots are distributed while the store fails, want 1", n)
		}
		store.set(func(s *memory) { s.loadErr, s.saveErr = nil, nil })
		time.Sleep(2 * time.Hour)
		if n := len(parse(t, a.RootPEM())); n != 2 {
			t.Errorf("%d roots are distributed after the store recovered, want 2", n)
		}
		m, _, err := store.Load(t.Context())
		if err != nil || !strings.Contains(string(m["rotation.json"]), `"longestLife": "2h0m0s"`) {
			t.Errorf("the longest lifetime was not stored: %s, error %v", m["rotation.json"], err)
		}
	})
}

// TestCrashWhileWriting interrupts the writing of a directory after each file in each step of a
// rotation, and restarts the authority.
func TestCrashWhileWriting(t *testing.T) {
	t.Parallel()
	order := []string{"ca-key.pem", "ca-cert.pem", "next-key.pem", "next-cert.pem", "rotation.json", "root-cert.pem"}
	base := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		store := &memory{}
		a := replica(t, func(c *ca.Config) { c.Store, c.Root.TTL = store, 100*time.Hour })
		leafOf := func(a *ca.Authority) []byte {
			elements, err := sign(t, a, newCSR(t, newKey(t, ""), web()), 5*time.Hour)
			if err != nil {
				t.Fatal(err)
			}
			return elements[0]
		}
		last := leafOf(a)
		before, _, _ := store.Load(t.Context())
		starts := 0
		for range 120 {
			time.Sleep(time.Hour)
			synctest.Wait()
			after, _, _ := store.Load(t.Context())
			if after.Equal(before) {
				last = leafOf(a)
				continue
			}
			for n := range len(order) + 1 {
				dir := filepath.Join(base, strconv.Itoa(starts))
				starts++
				half := maps.Clone(before)
				for _, name := range order[:n] {
					if after[name] != nil {
						half[name] = after[name]
					}
				}
				if err := os.Mkdir(dir, 0o700); err != nil {
					t.Fatal(err)
				}
				write(t, dir, half)
				again := open(t, func(c *ca.Config) { c.Dir, c.Root.TTL = dir, 100*time.Hour })
				trusts(t, again.RootPEM(), last)
				trusts(t, again.RootPEM(), leafOf(again))
			}
			before, last = after, leafOf(a)
		}
		if starts < 3*len(order) {
			t.Errorf("%d starts, want at least %d: the rotation did not take place", starts, 3*len(order))
		}
	})
}

// trusts checks that a leaf verifies with the roots.
func trusts(t *testing.T, rootsPEM []byte, leafPEM ...[]byte) {
	t.Helper()
	if err := verify(t, rootsPEM, leafPEM...); err != nil {
		t.Error(err)
	}
}

func verify(t *testing.T, rootsPEM []byte, elements ...[]byte) error {
	t.Helper()
	if err := certsVerify(rootsPEM, parse(t, elements...)); err != nil {
		return err
	}
	return nil
}

func TestDirIsLockedAndVersioned(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	a := open(t, func(c *ca.Config) { c.Dir = dir })
	if _, err := sign(t, a, newCSR(t, newKey(t, certs.ECDSAP256), web()), time.Hour); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "rotation.json"))
	if err != nil || !strings.Contains(string(text), `"longestLife": "1h0m0s"`) {
		t.Errorf("rotation.json: got %s, error %v", text, err)
	}
	if strings.Contains(string(text), "PRIVATE") {
		t.Error("rotation.json, which is world-readable, contains a key")
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") && e.Name() != ".lock" {
			t.Errorf("the temporary file %s was not removed", e.Name())
		}
	}
}
