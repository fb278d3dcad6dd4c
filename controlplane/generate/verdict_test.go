// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"bufio"
	"bytes"
	"cmp"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/outrigger-mesh/outrigger/bootstrap/meshconfig"
	"github.com/outrigger-mesh/outrigger/controlplane/generate/decision"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/e2e/envoytest"
)

// verdict is a set of policies and the requests that are sent to their workload, one in each line:
// the expected status, the method, the path, and options separated by " | ":
//
//	as ns/account    the caller's identity; plaintext without it
//	as spiffe://...  the same, in another trust domain
//	from address     the caller's address
//	sni name         the name in the TLS handshake
//	port tcp         sent to the port of streams: 200 if the connection is served, 0 if it is closed
//	host name        the host, instead of app
//	h2               over HTTP/2
//	h1.0             over HTTP/1.0
//	Name: value      a header, or a pseudo header of HTTP/2
//	Want: name=value the application answers 500 unless the request arrives with this header once, or
//	                 without it if there is no value; ?name is a parameter
//
// PORT_HTTP and PORT_TCP are replaced in both texts. A comment "# problem: " in the policies is
// followed by a part of the text of a problem that they have.
type verdict struct{ name, policies, requests string }

// checkProblems compares the problems of the policies with those that are expected.
func (v verdict) checkProblems(t testing.TB, problems []model.Problem) {
	t.Helper()
	var want []string
	for line := range strings.Lines(v.policies) {
		if text, ok := strings.CutPrefix(strings.TrimSpace(line), "# problem: "); ok {
			want = append(want, text)
		}
	}
	for _, p := range problems {
		i := slices.IndexFunc(want, func(text string) bool { return strings.Contains(p.Reason, text) })
		if i < 0 {
			t.Errorf("%s: %s", v.name, p)
			continue
		}
		want = slices.Delete(want, i, i+1)
	}
	if len(want) > 0 {
		t.Errorf("%s: no problems %q", v.name, want)
	}
}

// court is an Envoy with the workloads of several verdicts.
type court struct {
	world   *guarded // issues identities
	address string
	output  string              // the file of Envoy's output
	pid     int                 // of Envoy
	ports   []map[string]string // of each workload: HTTP, TCP
	mu      sync.Mutex          // guards the fields below
	pairs   map[string]*tls.Certificate
	// deciders compute the decisions about each workload.
	deciders []*decision.Envoy
	proxies  []builtProxy
}

// builtProxy is a proxy with the snapshot that its configuration is generated from.
type builtProxy struct {
	mesh  *snapshot.Mesh
	proxy *model.Proxy
}

const verdictObjects = `
kind: Sidecar
metadata: {name: app, namespace: default}
spec:
  ingress:
  - {port: {number: PORT_HTTP, protocol: HTTP, name: http}, defaultEndpoint: "127.0.0.1:PORT_APP"}
  - {port: {number: PORT_TCP, protocol: TCP, name: tcp}, defaultEndpoint: "127.0.0.1:PORT_APP"}
`

// newCourt runs an Envoy that enforces all policies, each at ports of its own.
func newCourt(t testing.TB, address string, settings func() *snapshot.Input, verdicts []verdict) *court {
	t.Helper()
	proxies := make([]guardedProxy, 0, len(verdicts))
	for _, v := range verdicts {
		proxies = append(proxies, guardedProxy{verdict: v, settings: settings(), objects: verdictObjects, proxy: proxyAt(address)})
	}
	return newCourtOf(t, address, proxies)
}

// guardedProxy is a proxy with policies. Its objects define the ports PORT_HTTP and PORT_TCP.
type guardedProxy struct {
	verdict
	settings *snapshot.Input
	objects  string
	proxy    *model.Proxy
	edit     func(bootstrap []byte) []byte // may be nil
}

