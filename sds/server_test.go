// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package sds_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	secretv3 "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/outrigger-mesh/outrigger/sds"
)

// patience is the timeout for events that must happen.
const patience = 2 * time.Minute

// rig is a server with its workload and authority. Certificates are valid for an hour, unless a
// test requests another lifetime.
type rig struct {
	*authority
	workload *sds.Workload
	socket   string
	log      *syncBuffer
	client   secretv3.SecretDiscoveryServiceClient
}

func newRig(t testing.TB, a *authority) *rig {
	t.Helper()
	r := &rig{authority: a, log: &syncBuffer{}}
	logger := r.logger()
	r.workload = newWorkload(t, a, func(c *sds.WorkloadConfig) { c.TTL, c.Logger = time.Hour, logger })
	run(t, r.workload)
	r.serve(t, sds.ServerConfig{Workload: r.workload, Logger: logger})
	t.Cleanup(func() {
		if strings.Contains(r.log.String(), "PRIVATE KEY") {
			t.Error("the log contains a private key")
		}
	})
	return r
}

// eventually waits until ok returns true.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); {
		if time.Now().After(end) {
			t.Fatalf("timeout after %s waiting for: %s", patience, what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func (r *rig) ready(t testing.TB) *rig {
	t.Helper()
	eventually(t, "a certificate", func() bool { return r.workload.Current() != nil })
	return r
}

func names(t testing.TB, resources []*anypb.Any) []string {
	t.Helper()
	var out []string
	for _, r := range resources {
		out = append(out, decode(t, r).GetName())
	}
	return out
}

func decode(t testing.TB, resource *anypb.Any) *tlsv3.Secret {
	t.Helper()
	var s tlsv3.Secret
	if err := resource.UnmarshalTo(&s); err != nil {
		t.Fatal(err)
	}
	return &s
}

func (r *rig) stream(t testing.TB) *sotwClient {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	s, err := r.client.StreamSecrets(ctx)
	if err != nil {
		t.Fatal(err)
	}
	c := &sotwClient{SecretDiscoveryService_StreamSecretsClient: s, t: t, answers: make(chan *discoveryv3.DiscoveryResponse)}
	go func() {
		defer close(c.answers)
		for {
			resp, err := s.Recv()
			if err != nil {
				return
			}
			select {
			case c.answers <- resp:
			case <-ctx.Done():
				return
			}
		}
	}()
	return c
}

type sotwClient struct {
	secretv3.SecretDiscoveryService_StreamSecretsClient
	t       testing.TB
	answers chan *discoveryv3.DiscoveryResponse
}

// ask sends a request. If resp is not nil, the request acknowledges it, or rejects it if nack is
// not empty.
func (c *sotwClient) ask(resp *discoveryv3.DiscoveryResponse, nack string, names ...string) {
	c.t.Helper()
	req := &discoveryv3.DiscoveryRequest{
		TypeUrl: secretType, ResourceNames: names, ResponseNonce: resp.GetNonce(), VersionInfo: resp.GetVersionInfo(),
	}
	if nack != "" {
		req.ErrorDetail = &rpcstatus.Status{Code: int32(codes.InvalidArgument), Message: nack}
	}
	if err := c.Send(req); err != nil {
		c.t.Fatal(err)
	}
}

const secretType = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret"

func (c *sotwClient) next(want ...string) *discoveryv3.DiscoveryResponse {
	c.t.Helper()
	resp, ok := <-c.answers
	if !ok {
		c.t.Fatal("the stream ended")
	}
	if got := names(c.t, resp.GetResources()); !slices.Equal(got, want) || resp.GetTypeUrl() != secretType {
		c.t.Fatalf("got %v of type %s, want %v", got, resp.GetTypeUrl(), want)
	}
	return resp
}

// none checks that no response arrives within a short time. A later response fails the next call of
// next.
func (c *sotwClient) none(why string) {
	c.t.Helper()
	select {
	case resp := <-c.answers:
		c.t.Fatalf("%s: got %v", why, names(c.t, resp.GetResources()))
	case <-time.After(50 * time.Millisecond):
	}
}

func TestStreamSecrets(t *testing.T) {
	t.Parallel()
	r := newRig(t, newAuthority(t)).ready(t)
	s := r.stream(t)
	s.ask(nil, "", sds.NameDefault)
	first := s.next(sds.NameDefault)
	id := r.workload.Current()
	cert := decode(t, first.GetResources()[0]).GetTlsCertificate()
	if string(cert.GetCertificateChain().GetInlineBytes()) != string(id.ChainPEM) || string(cert.GetPrivateKey().GetInlineBytes()) != string(id.KeyPEM) {
		t.Error("the secret differs from the workload's chain and key")
	}
	s.ask(first, "", sds.NameDefault)
	s.none("after an ACK")
	s.ask(first, "", sds.NameDefault, sds.NameRoots)
	second := s.next(sds.NameRoots)
	if ca := decode(t, second.GetResources()[0]).GetValidationContext().GetTrustedCa().GetInlineBytes(); string(ca) != string(id.RootsPEM) {
		t.Error("the secret differs from the roots")
	}
	s.ask(second, "key does not match", sds.NameDefault, sds.NameRoots)
	s.none("after a NACK")
	eventually(t, "a line about the NACK", func() bool { return strings.Contains(r.log.String(), "key does not match") })
	s.ask(first, "", sds.NameDefault)
	s.ask(second, "", sds.NameDefault, sds.NameRoots)
	s.none("after a request that answers an older response, which must change nothing")
	s.ask(second, "")
	s.ask(second, "", sds.NameRoots)
	s.next(sds.NameRoots) // it was unsubscribed, so it is sent again
}

func TestUnknownNames(t *testing.T) {
	t.Parallel()
	r := newRig(t, newAuthority(t)).ready(t)
	s := r.stream(t)
	s.ask(nil, "", "kubernetes://gateway")
	s.none("for an unknown name")
	s.ask(nil, "", "kubernetes://gateway", sds.NameRoots)
	resp := s.next(sds.NameRoots)
	s.ask(resp, "", "kubernetes://gateway", sds.NameRoots, sds.NameDefault)
	s.next(sds.NameDefault)
	if n := strings.Count(r.log.String(), "resource=kubernetes://gateway"); n != 1 {
		t.Errorf("%d lines about the unknown name, want 1", n)
	}
}

func TestStreamSecretsBeforeAndAfterRenewal(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	a.set(errors.New("not yet"), 2*time.Second)
	r := newRig(t, a)
	s := r.stream(t)
	s.ask(nil, "", sds.NameDefault, sds.NameRoots)
	s.none("before there is a certificate")
	a.set(nil, 2*time.Second)
	first := s.next(sds.NameRoots, sds.NameDefault)
	s.ask(first, "", sds.NameDefault, sds.NameRoots)
	second := s.next(sds.NameDefault) // the roots did not change
	if first.GetVersionInfo() == second.GetVersionInfo() || first.GetNonce() == second.GetNonce() {
		t.Error("the renewed secret has the same version or nonce as the old one")
	}
}

func TestOtherTypesAreRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t, newAuthority(t)).ready(t)
	stream, err := r.client.StreamSecrets(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&discoveryv3.DiscoveryRequest{TypeUrl: "type.googleapis.com/envoy.config.cluster.v3.Cluster"}); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); status.Code(err) != codes.InvalidArgument {
		t.Errorf("got error %v, want InvalidArgument", err)
	}
}

