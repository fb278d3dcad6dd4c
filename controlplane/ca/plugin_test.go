// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package ca_test

import (
	"bytes"
	"crypto"
	"crypto/x509"
	"errors"
	"fmt"
	"math/big"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outrigger-mesh/outrigger/certs"
	"github.com/outrigger-mesh/outrigger/controlplane/ca"
)

// pki is a root with an intermediate below it.
type pki struct {
	rootKey, key crypto.Signer
	root, cert   *x509.Certificate
}

func newPKI(t *testing.T, name string) pki {
	t.Helper()
	p := pki{rootKey: newKey(t, certs.ECDSAP256), key: newKey(t, certs.ECDSAP256)}
	long := func(cn string) func(*x509.Certificate) {
		return func(c *x509.Certificate) {
			c.Subject.CommonName, c.NotAfter, c.KeyUsage = cn, time.Now().Add(5000*time.Hour), x509.KeyUsageCertSign|x509.KeyUsageCRLSign
		}
	}
	p.root = issuer(t, p.rootKey, p.rootKey, nil, long("root "+name))
	p.cert = issuer(t, p.key, p.rootKey, p.root, long("intermediate "+name))
	return p
}

// below returns the same root with another intermediate.
func (p pki) below(t *testing.T, name string) pki {
	t.Helper()
	p.key = newKey(t, certs.ECDSAP384)
	p.cert = issuer(t, p.key, p.rootKey, p.root, func(c *x509.Certificate) { c.Subject.CommonName = name; c.NotAfter = p.root.NotAfter })
	return p
}

// files returns the files in the layout of Istio's cacerts.
func (p pki) files(t *testing.T) map[string][]byte {
	t.Helper()
	return map[string][]byte{
		"ca-key.pem": keyPEM(t, p.key), "ca-cert.pem": certs.EncodeChain(p.cert),
		"cert-chain.pem": certs.EncodeChain(p.cert, p.root), "root-cert.pem": certs.EncodeChain(p.root),
	}
}

// signsFor reports whether an authority currently signs with an issuer.
func signsFor(t *testing.T, a *ca.Authority, issuer *x509.Certificate) bool {
	t.Helper()
	elements, err := sign(t, a, newCSR(t, newKey(t, ""), web()), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	chain := parse(t, elements[:len(elements)-1]...)
	if err := certsVerify(elements[len(elements)-1], chain); err != nil {
		t.Fatalf("the response does not verify with its own roots: %v", err)
	}
	return chain[0].CheckSignatureFrom(issuer) == nil
}

func TestPluggedLayouts(t *testing.T) {
	t.Parallel()
	p := newPKI(t, "a")
	deep := p.below(t, "between")
	low := pki{key: newKey(t, certs.RSA2048), root: p.root}
	low.cert = issuer(t, low.key, deep.key, deep.cert, func(c *x509.Certificate) { c.Subject.CommonName = "low" })
	withChain := low.files(t)
	withChain["cert-chain.pem"] = certs.EncodeChain(deep.cert)
	for name, tc := range map[string]struct {
		files map[string][]byte
		want  []*x509.Certificate // the certificates after the leaf
	}{
		"cacerts":           {p.files(t), []*x509.Certificate{p.cert, p.root}},
		"two intermediates": {withChain, []*x509.Certificate{low.cert, deep.cert, p.root}},
		"TLS Secret": {map[string][]byte{
			"tls.key": keyPEM(t, p.key), "tls.crt": certs.EncodeChain(p.cert), "ca.crt": certs.EncodeChain(p.root),
		}, []*x509.Certificate{p.cert, p.root}},
		"TLS Secret with a chain": {map[string][]byte{
			"tls.key": keyPEM(t, low.key), "tls.crt": certs.EncodeChain(low.cert, deep.cert), "ca.crt": certs.EncodeChain(p.root),
		}, []*x509.Certificate{low.cert, deep.cert, p.root}},
		"root": {map[string][]byte{"ca-key.pem": keyPEM(t, p.rootKey), "ca-cert.pem": certs.EncodeChain(p.root)}, []*x509.Certificate{p.root}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			write(t, dir, tc.files)
			a := open(t, func(c *ca.Config) { c.PluginDir = dir })
			elements, err := sign(t, a, newCSR(t, newKey(t, ""), web()), 10*time.Hour)
			if err != nil {
				t.Fatal(err)
			}
			chain := parse(t, elements...)
			if len(chain) != len(tc.want)+1 {
				t.Fatalf("the response has %d certificates, want %d", len(chain), len(tc.want)+1)
			}
			for i, want := range tc.want {
				if !chain[i+1].Equal(want) {
					t.Errorf("certificate %d is %s, want %s", i+1, chain[i+1].Subject, want.Subject)
				}
				if chain[0].NotAfter.After(want.NotAfter) {
					t.Errorf("the leaf outlives %s", want.Subject)
				}
			}
			trusts(t, a.RootPEM(), elements...)
		})
	}
}

