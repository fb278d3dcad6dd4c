// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/bootstrap/meshconfig"
	"github.com/outrigger-mesh/outrigger/controlplane/generate/envoyconf"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
	"github.com/outrigger-mesh/outrigger/e2e/envoytest"
)

const forwardedCert = "X-Forwarded-Client-Cert"

// guarded is the real Envoy of a workload. It has an identity of the mesh and accepts mutual TLS
// and plaintext before an application that responds with the value of x-forwarded-client-cert. Its
// listeners and clusters can change.
type guarded struct {
	authority *issuer
	own       string // files of its certificate and key, separated by ~
	address   string // address of the proxy
	ports     map[string]string
	dir       string
	objects   string
	proxy     *model.Proxy
	mesh      *snapshot.Mesh
	// hello receives what the Envoy offers in a handshake as a client.
	hello atomic.Pointer[atomic.Pointer[tls.ClientHelloInfo]]
}

// guardedObjects define a port for each kind of inbound traffic (HTTP, streams, undeclared
// protocol) and an outbound route in plaintext.
const guardedObjects = `
kind: Sidecar
metadata: {name: frontend, namespace: default}
spec:
  ingress:
  - {port: {number: PORT_HTTP, protocol: HTTP, name: http}, defaultEndpoint: "127.0.0.1:PORT_APP"}
  - {port: {number: PORT_TCP, protocol: TCP, name: tcp}, defaultEndpoint: "127.0.0.1:PORT_APP"}
  - {port: {number: PORT_ANY, name: any}, defaultEndpoint: "127.0.0.1:PORT_APP"}
  - {port: {number: PORT_FIRST, protocol: TCP, name: first}, defaultEndpoint: "127.0.0.1:PORT_GREETS"}
---
kind: ServiceEntry
metadata: {name: app, namespace: default}
spec:
  hosts: [app.default.svc.cluster.local]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP}]
  endpoints: [{address: 127.0.0.1, ports: {http: PORT_APP}}]
---
kind: ServiceEntry
metadata: {name: far, namespace: default}
spec:
  hosts: [far.default.svc.cluster.local]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP}]
  endpoints: [{address: 127.0.0.1, ports: {http: PORT_FAR}, serviceAccount: far, labels: {security.istio.io/tlsMode: istio}}]
`

// startGuarded runs the Envoy until the test ends.
func startGuarded(t *testing.T, change func(*model.Proxy)) *guarded {
	t.Helper()
	return startDraining(t, change, time.Second)
}

// startDraining runs the Envoy, which closes connections of replaced listeners after the given time.
func startDraining(t *testing.T, change func(*model.Proxy), drain time.Duration) *guarded {
	t.Helper()
	binary := envoytest.Binary(t)
	// Use an address of this run only, because other runs may be in progress.
	var random [3]byte
	if _, err := rand.Read(random[:]); err != nil {
		t.Fatal(err)
	}
	s := &guarded{address: fmt.Sprintf("127.%d.%d.%d", 100+random[0]%100, random[1], 1+random[2]%250), dir: t.TempDir(), ports: map[string]string{}}
	s.authority = newIssuer(t, s.dir, "root")
	_, chain, key := s.identity(t, "spiffe://cluster.local/ns/default/sa/default")
	s.own = chain + "~" + key
	app := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, strings.Join(r.Header.Values(forwardedCert), ",")) // the client detects missing data
		for _, name := range envoyconf.PeerHeaders() {
			if v := r.Header.Get(name); v != "" {
				_, _ = io.WriteString(w, " peer:"+v)
			}
		}
	}))
	t.Cleanup(app.Close)
	s.ports["APP"], s.ports["FAR"] = portOf(t, app.Listener.Addr()), s.serveFar(t)
	s.ports["GREETS"] = serveGreeting(t)
	for i, port := range freePorts(t, s.address, 6) {
		s.ports[[]string{"HTTP", "TCP", "ANY", "PROXY", "FIRST", "ADMIN"}[i]] = port
	}
	s.objects = guardedObjects
	for name, port := range s.ports {
		s.objects = strings.ReplaceAll(s.objects, "PORT_"+name, port)
	}
	s.proxy = proxyAt(s.address)
	s.proxy.HTTPProxyPort = uint32(numberOf(t, s.ports["PROXY"]))
	if change != nil {
		change(s.proxy)
	}
	s.put(t, snapshot.Input{})
	runEnvoy(t, binary, s.bootstrap(t), s.address+":"+s.ports["HTTP"], "--drain-time-s", strconv.Itoa(int(drain.Seconds())), "--drain-strategy", "immediate")
	return s
}

