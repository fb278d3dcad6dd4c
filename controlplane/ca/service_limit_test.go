// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package ca_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4/jwt"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"
	securityv1alpha1 "istio.io/api/security/v1alpha1"

	"github.com/outrigger-mesh/outrigger/certs"
	"github.com/outrigger-mesh/outrigger/controlplane/authn"
	"github.com/outrigger-mesh/outrigger/controlplane/ca"
)

// caller is a raw client with its own token.
type caller struct {
	api  securityv1alpha1.IstioCertificateServiceClient
	ctx  context.Context
	id   certs.ID
	csr  string
	seen metadata.MD // of the last response
}

func (a *authority) caller(t *testing.T, name string) *caller {
	t.Helper()
	conn, err := grpc.NewClient(a.secure, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: a.rootsOfMesh})))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	id := certs.ID{TrustDomain: "cluster.local", Namespace: "default", ServiceAccount: name}
	token := a.token(t, a.tokenKey, func(c *jwt.Claims) { c.Subject = "system:serviceaccount:default:" + name })
	return &caller{
		api: securityv1alpha1.NewIstioCertificateServiceClient(conn), id: id, csr: string(newCSR(t, newKey(t, ""), id)),
		ctx: metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+token),
	}
}

func (c *caller) ask(fields ...string) (*securityv1alpha1.IstioCertificateResponse, error) {
	req := &securityv1alpha1.IstioCertificateRequest{Csr: c.csr, Metadata: &structpb.Struct{Fields: map[string]*structpb.Value{}}}
	for i := 0; i+1 < len(fields); i += 2 {
		req.Metadata.Fields[fields[i]] = structpb.NewStringValue(fields[i+1])
	}
	c.seen = nil
	return c.api.CreateCertificate(c.ctx, req, grpc.Trailer(&c.seen))
}

// checkLater checks that a response asks the caller to retry later.
func checkLater(t *testing.T, c *caller, err error, says string) {
	t.Helper()
	if status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), says) {
		t.Fatalf("got error %v, want RESOURCE_EXHAUSTED with %q", err, says)
	}
	var delay time.Duration
	for _, d := range status.Convert(err).Details() {
		if info, ok := d.(*errdetails.RetryInfo); ok {
			delay = info.GetRetryDelay().AsDuration()
		}
	}
	if delay < time.Second || delay > time.Minute {
		t.Errorf("the retry delay in the status is %s, want 1 s to 1 min", delay)
	}
	after := c.seen.Get("retry-after")
	if len(after) != 1 {
		t.Fatalf("the trailer is %v, want it to contain retry-after", c.seen)
	}
	if n, err := strconv.Atoi(after[0]); err != nil || time.Duration(n)*time.Second < delay || time.Duration(n-1)*time.Second >= delay {
		t.Errorf("the trailer has the retry delay %s, the status %s", after[0], delay)
	}
}

func TestFlood(t *testing.T) {
	t.Parallel()
	a := serve(t, func(c *ca.ServiceConfig) { c.CallerLimit = ca.Limit{PerSecond: 0.1, Burst: 20} })
	rude, honest := a.caller(t, "rude"), a.caller(t, "honest")
	var wg sync.WaitGroup
	for range 4 {
		flood := *rude
		wg.Go(func() {
			for range 100 {
				_, _ = flood.ask() // the results are counted below
			}
		})
	}
	for range 10 {
		if _, err := honest.ask(); err != nil {
			t.Errorf("a caller within its limit was refused: %v", err)
		}
	}
	wg.Wait()
	_, err := rude.ask()
	checkLater(t, rude, err, "this workload requests certificates too often")
	if n := a.metric(t, "citadel_server_success_cert_issuance_count"); n < 30 || n > 35 {
		t.Errorf("%v certificates were issued, want 10 for the caller within its limit and 20 for the burst", n)
	}
	if n := a.metric(t, "outrigger_control_ca_refused_total"); n < 370 {
		t.Errorf("%v refusals were counted, want at least 370", n)
	}
	if n := strings.Count(a.log.String(), "exceed the rate limit"); n < 1 || n > 6 {
		t.Errorf("the log reports the flood %d times, want 1 to 6", n)
	}
}

func TestFloodOfAnIdentity(t *testing.T) {
	t.Parallel()
	a := serve(t, func(c *ca.ServiceConfig) { c.TotalLimit = ca.Limit{PerSecond: 0.1, Burst: 3} })
	c := a.caller(t, "web")
	for range 3 {
		if _, err := c.ask(); err != nil {
			t.Fatal(err)
		}
	}
	_, err := c.ask()
	checkLater(t, c, err, "workloads of this identity")
}

// slow is a remote signer that blocks.
type slow struct{ entered, leave chan struct{} }

