// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	xdscreds "google.golang.org/grpc/credentials/xds"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	grpcxds "google.golang.org/grpc/xds"
	"google.golang.org/protobuf/proto"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
	securityv1beta1 "istio.io/api/security/v1beta1"

	"github.com/outrigger-mesh/outrigger/certs"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/e2e/ownnet"
)

// wireCA issues certificates of a mesh.
type wireCA struct {
	cert *x509.Certificate
	key  any
	root []byte
}

func newWireCA(t *testing.T) *wireCA {
	t.Helper()
	key, err := certs.NewKey(certs.ECDSAP256)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{Organization: []string{"mesh"}}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &wireCA{cert: cert, key: key, root: certs.EncodeChain(cert)}
}

// wireID is the identity of a service account of the mesh.
func wireID(account string) string { return "spiffe://cluster.local/ns/default/sa/" + account }

// issue writes the files that the agent writes for a workload.
func (ca *wireCA) issue(t *testing.T, account string) string {
	t.Helper()
	key, err := certs.NewKey(certs.ECDSAP256)
	if err != nil {
		t.Fatal(err)
	}
	id, err := url.Parse(wireID(account))
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(2), URIs: []*url.URL{id}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}, ca.cert, key.Public(), ca.key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	private, err := certs.MarshalKey(key)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, content := range map[string][]byte{"cert-chain.pem": certs.EncodeChain(cert), "key.pem": private, "root-cert.pem": ca.root} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// wireServer is an application that serves with grpc-go's own xDS server.
type wireServer struct {
	address string
	mu      sync.Mutex // guards modes
	modes   []connectivity.ServingMode
}

// serve runs the application on an address until the test ends.
func (a wireApp) serve(t *testing.T, w *wireMesh, listen string) *wireServer {
	t.Helper()
	l, err := ownnet.Listen(listen)
	if err != nil {
		t.Fatal(err)
	}
	s := &wireServer{address: l.Addr().String()}
	creds, err := xdscreds.NewServerCredentials(xdscreds.ServerOptions{FallbackCreds: insecure.NewCredentials()})
	if err != nil {
		t.Fatal(err)
	}
	server, err := grpcxds.NewGRPCServer(
		grpcxds.BootstrapContentsForTesting(a.bootstrap(t, w)), grpc.Creds(creds),
		grpcxds.ServingModeCallback(func(_ net.Addr, args grpcxds.ServingModeChangeArgs) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.modes = append(s.modes, args.Mode)
		}),
	)
	if err != nil {
		t.Fatal(err)
	}
	healthpb.RegisterHealthServer(server, wireEcho{})
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return s
}

// mode is what the server last said of itself.
func (s *wireServer) mode() connectivity.ServingMode {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.modes) == 0 {
		return connectivity.ServingModeStarting
	}
	return s.modes[len(s.modes)-1]
}

// wireAccount is wireService with a service account of its endpoints.
func wireAccount(host, account string, endpoints ...string) *networkingv1alpha3.ServiceEntry {
	se := wireService(host, "GRPC", 7070, endpoints...)
	for _, ep := range se.Endpoints {
		ep.ServiceAccount = account
	}
	return se
}

func wireMode(mode securityv1beta1.PeerAuthentication_MutualTLS_Mode) *securityv1beta1.PeerAuthentication {
	return &securityv1beta1.PeerAuthentication{Mtls: &securityv1beta1.PeerAuthentication_MutualTLS{Mode: mode}}
}

// wireMutual demands mutual TLS of the clients of a host.
func wireMutual(host string) *networkingv1alpha3.DestinationRule {
	return &networkingv1alpha3.DestinationRule{Host: host, TrafficPolicy: &networkingv1alpha3.TrafficPolicy{
		Tls: &networkingv1alpha3.ClientTLSSettings{Mode: networkingv1alpha3.ClientTLSSettings_ISTIO_MUTUAL},
	}}
}

// calls waits until a call is answered for this caller.
func (c *wireClient) calls(as string) {
	c.t.Helper()
	var caller string
	var err error
	until(c.t, "a call is answered for "+as, func() bool {
		_, caller, err = c.ask()
		return err == nil && caller == as
	})
}

