// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package join

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/certs"
	"github.com/outrigger-mesh/outrigger/controlplane/config"
)

var orders = certs.ID{TrustDomain: "cluster.local", Namespace: "shop", ServiceAccount: "orders"}

func root(t testing.TB) *x509.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	c, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func token(t testing.TB) *Token {
	t.Helper()
	now := time.Unix(time.Now().Unix(), 0)
	return &Token{
		Address: "mesh.example.com:15012", Secret: secretPrefix + strings.Repeat("a", 43), ID: orders, Group: "orders", Cluster: "Kubernetes",
		Issued: now, Expires: now.Add(time.Hour), Roots: []*x509.Certificate{root(t), root(t)},
	}
}

func TestTokenText(t *testing.T) {
	t.Parallel()
	want := token(t)
	word, err := want.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if len(word) > 2500 || strings.ContainsAny(word, " '\"$\n") {
		t.Errorf("the token has %d characters and must be one word: %s", len(word), word)
	}
	got, err := Parse("  " + word + "\n")
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Roots) != 2 || !got.Roots[0].Equal(want.Roots[0]) || !got.Roots[1].Equal(want.Roots[1]) {
		t.Errorf("the roots are %v", got.Roots)
	}
	a, b := *got, *want
	a.Roots, b.Roots = nil, nil
	if a.Address != b.Address || a.Secret != b.Secret || a.ID != b.ID || a.Group != b.Group || a.Cluster != b.Cluster || !a.Issued.Equal(b.Issued) || !a.Expires.Equal(b.Expires) {
		t.Errorf("got %s, want %s", got, want)
	}
	if text := fmt.Sprintf("%v %+v %#v %s", got, got, got, got); strings.Contains(text, got.Secret) {
		t.Errorf("the secret is printed: %s", text)
	}
	for n := range len(word) {
		if cut, err := Parse(word[:n]); err == nil && len(cut.Roots) == 2 {
			t.Errorf("a token without its last %d characters is accepted", len(word)-n)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*Token)
		want   string
	}{
		"no roots":   {func(t *Token) { t.Roots = nil }, "no root certificate"},
		"no port":    {func(t *Token) { t.Address = "mesh.example.com" }, "host:port"},
		"quotes":     {func(t *Token) { t.Address = "a'b:1" }, "host:port"},
		"a line":     {func(t *Token) { t.Group = "a\nROOT='1" }, "invalid name"},
		"a cluster":  {func(t *Token) { t.Cluster = "a'" }, "invalid name"},
		"no secret":  {func(t *Token) { t.Secret = "x" }, "no secret"},
		"no account": {func(t *Token) { t.ID.ServiceAccount = "a'b" }, "damaged"},
	} {
		changed := token(t)
		c.change(changed)
		word, err := changed.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Parse(word); err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "copy the whole line") || strings.Contains(err.Error(), strings.Repeat("a", 43)) {
			t.Errorf("%s: got error %v, want one with %q and no secret", name, err, c.want)
		}
	}
	for _, word := range []string{"", "x", tokenPrefix, "outrigger2.e30.e30", tokenPrefix + "!.!", tokenPrefix + "e30.", tokenPrefix + strings.Repeat("a", MaxToken)} {
		if _, err := Parse(word); err == nil {
			t.Errorf("Parse(%.40q) succeeds", word)
		}
	}
}

// FuzzParse checks that what Parse accepts can be written to files: one line, no quotes.
func FuzzParse(f *testing.F) {
	word, err := token(f).Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(word)
	f.Add(tokenPrefix + "e30.")
	f.Fuzz(func(t *testing.T, word string) {
		got, err := Parse(word)
		if err != nil {
			return
		}
		if text := got.Address + got.Group + got.Cluster + got.ID.String() + got.Secret; strings.ContainsAny(text, "'\"\n\\ $`") {
			t.Errorf("accepted %q", text)
		}
		if len(got.Roots) == 0 {
			t.Error("accepted a token without roots")
		}
		if _, err := got.Encode(); err != nil {
			t.Errorf("cannot be encoded again: %v", err)
		}
	})
}

func newTokens(t *testing.T, dir, key string) *Tokens {
	t.Helper()
	return NewTokens(NewDir(dir), func() ([]byte, error) { return []byte(key), nil })
}

func create(t *testing.T, k *Tokens) string {
	t.Helper()
	secret, expires, err := k.Create(t.Context(), orders, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if left := time.Until(expires); left < 50*time.Minute || left > time.Hour || !IsSecret(secret) {
		t.Errorf("got the secret %q until %s", secret, expires)
	}
	return secret
}

// TestOnce redeems one token many times at once, with two control planes that share the directory.
func TestOnce(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "join")
	a, b := newTokens(t, dir, "key"), newTokens(t, dir, "key")
	secret := create(t, a)
	content, err := os.ReadFile(filepath.Join(dir, nameOf(secret)))
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(content, []byte(secret)) || strings.Contains(nameOf(secret), secret) {
		t.Error("the directory contains the secret")
	}
	var won atomic.Int64
	var all sync.WaitGroup
	for i := range maxRedeeming {
		all.Go(func() {
			k := a
			if i%2 == 1 {
				k = b
			}
			id, err := k.Redeem(t.Context(), secret)
			switch {
			case err == nil && id == orders:
				won.Add(1)
			case err == nil || !strings.Contains(err.Error(), "was used"):
				t.Errorf("got %v, %v", id, err)
			}
		})
	}
	all.Wait()
	if won.Load() != 1 {
		t.Errorf("the token was redeemed %d times", won.Load())
	}
}