func TestPluggedRefusedAtStart(t *testing.T) {
	t.Parallel()
	p, other := newPKI(t, "a"), newPKI(t, "b")
	with := func(name string, data []byte) map[string][]byte {
		f := p.files(t)
		f[name] = data
		return f
	}
	foreign, err := url.Parse("spiffe://other.test/")
	if err != nil {
		t.Fatal(err)
	}
	constrained := pki{key: newKey(t, ""), root: p.root}
	constrained.cert = issuer(t, constrained.key, p.rootKey, p.root, func(c *x509.Certificate) {
		c.Subject.CommonName, c.PermittedURIDomains = "constrained", []string{foreign.Host}
	})
	onlyServers := pki{key: newKey(t, ""), root: p.root}
	onlyServers.cert = issuer(t, onlyServers.key, p.rootKey, p.root, func(c *x509.Certificate) {
		c.Subject.CommonName, c.ExtKeyUsage = "servers", []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	})
	later := pki{key: newKey(t, ""), root: p.root}
	later.cert = issuer(t, later.key, p.rootKey, p.root, func(c *x509.Certificate) {
		c.NotBefore, c.NotAfter = time.Now().Add(24*time.Hour), time.Now().Add(48*time.Hour)
	})
	for name, tc := range map[string]struct {
		files   map[string][]byte
		wantErr string
	}{
		"another's root":             {with("root-cert.pem", certs.EncodeChain(other.root)), "not signed by a root of root-cert.pem"},
		"half a chain":               {with("cert-chain.pem", certs.EncodeChain(p.cert)[:80]), "cert-chain.pem cannot be read"},
		"another's key":              {with("ca-key.pem", keyPEM(t, other.key)), "does not belong to"},
		"name constraints":           {constrained.files(t), "do not verify"},
		"only for servers":           {onlyServers.files(t), "do not verify"},
		"not yet valid":              {later.files(t), "set the clock"},
		"a key of a TLS Secret only": {map[string][]byte{"tls.key": keyPEM(t, p.key)}, "tls.crt is missing"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			write(t, dir, tc.files)
			_, err := ca.Open(t.Context(), ca.Config{Dir: t.TempDir(), PluginDir: dir, TrustDomain: "cluster.local", Logger: quiet()})
			if err == nil || !strings.Contains(err.Error(), tc.wantErr) || !strings.Contains(err.Error(), dir) {
				t.Fatalf("got error %v, want one with %q and %s", err, tc.wantErr, dir)
			}
			if strings.Contains(err.Error(), "PRIVATE KEY") {
				t.Errorf("the error quotes the key: %v", err)
			}
		})
	}
}

// TestPluggedReplaced replaces a self-signed authority with a plugged-in one, then replaces its
// intermediate and its root. The workloads receive roots only when they renew.
func TestPluggedReplaced(t *testing.T) {
	t.Parallel()
	plugged, state := t.TempDir(), t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		a := replica(t, func(c *ca.Config) { c.PluginDir, c.Dir = plugged, state })
		m := mesh{{}, {}, {}}
		hours := func(n int) {
			for range n {
				m.tick(t, a, 10*time.Hour)
				time.Sleep(time.Hour)
				synctest.Wait()
			}
		}
		hours(3)
		selfSigned := parse(t, a.RootPEM())[0]
		one, two := newPKI(t, "one"), newPKI(t, "two")
		oneAgain := one.below(t, "again")

		write(t, plugged, one.files(t))
		hours(5)
		if !signsFor(t, a, selfSigned) || a.Phase() != "add" || !bytes.Contains(a.RootPEM(), certs.EncodeChain(one.root)) {
			t.Errorf("after 5 hours the phase is %s; want the self-signed root to sign and the new one to be distributed", a.Phase())
		}
		hours(7)
		if !signsFor(t, a, one.cert) || a.Phase() != "switch" || !bytes.Contains(a.RootPEM(), certs.EncodeChain(selfSigned)) {
			t.Errorf("after 12 hours the phase is %s; want the new root to sign and the old one to be trusted", a.Phase())
		}
		hours(12)
		if a.Phase() != "steady" || !bytes.Equal(a.RootPEM(), certs.EncodeChain(one.root)) {
			t.Errorf("after 24 hours the phase is %s; want steady, without the old root", a.Phase())
		}

		write(t, plugged, oneAgain.files(t))
		hours(1)
		if !signsFor(t, a, oneAgain.cert) || a.Phase() != "steady" {
			t.Errorf("the phase is %s; want an intermediate of the same root to sign immediately", a.Phase())
		}

		write(t, plugged, two.files(t))
		hours(2)
		write(t, plugged, oneAgain.files(t))
		hours(1)
		if !signsFor(t, a, oneAgain.cert) || a.Phase() != "steady" || len(parse(t, a.RootPEM())) != 1 {
			t.Errorf("the phase is %s; want a reverted change to have no effect", a.Phase())
		}

		write(t, plugged, two.files(t))
		hours(12)
		if !signsFor(t, a, two.cert) || a.Phase() != "switch" {
			t.Errorf("the phase is %s; want the second root to sign in phase switch", a.Phase())
		}
		hours(12)
		if !bytes.Equal(a.RootPEM(), certs.EncodeChain(two.root)) {
			t.Error("the first root is still distributed")
		}
	})
}

