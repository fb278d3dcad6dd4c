// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3" // the listener of the test names it
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/grpc"
	grpccredentials "google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/outrigger-mesh/outrigger/controlplane/authn"
	"github.com/outrigger-mesh/outrigger/controlplane/credentials"
	"github.com/outrigger-mesh/outrigger/controlplane/discovery/secrets"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
	"github.com/outrigger-mesh/outrigger/e2e/envoytest"
	"github.com/outrigger-mesh/outrigger/e2e/ownnet"
)

// gatewayTest is a control plane with Secrets in files, and an Envoy that has
// its certificates from there.
type gatewayTest struct {
	dir     string // of the Secrets
	root    minted
	logged  *journal
	address string // of Envoy's listener
}

// TestEnvoyGateway has the real Envoy serve TLS with the certificates of
// Secrets:
//   - it receives them over ADS, and requests certificates of its clients
//   - a new pair is used for new connections, old ones stay open
//   - an invalid or deleted Secret changes nothing
//   - a revocation list excludes a client
func TestEnvoyGateway(t *testing.T) {
	t.Parallel()
	binary := envoytest.Binary(t)
	for name, tc := range map[string]struct{ api, address string }{
		"sotw": {"GRPC", "127.77.54.11"}, "delta": {"DELTA_GRPC", "127.77.54.12"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := startGateway(t, binary, tc.api, tc.address)
			client := g.root.issue(t, "client")
			held := g.dial(t, client, "first")
			held.get(t)

			g.write(t, "shop", g.root.issue(t, "second").pair())
			until(t, "the new certificate is shown", func() bool { return g.shows(client) == "second" })
			held.get(t)

			g.write(t, "shop", map[string][]byte{"tls.crt": g.root.issue(t, "third").chain, "tls.key": client.key})
			until(t, "the broken Secret is seen", func() bool { return strings.Contains(g.logged.String(), "stays in force") })
			if err := os.Remove(filepath.Join(g.dir, "shop.yaml")); err != nil {
				t.Fatal(err)
			}
			until(t, "the Secret is missed", func() bool { return strings.Contains(g.logged.String(), "there is no Secret default/shop ") })
			g.dial(t, client, "second").get(t)
			held.get(t)

			g.write(t, "shop-cacert", map[string][]byte{"ca.crt": g.root.chain, "ca.crl": g.root.crl(t, client)})
			until(t, "the revoked client is refused", func() bool { return g.shows(client) == "" })
			g.dial(t, g.root.issue(t, "another"), "second").get(t)
			held.get(t)
		})
	}
}

// startGateway starts everything, with the certificate "first".
func startGateway(t *testing.T, binary, api, address string) *gatewayTest {
	t.Helper()
	g := &gatewayTest{dir: t.TempDir(), root: mint(t, "root"), logged: &journal{}, address: address + ":" + freePort(t, address)}
	g.write(t, "shop", g.root.issue(t, "first").pair())
	g.write(t, "shop-cacert", map[string][]byte{"ca.crt": g.root.chain})
	log := slog.New(slog.NewTextHandler(g.logged, nil))
	source, err := credentials.NewFileSource(credentials.FileConfig{Dir: g.dir, Logger: log})
	if err != nil {
		t.Fatal(err)
	}
	auth, err := authn.NewClientCertificate("cluster.local")
	if err != nil {
		t.Fatal(err)
	}
	content := &table{}
	content.put(t, g.listener(t))
	server, err := New(Config{Generator: content, Workers: 1, Secrets: secrets.Config{Source: source}, Logger: log})
	if err != nil {
		t.Fatal(err)
	}
	own, _ := g.root.issue(t, "control").tls(g.root)
	s := grpc.NewServer(grpc.ForceServerCodecV2(Codec()), grpc.Creds(grpccredentials.NewTLS(own)))
	server.Register(s, auth)
	server.Push(content.freeze(), model.Change{All: true})
	l, err := net.Listen("tcp", address+":0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 3)
	go func() { done <- source.Run(ctx) }()
	go func() { done <- server.Run(ctx) }()
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
			t.Logf("the control plane said:\n%s", g.logged)
		}
	})
	g.runEnvoy(t, binary, g.bootstrap(t, api, l.Addr().String()))
	return g
}