func numberOf(t *testing.T, port string) uint64 {
	t.Helper()
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// put makes the Envoy apply a snapshot. Of the input, only what objects and settings do not define
// is used.
func (s *guarded) put(t *testing.T, in snapshot.Input) {
	t.Helper()
	objects := inputOf(decode(t, strings.TrimSpace(s.objects)), meshconfig.Default())
	in.List, in.Mesh = objects.List, objects.Mesh
	s.mesh = snapshot.Build(s.mesh, in, model.Change{All: true})
	for _, p := range s.mesh.Problems {
		t.Errorf("a problem of the objects: %s", p)
	}
	var all struct {
		Static map[string][]map[string]any `json:"static_resources"`
	}
	if err := json.Unmarshal(withSecrets(t, s.dir, staticBootstrap(t, s.mesh, s.proxy), s.secret), &all); err != nil {
		t.Fatal(err)
	}
	for name, typeURL := range map[string]string{"listeners": xds.TypeListener, "clusters": xds.TypeCluster} {
		for _, resource := range all.Static[name] {
			resource["@type"] = typeURL
		}
		b, err := json.Marshal(map[string]any{"resources": all.Static[name]})
		if err != nil {
			t.Fatal(err)
		}
		// Envoy watches for files that are moved there.
		write(t, filepath.Join(s.dir, name+".new"), b)
		if err := os.Rename(filepath.Join(s.dir, name+".new"), filepath.Join(s.dir, name+".json")); err != nil {
			t.Fatal(err)
		}
	}
}

func (s *guarded) bootstrap(t *testing.T) []byte {
	t.Helper()
	from := func(name string) map[string]any {
		return map[string]any{"resource_api_version": "V3", "path_config_source": map[string]any{"path": filepath.Join(s.dir, name+".json")}}
	}
	b, err := json.Marshal(map[string]any{
		"node":              map[string]any{"id": "test", "cluster": "test", "metadata": map[string]any{"CLUSTER_ID": "near"}},
		"admin":             map[string]any{"address": map[string]any{"socket_address": map[string]any{"address": s.address, "port_value": numberOf(t, s.ports["ADMIN"])}}},
		"dynamic_resources": map[string]any{"lds_config": from("listeners"), "cds_config": from("clusters")},
	})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// secret returns a secret as the agent serves it.
func (s *guarded) secret(t testing.TB, name string) map[string]any {
	t.Helper()
	from := map[string]string{"ROOTCA": "file-root:" + s.authority.file, "default": "file-cert:" + s.own}[name]
	secret := secretOf(t, from)
	secret["name"] = name
	return secret
}

// identity issues a workload certificate, and writes it and its key to files.
func (s *guarded) identity(t testing.TB, id string) (pair tls.Certificate, chain, key string) {
	t.Helper()
	uri, err := url.Parse(id)
	if err != nil {
		t.Fatal(err)
	}
	cert, private, text := certificate(t, &x509.Certificate{
		Subject: pkix.Name{CommonName: "workload"}, URIs: []*url.URL{uri},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}, KeyUsage: x509.KeyUsageDigitalSignature,
	}, s.authority)
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	chain, key = filepath.Join(s.dir, cert.SerialNumber.String()+".pem"), filepath.Join(s.dir, cert.SerialNumber.String()+".key")
	write(t, chain, text)
	write(t, key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
	return tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: private, Leaf: cert}, chain, key
}

// serveFar is a workload that the Envoy calls with mutual TLS.
func (s *guarded) serveFar(t *testing.T) string {
	t.Helper()
	pair, _, _ := s.identity(t, "spiffe://cluster.local/ns/default/sa/far")
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "far")
	}))
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // some handshakes are expected to fail
	server.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, NextProtos: []string{"http/1.1"}, MinVersion: tls.VersionTLS12}
	server.TLS.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		if to := s.hello.Load(); to != nil {
			to.Store(hello)
		}
		return nil, nil // that of the server
	}
	server.StartTLS()
	t.Cleanup(server.Close)
	return portOf(t, server.Listener.Addr())
}

// greeting is what the application at the port FIRST sends before its client does.
const greeting = "220 ready"

// serveGreeting is a server that speaks first.
func serveGreeting(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(conn, greeting) // the client detects missing data
			_ = conn.Close()
		}
	}()
	return portOf(t, l.Addr())
}

// greeted returns what a client that sends nothing receives.
func (s *guarded) greeted(pair tls.Certificate) string {
	dialer := &net.Dialer{Timeout: 2 * time.Minute}
	conn, err := tls.DialWithDialer(dialer, "tcp", net.JoinHostPort(s.address, s.ports["FIRST"]), &tls.Config{Certificates: []tls.Certificate{pair}, InsecureSkipVerify: true, NextProtos: []string{"istio"}}) //nolint:gosec // the server is not what is examined
	if err != nil {
		return ""
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(2 * time.Minute)); err != nil {
		return ""
	}
	got, _ := io.ReadAll(conn) // an error may follow the greeting
	return string(got)
}

// client returns a client of a workload whose application forges headers: it uses its own mutual
// TLS with the given ALPN names. A nil certificate means plaintext.
func (s *guarded) client(pair *tls.Certificate, alpn ...string) *http.Client {
	transport := &http.Transport{DisableKeepAlives: true}
	if pair != nil {
		transport.TLSClientConfig = &tls.Config{Certificates: []tls.Certificate{*pair}, InsecureSkipVerify: true, NextProtos: alpn} //nolint:gosec // the server is not what is examined
	}
	return &http.Client{Transport: transport, Timeout: 2 * time.Minute}
}

// ask sends a request with a header, and returns the response or the error.
func (s *guarded) ask(t *testing.T, client *http.Client, scheme, port, forged string) (string, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, scheme+"://"+net.JoinHostPort(s.address, s.ports[port])+"/", nil)
	if err != nil {
		t.Fatal(err)
	}
	if forged != "" {
		req.Header.Set(forwardedCert, forged)
	}
	return answer(client, req)
}

func answer(client *http.Client, req *http.Request) (string, error) {
	resp, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }() // the body is read below
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %d", resp.StatusCode)
	}
	return string(body), err
}
