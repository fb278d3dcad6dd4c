// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	secretv3 "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	serverv3 "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"google.golang.org/grpc"
	grpccredentials "google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/outrigger-mesh/outrigger/bootstrap/meshconfig"
	"github.com/outrigger-mesh/outrigger/controlplane/authn"
	configcodec "github.com/outrigger-mesh/outrigger/controlplane/config/codec"
	"github.com/outrigger-mesh/outrigger/controlplane/credentials"
	"github.com/outrigger-mesh/outrigger/controlplane/discovery/secrets"
	"github.com/outrigger-mesh/outrigger/controlplane/generate"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/e2e/envoytest"
)

// edgeWorld is a control plane with objects and Secrets, an Envoy that is a
// gateway of it, and applications behind.
type edgeWorld struct {
	*gatewayTest // Secrets, the root of all certificates, the log
	ip           string
	ports        map[string]string // placeholders of ports and of a file in the objects
	revoked      minted            // a client on the list CRL_FILE
	topology     *meshv1alpha1.Topology
	server       *Server
	api, control string // how proxies connect to the server, and its address
	mesh         *snapshot.Mesh
	objects      map[model.Key]*model.Config
}

// startEdge starts everything with some objects, in which words such as PORT_HTTP are replaced by
// free ports of the address. It waits for Envoy at the first of them.
func startEdge(t *testing.T, api, ip, objects string, topology *meshv1alpha1.Topology) *edgeWorld {
	t.Helper()
	binary := envoytest.Binary(t)
	w := &edgeWorld{
		gatewayTest: &gatewayTest{dir: t.TempDir(), root: mint(t, "root"), logged: &journal{}},
		ip:          ip, api: api, ports: map[string]string{}, topology: topology, objects: map[model.Key]*model.Config{},
	}
	for _, name := range []string{"one", "two", "mutual", "ends"} {
		w.write(t, name, w.root.issue(t, name).pair())
	}
	w.revoked, w.ports["CRL_FILE"] = w.root.issue(t, "revoked"), filepath.Join(t.TempDir(), "crl.pem")
	if err := os.WriteFile(w.ports["CRL_FILE"], w.root.crl(t, w.revoked), 0o600); err != nil {
		t.Fatal(err)
	}
	w.write(t, "mutual-cacert", map[string][]byte{"ca.crt": w.root.chain})
	w.ports["BACKEND_A"], w.ports["BACKEND_B"] = webServer(t, "a"), webServer(t, "b")
	w.ports["BACKEND_TLS"], w.ports["BACKEND_ECHO"] = w.tlsServer(t), echoServer(t, ip)
	var taken []net.Listener // all at once, so that no two are the same
	for _, name := range []string{"PORT_HTTP", "PORT_HTTPS", "PORT_TCP", "PORT_MESH", "PORT_AUTO", "PORT_LATE"} {
		l := listenOn(t, ip)
		taken, w.ports[name] = append(taken, l), portOf(t, l.Addr())
	}
	w.address = ip + ":" + w.ports["PORT_HTTP"]

	log := slog.New(slog.NewTextHandler(w.logged, &slog.HandlerOptions{Level: slog.LevelDebug}))
	source, err := credentials.NewFileSource(credentials.FileConfig{Dir: w.dir, Logger: log})
	if err != nil {
		t.Fatal(err)
	}
	auth, err := authn.NewClientCertificate("cluster.local")
	if err != nil {
		t.Fatal(err)
	}
	w.server, err = New(Config{Generator: generate.New(generate.Config{}), Workers: 1, Secrets: secrets.Config{Source: source}, Logger: log})
	if err != nil {
		t.Fatal(err)
	}
	own, _ := w.root.issue(t, "control").tls(w.root)
	s := grpc.NewServer(grpc.ForceServerCodecV2(Codec()), grpc.Creds(grpccredentials.NewTLS(own)))
	w.server.Register(s, auth)
	w.apply(t, objects)
	l := listenOn(t, ip)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 3)
	go func() { done <- source.Run(ctx) }()
	go func() { done <- w.server.Run(ctx) }()
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Stop()
		cancel()
		for range cap(done) {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		if t.Failed() {
			t.Logf("the control plane said:\n%s", w.logged)
		}
	})
	w.control = l.Addr().String()
	bootstrap := w.bootstrap(t, "router~"+ip+"~gateway-1.default~default.svc.cluster.local", map[string]any{"LABELS": map[string]any{"app": "edge"}})
	for _, l := range taken { // after all other listeners of the address have a port
		_ = l.Close() // only the number is needed
	}
	w.runEnvoy(t, binary, bootstrap)
	return w
}