// put makes a message the one resource of its type.
func (g *table) put(t *testing.T, l *listenerv3.Listener) {
	t.Helper()
	packed, err := anypb.New(l)
	if err != nil {
		t.Fatal(err)
	}
	b, err := proto.Marshal(packed)
	if err != nil {
		t.Fatal(err)
	}
	g.sets = map[string]*xds.Set{xds.TypeListener: {
		Version: "1", Resources: []*xds.Resource{{Name: l.GetName(), Hash: 1, Any: b}},
	}}
}

// listener serves TLS with the pair of the Secret shop, for clients that the
// roots of shop-cacert verify.
func (g *gatewayTest) listener(t *testing.T) *listenerv3.Listener {
	t.Helper()
	host, port, err := net.SplitHostPort(g.address)
	if err != nil {
		t.Fatal(err)
	}
	const ads = `{"ads":{},"resource_api_version":"V3","initial_fetch_timeout":"0s"}`
	l := &listenerv3.Listener{}
	text := fmt.Sprintf(`{"name":"gateway","address":{"socket_address":{"address":%q,"port_value":%s}},"filter_chains":[{
		"filters":[{"name":"http","typed_config":{
			"@type":"type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager","stat_prefix":"x",
			"route_config":{"virtual_hosts":[{"name":"all","domains":["*"],"routes":[{"match":{"prefix":"/"},"direct_response":{"status":200,"body":{"inline_string":"hello"}}}]}]},
			"http_filters":[{"name":"router","typed_config":{"@type":"type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"}}]}}],
		"transport_socket":{"name":"tls","typed_config":{
			"@type":"type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext","require_client_certificate":true,
			"common_tls_context":{
				"tls_certificate_sds_secret_configs":[{"name":"kubernetes://shop","sds_config":%s}],
				"validation_context_sds_secret_config":{"name":"kubernetes://shop-cacert","sds_config":%s}}}}}]}`, host, port, ads, ads)
	if err := protojson.Unmarshal([]byte(text), l); err != nil {
		t.Fatal(err)
	}
	return l
}

// bootstrap is that of a gateway whose agent is not there: Envoy itself shows
// the certificate of its service account.
func (g *gatewayTest) bootstrap(t *testing.T, api, control string) []byte {
	t.Helper()
	host, port, err := net.SplitHostPort(control)
	if err != nil {
		t.Fatal(err)
	}
	number, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	own := g.root.issue(t, "gateway")
	inline := func(b []byte) any { return map[string]any{"inline_bytes": base64.StdEncoding.EncodeToString(b)} }
	list := func(v ...any) []any { return v }
	type object = map[string]any
	b, err := json.Marshal(object{
		"node": object{
			"id": "router~127.77.54.2~gateway-1.default~default.svc.cluster.local", "cluster": "gateway",
			"metadata": object{"NAMESPACE": "default", "SERVICE_ACCOUNT": "gateway"},
		},
		"dynamic_resources": object{
			"lds_config": object{"ads": object{}, "resource_api_version": "V3"}, "cds_config": object{"ads": object{}, "resource_api_version": "V3"},
			"ads_config": object{"api_type": api, "transport_api_version": "V3", "grpc_services": list(object{"envoy_grpc": object{"cluster_name": "control"}})},
		},
		"static_resources": object{"clusters": list(object{
			"name": "control", "type": "STATIC", "connect_timeout": "5s",
			"typed_extension_protocol_options": object{"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": object{
				"@type":                "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
				"explicit_http_config": object{"http2_protocol_options": object{}},
			}},
			"load_assignment": object{"cluster_name": "control", "endpoints": list(object{"lb_endpoints": list(object{"endpoint": object{
				"address": object{"socket_address": object{"address": host, "port_value": number}},
			}})})},
			"transport_socket": object{"name": "tls", "typed_config": object{
				"@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext", "sni": "localhost",
				"common_tls_context": object{
					"alpn_protocols":     list("h2"),
					"tls_certificates":   list(object{"certificate_chain": inline(own.chain), "private_key": inline(own.key)}),
					"validation_context": object{"trusted_ca": inline(g.root.chain)},
				},
			}},
		})},
	})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// runEnvoy runs Envoy until the test ends, and waits until it listens.
func (g *gatewayTest) runEnvoy(t *testing.T, binary string, bootstrap []byte, args ...string) {
	t.Helper()
	dir := t.TempDir()
	path := filepath.Join(dir, "envoy.json")
	if err := os.WriteFile(path, bootstrap, 0o600); err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(dir, "envoy.log"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	args = append([]string{"-c", path, "--concurrency", "1", "--disable-hot-restart", "--log-level", "warning"}, args...)
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		cancel()
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		_ = cmd.Wait() // it was killed
		_ = log.Close()
		if text, err := os.ReadFile(log.Name()); err == nil && (t.Failed() || strings.Contains(string(text), "deprecated")) {
			t.Errorf("envoy said:\n%s", text)
		}
	})
	until(t, "envoy listens", func() bool {
		conn, err := net.Dial("tcp", g.address)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	})
}

