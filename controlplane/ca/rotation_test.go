// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package ca_test

import (
	"bytes"
	"crypto/x509"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outrigger-mesh/outrigger/certs"
	"github.com/outrigger-mesh/outrigger/controlplane/ca"
)

func textLog(b *syncBuffer) *slog.Logger { return slog.New(slog.NewTextHandler(b, nil)) }

// certsVerify verifies the first certificate of a chain with the roots.
func certsVerify(rootsPEM []byte, chain []*x509.Certificate) error {
	opts := x509.VerifyOptions{Roots: x509.NewCertPool(), Intermediates: x509.NewCertPool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	opts.Roots.AppendCertsFromPEM(rootsPEM)
	for _, c := range chain[1:] {
		opts.Intermediates.AddCert(c)
	}
	_, err := chain[0].Verify(opts)
	return err
}

// workload is an agent that renews its certificate at half of its lifetime. Like an agent without a
// trust bundle, it trusts the roots that it received with the certificate.
type workload struct {
	chain   []*x509.Certificate
	roots   []byte
	renewAt time.Time
}

func (w *workload) renew(t *testing.T, a *ca.Authority, ttl time.Duration) {
	t.Helper()
	elements, err := sign(t, a, newCSR(t, newKey(t, ""), web()), ttl)
	if err != nil {
		t.Fatal(err)
	}
	w.chain = parse(t, elements[:len(elements)-1]...)
	w.roots = elements[len(elements)-1]
	left := time.Until(w.chain[0].NotAfter)
	w.renewAt = time.Now().Add(left/2 - rand.N(left/10+1))
}

// mesh is a set of workloads that must trust each other at all times.
type mesh []*workload

func (m mesh) tick(t *testing.T, a *ca.Authority, ttl time.Duration) {
	t.Helper()
	now := time.Now()
	for _, w := range m {
		if w.chain == nil || !now.Before(w.renewAt) {
			w.renew(t, a, ttl)
		}
	}
	for i, w := range m {
		for j, peer := range m {
			if err := certsVerify(w.roots, peer.chain); err != nil {
				t.Fatalf("at %s: workload %d does not trust workload %d: %v", now, i, j, err)
			}
		}
		if err := certsVerify(a.RootPEM(), w.chain); err != nil {
			t.Fatalf("at %s: the control plane does not trust workload %d: %v", now, i, err)
		}
	}
}

func phaseMetrics(t *testing.T, reg *prometheus.Registry) string {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, f := range families {
		for _, m := range f.GetMetric() {
			switch f.GetName() {
			case "outrigger_control_ca_rotation_phase":
				if m.GetGauge().GetValue() == 1 {
					out = append(out, m.GetLabel()[0].GetValue())
				}
			case "outrigger_control_ca_rotation_steps_total":
				out = append(out, fmt.Sprintf("%s=%v", m.GetLabel()[0].GetValue(), m.GetCounter().GetValue()))
			}
		}
	}
	return strings.Join(out, " ")
}

// TestSelfSignedRotation covers the lifetimes of two roots, with workloads that receive roots only
// when they renew. All workloads must trust each other at all times, and a restart every few hours
// must not change anything.
func TestSelfSignedRotation(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, tc := range []struct {
		name string
		key  certs.KeyType
		ttl  time.Duration // of leaves
		life time.Duration // of the root
	}{
		{"ECDSA", certs.ECDSAP256, 12 * time.Hour, 400 * time.Hour},
		{"P-384, short leaves", certs.ECDSAP384, 5 * time.Hour, 200 * time.Hour},
		{"RSA, leaves near the end of the root", certs.RSA2048, 100 * time.Hour, 400 * time.Hour},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				reg := prometheus.NewRegistry()
				change := func(c *ca.Config) {
					c.Dir, c.Root.KeyType, c.Root.TTL, c.Registerer = dir+"/"+tc.name, tc.key, tc.life, reg
				}
				a := replica(t, change)
				first := a.RootPEM()
				m := mesh{{}, {}, {}}
				var phases []string
				changed := a.Changed()
				published := 0
				for range int(tc.life/time.Hour) * 17 / 10 {
					m.tick(t, a, tc.ttl)
					time.Sleep(time.Hour)
					synctest.Wait()
					select {
					case <-changed:
						changed = a.Changed()
						published++
					default:
					}
					if now := a.Phase(); len(phases) == 0 || phases[len(phases)-1] != now {
						phases = append(phases, now)
						if text := phaseMetrics(t, reg); !strings.HasPrefix(text, now+" ") {
							t.Errorf("the metrics are %q in phase %s", text, now)
						}
					}
				}
				if got := strings.Join(phases, " "); !strings.HasPrefix(got, "steady add switch steady") {
					t.Errorf("the phases were %s, want steady, add, switch, steady", got)
				}
				if published < 3 {
					t.Errorf("%d changes were published, want one for each step", published)
				}
				if bytes.Contains(a.RootPEM(), first) {
					t.Error("the first root is still trusted after it expired")
				}
			})
		})
	}
}