func listenOn(t *testing.T, ip string) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", ip+":0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// portOf is the port of an address.
func portOf(t *testing.T, address net.Addr) string {
	t.Helper()
	_, port, err := net.SplitHostPort(address.String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// bootstrap is that of the other gateway tests, with the ID and metadata of a node, and with an agent
// that serves the identity of the gateway and the roots of the mesh.
func (w *edgeWorld) bootstrap(t *testing.T, id string, metadata map[string]any) []byte {
	t.Helper()
	type object = map[string]any
	var b object
	if err := json.Unmarshal(w.gatewayTest.bootstrap(t, w.api, w.control), &b); err != nil {
		t.Fatal(err)
	}
	host, port, err := net.SplitHostPort(w.agent(t))
	if err != nil {
		t.Fatal(err)
	}
	static := b["static_resources"].(object)
	static["clusters"] = append(static["clusters"].([]any), object{
		"name": "sds-grpc", "type": "STATIC", "connect_timeout": "5s",
		"typed_extension_protocol_options": object{"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": object{
			"@type":                "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
			"explicit_http_config": object{"http2_protocol_options": object{}},
		}},
		"load_assignment": object{"cluster_name": "sds-grpc", "endpoints": []any{object{"lb_endpoints": []any{object{"endpoint": object{
			"address": object{"socket_address": object{"address": host, "port_value": json.Number(port)}},
		}}}}}},
	})
	node := b["node"].(object)
	node["id"] = id
	maps.Copy(node["metadata"].(object), metadata)
	out, err := json.Marshal(b)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// anyNode has all nodes share one set of secrets.
type anyNode struct{}

// ID implements the cache's NodeHash.
func (anyNode) ID(*corev3.Node) string { return "" }

// agent runs the SDS server of an agent, with its identity and with files, and returns its address.
func (w *edgeWorld) agent(t *testing.T) string {
	t.Helper()
	inline := func(b []byte) *corev3.DataSource {
		return &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{InlineBytes: b}}
	}
	pair := func(name, common string) types.Resource {
		own := w.root.issue(t, common)
		return &tlsv3.Secret{Name: name, Type: &tlsv3.Secret_TlsCertificate{TlsCertificate: &tlsv3.TlsCertificate{CertificateChain: inline(own.chain), PrivateKey: inline(own.key)}}}
	}
	roots := func(name string) types.Resource {
		return &tlsv3.Secret{Name: name, Type: &tlsv3.Secret_ValidationContext{ValidationContext: &tlsv3.CertificateValidationContext{TrustedCa: inline(w.root.chain)}}}
	}
	snap, err := cachev3.NewSnapshot("1", map[resourcev3.Type][]types.Resource{resourcev3.SecretType: {
		pair("default", "workload"), roots("ROOTCA"), pair("file-cert:/files/tls.crt~/files/tls.key", "files"), roots("file-root:/files/ca.crt"),
	}})
	if err != nil {
		t.Fatal(err)
	}
	cache := cachev3.NewSnapshotCache(false, anyNode{}, nil)
	if err := cache.SetSnapshot(t.Context(), "", snap); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	s := grpc.NewServer()
	secretv3.RegisterSecretDiscoveryServiceServer(s, serverv3.NewServer(ctx, cache, nil))
	l := listenOn(t, w.ip)
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Stop()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return l.Addr().String()
}

// apply adds or replaces objects, as users write them, and publishes them.
func (w *edgeWorld) apply(t *testing.T, text string) {
	t.Helper()
	for _, name := range slices.Backward(slices.Sorted(maps.Keys(w.ports))) {
		text = strings.ReplaceAll(text, name, w.ports[name])
	}
	text = strings.ReplaceAll(text, "ADDRESS", w.ip)
	objects, problems := configcodec.Decode("objects.yaml", []byte(text))
	for _, p := range problems {
		if !p.Warning {
			t.Fatal(p)
		}
	}
	keys := make([]model.Key, 0, len(objects))
	for _, o := range objects {
		w.objects[o.Key] = o
		keys = append(keys, o.Key)
	}
	w.publish(keys...)
}

// remove deletes an object.
func (w *edgeWorld) remove(kind model.Kind, name string) {
	key := model.Key{Kind: kind, Namespace: "default", Name: name}
	delete(w.objects, key)
	w.publish(key)
}

func (w *edgeWorld) publish(keys ...model.Key) {
	settings := meshconfig.Default()
	settings.EnableAutoMtls = wrapperspb.Bool(false)
	settings.DefaultConfig.GatewayTopology = w.topology
	w.mesh = snapshot.Build(w.mesh, snapshot.Input{Mesh: settings, List: func(kind model.Kind) (out []*model.Config) {
		for key, c := range w.objects {
			if key.Kind == kind {
				out = append(out, c)
			}
		}
		return out
	}}, model.NewChange(keys...))
	w.server.Push(w.mesh, model.NewChange(keys...))
}

// webServer responds with its name, the host of the request, and the caller.
func webServer(t *testing.T, name string) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprintf(rw, "%s %s %s\n%s", name, r.Host, r.Header.Get("X-Forwarded-For"), r.Header.Get("X-Forwarded-Client-Cert"))
	}))
	t.Cleanup(s.Close)
	return portOf(t, s.Listener.Addr())
}