func freePort(t *testing.T, address string) string {
	t.Helper()
	port, err := ownnet.FreePort(address)
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// write puts a Secret of namespace default into its file, all at once.
func (g *gatewayTest) write(t *testing.T, name string, data map[string][]byte) {
	t.Helper()
	text := fmt.Sprintf("apiVersion: v1\nkind: Secret\nmetadata: {name: %s, namespace: default}\ndata:\n", name)
	for k, v := range data {
		text += "  " + k + ": " + base64.StdEncoding.EncodeToString(v) + "\n"
	}
	path := filepath.Join(g.dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path, path+".yaml"); err != nil {
		t.Fatal(err)
	}
}

// held is a connection to the gateway.
type held struct {
	conn   *tls.Conn
	reader *bufio.Reader
}

// dial connects, and compares the certificate that the gateway shows.
func (g *gatewayTest) dial(t *testing.T, client minted, want string) *held {
	t.Helper()
	h, name := g.try(client)
	if name != want {
		t.Fatalf("the gateway shows %q, want %q", name, want)
	}
	t.Cleanup(func() { _ = h.conn.Close() })
	return h
}

// shows returns the name in the certificate of the gateway; nothing if it does
// not serve the client.
func (g *gatewayTest) shows(client minted) string {
	h, name := g.try(client)
	if h == nil {
		return ""
	}
	defer func() { _ = h.conn.Close() }()
	if err := h.ask(); err != nil {
		return ""
	}
	return name
}

func (g *gatewayTest) try(client minted) (*held, string) {
	roots := x509.NewCertPool()
	roots.AddCert(g.root.parsed)
	conn, err := tls.DialWithDialer(&net.Dialer{Timeout: 5 * time.Second}, "tcp", g.address, &tls.Config{
		RootCAs: roots, ServerName: "localhost", MinVersion: tls.VersionTLS12,
		Certificates: []tls.Certificate{{Certificate: [][]byte{client.parsed.Raw}, PrivateKey: client.signer}},
	})
	if err != nil {
		return nil, ""
	}
	return &held{conn: conn, reader: bufio.NewReader(conn)}, conn.ConnectionState().PeerCertificates[0].Subject.CommonName
}

// get sends a request over the connection.
func (h *held) get(t *testing.T) {
	t.Helper()
	if err := h.ask(); err != nil {
		t.Errorf("a request over a connection that was open: %v", err)
	}
}

func (h *held) ask() error {
	if err := h.conn.SetDeadline(time.Now().Add(2 * time.Minute)); err != nil {
		return err
	}
	if _, err := io.WriteString(h.conn, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
		return err
	}
	answer, err := http.ReadResponse(h.reader, nil)
	if err != nil {
		return err
	}
	body, err := io.ReadAll(answer.Body)
	if err == nil && string(body) != "hello" {
		err = fmt.Errorf("the answer is %s: %q", answer.Status, body)
	}
	return err
}