func (s slow) Sign(ctx context.Context, _ []byte, _ string, _ time.Duration) ([][]byte, error) {
	s.entered <- struct{}{}
	select {
	case <-s.leave:
	case <-ctx.Done():
	}
	return nil, errors.New("nothing is signed here")
}

func TestFullQueue(t *testing.T) {
	t.Parallel()
	s := slow{make(chan struct{}), make(chan struct{})}
	a := serve(t, func(c *ca.ServiceConfig) { c.Remote, c.MaxPending = s, 2 })
	var wg sync.WaitGroup
	for _, name := range []string{"a", "b"} {
		c := a.caller(t, name)
		wg.Go(func() {
			if _, err := c.ask("CertSigner", "x"); status.Code(err) != codes.Internal {
				t.Errorf("got error %v, want INTERNAL", err)
			}
		})
	}
	<-s.entered
	<-s.entered
	c := a.caller(t, "c")
	_, err := c.ask()
	checkLater(t, c, err, "too many certificate requests wait")
	close(s.leave)
	wg.Wait()
	if _, err := c.ask(); err != nil {
		t.Errorf("with an empty queue: %v", err)
	}
	if n := a.metric(t, "outrigger_control_ca_pending_requests"); n != 0 {
		t.Errorf("%v requests are pending at the end, want 0", n)
	}
}

func TestImpersonation(t *testing.T) {
	t.Parallel()
	refuse := errors.New("no workload of it is on this node")
	nodes := ca.NodeAccounts{
		Trusted: map[string]bool{"default/node": true},
		MayImpersonate: func(_ context.Context, c *authn.Caller, id certs.ID) error {
			if c.ID.ServiceAccount != "node" || id.ServiceAccount == "db" {
				return refuse
			}
			return nil
		},
	}
	denied := func(id certs.ID) error {
		if id.ServiceAccount == "left" {
			return errors.New("it is denied")
		}
		return nil
	}
	a := serve(t, func(c *ca.ServiceConfig) { c.Nodes, c.Denied = nodes, denied })
	without := serve(t, func(c *ca.ServiceConfig) { c.Nodes.Trusted = nodes.Trusted })
	for name, tc := range map[string]struct {
		on     *authority
		caller string
		who    string
		says   string // empty means that it is granted
	}{
		"granted":          {a, "node", "spiffe://cluster.local/ns/default/sa/web", ""},
		"not on the node":  {a, "node", "spiffe://cluster.local/ns/default/sa/db", refuse.Error()},
		"denied":           {a, "node", "spiffe://cluster.local/ns/default/sa/left", "it is denied"},
		"no node account":  {a, "web", "spiffe://cluster.local/ns/default/sa/web", "not a trusted node account"},
		"no identity":      {a, "node", "web", "does not start with"},
		"another mesh":     {a, "node", "spiffe://other.test/ns/default/sa/web", "not of trust domain"},
		"pods are unknown": {without, "node", "spiffe://cluster.local/ns/default/sa/web", "not known here"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := tc.on.caller(t, tc.caller)
			if tc.says == "" {
				c.csr = string(newCSR(t, newKey(t, ""), web()))
			}
			resp, err := c.ask("ImpersonatedIdentity", tc.who)
			if tc.says != "" {
				if status.Code(err) != codes.Unauthenticated || !strings.Contains(err.Error(), tc.says) {
					t.Errorf("got error %v, want UNAUTHENTICATED with %q", err, tc.says)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if id, err := certs.CertificateID(parse(t, []byte(resp.GetCertChain()[0]))[0]); err != nil || id.String() != tc.who {
				t.Errorf("the certificate is for %v, error %v", id, err)
			}
		})
	}
}

func TestServiceConfigIsChecked(t *testing.T) {
	t.Parallel()
	a := open(t, func(c *ca.Config) { c.MaxTTL = time.Hour })
	who := func(context.Context) (*authn.Caller, error) { return nil, errors.New("nobody") }
	for says, cfg := range map[string]ca.ServiceConfig{
		"needs both":               {Authority: a},
		"no way to reach it":       {Authority: a, Authenticate: who, RemoteName: "x"},
		"must be positive":         {Authority: a, Authenticate: who, DefaultTTL: 2 * time.Hour},
		"signs for at most 1h0m0s": {Authority: a, Authenticate: who, MaxTTL: 2 * time.Hour},
	} {
		if _, err := ca.NewService(cfg); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("got error %v, want one with %q", err, says)
		}
	}
	if _, err := ca.NewService(ca.ServiceConfig{Authority: a, Authenticate: who}); err != nil {
		t.Error(fmt.Errorf("an authority without limits was refused: %w", err))
	}
}
