// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package e2e

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/outrigger-mesh/outrigger/e2e/netlab"
)

// interceptedMesh has a server on two machines, one redirected and one transparent, reachable by
// address, by name and by both, and a machine outside the mesh.
const interceptedMesh = `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: web, namespace: default}
spec:
  hosts: [web.default.svc.cluster.local]
  addresses: [10.96.0.1, "fd00:96::1"]
  location: MESH_INTERNAL
  resolution: STATIC
  ports:
  - {number: 80, name: http, protocol: HTTP, targetPort: 8080}
  - {number: 9000, name: any, targetPort: 9000}
  - {number: 5432, name: db, protocol: TCP, targetPort: 5432}
  - {number: 9090, name: grpc, protocol: GRPC, targetPort: 8080}
  workloadSelector: {labels: {app: web}}
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: web, namespace: default}
spec: {address: WEB, serviceAccount: web, labels: {app: web}}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: seen, namespace: default}
spec:
  hosts: [seen.default.svc.cluster.local]
  addresses: [10.96.0.2]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP, targetPort: 8080}, {number: 5432, name: db, protocol: TCP}]
  workloadSelector: {labels: {app: seen}}
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: seen, namespace: default}
spec: {address: SEEN, serviceAccount: seen, labels: {app: seen}}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: by-name, namespace: default}
spec:
  hosts: [tls.example.com]
  addresses: [192.0.2.7]
  location: MESH_EXTERNAL
  resolution: STATIC
  ports: [{number: 443, name: tls, protocol: TLS, targetPort: 7443}]
  endpoints: [{address: OUTSIDE}]
`