// tlsServer is an application with TLS of its own that accepts clients with and without
// certificates.
func (w *edgeWorld) tlsServer(t *testing.T) string {
	t.Helper()
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprintf(rw, "tls %s %d", r.Host, len(r.TLS.PeerCertificates))
	}))
	own := w.root.issue(t, "application")
	s.TLS = &tls.Config{
		Certificates: []tls.Certificate{{Certificate: [][]byte{own.parsed.Raw}, PrivateKey: own.signer}}, ClientAuth: tls.RequestClientCert,
		MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"},
	}
	s.StartTLS()
	t.Cleanup(s.Close)
	return portOf(t, s.Listener.Addr())
}

// echoServer answers each line with itself.
func echoServer(t *testing.T, ip string) string {
	t.Helper()
	l := listenOn(t, ip)
	var running sync.WaitGroup
	running.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			running.Go(func() {
				_, _ = io.Copy(conn, conn)
				_ = conn.Close()
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		running.Wait()
	})
	return portOf(t, l.Addr())
}

// caller is how a client connects to the gateway.
type caller struct {
	port string // a word such as PORT_HTTP
	// name is the server name of TLS; empty for plaintext.
	name   string
	alpn   []string
	client *minted // whose certificate it shows; may be nil
	before string  // bytes before all others
}

// connect connects, and returns the name in the certificate of the other side.
func (w *edgeWorld) connect(c caller) (net.Conn, string, error) {
	conn, err := net.DialTimeout("tcp", w.ip+":"+w.ports[c.port], 5*time.Second)
	if err != nil {
		return nil, "", err
	}
	if err := conn.SetDeadline(time.Now().Add(2 * time.Minute)); err != nil {
		return nil, "", err
	}
	if _, err := io.WriteString(conn, c.before); err != nil {
		return nil, "", err
	}
	if c.name == "" {
		return conn, "", nil
	}
	roots := x509.NewCertPool()
	roots.AddCert(w.root.parsed)
	cfg := &tls.Config{
		ServerName: c.name, NextProtos: c.alpn, MinVersion: tls.VersionTLS12,
		InsecureSkipVerify: true, // the names in the certificates are others; the chain is verified here
		VerifyConnection: func(s tls.ConnectionState) error {
			_, err := s.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: roots, DNSName: "localhost"})
			return err
		},
	}
	if c.client != nil {
		cfg.Certificates = []tls.Certificate{{Certificate: [][]byte{c.client.parsed.Raw}, PrivateKey: c.client.signer}}
	}
	secured := tls.Client(conn, cfg)
	if err := secured.Handshake(); err != nil {
		_ = conn.Close()
		return nil, "", err
	}
	return secured, secured.ConnectionState().PeerCertificates[0].Subject.CommonName, nil
}

// ask sends a request for a host with additional headers, and returns the certificate, the status
// and the first line of the response, or the error.
func (w *edgeWorld) ask(c caller, host string, headers ...string) string {
	conn, name, err := w.connect(c)
	if err != nil {
		return "error: " + err.Error()
	}
	defer func() { _ = conn.Close() }()
	return strings.TrimSpace(name + " " + exchange(conn, bufio.NewReader(conn), host, headers...))
}

// exchange sends a request over a connection.
func exchange(conn net.Conn, reader *bufio.Reader, host string, headers ...string) string {
	text := "GET / HTTP/1.1\r\nHost: " + host + "\r\n"
	for _, h := range headers {
		text += h + "\r\n"
	}
	if _, err := io.WriteString(conn, text+"\r\n"); err != nil {
		return "error: " + err.Error()
	}
	answer, err := http.ReadResponse(reader, nil)
	if err != nil {
		return "error: " + err.Error()
	}
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		return "error: " + err.Error()
	}
	return strings.TrimSpace(fmt.Sprint(answer.StatusCode, " ", answer.Header.Get("Location"), string(body)))
}

// echo sends a line, and returns the response.
func (w *edgeWorld) echo(c caller) string {
	conn, name, err := w.connect(c)
	if err != nil {
		return "error: " + err.Error()
	}
	defer func() { _ = conn.Close() }()
	if _, err := io.WriteString(conn, "hello\n"); err != nil {
		return "error: " + err.Error()
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		return "error: " + err.Error()
	}
	return strings.TrimSpace(name + " " + line)
}