// TestPluggedRestart restarts during a replacement, when the old key no longer exists. The old root
// must still be trusted.
func TestPluggedRestart(t *testing.T) {
	t.Parallel()
	plugged, state := t.TempDir(), t.TempDir()
	one, two := newPKI(t, "one"), newPKI(t, "two")
	change := func(c *ca.Config) { c.PluginDir, c.Dir = plugged, state }
	write(t, plugged, one.files(t))
	first, err := sign(t, open(t, change), newCSR(t, newKey(t, ""), web()), 10*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	write(t, plugged, two.files(t))
	for range 2 {
		a := open(t, change)
		trusts(t, a.RootPEM(), first...)
		if !signsFor(t, a, two.cert) || a.Phase() != "switch" {
			t.Errorf("the phase is %s; want the only available key to sign in phase switch", a.Phase())
		}
	}
	for name := range two.files(t) {
		if err := os.Remove(filepath.Join(plugged, name)); err != nil {
			t.Fatal(err)
		}
	}
	cfg := ca.Config{TrustDomain: "cluster.local", Logger: quiet()}
	change(&cfg)
	if _, err := ca.Open(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), "was plugged in, and is missing") {
		t.Errorf("a start without the plugged-in files: got error %v", err)
	}
	if err := os.Remove(filepath.Join(state, "rotation.json")); err != nil {
		t.Fatal(err)
	}
	open(t, change) // as the error message recommends
}

// TestPluggedRootAddedFirst checks the manual replacement of a root: add it to root-cert.pem,
// wait, replace the key.
func TestPluggedRootAddedFirst(t *testing.T) {
	t.Parallel()
	plugged := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		one, two := newPKI(t, "one"), newPKI(t, "two")
		files := one.files(t)
		write(t, plugged, files)
		a := replica(t, func(c *ca.Config) { c.PluginDir, c.Propagation = plugged, 6*time.Hour })
		signsFor(t, a, one.cert)
		files["root-cert.pem"] = certs.EncodeChain(one.root, two.root)
		write(t, plugged, files)
		time.Sleep(4 * time.Hour)
		both := two.files(t)
		both["root-cert.pem"] = files["root-cert.pem"]
		write(t, plugged, both)
		time.Sleep(time.Hour)
		if !signsFor(t, a, one.cert) {
			t.Error("the new root signs before the propagation time has passed")
		}
		time.Sleep(2 * time.Hour)
		if !signsFor(t, a, two.cert) {
			t.Error("the new root does not sign after the propagation time")
		}
	})
}

// TestPluggedRootRemoved replaces a root manually and removes the old one from root-cert.pem, once
// too early and once in time. The root is removed immediately, and the log states the consequences.
func TestPluggedRootRemoved(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		wait time.Duration
		warn int
	}{"too early": {time.Hour, 1}, "in time": {11 * time.Hour, 0}} {
		plugged := t.TempDir()
		synctest.Test(t, func(t *testing.T) {
			one, two, log := newPKI(t, "one"), newPKI(t, "two"), &syncBuffer{}
			both := certs.EncodeChain(one.root, two.root)
			files := one.files(t)
			files["root-cert.pem"] = both
			write(t, plugged, files)
			a := replica(t, func(c *ca.Config) { c.PluginDir, c.Propagation, c.Logger = plugged, time.Hour, textLog(log) })
			time.Sleep(48 * time.Hour) // leaves from before the first record have expired
			if _, err := sign(t, a, newCSR(t, newKey(t, ""), web()), 10*time.Hour); err != nil {
				t.Fatal(err)
			}
			files = two.files(t)
			files["root-cert.pem"] = both
			write(t, plugged, files)
			time.Sleep(tc.wait)
			if !signsFor(t, a, two.cert) {
				t.Errorf("%s: the new root does not sign", name)
			}
			write(t, plugged, two.files(t))
			time.Sleep(time.Hour)
			if n := len(parse(t, a.RootPEM())); n != 1 {
				t.Errorf("%s: %d roots are distributed, want 1", name, n)
			}
			if n := strings.Count(log.String(), "removed from the files"); n != tc.warn {
				t.Errorf("%s: %d warnings, want %d:\n%s", name, n, tc.warn, log.String())
			}
		})
	}
}

