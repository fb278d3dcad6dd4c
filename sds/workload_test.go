// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package sds_test

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outrigger-mesh/outrigger/certs"
	"github.com/outrigger-mesh/outrigger/sds"
)

func TestRenewalTime(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		ttl      time.Duration
		ratio    float64
		min, max time.Duration // when the second certificate is requested
	}{
		"half of the lifetime": {24 * time.Hour, 0, 10*time.Hour + 47*time.Minute, 13*time.Hour + 13*time.Minute},
		"a fifth is left":      {10 * time.Hour, 0.2, 7*time.Hour + 47*time.Minute, 8*time.Hour + 13*time.Minute},
		"almost immediately":   {10 * time.Second, 0.999, time.Second, 2 * time.Second},
		"lifetime of seconds":  {4 * time.Second, 0.5, 1500 * time.Millisecond, 2300 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				a := newAuthority(t)
				w := newWorkload(t, a, func(c *sds.WorkloadConfig) { c.TTL, c.GraceRatio = tc.ttl, tc.ratio })
				start := time.Now()
				run(t, w)
				synctest.Wait()
				if w.Certificate() == nil {
					t.Fatal("there is no certificate at the start")
				}
				time.Sleep(tc.min - time.Millisecond)
				synctest.Wait()
				if n := len(a.times()); n != 1 {
					t.Fatalf("%d certificates were requested before %s, want 1", n, tc.min)
				}
				time.Sleep(time.Until(start.Add(tc.max)))
				synctest.Wait()
				if n := len(a.times()); n < 2 {
					t.Fatalf("%d certificates were requested within %s, want at least 2", n, tc.max)
				}
			})
		})
	}
}

func TestRenewalsAreSpread(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := newAuthority(t)
		const n = 20
		for range n {
			run(t, newWorkload(t, a, nil))
		}
		synctest.Wait()
		time.Sleep(14 * time.Hour)
		synctest.Wait()
		again := a.times()[n:]
		if len(again) != n {
			t.Fatalf("%d of %d workloads renewed", len(again), n)
		}
		if spread := again[n-1].Sub(again[0]); spread < 30*time.Minute {
			t.Errorf("all workloads renewed within %s, want them spread over at least 30 min", spread)
		}
	})
}

func TestCertificateStaysWhileAuthorityIsDown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a, log, reg := newAuthority(t), &syncBuffer{}, prometheus.NewRegistry()
		w := newWorkload(t, a, func(c *sds.WorkloadConfig) {
			c.Logger, c.Registerer = slog.New(slog.NewTextHandler(log, nil)), reg
		})
		run(t, w)
		synctest.Wait()
		first, changed := w.Current(), w.Changed()
		a.set(errors.New("connection refused"), 0)
		time.Sleep(23 * time.Hour)
		synctest.Wait()
		if w.Current() != first || w.Certificate() == nil {
			t.Fatal("the old certificate was dropped although it is valid")
		}
		if isClosed(changed) {
			t.Error("a change was reported although there was none")
		}
		checkBackoff(t, a.times()[1:])
		if n := metric(t, reg, "outrigger_agent_cert_renewal_failures_total", ""); n < 100 {
			t.Errorf("%v failed renewals were counted, want at least 100", n)
		}
		if s := metric(t, reg, "istio_agent_cert_expiry_seconds", sds.NameDefault); s != 3600 {
			t.Errorf("istio_agent_cert_expiry_seconds = %v, want 3600", s)
		}
		if n := strings.Count(log.String(), "the old one stays in force"); n < 1 || n > 100 {
			t.Errorf("%d lines about the failures in the log, want 1 to 100", n)
		}
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		if w.Certificate() != nil {
			t.Error("an expired certificate is used for connections")
		}
		if !strings.Contains(log.String(), "has expired") {
			t.Error("the log does not contain that the certificate has expired")
		}
		a.set(nil, 0)
		time.Sleep(46 * time.Second) // the longest wait between two attempts
		synctest.Wait()
		if w.Current() == first || w.Certificate() == nil || !isClosed(changed) {
			t.Error("there is no new certificate although the authority works again")
		}
		if string(w.Current().KeyPEM) == string(first.KeyPEM) {
			t.Error("the new certificate is for the old key")
		}
	})
}