// TestRotationSurvivesRestarts reopens the directory every hour.
func TestRotationSurvivesRestarts(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		m := mesh{{}, {}, {}}
		seen := map[string]bool{}
		for range 360 {
			a := open(t, func(c *ca.Config) { c.Dir, c.Root.TTL = dir, 200*time.Hour })
			m.tick(t, a, 10*time.Hour)
			seen[a.Phase()] = true
			time.Sleep(time.Hour)
		}
		if !seen["add"] || !seen["switch"] || !seen["steady"] {
			t.Errorf("only the phases %v were reached", seen)
		}
	})
}

func TestRenewalCanBeDisabled(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log := &syncBuffer{}
		a := replica(t, func(c *ca.Config) {
			c.Store, c.Root, c.Logger = &memory{}, ca.RootConfig{TTL: 100 * time.Hour, Check: -1}, textLog(log)
		})
		time.Sleep(99 * time.Hour)
		if n := len(parse(t, a.RootPEM())); n != 1 {
			t.Errorf("%d roots, want only the one that is not renewed", n)
		}
		if n := strings.Count(log.String(), "expires and is not renewed"); n != 1 {
			t.Errorf("%d warnings about the expiry in the log, want 1", n)
		}
		time.Sleep(2 * time.Hour)
		if _, err := sign(t, a, newCSR(t, newKey(t, ""), web()), time.Hour); err == nil || !strings.Contains(err.Error(), "expired at") {
			t.Errorf("after the root expired: got error %v, want one with \"expired at\"", err)
		}
	})
}

// TestServerCertificateFollowsRoot checks the certificates presented in handshakes.
func TestServerCertificateFollowsRoot(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := replica(t, func(c *ca.Config) { c.Store, c.Root.TTL = &memory{}, 100*time.Hour })
		cfg, err := a.ServerCertificate([]string{"istiod.istio-system.svc"}, nil)
		if err != nil {
			t.Fatal(err)
		}
		first := parse(t, a.RootPEM())[0]
		w := &workload{}
		for range 130 {
			old := w.chain
			w.renew(t, a, 10*time.Hour)
			now, err := cfg.GetConfigForClient(nil)
			if err != nil {
				t.Fatal(err)
			}
			served, err := now.GetCertificate(nil)
			if err != nil {
				t.Fatal(err)
			}
			if err := certsVerify(w.roots, w.chain); err != nil {
				t.Fatal(err)
			}
			if served.Leaf.CheckSignatureFrom(first) != nil && w.chain[0].CheckSignatureFrom(first) == nil {
				t.Fatal("the server presents a certificate of the new root while the old one signs")
			}
			if served.Leaf.CheckSignatureFrom(first) == nil && w.chain[0].CheckSignatureFrom(first) != nil {
				t.Fatal("the server presents a certificate of the old root after the switch")
			}
			if old != nil { // a client that has not renewed yet
				if _, err := old[0].Verify(x509.VerifyOptions{Roots: now.ClientCAs, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
					t.Fatalf("a client with a certificate issued an hour ago is refused: %v", err)
				}
			}
			time.Sleep(time.Hour)
			synctest.Wait()
		}
		if w.chain[0].CheckSignatureFrom(first) == nil {
			t.Error("the root was not replaced")
		}
	})
}

func TestSetRoots(t *testing.T) {
	t.Parallel()
	a := open(t, nil)
	key := newKey(t, "")
	other := certs.EncodeChain(issuer(t, key, key, nil, nil))
	changed := a.Changed()
	if err := a.SetRoots("mesh", other); err != nil {
		t.Fatal(err)
	}
	select {
	case <-changed:
	default:
		t.Error("the new root was not published")
	}
	if !bytes.Contains(a.RootPEM(), other) {
		t.Error("the root is not distributed")
	}
	changed = a.Changed()
	if err := a.SetRoots("mesh", other); err != nil {
		t.Fatal(err)
	}
	select {
	case <-changed:
		t.Error("setting the same root again was published as a change")
	default:
	}
	for _, bad := range []string{"x", string(certs.EncodeChain(issuer(t, key, key, nil, func(c *x509.Certificate) { c.IsCA = false })))} {
		if err := a.SetRoots("mesh", []byte(bad)); err == nil || !strings.Contains(err.Error(), "roots of mesh") {
			t.Errorf("SetRoots(%q): got error %v, want one with \"roots of mesh\"", bad, err)
		}
	}
	if err := a.SetRoots("mesh", nil); err != nil || bytes.Contains(a.RootPEM(), other) {
		t.Errorf("the root was not removed: error %v", err)
	}
}