func TestNotRedeemed(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "join")
	k := newTokens(t, dir, "key")
	refused := func(what, secret, want string, k *Tokens) {
		t.Helper()
		if id, err := k.Redeem(t.Context(), secret); err == nil || !strings.Contains(err.Error(), want) || errors.Is(err, ErrBusy) {
			t.Errorf("%s: got %v, %v; want an error with %q", what, id, err, want)
		}
	}
	refused("unknown", secretPrefix+strings.Repeat("a", 43), "never valid", k)
	refused("another authority", create(t, k), "another certificate authority", newTokens(t, dir, "other"))

	secret := create(t, k)
	path := filepath.Join(dir, nameOf(secret))
	past := time.Now().Add(-time.Second)
	if err := os.Chtimes(path, past, past); err != nil {
		t.Fatal(err)
	}
	refused("expired", secret, "has expired", k)

	// Who can write to the store changes an identity, prolongs a life, and adds a record.
	change := func(edit func(*record)) string {
		secret := create(t, k)
		path := filepath.Join(dir, nameOf(secret))
		var r record
		content, err := os.ReadFile(path)
		if err != nil || json.Unmarshal(content, &r) != nil {
			t.Fatal(err)
		}
		edit(&r)
		if content, err = json.Marshal(r); err != nil {
			t.Fatal(err)
		}
		if err := k.store.Deposit(t.Context(), nameOf(secret), content, time.Hour); err != nil {
			t.Fatal(err)
		}
		return secret
	}
	refused("another identity", change(func(r *record) { r.ID = "spiffe://cluster.local/ns/istio-system/sa/admin" }), "another certificate authority", k)
	refused("a longer life", change(func(r *record) { r.Expires++ }), "another certificate authority", k)
	refused("no code", change(func(r *record) { r.MAC = nil }), "another certificate authority", k)

	secret = create(t, k)
	if err := os.Chmod(filepath.Join(dir, nameOf(secret)), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := k.Redeem(t.Context(), secret); !errors.Is(err, ErrBusy) {
		t.Errorf("a file that others can read: got error %v, want ErrBusy", err)
	}
	for _, ttl := range []time.Duration{-1, 0, time.Second, 25 * time.Hour} {
		if _, _, err := k.Create(t.Context(), orders, ttl); err == nil {
			t.Errorf("a token can have the lifetime %s", ttl)
		}
	}
	if _, _, err := k.Create(t.Context(), certs.ID{TrustDomain: "cluster.local"}, time.Hour); err == nil {
		t.Error("a token can have no identity")
	}
}

// TestBounds fills a directory. Values that have expired make room.
func TestBounds(t *testing.T) {
	t.Parallel()
	d := NewDir(filepath.Join(t.TempDir(), "join"))
	if err := d.Deposit(t.Context(), "a0", []byte("x"), time.Hour); err != nil {
		t.Fatal(err)
	}
	end := time.Now().Add(time.Hour)
	for i := range config.MaxDeposits {
		path := filepath.Join(d.path, fmt.Sprint("a", i))
		if err := errors.Join(os.WriteFile(path, []byte("x"), 0o600), os.Chtimes(path, end, end)); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.Deposit(t.Context(), "b", []byte("x"), time.Hour); !errors.Is(err, config.ErrFull) {
		t.Errorf("got error %v, want ErrFull", err)
	}
	past := time.Now().Add(-time.Second)
	if err := os.Chtimes(filepath.Join(d.path, "a7"), past, past); err != nil {
		t.Fatal(err)
	}
	if err := d.Deposit(t.Context(), "b", []byte("x"), time.Hour); err != nil {
		t.Error(err)
	}
	if value, err := d.Withdraw(t.Context(), "a7"); value != nil || err != nil {
		t.Errorf("an expired value is %q, %v", value, err)
	}

	k := NewTokens(blocked{make(chan struct{})}, func() ([]byte, error) { return nil, nil })
	ctx, cancel := context.WithCancel(t.Context())
	var waiting sync.WaitGroup
	for range maxRedeeming {
		waiting.Go(func() { _, _ = k.Redeem(ctx, "x") })
	}
	for len(k.turn) < maxRedeeming {
		time.Sleep(time.Millisecond)
	}
	if _, err := k.Redeem(ctx, "x"); !errors.Is(err, ErrBusy) {
		t.Errorf("with too many requests: got error %v, want ErrBusy", err)
	}
	cancel()
	waiting.Wait()
}

// blocked is a depository that does not answer.
type blocked struct{ never chan struct{} }

func (b blocked) Deposit(context.Context, string, []byte, time.Duration) error { return nil }

func (b blocked) Withdraw(ctx context.Context, _ string) ([]byte, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}