// newCourtOf runs an Envoy that stands for all of the proxies.
func newCourtOf(t testing.TB, address string, proxies []guardedProxy) *court {
	t.Helper()
	s := &guarded{address: address, dir: t.TempDir()}
	s.authority = newIssuer(t, s.dir, "root")
	_, chain, key := s.identity(t, "spiffe://cluster.local/ns/default/sa/default")
	s.own = chain + "~" + key
	app := httptest.NewServer(http.HandlerFunc(asWanted))
	t.Cleanup(app.Close)
	c := &court{world: s, address: address, pairs: map[string]*tls.Certificate{}}
	free := freePorts(t, address, 3*len(proxies))
	known := map[string]bool{}
	var all struct {
		Node    map[string]any  `json:"node"`
		Runtime map[string]any  `json:"layered_runtime"`
		Admin   json.RawMessage `json:"admin,omitempty"`
		Stats   json.RawMessage `json:"stats_config,omitempty"`
		Static  struct {
			Clusters  []json.RawMessage `json:"clusters"`
			Listeners []json.RawMessage `json:"listeners"`
		} `json:"static_resources"`
	}
	for i, v := range proxies {
		ports := map[string]string{"HTTP": free[3*i], "TCP": free[3*i+1], "TLS": free[3*i+2], "APP": portOf(t, app.Listener.Addr())}
		c.ports = append(c.ports, ports)
		in := v.settings
		objects := decode(t, replacePorts(strings.TrimSpace(v.objects), ports)+"\n---\n"+replacePorts(strings.TrimSpace(v.policies), ports))
		in.List = inputOf(objects, nil).List
		mesh := snapshot.Build(nil, *in, model.Change{All: true})
		v.checkProblems(t, mesh.Problems)
		c.deciders, c.proxies = append(c.deciders, decider(t, mesh, v.proxy)), append(c.proxies, builtProxy{mesh, v.proxy})
		one := all
		one.Static.Clusters, one.Static.Listeners = nil, nil
		bootstrap := staticBootstrap(t, mesh, v.proxy)
		if v.edit != nil {
			bootstrap = v.edit(bootstrap)
		}
		if err := json.Unmarshal(bootstrap, &one); err != nil {
			t.Fatal(err)
		}
		for _, raw := range one.Static.Clusters {
			var cluster struct{ Name string }
			if err := json.Unmarshal(raw, &cluster); err != nil {
				t.Fatal(err)
			}
			if !known[cluster.Name] {
				known[cluster.Name] = true
				all.Static.Clusters = append(all.Static.Clusters, raw)
			}
		}
		all.Static.Listeners = append(all.Static.Listeners, one.Static.Listeners...)
		all.Node, all.Runtime, all.Admin, all.Stats = one.Node, one.Runtime, one.Admin, one.Stats
	}
	b, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	c.output, c.pid = runEnvoy(t, envoytest.Binary(t), withSecrets(t, s.dir, b, s.secret), address+":"+c.ports[len(c.ports)-1]["HTTP"], "--file-flush-interval-msec", "50")
	return c
}

// asWanted is the application: it checks the request that it receives, and answers with its headers.
func asWanted(w http.ResponseWriter, r *http.Request) {
	if name, want, ok := strings.Cut(r.Header.Get("Want"), "="); ok {
		got := r.Header.Values(name)
		if param, ok := strings.CutPrefix(name, "?"); ok {
			got = r.URL.Query()[param]
		}
		if want == "" && len(got) > 0 || want != "" && !slices.Equal(got, []string{want}) {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
	}
	_ = r.Header.Write(w)
}

func replacePorts(text string, ports map[string]string) string {
	for name, port := range ports {
		text = strings.ReplaceAll(text, "PORT_"+name, port)
	}
	return text
}

// check sends the requests of a verdict.
func (c *court) check(t *testing.T, i int, v verdict) {
	t.Helper()
	for line := range strings.Lines(replacePorts(v.requests, c.ports[i])) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		if got, want := c.ask(t, i, line), strings.Fields(line)[0]; got != want {
			t.Errorf("%s: got %s", line, got)
		}
	}
}

// sent is a request of a verdict.
type sent struct {
	method, target, host string
	port, as, version    string
	from, sni            string
	headers              []string // "Name: value"
}

func parseSent(line string) sent {
	options := strings.Split(line, " | ")
	words := strings.SplitN(options[0], " ", 3)
	q := sent{method: words[1], target: words[2], host: "app", port: "HTTP", version: "HTTP/1.1"}
	for _, o := range options[1:] {
		o = strings.TrimSpace(o)
		name, value, _ := strings.Cut(o, " ")
		switch name {
		case "host":
			q.host = value
		case "port":
			q.port = strings.ToUpper(value)
		case "as":
			q.as = value
		case "from":
			q.from = value
		case "sni":
			q.sni = value
		case "h2":
			q.version = "HTTP/2"
		case "h1.0":
			q.version = "HTTP/1.0"
		default:
			q.headers = append(q.headers, o)
		}
	}
	return q
}

// ask sends a request and returns the status of the response, or 0 if the connection or the request
// ends. It compares the status with the decision that is computed.
func (c *court) ask(t *testing.T, i int, line string) string {
	t.Helper()
	q := parseSent(line)
	dialer := net.Dialer{}
	if q.from != "" {
		dialer.LocalAddr = q.client()
	}
	conn, err := dialer.Dial("tcp", net.JoinHostPort(c.address, c.ports[i][q.port]))
	if err != nil {
		t.Error(err)
		return "-"
	}
	defer func() { _ = conn.Close() }()
	status := c.answered(t, conn, q)
	c.checkDecision(t, i, q, conn.LocalAddr(), status)
	return status
}