func isClosed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// checkBackoff checks the delays between attempts: short at first, and at most 30 s plus jitter.
func checkBackoff(t *testing.T, times []time.Time) {
	t.Helper()
	if first := times[1].Sub(times[0]); first < 50*time.Millisecond || first > 150*time.Millisecond {
		t.Errorf("the first retry came after %s, want about 100ms", first)
	}
	for i := range times[1:] {
		if d := times[i+1].Sub(times[i]); d > 45*time.Second || i > 20 && d < 15*time.Second {
			t.Fatalf("retry %d came after %s", i, d)
		}
	}
}

// busy is the error of an authority that requests a retry delay.
type busy time.Duration

func (busy) Error() string               { return "busy" }
func (b busy) RetryAfter() time.Duration { return time.Duration(b) }

// TestBusyAuthorityDelaysRetries checks that workloads retry after the requested delay, not all
// at once, and after ten minutes plus jitter at the latest.
func TestBusyAuthorityDelaysRetries(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ said, min, max time.Duration }{
		{2 * time.Minute, 2 * time.Minute, 2*time.Minute + 24*time.Second},
		{24 * time.Hour, 10 * time.Minute, 12 * time.Minute},
		{time.Nanosecond, 50 * time.Millisecond, 150 * time.Millisecond},
	} {
		synctest.Test(t, func(t *testing.T) {
			a := newAuthority(t)
			a.set(fmt.Errorf("asking: %w", busy(tc.said)), 0)
			const n = 20
			for range n {
				run(t, newWorkload(t, a, nil))
			}
			synctest.Wait()
			start := time.Now()
			a.set(nil, 0)
			time.Sleep(tc.max + time.Second)
			synctest.Wait()
			again := a.times()[n:]
			if len(again) != n {
				t.Fatalf("%d of %d workloads retried", len(again), n)
			}
			if first, last := again[0].Sub(start), again[n-1].Sub(start); first < tc.min || last > tc.max || first == last {
				t.Errorf("with a requested delay of %s, the retries came after %s to %s", tc.said, first, last)
			}
		})
	}
}

// TestCertificateNotYetValid checks that a certificate that is not yet valid does not
// replace a valid one, unless the valid one expires soon.
func TestCertificateNotYetValid(t *testing.T) {
	t.Parallel()
	for ahead, want := range map[time.Duration]time.Duration{time.Hour: time.Hour, 20 * time.Hour: 6 * time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			a := newAuthority(t)
			w := newWorkload(t, a, nil)
			run(t, w)
			synctest.Wait()
			first := w.Current()
			a.shift(ahead)
			<-w.Changed()
			waited := time.Since(a.times()[1])
			if w.Current() == first || waited < want-75*time.Minute/2 || waited > want+75*time.Minute/2 {
				t.Errorf("with a start %s ahead the new certificate was in force after %s, want about %s", ahead, waited, want)
			}
		})
	}
}

// TestClockBehindDoesNotDelayRenewal uses a clock that is 30 hours behind, so that a certificate
// valid for 24 hours seems to be valid for 54.
func TestClockBehindDoesNotDelayRenewal(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := newAuthority(t)
		w := newWorkload(t, a, func(c *sds.WorkloadConfig) {
			c.Sign = func(ctx context.Context, csrPEM []byte, ttl time.Duration) ([][]byte, error) {
				if _, err := a.Sign(ctx, csrPEM, ttl); err != nil {
					return nil, err
				}
				csr, err := certs.ParseCSR(csrPEM)
				if err != nil {
					return nil, err
				}
				leaf := a.leaf(csr.PublicKey, func(c *x509.Certificate) {
					c.URIs, c.NotBefore, c.NotAfter = csr.URIs, time.Now().Add(30*time.Hour), time.Now().Add(54*time.Hour)
				})
				return [][]byte{certs.EncodeChain(leaf), certs.EncodeChain(a.root)}, nil
			}
		})
		run(t, w)
		time.Sleep(14 * time.Hour)
		synctest.Wait()
		if n := len(a.times()); n != 2 {
			t.Errorf("%d certificates were requested within 14 hours, want 2", n)
		}
	})
}