// refused waits until calls are not answered.
func (c *wireClient) refused() {
	c.t.Helper()
	until(c.t, "calls are refused", func() bool {
		_, _, err := c.ask()
		return status.Code(err) == codes.Unavailable
	})
}

// TestGRPCMutualTLS has grpc-go's xDS server and client talk mutual TLS through
// nothing but the control plane and certificates as the agent writes them:
//   - the server sees the caller's identity in its certificate
//   - callers without a certificate, or with one from outside the mesh, are refused
//   - a server with an identity other than that of its service is refused
func TestGRPCMutualTLS(t *testing.T) {
	t.Parallel()
	w, ca := newWireMesh(t, "127.77.60.2"), newWireCA(t)
	server := wireApp{ip: "127.77.60.20", name: "server", certificates: ca.issue(t, "server")}.serve(t, w, "127.77.60.20:0")
	w.putAll(map[model.Key]proto.Message{
		wireKey(model.ServiceEntry, "echo"):          wireAccount(wireHost, "server", server.address),
		wireKey(model.PeerAuthentication, "default"): wireMode(securityv1beta1.PeerAuthentication_MutualTLS_STRICT),
		wireKey(model.DestinationRule, "echo"):       wireMutual(wireHost),
	})
	app := wireApp{ip: "127.77.60.21", name: "client", certificates: ca.issue(t, "client")}
	client := app.dial(t, w, "xds:///echo:7070")
	client.calls(wireID("client"))

	dialAt(t, server.address, grpc.WithTransportCredentials(insecure.NewCredentials())).refused()
	roots := x509.NewCertPool()
	roots.AddCert(ca.cert)
	anyServer := func(own ...tls.Certificate) credentials.TransportCredentials {
		return credentials.NewTLS(&tls.Config{InsecureSkipVerify: true, Certificates: own}) //nolint:gosec // it is the server that checks
	}
	dialAt(t, server.address, grpc.WithTransportCredentials(anyServer())).refused()
	for name, of := range map[string]*wireCA{"the mesh": ca, "another mesh": newWireCA(t)} {
		dir := of.issue(t, "other")
		own, err := tls.LoadX509KeyPair(filepath.Join(dir, "cert-chain.pem"), filepath.Join(dir, "key.pem"))
		if err != nil {
			t.Fatal(err)
		}
		c := dialAt(t, server.address, grpc.WithTransportCredentials(anyServer(own)))
		if of == ca {
			c.calls(wireID("other"))
		} else if _, _, err := c.ask(); status.Code(err) != codes.Unavailable {
			t.Errorf("a caller with a certificate of %s gets %v", name, err)
		}
	}

	// Existing connections stay open; only new ones are checked.
	w.putOne(model.ServiceEntry, "echo", wireAccount(wireHost, "somebody-else", server.address))
	misled := app.dial(t, w, "xds:///echo:7070")
	misled.refused()
	client.calls(wireID("client"))
	w.putOne(model.ServiceEntry, "echo", wireAccount(wireHost, "server", server.address))
	misled.calls(wireID("client"))
}

// TestGRPCDenied denies a client, then a server, while they run: grpc-go's own xDS
// server answers the client's calls with an error, and its client does not accept
// the server.
func TestGRPCDenied(t *testing.T) {
	t.Parallel()
	w, ca := newWireMesh(t, "127.77.60.12"), newWireCA(t)
	server := wireApp{ip: "127.77.60.48", name: "server", certificates: ca.issue(t, "server")}.serve(t, w, "127.77.60.48:0")
	w.putAll(map[model.Key]proto.Message{
		wireKey(model.ServiceEntry, "echo"):          wireAccount(wireHost, "server", server.address),
		wireKey(model.PeerAuthentication, "default"): wireMode(securityv1beta1.PeerAuthentication_MutualTLS_STRICT),
		wireKey(model.DestinationRule, "echo"):       wireMutual(wireHost),
	})
	app := wireApp{ip: "127.77.60.49", name: "client", certificates: ca.issue(t, "client")}
	client := app.dial(t, w, "xds:///echo:7070")
	other := wireApp{ip: "127.77.60.50", name: "other", certificates: ca.issue(t, "other")}.dial(t, w, "xds:///echo:7070")
	client.calls(wireID("client"))
	other.calls(wireID("other"))

	w.deny(wireID("client") + "\nserial ab\n")
	until(t, "the client is refused", func() bool {
		_, _, err := client.ask()
		return status.Code(err) == codes.PermissionDenied
	})
	other.calls(wireID("other"))
	if mode := server.mode(); mode != connectivity.ServingModeServing {
		t.Errorf("the server is %s", mode)
	}

	w.deny(wireID("server") + "\n")
	app.dial(t, w, "xds:///echo:7070").refused()
	w.deny("# nobody\n")
	app.dial(t, w, "xds:///echo:7070").calls(wireID("client"))
}