// TestInterception runs agents with the real Envoy in network namespaces whose traffic is
// redirected to them, as in pods, and checks what applications see.
func TestInterception(t *testing.T) {
	t.Parallel()
	if err := build(); err != nil {
		t.Fatal(err)
	}
	all := machines(t, "control", "client", "web", "seen", "outside")
	control, client, web, seen, outside := all[0], all[1], all[2], all[3], all[4]
	m := newIntercepted(t, control, strings.NewReplacer("WEB", web.ip4.String(), "SEEN", seen.ip4.String(), "OUTSIDE", outside.ip4.String()).Replace(interceptedMesh))
	for _, server := range []*machine{web, seen, outside} {
		server.serve(t, "[::]:8080", http.HandlerFunc(whoAsks))
		server.serve(t, "[::]:9000", http.HandlerFunc(whoAsks))
		server.talk(t, "[::]:5432", "hello ")
		server.talk(t, "[::]:6000", "")
	}
	client.refuses(t)
	client.capture(t)
	web.capture(t)
	seen.capture(t, "-m", "TPROXY")
	m.agent(t, client, "client", "REDIRECT")
	m.agent(t, web, "web", "REDIRECT")
	m.agent(t, seen, "seen", "TPROXY")

	asClient := "URI=spiffe://cluster.local/ns/default/sa/client"
	get := func(from *machine, url, host string, want ...string) {
		t.Helper()
		from.sees(t, url, host, want...)
	}
	const byWeb, bySeen = "By=spiffe://cluster.local/ns/default/sa/web;", "By=spiffe://cluster.local/ns/default/sa/seen;"
	// Requests: by virtual address, by name, by the other family; to a port without a declared
	// protocol; to the workload itself; around the mesh.
	get(client, "http://10.96.0.1/", "", byWeb, asClient, "host 10.96.0.1")
	get(client, "http://10.96.0.1/", "web", byWeb, asClient, "host web")
	get(client, "http://[fd00:96::1]/", "", byWeb, asClient)
	get(client, "http://10.96.0.1/", "seen.default", bySeen, asClient)
	get(client, "http://10.96.0.1:9000/", "", byWeb, asClient)
	get(client, "http://"+web.ip4.String()+":8080/", "", "host "+web.ip4.String())
	get(client, "http://"+hostPort(web.ip6, 9000)+"/", "", "host [")
	get(client, "http://"+outside.ip4.String()+":8080/", "", "!By=", "from "+client.ip4.String())
	get(outside, "http://"+web.ip4.String()+":8080/", "", "!URI=", "host "+web.ip4.String())
	// Transparent: the application sees the caller's address, in the mesh or not.
	get(outside, "http://"+seen.ip4.String()+":8080/", "", "from "+outside.ip4.String())
	get(outside, "http://"+hostPort(seen.ip6, 8080)+"/", "", "from "+outside.ip6.String())
	get(client, "http://10.96.0.2/", "", bySeen, asClient, "from "+client.ip4.String())

	// Connections: the server speaks first; a port without a service.
	converse(t, client, "10.96.0.1:5432", "hello ")
	converse(t, client, "10.96.0.2:5432", "hello "+client.ip4.String())
	converse(t, outside, hostPort(seen.ip4, 5432), "hello "+outside.ip4.String())
	converse(t, client, hostPort(web.ip4, 6000), "")
	converse(t, client, hostPort(outside.ip4, 6000), client.ip4.String())

	// TLS of the application is forwarded unchanged, and its server name selects the destination.
	secure := httptest.NewUnstartedServer(http.HandlerFunc(whoAsks))
	_ = secure.Listener.Close() // it listens elsewhere
	secure.Listener = outside.listen(t, "[::]:7443")
	secure.StartTLS()
	t.Cleanup(secure.Close)
	opaque := client.client()
	opaque.Transport.(*http.Transport).TLSClientConfig = &tls.Config{RootCAs: secure.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs, ServerName: "example.com"}
	eventually(t, 2*time.Minute, func() string {
		code, body, err := request(t.Context(), opaque, "https://192.0.2.7/", "")
		if err != nil || code != 200 || !strings.Contains(body, "from "+client.ip4.String()) {
			return fmt.Sprintf("TLS of the application: %d, %v: %s", code, err, body)
		}
		return ""
	})

	// STRICT: callers outside the mesh are refused, on ports of services and others.
	m.write(t, "strict.yaml", "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: default, namespace: default}\nspec: {mtls: {mode: STRICT}}\n")
	eventually(t, 2*time.Minute, func() string {
		for _, url := range []string{"http://" + hostPort(web.ip4, 8080) + "/", "http://" + hostPort(seen.ip4, 9000) + "/"} {
			if code, body, err := request(t.Context(), outside.client(), url, ""); err == nil {
				return fmt.Sprintf("%s answers who is not in the mesh: %d %s", url, code, body)
			}
		}
		return ""
	})
	get(client, "http://10.96.0.1/", "", byWeb, asClient)
	get(client, "http://10.96.0.1:9000/", "", byWeb, asClient)
	converse(t, client, "10.96.0.1:5432", "hello ")

	m.denySerial(t, client, "10.96.0.1:5432", "10.96.0.2:5432")
	get(client, "http://10.96.0.1/", "", byWeb, asClient)

	// REGISTRY_ONLY: unknown destinations are refused, known ones still work.
	m.write(t, "known.yaml", "apiVersion: networking.istio.io/v1\nkind: Sidecar\nmetadata: {name: client, namespace: default}\nspec:\n  workloadSelector: {labels: {app: client}}\n  egress: [{hosts: ['./*']}]\n  outboundTrafficPolicy: {mode: REGISTRY_ONLY}\n")
	eventually(t, 2*time.Minute, func() string {
		if code, body, err := request(t.Context(), client.client(), "http://"+hostPort(outside.ip4, 8080)+"/", ""); err == nil && code == 200 {
			return fmt.Sprintf("what nobody knows answers: %d %s", code, body)
		}
		return ""
	})
	get(client, "http://10.96.0.1/", "", byWeb, asClient)
	eventually(t, 2*time.Minute, func() string { // routes come after listeners
		if code, body, err := request(t.Context(), client.client(), "http://10.96.0.1/", "nobody.example.com"); err != nil || code != 502 {
			return fmt.Sprintf("an unknown host: %d, %v: %s", code, err, body)
		}
		return ""
	})
}

// refuses runs an agent on a machine without redirection that requires it.
func (m *machine) refuses(t *testing.T) {
	t.Helper()
	cmd := exec.Command(filepath.Join(repository(t), "bin", "outrigger-agent"), "proxy")
	cmd.Dir, cmd.Env = t.TempDir(), append(os.Environ(), "OUTRIGGER_REQUIRE_INTERCEPTION=true", "INSTANCE_IP="+m.ip4.String(), "POD_NAMESPACE=default", "PROXY_CONFIG=binaryPath: "+envoyBinary(t))
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	m.start(t, cmd)
	if err := cmd.Wait(); err == nil || cmd.ProcessState.ExitCode() != 126 || !strings.Contains(out.String(), "connections are not redirected to Envoy") {
		t.Errorf("an agent without redirection: %v\n%s", err, out.String())
	}
}

