// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package server

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"
	securityv1alpha1 "istio.io/api/security/v1alpha1"

	"github.com/outrigger-mesh/outrigger/certs"
)

// denyPatience is how long a test waits for a change of the list.
const denyPatience = 2 * time.Minute

// member is a workload with a certificate of the mesh.
type member struct {
	id     certs.ID
	csr    []byte
	serial string
	conn   *grpc.ClientConn
	ended  chan error // the error of its stream
}

func newMember(t *testing.T, s *Server, account string) *member {
	t.Helper()
	m := &member{id: certs.ID{TrustDomain: "cluster.local", Namespace: "shop", ServiceAccount: account}, ended: make(chan error, 1)}
	key, err := certs.NewKey(certs.ECDSAP256)
	if err != nil {
		t.Fatal(err)
	}
	if m.csr, err = certs.NewCSR(key, m.id); err != nil {
		t.Fatal(err)
	}
	issued, err := s.identity.authority.Sign(t.Context(), m.csr, m.id, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	m.serial = fmt.Sprintf("%X", issued.Serial)
	chain, err := certs.ParseChain(issued.Chain[0])
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(s.identity.authority.RootPEM())
	m.conn, err = grpc.NewClient(s.ports.listeners.secure.Addr().String(), grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{
		RootCAs: pool, Certificates: []tls.Certificate{{Certificate: [][]byte{chain[0].Raw}, PrivateKey: key}}, MinVersion: tls.VersionTLS12,
	})))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.conn.Close() }) // nothing is left to read
	return m
}

// renew requests a new certificate.
func (m *member) renew(t *testing.T) codes.Code {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), denyPatience)
	defer cancel()
	_, err := securityv1alpha1.NewIstioCertificateServiceClient(m.conn).CreateCertificate(ctx, &securityv1alpha1.IstioCertificateRequest{Csr: string(m.csr)}, grpc.WaitForReady(true))
	return status.Code(err)
}

// stream opens a stream, and waits until it is served.
func (m *member) stream(t *testing.T) error {
	t.Helper()
	md, err := structpb.NewStruct(map[string]any{"NAMESPACE": m.id.Namespace, "SERVICE_ACCOUNT": m.id.ServiceAccount, "INTERCEPTION_MODE": "NONE"})
	if err != nil {
		t.Fatal(err)
	}
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(m.conn).StreamAggregatedResources(t.Context(), grpc.WaitForReady(true))
	if err != nil {
		return err
	}
	node := &corev3.Node{Id: "sidecar~127.77.53.21~" + m.id.ServiceAccount + ".shop~shop.svc.cluster.local", Metadata: md}
	// Send returns io.EOF on a stream that has ended; Recv returns the reason.
	if err := stream.Send(&discoveryv3.DiscoveryRequest{Node: node, TypeUrl: clusterType}); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if _, err := stream.Recv(); err != nil {
		return err
	}
	go func() {
		for {
			if _, err := stream.Recv(); err != nil {
				m.ended <- err
				return
			}
		}
	}()
	return nil
}

// TestDenyList denies workloads that are connected.
func TestDenyList(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "deny")
	put := func(text string) {
		t.Helper()
		if err := os.WriteFile(file+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
	}
	put("# nobody\n")
	s := serve(t, func(c *Config) {
		c.DenyList = file
	})
	until := func(what string, ok func() bool) {
		t.Helper()
		for deadline := time.Now().Add(denyPatience); !ok(); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("condition not met in time: %s, after %s", what, denyPatience)
			}
		}
	}
	until("the control plane is ready", s.discovery.Ready)
	web, stolen, fresh, pay := newMember(t, s, "web"), newMember(t, s, "api"), newMember(t, s, "api"), newMember(t, s, "pay")
	all := map[string]*member{"web": web, "stolen": stolen, "fresh": fresh, "pay": pay}
	for name, m := range all {
		if err := m.stream(t); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if code := m.renew(t); code != codes.OK {
			t.Fatalf("%s: requesting a certificate: got %s", name, code)
		}
	}

	put("spiffe://cluster.local/ns/shop/sa/web # left\nserial " + stolen.serial + "\n")
	for _, m := range []*member{web, stolen} {
		select {
		case err := <-m.ended:
			if status.Code(err) != codes.Unauthenticated || !strings.Contains(err.Error(), "deny list") {
				t.Errorf("%s: the stream ended with %v, want UNAUTHENTICATED by the deny list", m.id, err)
			}
		case <-time.After(denyPatience):
			t.Fatalf("%s: the stream is still open", m.id)
		}
		if err := m.stream(t); status.Code(err) != codes.Unauthenticated {
			t.Errorf("%s: opening another stream: got error %v, want UNAUTHENTICATED", m.id, err)
		}
		if code := m.renew(t); code != codes.Unauthenticated {
			t.Errorf("%s: requesting a certificate: got %s, want UNAUTHENTICATED", m.id, code)
		}
	}
	for _, m := range []*member{fresh, pay} {
		if code := m.renew(t); code != codes.OK {
			t.Errorf("%s: not denied, but requesting a certificate: got %s", m.id, code)
		}
		select {
		case err := <-m.ended:
			t.Errorf("%s: not denied, but its stream ended: %v", m.id, err)
		default:
		}
	}
	if err := s.deniedIdentity(certs.ID{TrustDomain: "cluster.local", Namespace: "shop", ServiceAccount: "web"}); err == nil {
		t.Error("a certificate for a denied identity would be issued to another caller")
	}

	put("spiffe://cluster.local/shop\n")
	until("the error is reported", func() bool {
		_, body := ask(s, "/metrics")
		return strings.Contains(body, "outrigger_control_deny_list_rejected 1")
	})
	if code := web.renew(t); code != codes.Unauthenticated {
		t.Errorf("with an invalid list: requesting a certificate: got %s, want that the last good list applies", code)
	}
	put("# nobody\n")
	until("web is served again", func() bool { return web.renew(t) == codes.OK })
	if err := web.stream(t); err != nil {
		t.Error(err)
	}
}
