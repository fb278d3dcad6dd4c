// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/controlplane/generate/decision"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// decider returns what computes the decisions of the Envoy of a proxy.
func decider(t testing.TB, mesh *snapshot.Mesh, proxy *model.Proxy) *decision.Envoy {
	t.Helper()
	g := New(Config{})
	with := *proxy
	with.Envoy = "1." + strconv.Itoa(envoyMinor(t)) + ".0"
	out, err := decision.Load(g.Generate(mesh, proxy, xds.TypeListener), g.Generate(mesh, proxy, xds.TypeExtension), &with)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// decided returns the decision that is computed for a request to a workload.
func (c *court) decided(t *testing.T, i int, r decision.Request) decision.Verdict {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	r.Now = time.Now()
	v, err := c.deciders[i].Decide(r)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// checkDecision compares the status of a response with the decision that is computed. It compares
// nothing if Envoy refuses the request before its filters read it, or if an authorizer decides.
func (c *court) checkDecision(t *testing.T, i int, q sent, client net.Addr, status string) {
	t.Helper()
	if slices.Contains([]string{"400", "404", "426", "501"}, status) || q.version == "HTTP/2" && status == "0" || q.method == "CONNECT" {
		return
	}
	r := c.request(t, i, q, client)
	v := c.decided(t, i, r)
	r.Brief = true
	if brief := c.decided(t, i, r); brief.Allowed != v.Allowed || brief.Status != v.Status || len(brief.Candidates)+len(brief.Matched) > 0 {
		t.Errorf("%s %s as %q: the brief verdict is %+v, the other is %+v", q.method, q.target, q.as, brief, v)
	}
	got := "allowed"
	switch {
	case len(v.Asked) > 0:
		return
	case !v.Allowed:
		got = strconv.Itoa(v.Status)
	}
	if want := status; got != want && (got != "allowed" || slices.Contains([]string{"0", "401", "403"}, want)) {
		t.Errorf("%s %s as %q with %q: computed %s (%+v), and Envoy answers %s", q.method, q.target, q.as, q.headers, got, v, status)
	}
}

// request returns a request as Envoy's filters read it.
func (c *court) request(t *testing.T, i int, q sent, client net.Addr) decision.Request {
	t.Helper()
	port, err := strconv.ParseUint(c.ports[i][q.port], 10, 16)
	if err != nil {
		t.Fatal(err)
	}
	r := decision.Request{
		Peer: netip.MustParseAddrPort(client.String()).Addr().Unmap(), Server: netip.MustParseAddr(c.address), Port: uint32(port),
		SNI: q.sni, Method: q.method, Host: q.host, Path: q.target, Header: map[string][]string{},
	}
	if q.as != "" {
		r.Identity, r.ALPN = identityOf(q.as), []string{alpnOf(q)}
	}
	for _, h := range q.headers {
		name, value, _ := strings.Cut(h, ":")
		name, value = strings.ToLower(name), strings.Trim(strings.ReplaceAll(value, "\r\n", ""), " \t")
		if name != "host" {
			r.Header[name] = append(r.Header[name], value)
			continue
		}
		switch {
		case r.Host == "-":
			r.Host = value
		case q.version != "HTTP/2":
			r.Host += "," + value
		}
	}
	if scheme, rest, ok := strings.Cut(q.target, "://"); ok && !strings.HasPrefix(scheme, "/") {
		host, path, _ := strings.Cut(rest, "/")
		r.Host, r.Path = host[strings.Index(host, "@")+1:], "/"+path
	}
	return r
}

// decided returns a random request as Envoy's filters read it.
func (q asked) request(t *testing.T, ports map[string]string) decision.Request {
	t.Helper()
	port, err := strconv.ParseUint(ports[strings.TrimPrefix(q.port, "PORT_")], 10, 16)
	if err != nil {
		t.Fatal(err)
	}
	r := decision.Request{
		SNI: q.sni, Peer: q.peer, Server: q.server, Port: uint32(port), Method: q.method, Host: q.host, Path: q.path, Header: maps.Clone(q.headers),
	}
	if q.identity != "" {
		r.Identity, r.ALPN = "spiffe://"+q.identity, []string{map[bool]string{false: "http/1.1", true: "istio"}[q.stream]}
	}
	return r
}