func TestDeltaSecrets(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	a.set(nil, 6*time.Second)
	r := newRig(t, a).ready(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	stream, err := r.client.DeltaSecrets(ctx)
	if err != nil {
		t.Fatal(err)
	}
	exchange := func(req *discoveryv3.DeltaDiscoveryRequest) *discoveryv3.DeltaDiscoveryResponse {
		t.Helper()
		if req != nil {
			if err := stream.Send(req); err != nil {
				t.Fatal(err)
			}
		}
		resp, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		return resp
	}
	first := exchange(&discoveryv3.DeltaDiscoveryRequest{ResourceNamesSubscribe: []string{sds.NameDefault, sds.NameRoots, "nobody"}})
	if len(first.GetResources()) != 2 || first.GetResources()[0].GetName() != sds.NameRoots || !slices.Equal(first.GetRemovedResources(), []string{"nobody"}) {
		t.Fatalf("got %d secrets, removed %v; want 2 and [nobody]", len(first.GetResources()), first.GetRemovedResources())
	}
	again := exchange(&discoveryv3.DeltaDiscoveryRequest{ResponseNonce: "an old one", ResourceNamesSubscribe: []string{sds.NameRoots}})
	if len(again.GetResources()) != 1 || again.GetResources()[0].GetVersion() != first.GetResources()[0].GetVersion() {
		t.Errorf("subscribing to a name again returned %v", again.GetResources())
	}
	renewed := exchange(nil)
	if len(renewed.GetResources()) != 1 || renewed.GetResources()[0].GetName() != sds.NameDefault ||
		renewed.GetResources()[0].GetVersion() == first.GetResources()[1].GetVersion() {
		t.Errorf("after a renewal, got %v", renewed.GetResources())
	}
	other, err := r.client.DeltaSecrets(ctx)
	if err != nil {
		t.Fatal(err)
	}
	stream = other
	// A client that reconnects with the current roots receives only what it lacks.
	back := exchange(&discoveryv3.DeltaDiscoveryRequest{
		ResourceNamesSubscribe:  []string{sds.NameDefault, sds.NameRoots},
		InitialResourceVersions: map[string]string{sds.NameDefault: "old", sds.NameRoots: first.GetResources()[0].GetVersion()},
	})
	if len(back.GetResources()) != 1 || back.GetResources()[0].GetName() != sds.NameDefault {
		t.Errorf("a client that has the roots received %v, want only the certificate", back.GetResources())
	}
}

func TestFetchSecrets(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	a.set(errors.New("not yet"), 0)
	r := newRig(t, a)
	req := &discoveryv3.DiscoveryRequest{TypeUrl: secretType, ResourceNames: []string{sds.NameRoots, "nobody", sds.NameDefault}}
	if _, err := r.client.FetchSecrets(t.Context(), req); status.Code(err) != codes.Unavailable {
		t.Errorf("before there is a certificate: got error %v, want Unavailable", err)
	}
	a.set(nil, 0)
	resp, err := r.ready(t).client.FetchSecrets(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	if got := names(t, resp.GetResources()); !slices.Equal(got, []string{sds.NameRoots, sds.NameDefault}) {
		t.Errorf("FetchSecrets() = %v, want both secrets", got)
	}
}
