// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package caclient_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	securityv1alpha1 "istio.io/api/security/v1alpha1"

	"github.com/outrigger-mesh/outrigger/sds/caclient"
)

type request = securityv1alpha1.IstioCertificateRequest

// TestRecovery restarts the authority with another certificate and replaces the file with the
// roots. The same client works again within seconds.
func TestRecovery(t *testing.T) {
	t.Parallel()
	firstCert, firstPool := selfSigned(t)
	secondCert, secondPool := selfSigned(t)
	var pool atomic.Pointer[x509.CertPool]
	pool.Store(firstPool)
	address, stop := listen(t, "127.77.44.2:0", &service{answer: two}, firstCert)
	c := newClient(t, caclient.Config{Address: address, ServerName: serverName, TLS: func() (*tls.Config, error) {
		return &tls.Config{RootCAs: pool.Load(), MinVersion: tls.VersionTLS12}, nil
	}})
	sign := func() error {
		_, err := c.Sign(t.Context(), []byte("request"), time.Hour)
		return err
	}
	if err := sign(); err != nil {
		t.Fatal(err)
	}
	stop()
	if err := sign(); status.Code(err) != codes.Unavailable {
		t.Fatalf("without an authority: got error %v, want Unavailable", err)
	}
	listen(t, address, &service{answer: two}, secondCert)
	wait := func(what string, ok func(error) bool) {
		t.Helper()
		end := time.Now().Add(2 * time.Minute)
		err := sign()
		for ; !ok(err); err = sign() {
			if time.Now().After(end) {
				t.Fatalf("condition not met in time: %s; the last error is %v", what, err)
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
	wait("the old roots are refused", func(err error) bool { return err != nil && strings.Contains(err.Error(), "unknown authority") })
	pool.Store(secondPool)
	wait("the new roots are used", func(err error) bool { return err == nil })
}

// TestRefusedCertificate uses an authority that does not know the issuer of the client
// certificate and closes the connection, but accepts the token alone. The next renewal presents the
// certificate again.
func TestRefusedCertificate(t *testing.T) {
	t.Parallel()
	cert, pool := selfSigned(t)
	mine, minePool := selfSigned(t)
	var shown atomic.Int32
	for name, tc := range map[string]struct {
		clientCAs *x509.CertPool
		token     string
		want      []bool // whether consecutive calls succeed
		shown     int32
	}{
		"with a token":    {pool, "a.b.c", []bool{false, true, false, true}, 2},
		"without a token": {pool, "", []bool{false, false, false}, 3},
		"a known issuer":  {minePool, "a.b.c", []bool{true, true, true}, 3},
	} {
		shown.Store(0)
		address, stop := serveTLS(t, "127.77.44.2:0", &service{answer: two}, &tls.Config{
			Certificates: []tls.Certificate{cert}, ClientCAs: tc.clientCAs, ClientAuth: tls.VerifyClientCertIfGiven,
		})
		c := newClient(t, caclient.Config{
			Address: address, ServerName: serverName, Token: func() (string, error) { return tc.token, nil },
			TLS: func() (*tls.Config, error) {
				return &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12, GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
					shown.Add(1)
					return &mine, nil
				}}, nil
			},
		})
		for n, want := range tc.want {
			if _, err := c.Sign(t.Context(), []byte("request"), time.Hour); (err == nil) != want {
				t.Errorf("%s: call %d: got error %v, want success: %v", name, n+1, err, want)
			}
		}
		if n := shown.Load(); n != tc.shown {
			t.Errorf("%s: the certificate was presented %d times, want %d", name, n, tc.shown)
		}
		stop()
	}
}

// TestTokenIsReadForEachCall checks that the token is read for each call.
func TestTokenIsReadForEachCall(t *testing.T) {
	t.Parallel()
	cert, pool := selfSigned(t)
	address, _ := listen(t, "127.77.44.2:0", &service{answer: func(r *request, md metadata.MD) ([]string, error) {
		if a := md.Get("authorization"); len(a) != 1 || a[0] != "Bearer new" {
			return nil, status.Error(codes.Unauthenticated, "the token has expired")
		}
		return two(r, md)
	}}, cert)
	var token atomic.Value
	token.Store("old")
	c := newClient(t, caclient.Config{
		Address: address, ServerName: serverName, TLS: trust(pool), Token: func() (string, error) { return token.Load().(string), nil },
	})
	if _, err := c.Sign(t.Context(), []byte("request"), time.Hour); status.Code(err) != codes.Unauthenticated {
		t.Errorf("got error %v, want Unauthenticated", err)
	}
	token.Store("new")
	if _, err := c.Sign(t.Context(), []byte("request"), time.Hour); err != nil {
		t.Error(err)
	}
}

// TestBusyAuthority checks that the error contains the requested retry delay.
func TestBusyAuthority(t *testing.T) {
	t.Parallel()
	cert, pool := selfSigned(t)
	s, err := status.New(codes.ResourceExhausted, "too many requests").WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(90 * time.Second)})
	if err != nil {
		t.Fatal(err)
	}
	address, _ := listen(t, "127.77.44.2:0", &service{answer: func(*request, metadata.MD) ([]string, error) { return nil, s.Err() }}, cert)
	c := newClient(t, caclient.Config{Address: address, ServerName: serverName, TLS: trust(pool), Token: func() (string, error) { return "requests", nil }})
	_, err = c.Sign(t.Context(), []byte("request"), time.Hour)
	var busy interface{ RetryAfter() time.Duration }
	if !errors.As(fmt.Errorf("wrapped: %w", err), &busy) || busy.RetryAfter() != 90*time.Second {
		t.Errorf("the error %v does not contain a retry delay of 90 s", err)
	}
	if status.Code(err) != codes.ResourceExhausted || strings.Contains(err.Error(), "requests") {
		t.Errorf("got error %v, want ResourceExhausted without the token", err)
	}
}