// TestGRPCServerModes changes the mode of a server while it runs. It accepts either mutual TLS or
// plaintext at a time, and serves without interruption.
func TestGRPCServerModes(t *testing.T) {
	t.Parallel()
	w, ca := newWireMesh(t, "127.77.60.3"), newWireCA(t)
	plain := wireApp{ip: "127.77.60.22", name: "plain", certificates: ca.issue(t, "plain")}.serve(t, w, "127.77.60.22:0")
	marked := wireApp{
		ip: "127.77.60.23", name: "marked", certificates: ca.issue(t, "marked"),
		labels: map[string]any{"security.istio.io/tlsMode": "istio"},
	}.serve(t, w, "127.77.60.23:0")
	const plainHost, markedHost = "plain.default.svc.cluster.local", "marked.default.svc.cluster.local"
	w.putAll(map[model.Key]proto.Message{
		wireKey(model.ServiceEntry, "plain"):     wireAccount(plainHost, "plain", plain.address),
		wireKey(model.ServiceEntry, "marked"):    wireAccount(markedHost, "marked", marked.address),
		wireKey(model.DestinationRule, "marked"): wireMutual(markedHost),
	})
	app := wireApp{ip: "127.77.60.24", name: "client", certificates: ca.issue(t, "client")}
	toPlain, toMarked := app.dial(t, w, "xds:///plain:7070"), app.dial(t, w, "xds:///marked:7070")
	toPlain.calls("nobody") // permissive, without a sign that it supports mutual TLS
	toMarked.calls(wireID("client"))

	w.putAll(map[model.Key]proto.Message{
		wireKey(model.PeerAuthentication, "default"): wireMode(securityv1beta1.PeerAuthentication_MutualTLS_STRICT),
		wireKey(model.DestinationRule, "plain"):      wireMutual(plainHost),
	})
	toPlain.calls(wireID("client"))
	dialAt(t, plain.address, grpc.WithTransportCredentials(insecure.NewCredentials())).refused()
	toMarked.calls(wireID("client"))

	w.putAll(map[model.Key]proto.Message{
		wireKey(model.PeerAuthentication, "default"): wireMode(securityv1beta1.PeerAuthentication_MutualTLS_DISABLE),
		wireKey(model.DestinationRule, "plain"):      nil,
		wireKey(model.DestinationRule, "marked"):     nil,
	})
	toPlain.calls("nobody")
	toMarked.calls("nobody")
	for _, s := range []*wireServer{plain, marked} {
		s.mu.Lock()
		if len(s.modes) != 1 || s.modes[0] != connectivity.ServingModeServing {
			t.Errorf("the server was in the modes %v", s.modes)
		}
		s.mu.Unlock()
	}
}

// TestGRPCServerNames has servers listen at their own address and at all addresses, at any port,
// while others run, and regardless of the services that select them.
func TestGRPCServerNames(t *testing.T) {
	t.Parallel()
	w := newWireMesh(t, "127.77.60.4")
	app := wireApp{ip: "127.77.60.25", name: "server"}
	listen := []string{"127.77.60.25:0", "0.0.0.0:0", "127.77.60.26:0"}
	if l, err := net.Listen("tcp", "[::1]:0"); err != nil {
		t.Logf("without an IPv6 address: %v", err)
	} else {
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		listen = append(listen, "[::]:0")
	}
	var servers []*wireServer
	for i, address := range listen {
		s := app.serve(t, w, address)
		servers = append(servers, s)
		serving := func() bool { return s.mode() == connectivity.ServingModeServing }
		until(t, s.address+" serves", serving)
		_, port, err := net.SplitHostPort(s.address)
		if err != nil {
			t.Fatal(err)
		}
		name := string(rune('a' + i))
		w.putOne(model.ServiceEntry, name, wireService(name+".default.svc.cluster.local", "GRPC", 7070, "127.77.60.25:"+port))
		if i != 2 {
			app.dial(t, w, "xds:///"+name+":7070").calls("nobody")
		}
		w.putOne(model.ServiceEntry, name, nil)
	}
	w.restart()
	w.putOne(model.PeerAuthentication, "default", wireMode(securityv1beta1.PeerAuthentication_MutualTLS_DISABLE))
	for _, s := range servers {
		_, port, err := net.SplitHostPort(s.address)
		if err != nil {
			t.Fatal(err)
		}
		host := "127.77.60.25"
		if s == servers[2] {
			host = "127.77.60.26"
		}
		dialAt(t, host+":"+port, grpc.WithTransportCredentials(insecure.NewCredentials())).calls("nobody")
		s.mu.Lock()
		if len(s.modes) != 1 {
			t.Errorf("%s was in the modes %v", s.address, s.modes)
		}
		s.mu.Unlock()
	}
}