// whoAsks responds with the properties of the request.
func whoAsks(w http.ResponseWriter, r *http.Request) {
	host, _, _ := net.SplitHostPort(r.RemoteAddr)
	if ip, err := netip.ParseAddr(host); err == nil {
		host = ip.Unmap().String()
	}
	_, _ = fmt.Fprintf(w, "host %s\nfrom %s\n%s\n", r.Host, host, r.Header.Get("X-Forwarded-Client-Cert")) // the client notices missing data
}

// sees waits until the response of a URL contains all texts, except those that begin with an
// exclamation mark, which it must not contain.
func (m *machine) sees(t *testing.T, url, host string, want ...string) {
	t.Helper()
	eventually(t, 2*time.Minute, func() string {
		code, body, err := request(t.Context(), m.client(), url, host)
		if err != nil || code != 200 {
			return fmt.Sprintf("%s asks %s (%s): %d, %v: %s", m.name, url, host, code, err, body)
		}
		for _, w := range want {
			if w, not := strings.CutPrefix(w, "!"); strings.Contains(body, w) == not {
				return fmt.Sprintf("%s asks %s (%s) and sees %q, want %q", m.name, url, host, body, w)
			}
		}
		return ""
	})
}

func hostPort(ip netip.Addr, port uint16) string { return netip.AddrPortFrom(ip, port).String() }

// request requests a URL; the host may differ from that of the URL.
func request(ctx context.Context, client *http.Client, url, host string) (int, string, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, "", err
	}
	req.Host = host
	resp, err := client.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = resp.Body.Close() }() // read to its end
	body, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(body), err
}

// converse expects a greeting, sends a text and expects it back.
func converse(t *testing.T, from *machine, address, greeting string) {
	t.Helper()
	eventually(t, 2*time.Minute, func() string {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		c, err := from.Dial(ctx, "tcp", address)
		if err != nil {
			return fmt.Sprintf("%s connects to %s: %v", from.name, address, err)
		}
		defer func() { _ = c.Close() }() // no more data is expected
		_ = c.SetDeadline(time.Now().Add(2 * time.Minute))
		in := bufio.NewReader(c)
		first, err := in.ReadString('\n')
		if first = strings.ReplaceAll(first, "::ffff:", ""); err != nil || !strings.HasPrefix(first, greeting) {
			return fmt.Sprintf("%s hears %q from %s, want %q: %v", from.name, first, address, greeting, err)
		}
		if _, err := io.WriteString(c, "and back\n"); err != nil {
			return err.Error()
		}
		if back, err := in.ReadString('\n'); back != "and back\n" {
			return fmt.Sprintf("%s hears %q from %s: %v", from.name, back, address, err)
		}
		return ""
	})
}

// intercepted is a control plane and the agents of machines.
type intercepted struct {
	dir     string
	control *machine
	sign    jose.Signer
}

// newIntercepted runs a control plane on a machine.
func newIntercepted(t *testing.T, control *machine, config string) *intercepted {
	t.Helper()
	m := &intercepted{dir: t.TempDir(), control: control}
	if err := os.Chmod(m.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if m.sign, err = jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: key, KeyID: "test"}}, nil); err != nil {
		t.Fatal(err)
	}
	jwks, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: key.Public(), KeyID: "test", Algorithm: "ES256", Use: "sig"}}})
	if err != nil {
		t.Fatal(err)
	}
	rule, err := json.Marshal(map[string]any{"issuer": "test", "audiences": []string{"istio-ca"}, "jwks": string(jwks)})
	if err != nil {
		t.Fatal(err)
	}
	m.write(t, "mesh.yaml", config)
	m.deny(t, "# nobody\n")
	settings := filepath.Join(m.dir, "settings.yaml")
	if err := os.WriteFile(settings, []byte("configSources: [{address: 'fs://"+filepath.Join(m.dir, "config")+"'}]\nprotocolDetectionTimeout: 0.2s\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(repository(t), "bin", "outrigger-control"), "discovery", "--meshConfig", settings, "--registries", "",
		"--grpcAddr", "", "--secureGRPCAddr", hostPort(control.ip4, 15012), "--httpAddr", hostPort(control.ip4, 8080), "--monitoringAddr", hostPort(control.ip4, 15014), "--httpsAddr", "")
	cmd.Env = append(os.Environ(), "JWT_RULE="+string(rule), "OUTRIGGER_STATE_DIR="+filepath.Join(m.dir, "state"), "POD_NAMESPACE=istio-system", "OUTRIGGER_DENY_LIST="+m.denyList())
	m.run(t, control, cmd, "control")
	eventually(t, 2*time.Minute, func() string {
		code, body, err := request(t.Context(), control.client(), "http://"+hostPort(control.ip4, 8080)+"/ready", "")
		if err == nil && code == 200 {
			return ""
		}
		<-time.After(20 * time.Millisecond) // it is starting
		return fmt.Sprintf("the control plane is not ready: %d %s %v", code, body, err)
	})
	return m
}