// client returns the address of the caller.
func (q sent) client() *net.TCPAddr {
	return &net.TCPAddr{IP: net.ParseIP(cmp.Or(q.from, "127.0.0.1"))}
}

// alpnOf returns the protocol that a client with a certificate offers.
func alpnOf(q sent) string {
	switch {
	case q.port == "TCP":
		return "istio"
	case q.version == "HTTP/2":
		return "h2"
	}
	return "http/1.1"
}

func (c *court) answered(t *testing.T, conn net.Conn, q sent) string {
	t.Helper()
	if err := conn.SetDeadline(time.Now().Add(2 * time.Minute)); err != nil {
		t.Error(err)
		return "-"
	}
	if q.as != "" {
		conn = tls.Client(conn, &tls.Config{Certificates: []tls.Certificate{*c.pair(t, q.as)}, ServerName: q.sni, InsecureSkipVerify: true, NextProtos: []string{alpnOf(q)}}) //nolint:gosec // the server is not what is examined
	}
	if q.version == "HTTP/2" {
		return askHTTP2(t, conn, q)
	}
	head := q.method + " " + q.target + " " + q.version + "\r\n"
	if q.host != "-" {
		head += "Host: " + q.host + "\r\n"
	}
	head += strings.Join(append(q.headers, ""), "\r\n")
	if !strings.Contains(head, "\r\nConnection:") {
		head += "Connection: close\r\n"
	}
	if _, err := io.WriteString(conn, head+"\r\n"); err != nil {
		return "0"
	}
	status, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		return "0"
	}
	return strings.Fields(status + " - -")[1]
}

// askHTTP2 sends the headers of a request as they are: a client would correct them.
func askHTTP2(t *testing.T, conn net.Conn, q sent) string {
	t.Helper()
	fields := []hpack.HeaderField{{Name: ":method", Value: q.method}, {Name: ":scheme", Value: "http"}, {Name: ":path", Value: q.target}}
	if q.host != "-" {
		fields = append(fields, hpack.HeaderField{Name: ":authority", Value: q.host})
	}
	if q.target == "-" {
		fields = slices.Delete(fields, 1, 3)
	}
	for _, h := range q.headers {
		end := 1 + strings.Index(h[1:], ":") // a pseudo header begins with one
		fields = append(fields, hpack.HeaderField{Name: strings.ToLower(h[:end]), Value: strings.TrimPrefix(h[end+1:], " ")})
	}
	// Pseudo headers come first.
	slices.SortStableFunc(fields, func(a, b hpack.HeaderField) int {
		return cmp.Compare(strings.Index(b.Name, ":"), strings.Index(a.Name, ":"))
	})
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	for _, f := range fields {
		_ = encoder.WriteField(f) // to memory
	}
	framer := http2.NewFramer(conn, conn)
	framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	_, err := io.WriteString(conn, http2.ClientPreface)
	err = errors.Join(err, framer.WriteSettings(), framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes(), EndStream: q.method != http.MethodConnect, EndHeaders: true}))
	if err != nil {
		return "0"
	}
	for {
		frame, err := framer.ReadFrame()
		if err != nil {
			return "0"
		}
		switch frame := frame.(type) {
		case *http2.MetaHeadersFrame:
			return frame.PseudoValue("status")
		case *http2.RSTStreamFrame, *http2.GoAwayFrame:
			return "0"
		}
	}
}

// pair returns the certificate of an identity.
func (c *court) pair(t testing.TB, as string) *tls.Certificate {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pairs[as] == nil {
		pair, _, _ := c.world.identity(t, identityOf(as))
		c.pairs[as] = &pair
	}
	return c.pairs[as]
}

// identityOf returns the identity that is written as ns/account, or as itself.
func identityOf(as string) string {
	if _, err := url.Parse(as); err == nil && strings.HasPrefix(as, "spiffe://") {
		return as
	}
	namespace, account := filepath.Split(as)
	return "spiffe://cluster.local/ns/" + strings.TrimSuffix(namespace, "/") + "/sa/" + account
}

// policy returns the text of an AuthorizationPolicy.
func policy(name, spec string) string {
	return "kind: AuthorizationPolicy\nmetadata: {name: " + name + ", namespace: default}\nspec: " + spec + "\n"
}

// TestVerdicts sends requests through the real Envoy.
func TestVerdicts(t *testing.T) {
	t.Parallel()
	verdicts := slices.Concat(callerVerdicts(), requestVerdicts(), conditionVerdicts(), headerVerdicts(), manyVerdicts())
	c := newCourt(t, "127.77.58.1", func() *snapshot.Input { return &snapshot.Input{Mesh: meshconfig.Default()} }, verdicts)
	for i, v := range verdicts {
		t.Run(v.name, func(t *testing.T) { c.check(t, i, v) })
	}
}