func TestPluggedInvalidReplacement(t *testing.T) {
	t.Parallel()
	plugged := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		log, reg := &syncBuffer{}, prometheus.NewRegistry()
		one, two := newPKI(t, "one"), newPKI(t, "two")
		write(t, plugged, one.files(t))
		fault := map[string]string{}
		a := replica(t, func(c *ca.Config) {
			c.PluginDir, c.Logger, c.Registerer, c.Fault = plugged, textLog(log), reg, func(what, err string) { fault[what] = err }
		})
		what := "the plugged-in certificate authority in " + plugged + " is rejected; the last valid one stays in force"
		bad := two.files(t)
		bad["ca-key.pem"] = keyPEM(t, one.rootKey)
		for i, files := range []map[string][]byte{bad, {"root-cert.pem": []byte("x")}, {"ca-key.pem": nil}} {
			write(t, plugged, one.files(t))
			write(t, plugged, files)
			time.Sleep(3 * time.Hour)
			if !signsFor(t, a, one.cert) {
				t.Errorf("invalid files %d: the last valid authority does not sign", i)
			}
			if n := strings.Count(log.String(), "is rejected"); n != i+1 {
				t.Errorf("invalid files %d: %d rejections in the log, want one for each: %s", i, n, log.String())
			}
			if gauge(t, reg, "outrigger_control_ca_plugged_rejected") != 1 {
				t.Errorf("invalid files %d: the metric is not 1", i)
			}
			if fault[what] == "" {
				t.Errorf("invalid files %d: the faults are %q", i, fault)
			}
		}
		write(t, plugged, one.files(t))
		time.Sleep(time.Hour)
		if fault[what] != "" {
			t.Errorf("valid files: the faults are %q", fault)
		}
		if gauge(t, reg, "outrigger_control_ca_plugged_rejected") != 0 || !strings.Contains(log.String(), "is valid again") {
			t.Error("the metric or the log does not report that the files are valid again")
		}
		if strings.Contains(log.String(), "PRIVATE") {
			t.Error("the log contains a key")
		}
	})
}

func gauge(t *testing.T, reg *prometheus.Registry, name string) float64 {
	t.Helper()
	a := &authority{registry: reg}
	return a.metric(t, name)
}

// TestPluggedSecretIsWatched replaces the files like the kubelet: it switches a symbolic link from
// one directory to another.
func TestPluggedSecretIsWatched(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	authorities := newPKI(t, "one")
	turn := func(n int, p pki) {
		t.Helper()
		data := fmt.Sprintf("..%d", n)
		if err := os.Mkdir(filepath.Join(dir, data), 0o755); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, data), p.files(t))
		link := filepath.Join(dir, "..data_tmp")
		if err := errors.Join(os.Symlink(data, link), os.Rename(link, filepath.Join(dir, "..data"))); err != nil {
			t.Fatal(err)
		}
	}
	turn(0, authorities)
	for name := range authorities.files(t) {
		if err := os.Symlink(filepath.Join("..data", name), filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	a := open(t, func(c *ca.Config) { c.PluginDir, c.Poll = dir, time.Hour })
	run(t, a)
	for n := range 5 {
		next := authorities.below(t, fmt.Sprint(n))
		changed := a.Changed()
		turn(n+1, next)
		select {
		case <-changed:
		case <-time.After(2 * time.Minute):
			t.Fatalf("replacement %d was not detected", n)
		}
		if !signsFor(t, a, next.cert) {
			t.Errorf("the intermediate of replacement %d does not sign", n)
		}
	}
	changed := a.Changed()
	second := newPKI(t, "two")
	turn(99, second)
	select {
	case <-changed:
	case <-time.After(2 * time.Minute):
		t.Fatal("the new root was not detected")
	}
	if !bytes.Contains(a.RootPEM(), certs.EncodeChain(second.root)) {
		t.Error("the new root is not distributed")
	}
}

// crl returns a revocation list.
func (p pki) crl(t *testing.T, revoked ...*big.Int) []byte {
	t.Helper()
	return newCRL(t, p.cert, p.key, revoked...)
}
