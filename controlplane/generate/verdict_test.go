// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"bufio"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/bootstrap/meshconfig"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
)

// verdict is a set of policies and the requests that are sent to their workload, one in each line:
// the expected status, the method, the path, and options separated by " | ":
//
//	as ns/account    the caller's identity; plaintext without it
//	as spiffe://...  the same, in another trust domain
//	port tcp         sent to the port of streams: 200 if the connection is served, 0 if it is closed
//	host name        the host, instead of app
//	h2               over HTTP/2 without TLS
//	Name: value      a header
//	Want: name=value the application answers 500 unless the request arrives with this header once, or
//	                 without it if there is no value; ?name is a parameter
//
// PORT_HTTP and PORT_TCP are replaced in both texts. A comment "# problem: " in the policies is
// followed by a part of the text of a problem that they have.
type verdict struct{ name, policies, requests string }

// checkProblems compares the problems of the policies with those that are expected.
func (v verdict) checkProblems(t *testing.T, problems []model.Problem) {
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
	ports   []map[string]string // of each workload: HTTP, TCP
	pairs   map[string]*tls.Certificate
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
func newCourt(t *testing.T, address string, settings func() *snapshot.Input, verdicts []verdict) *court {
	t.Helper()
	s := &guarded{address: address, dir: t.TempDir()}
	s.authority = newIssuer(t, s.dir, "root")
	_, chain, key := s.identity(t, "spiffe://cluster.local/ns/default/sa/default")
	s.own = chain + "~" + key
	app := httptest.NewServer(http.HandlerFunc(asWanted))
	t.Cleanup(app.Close)
	c := &court{world: s, address: address, pairs: map[string]*tls.Certificate{}}
	free := freePorts(t, address, 2*len(verdicts))
	known := map[string]bool{}
	var all struct {
		Node    map[string]any `json:"node"`
		Runtime map[string]any `json:"layered_runtime"`
		Static  struct {
			Clusters  []json.RawMessage `json:"clusters"`
			Listeners []json.RawMessage `json:"listeners"`
		} `json:"static_resources"`
	}
	for i, v := range verdicts {
		ports := map[string]string{"HTTP": free[2*i], "TCP": free[2*i+1], "APP": portOf(t, app.Listener.Addr())}
		c.ports = append(c.ports, ports)
		in := settings()
		objects := decode(t, replacePorts(strings.TrimSpace(verdictObjects), ports)+"\n---\n"+replacePorts(strings.TrimSpace(v.policies), ports))
		in.List = inputOf(objects, nil).List
		mesh := snapshot.Build(nil, *in, model.Change{All: true})
		v.checkProblems(t, mesh.Problems)
		one := all
		one.Static.Clusters, one.Static.Listeners = nil, nil
		if err := json.Unmarshal(staticBootstrap(t, mesh, proxyAt(address)), &one); err != nil {
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
		all.Node, all.Runtime = one.Node, one.Runtime
	}
	b, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	c.output = runEnvoy(t, envoyBinary(t), withSecrets(t, s.dir, b, s.secret), address+":"+free[len(free)-1], "--file-flush-interval-msec", "50")
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

// ask sends a request and returns the status of the response, or 0 if the connection ends.
func (c *court) ask(t *testing.T, i int, line string) string {
	t.Helper()
	options := strings.Split(line, " | ")
	words := strings.SplitN(options[0], " ", 3)
	host, port, as, headers, h2 := "app", "HTTP", "", "", false
	for _, o := range options[1:] {
		name, value, _ := strings.Cut(strings.TrimSpace(o), " ")
		switch name {
		case "host":
			host = value
		case "port":
			port = strings.ToUpper(value)
		case "as":
			as = value
		case "h2":
			h2 = true
		default:
			headers += strings.TrimSpace(o) + "\r\n"
		}
	}
	if h2 {
		return askHTTP2(t, net.JoinHostPort(c.address, c.ports[i][port]), words[1], words[2], host)
	}
	conn, err := net.Dial("tcp", net.JoinHostPort(c.address, c.ports[i][port]))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(2 * time.Minute)); err != nil {
		t.Fatal(err)
	}
	if as != "" {
		alpn := map[string]string{"HTTP": "http/1.1", "TCP": "istio"}[port]
		conn = tls.Client(conn, &tls.Config{Certificates: []tls.Certificate{*c.pair(t, as)}, InsecureSkipVerify: true, NextProtos: []string{alpn}}) //nolint:gosec // the server is not what is examined
	}
	if _, err := fmt.Fprintf(conn, "%s %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n%s\r\n", words[1], words[2], host, headers); err != nil {
		return "0"
	}
	status, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		return "0"
	}
	return strings.Fields(status + " - -")[1]
}

// askHTTP2 sends a request over HTTP/2.
func askHTTP2(t *testing.T, address, method, path, host string) string {
	t.Helper()
	transport := &http.Transport{Protocols: &http.Protocols{}}
	transport.Protocols.SetUnencryptedHTTP2(true)
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://"+address+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Host = host
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return "0"
	}
	_ = resp.Body.Close()
	return strconv.Itoa(resp.StatusCode)
}

// pair returns the certificate of an identity.
func (c *court) pair(t *testing.T, as string) *tls.Certificate {
	t.Helper()
	if c.pairs[as] == nil {
		id := as
		if _, err := url.Parse(as); err != nil || !strings.HasPrefix(as, "spiffe://") {
			namespace, account := filepath.Split(as)
			id = "spiffe://cluster.local/ns/" + strings.TrimSuffix(namespace, "/") + "/sa/" + account
		}
		pair, _, _ := c.world.identity(t, id)
		c.pairs[as] = &pair
	}
	return c.pairs[as]
}

// policy returns the text of an AuthorizationPolicy.
func policy(name, spec string) string {
	return "kind: AuthorizationPolicy\nmetadata: {name: " + name + ", namespace: default}\nspec: " + spec + "\n"
}

// TestVerdicts sends requests through the real Envoy.
func TestVerdicts(t *testing.T) {
	t.Parallel()
	verdicts := slices.Concat(callerVerdicts(), requestVerdicts(), conditionVerdicts())
	c := newCourt(t, "127.77.58.1", func() *snapshot.Input { return &snapshot.Input{Mesh: meshconfig.Default()} }, verdicts)
	for i, v := range verdicts {
		t.Run(v.name, func(t *testing.T) { c.check(t, i, v) })
	}
}