func TestHeaders(t *testing.T) {
	t.Parallel()
	cert, pool := selfSigned(t)
	var got metadata.MD
	address, _ := listen(t, "127.77.44.2:0", &service{answer: func(r *request, md metadata.MD) ([]string, error) {
		got = md
		if _, ok := r.GetMetadata().GetFields()["CertSigner"]; !ok {
			t.Error("the request does not contain CertSigner")
		}
		return two(r, md)
	}}, cert)
	c := newClient(t, caclient.Config{
		Address: address, ServerName: serverName, TLS: trust(pool), Headers: map[string]string{"X-Team": "a b", "project": "7"},
	})
	if _, err := c.Sign(t.Context(), []byte("request"), time.Hour); err != nil {
		t.Fatal(err)
	}
	if team, project := got.Get("x-team"), got.Get("project"); len(team) != 1 || team[0] != "a b" || len(project) != 1 || project[0] != "7" {
		t.Errorf("got x-team %q, project %q", team, project)
	}
	if len(got.Get("authorization"))+len(got.Get("clusterid")) != 0 {
		t.Errorf("the metadata contains headers that were not configured: %v", got)
	}
	for name, value := range map[string]string{
		"": "x", "Authorization": "x", "clusterID": "x", "grpc-timeout": "x", "key-bin": "x", "a b": "x", ":path": "x", "ok": "a\nb",
	} {
		if _, err := caclient.New(caclient.Config{Address: address, Headers: map[string]string{name: value}}); err == nil || !strings.Contains(err.Error(), "CA_HEADER_") {
			t.Errorf("header %q with value %q: got error %v", name, value, err)
		}
	}
}

// TestClockSkew checks that an authority whose clock is two hours ahead is logged once and
// exported, and that the end of the difference is logged.
func TestClockSkew(t *testing.T) {
	t.Parallel()
	cert, pool := selfSigned(t)
	var off atomic.Int64
	off.Store(int64(2 * time.Hour))
	address, _ := listen(t, "127.77.44.2:0", &service{answer: func(*request, metadata.MD) ([]string, error) {
		now := time.Now().Add(time.Duration(off.Load()))
		return []string{leafPEM(t, now.Add(-2*time.Minute), now.Add(time.Hour)), "root"}, nil
	}}, cert)
	reg, log := prometheus.NewRegistry(), &lines{}
	c := newClient(t, caclient.Config{Address: address, ServerName: serverName, TLS: trust(pool), Registerer: reg, Logger: slog.New(slog.NewTextHandler(log, nil))})
	skew := func() float64 {
		t.Helper()
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			if f.GetName() == "outrigger_agent_ca_clock_skew_seconds" {
				return f.GetMetric()[0].GetGauge().GetValue()
			}
		}
		return 1e9
	}
	if skew() != 1e9 {
		t.Error("the metric has a value before a skew is known")
	}
	for _, want := range []float64{-7200, -7200, 0, 0} {
		off.Store(int64(-want * float64(time.Second)))
		if _, err := c.Sign(context.WithoutCancel(t.Context()), []byte("request"), time.Hour); err != nil {
			t.Fatal(err)
		}
		if got := skew(); got < want-2 || got > want+2 {
			t.Errorf("skew: got %v, want %v", got, want)
		}
	}
	if s := log.String(); strings.Count(s, "the clock of this machine is behind") != 1 || strings.Count(s, "agree again") != 1 {
		t.Errorf("log: got %q", s)
	}
}

// lines is an in-memory log.
type lines struct {
	mu sync.Mutex // guards b
	b  strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