// write writes a file to the configuration.
func (m *intercepted) write(t *testing.T, name, text string) {
	t.Helper()
	put(t, filepath.Join(m.dir, "config", name), text)
}

// identity writes the credentials of a workload and the root of the control plane below a
// directory.
func (m *intercepted) identity(t *testing.T, dir, app string) {
	t.Helper()
	token, err := jwt.Signed(m.sign).Claims(jwt.Claims{
		Issuer: "test", Subject: "system:serviceaccount:default:" + app, Audience: jwt.Audience{"istio-ca"},
		IssuedAt: jwt.NewNumericDate(time.Now()), Expiry: jwt.NewNumericDate(time.Now().Add(time.Hour)),
	}).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	root, err := os.ReadFile(filepath.Join(m.dir, "state", "root-cert.pem"))
	if err != nil {
		t.Fatal(err)
	}
	put(t, filepath.Join(dir, "var/run/secrets/tokens/istio-token"), token)
	put(t, filepath.Join(dir, "var/run/secrets/istio/root-cert.pem"), string(root))
}

// put writes a file and creates its directory.
func put(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

// agent runs the agent of a machine, and waits until it is ready.
func (m *intercepted) agent(t *testing.T, at *machine, app, interception string) {
	t.Helper()
	dir := filepath.Join(m.dir, app)
	m.identity(t, dir, app)
	put(t, filepath.Join(dir, "etc/istio/pod/labels"), "app=\""+app+"\"\n")
	if err := os.Mkdir(filepath.Join(dir, "certs"), 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(repository(t), "bin", "outrigger-agent"), "proxy", "sidecar", "--domain", "default.svc.cluster.local")
	cmd.Env = append(os.Environ(), "POD_NAME="+app, "POD_NAMESPACE=default", "INSTANCE_IP="+at.ip4.String(), "SERVICE_ACCOUNT="+app, "OUTPUT_CERTS=./certs",
		"ISTIO_META_INTERCEPTION_MODE="+interception, "ISTIO_META_CLUSTER_ID=Kubernetes", "ISTIOD_SAN=istiod.istio-system.svc",
		fmt.Sprintf(`PROXY_CONFIG={"discoveryAddress":%q,"binaryPath":%q,"concurrency":1,"terminationDrainDuration":"1s"}`,
			hostPort(m.control.ip4, 15012), envoyBinary(t)))
	cmd.Dir = dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Gid: netlab.ProxyID}}
	m.run(t, at, cmd, app)
	m.ready(t, at, app)
}

// ready waits until the agent of a machine is ready.
func (m *intercepted) ready(t *testing.T, at *machine, app string) {
	t.Helper()
	eventually(t, 2*time.Minute, func() string {
		code, body, err := request(t.Context(), m.control.client(), "http://"+hostPort(at.ip4, 15020)+"/healthz/ready", "")
		if err == nil && code == 200 {
			return ""
		}
		<-time.After(20 * time.Millisecond) // it is starting
		return fmt.Sprintf("%s is not ready: %d %s %v", app, code, body, err)
	})
}

// run runs a program on a machine until the test ends.
func (m *intercepted) run(t *testing.T, at *machine, cmd *exec.Cmd, name string) {
	t.Helper()
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	at.start(t, cmd)
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may have exited
		if err := cmd.Wait(); err != nil && name != "control" {
			t.Logf("%s ended with %v", name, err)
		}
		if t.Failed() {
			t.Logf("%s:\n%s", name, log.String())
		}
	})
}