// TestRequestedRenewal checks that a certificate that a peer rejects is renewed at once, and that
// repeated rejections are followed by renewals at increasing intervals.
func TestRequestedRenewal(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := newAuthority(t)
		w := newWorkload(t, a, nil)
		run(t, w)
		time.Sleep(time.Hour)
		w.Renew()
		synctest.Wait()
		if n := len(a.times()); n != 2 {
			t.Fatalf("an hour after the start, the authority had been called %d times, want twice", n)
		}
		for range 40 { // Envoy keeps rejecting the certificate
			time.Sleep(time.Minute)
			w.Renew()
		}
		synctest.Wait()
		times := a.times()
		if n := len(times); n < 4 || n > 9 {
			t.Errorf("the authority was called %d times within 40 minutes, want 4 to 9", n)
		}
		if pause := times[len(times)-1].Sub(times[len(times)-2]); pause < 5*time.Minute {
			t.Errorf("the last pause is %s, want at least 5 min", pause)
		}
		time.Sleep(18 * time.Hour) // one scheduled renewal
		asked := len(a.times())
		time.Sleep(time.Hour)
		w.Renew()
		synctest.Wait()
		if n := len(a.times()); n != asked+1 {
			t.Errorf("half a day later, a rejection caused %d calls of the authority, want one", n-asked)
		}
	})
}

func TestFirstErrorIsLoggedAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a, log := newAuthority(t), &syncBuffer{}
		a.set(errors.New("no such host istiod"), 0)
		w := newWorkload(t, a, func(c *sds.WorkloadConfig) { c.Logger = slog.New(slog.NewTextHandler(log, nil)) })
		run(t, w)
		synctest.Wait()
		if s := log.String(); !strings.Contains(s, "level=ERROR") || !strings.Contains(s, "no such host istiod") {
			t.Errorf("log: got %q", s)
		}
		a.set(nil, 0)
		time.Sleep(time.Second)
		synctest.Wait()
		if w.Certificate() == nil {
			t.Error("there is no certificate a second after the authority started to work")
		}
		if s := log.String(); strings.Contains(s, "PRIVATE KEY") || strings.Contains(s, "BEGIN") {
			t.Errorf("the log contains keys: %q", s)
		}
	})
}

func TestRunEndsWithContext(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	w := newWorkload(t, a, func(c *sds.WorkloadConfig) {
		c.Sign = func(ctx context.Context, _ []byte, _ time.Duration) ([][]byte, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	cancel()
	if err := <-done; err != nil {
		t.Errorf("got error %v, want none after a cancel", err)
	}
}

func TestNewWorkloadRefuses(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	for name, tc := range map[string]struct {
		change  func(*sds.WorkloadConfig)
		wantErr string
	}{
		"no service account": {func(c *sds.WorkloadConfig) { c.ID.ServiceAccount = "" }, "service account is empty; see TRUST_DOMAIN, POD_NAMESPACE and SERVICE_ACCOUNT"},
		"key type":           {func(c *sds.WorkloadConfig) { c.KeyType = certs.KeyType("RSA1024") }, "RSA1024"},
		"no authority":       {func(c *sds.WorkloadConfig) { c.Sign = nil }, "no certificate authority"},
		"life":               {func(c *sds.WorkloadConfig) { c.TTL = time.Millisecond }, "SECRET_TTL"},
		"ratio":              {func(c *sds.WorkloadConfig) { c.GraceRatio = 1 }, "SECRET_GRACE_PERIOD_RATIO"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := sds.WorkloadConfig{ID: web(), Sign: a.Sign}
			tc.change(&cfg)
			if _, err := sds.NewWorkload(cfg); err == nil || !strings.Contains(err.Error(), tc.wantErr) {
				t.Fatalf("got error %v, want one with %q", err, tc.wantErr)
			}
		})
	}
}

// metric returns the value of a metric. If resource is not empty, it selects the metric with that
// label value.
func metric(t *testing.T, reg *prometheus.Registry, name, resource string) float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name && (resource == "" || m.GetLabel()[0].GetValue() == resource) {
				return m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	t.Fatalf("the metric %s %s does not exist", name, resource)
	return 0
}