// TestGRPCServerListensMore has one server listen at a second address while it serves at the first:
// both are served over one stream, and the first is not affected.
func TestGRPCServerListensMore(t *testing.T) {
	t.Parallel()
	w := newWireMesh(t, "127.77.60.10")
	app := wireApp{ip: "127.77.60.27", name: "server"}
	modes := make(chan string, 10)
	server, err := grpcxds.NewGRPCServer(
		grpcxds.BootstrapContentsForTesting(app.bootstrap(t, w)),
		grpcxds.ServingModeCallback(func(at net.Addr, args grpcxds.ServingModeChangeArgs) { modes <- at.String() + " " + args.Mode.String() }),
	)
	if err != nil {
		t.Fatal(err)
	}
	healthpb.RegisterHealthServer(server, wireEcho{})
	done := make(chan error, 2)
	for _, ip := range []string{"127.77.60.27", "127.77.60.28"} {
		l, err := net.Listen("tcp", ip+":0")
		if err != nil {
			t.Fatal(err)
		}
		go func() { done <- server.Serve(l) }()
		select {
		case got := <-modes:
			if want := l.Addr().String() + " SERVING"; got != want {
				t.Errorf("a server says %q, want %q", got, want)
			}
		case <-time.After(2 * time.Minute):
			t.Fatalf("%s does not serve within 2 minutes", l.Addr())
		}
		dialAt(t, l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials())).calls("nobody")
	}
	server.Stop()
	for range 2 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if n := strings.Count(w.logged.String(), "proxy connected"); n != 1 {
		t.Errorf("there were %d streams", n)
	}
}

// TestGRPCWithoutCertificates checks that an application without certificates rejects resources
// that require them, without effects on others.
func TestGRPCWithoutCertificates(t *testing.T) {
	t.Parallel()
	w, ca := newWireMesh(t, "127.77.60.11"), newWireCA(t)
	server := wireApp{ip: "127.77.60.29", name: "server", certificates: ca.issue(t, "server")}.serve(t, w, "127.77.60.29:0")
	bare := wireApp{ip: "127.77.60.30", name: "bare"}.serve(t, w, "127.77.60.30:0")
	w.putOne(model.ServiceEntry, "echo", wireAccount(wireHost, "server", server.address))
	without := wireApp{ip: "127.77.60.46", name: "without"}.dial(t, w, "xds:///echo:7070")
	with := wireApp{ip: "127.77.60.47", name: "with", certificates: ca.issue(t, "with")}.dial(t, w, "xds:///echo:7070")
	without.calls("nobody")
	with.calls("nobody")
	until(t, "both serve", func() bool {
		return server.mode() == connectivity.ServingModeServing && bare.mode() == connectivity.ServingModeServing
	})
	w.putAll(map[model.Key]proto.Message{
		wireKey(model.PeerAuthentication, "default"): wireMode(securityv1beta1.PeerAuthentication_MutualTLS_STRICT),
		wireKey(model.DestinationRule, "echo"):       wireMutual(wireHost),
	})
	until(t, "it rejected the cluster", func() bool { return strings.Contains(w.logged.String(), "rejected") })
	with.calls(wireID("with"))
	without.refused()
	if rejected := w.server.Rejected(); len(rejected) > 0 {
		t.Errorf("held back from others: %+v", rejected)
	}
}
