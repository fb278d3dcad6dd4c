// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	securityv1beta1 "istio.io/api/security/v1beta1"

	"github.com/outrigger-mesh/outrigger/bootstrap/meshconfig"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
)

type authorizationPolicy = securityv1beta1.AuthorizationPolicy

// TestEnvoyRandomVerdicts compares the verdicts of the real Envoy with those of the model, and with
// those that package decision computes, for random policies and requests. The requests
// differ between versions of Envoy, so that all versions together see 12,500.
func TestEnvoyRandomVerdicts(t *testing.T) {
	t.Parallel()
	const workloads, each = 50, 50
	minor := envoyMinor(t)
	individually := minor >= 38
	r := chaos{rand.New(rand.NewPCG(18, 1))}
	var sets [][]*authorizationPolicy
	for range workloads {
		sets = append(sets, r.policies())
	}
	r = chaos{rand.New(rand.NewPCG(18, uint64(minor)))}
	c := randomCourt(t, "127.77.59.1", sets)
	verdicts := map[bool]int{}
	var all []envoyVerdict
	for i, set := range sets {
		wrong := 0
		for range each {
			q := r.asked(c.address, individually)
			want := q.permitted(set)
			verdicts[want]++
			request := q.request(t, c.ports[i])
			got, computed := c.permits(t, i, q), c.decided(t, i, request)
			all = append(all, envoyVerdict{i, request, got})
			if got != want || got != computed.Allowed {
				wrong++
				if wrong <= 3 {
					t.Errorf("permitted: %t, want %t, computed %+v: %+v\npolicies:\n%s", got, want, computed, q, policiesText(set))
				}
			}
		}
		c.hangUp()
	}
	t.Logf("%d requests permitted, %d refused", verdicts[true], verdicts[false])
	if total := verdicts[true] + verdicts[false]; min(verdicts[true], verdicts[false]) < total/5 {
		t.Errorf("one of the verdicts is rare: %v", verdicts)
	}
	c.checkMisreadings(t, all)
}

// TestEnvoyPlantedFaults checks that the comparison finds policies that Envoy enforces wrongly.
func TestEnvoyPlantedFaults(t *testing.T) {
	t.Parallel()
	const address, tries, each = "127.77.59.2", 3, 40 // sets of policies for each fault, requests for each set
	individually := envoyMinor(t) >= 38
	r := chaos{rand.New(rand.NewPCG(18, 2))}
	var right, wrong [][]*authorizationPolicy
	var requests [][]asked
	for _, f := range faults() {
		for n, rounds := 0, 0; n < tries; rounds++ {
			if rounds > 100_000 {
				t.Fatalf("%s: does not change a verdict of any random policies", f.name)
			}
			set, sent := r.policies(), make([]asked, each)
			for i := range sent {
				sent[i] = r.asked(address, individually)
			}
			broken := f.planted(set)
			if slices.ContainsFunc(sent, func(q asked) bool { return q.permitted(set) != q.permitted(broken) }) {
				right, wrong, requests = append(right, set), append(wrong, broken), append(requests, sent)
				n++
			}
		}
	}
	c := randomCourt(t, address, wrong)
	for n, set := range right {
		found := 0
		for _, q := range requests[n] {
			if c.permits(t, n, q) != q.permitted(set) {
				found++
			}
		}
		c.hangUp()
		if f := faults()[n/tries]; found == 0 {
			t.Errorf("%s: not found in\n%s", f.name, policiesText(set))
		}
	}
}

// fault changes a policy.
type fault struct {
	name  string
	plant func(*authorizationPolicy)
}

// planted returns policies with the fault.
func (f fault) planted(set []*authorizationPolicy) []*authorizationPolicy {
	out := make([]*authorizationPolicy, 0, len(set))
	for _, p := range set {
		broken := proto.CloneOf(p)
		f.plant(broken)
		out = append(out, broken)
	}
	return out
}

func faults() []fault {
	rules := func(change func(*securityv1beta1.Rule)) func(*authorizationPolicy) {
		return func(p *authorizationPolicy) {
			for _, r := range p.GetRules() {
				change(r)
			}
		}
	}
	sources := func(change func(*securityv1beta1.Source)) func(*authorizationPolicy) {
		return rules(func(r *securityv1beta1.Rule) {
			for _, f := range r.GetFrom() {
				change(f.GetSource())
			}
		})
	}
	operations := func(change func(*securityv1beta1.Operation)) func(*authorizationPolicy) {
		return rules(func(r *securityv1beta1.Rule) {
			for _, to := range r.GetTo() {
				change(to.GetOperation())
			}
		})
	}
	return []fault{
		{"the last rule is lost", func(p *authorizationPolicy) { p.Rules = p.GetRules()[:len(p.GetRules())-1] }},
		{"the conditions are lost", rules(func(r *securityv1beta1.Rule) { r.When = nil })},
		{"DENY allows", func(p *authorizationPolicy) { p.Action = securityv1beta1.AuthorizationPolicy_ALLOW }},
		{"a source is lost", rules(func(r *securityv1beta1.Rule) { r.From = r.GetFrom()[:len(r.GetFrom())/2] })},
		{"notValues are values", rules(func(r *securityv1beta1.Rule) {
			for _, w := range r.GetWhen() {
				w.Values, w.NotValues = w.GetNotValues(), w.GetValues()
			}
		})},
		{"excluded principals are lost", sources(func(s *securityv1beta1.Source) { s.NotPrincipals = nil })},
		{"excluded paths are lost", operations(func(o *securityv1beta1.Operation) { o.NotPaths = nil })},
		{"exact paths are prefixes", operations(func(o *securityv1beta1.Operation) {
			for i, v := range o.GetPaths() {
				o.Paths[i] = strings.TrimSuffix(v, "*") + "*"
			}
		})},
		{"templates match one segment more", operations(func(o *securityv1beta1.Operation) {
			for i, v := range o.GetPaths() {
				o.Paths[i] = strings.ReplaceAll(v, "{*}", "{**}")
			}
		})},
		{"methods and hosts are alternatives", rules(func(r *securityv1beta1.Rule) {
			for _, to := range slices.Clone(r.GetTo()) {
				if o := to.GetOperation(); len(o.GetMethods()) > 0 && len(o.GetHosts()) > 0 {
					r.To = append(r.To, &securityv1beta1.Rule_To{Operation: &securityv1beta1.Operation{Methods: o.GetMethods()}})
					o.Methods = nil
				}
			}
		})},
	}
}

const (
	httpPort   = "PORT_HTTP"
	streamPort = "PORT_TCP"
)

// policies returns the random policies of a workload.
func (r chaos) policies() []*authorizationPolicy {
	var out []*authorizationPolicy
	for range 1 + r.IntN(3) {
		p := &authorizationPolicy{Action: securityv1beta1.AuthorizationPolicy_Action(r.IntN(2))}
		for range 1 + r.IntN(3) {
			rule := &securityv1beta1.Rule{}
			for range r.IntN(3) {
				rule.From = append(rule.From, &securityv1beta1.Rule_From{Source: r.source()})
			}
			for range r.IntN(3) {
				rule.To = append(rule.To, &securityv1beta1.Rule_To{Operation: r.operation()})
			}
			for range max(0, r.IntN(4)-1) {
				rule.When = append(rule.When, r.condition())
			}
			p.Rules = append(p.Rules, rule)
		}
		out = append(out, p)
	}
	return out
}

// fill sets values or excluded values of one or two of n attributes.
func (r chaos) fill(n int, attribute func(i int) (values, others *[]string, from []string)) {
	for range 1 + r.IntN(2) {
		values, others, from := attribute(r.IntN(n))
		for range 1 + r.IntN(3) {
			if list := values; r.IntN(3) > 0 {
				*list = append(*list, r.one(from...))
			} else {
				*others = append(*others, r.one(from...))
			}
		}
	}
}

var (
	randomPrincipals = []string{"*", "cluster.local/ns/shop/sa/web", "old.example/ns/shop/sa/web", "cluster.local/ns/shop/*", "*/sa/web", "old.example/ns/dev-1/sa/a.b", "*/aXb"}
	randomNamespaces = []string{"shop", "dev-1", "dev-*", "*-1", "*", "shopping"}
	randomAccounts   = []string{"web", "shop/web", "dev-1/a.b", "default/web", "shop/we"}
	randomRanges     = []string{"127.77.59.0/24", "127.77.59.3", "127.77.59.4/31", "192.0.2.0/24", "192.0.2.7", "2001:db8::/32", "0.0.0.0/0"}
	randomHosts      = []string{"*", "a.example.com", "A.Example.com", "*.example.com", "a.*", "*.COM", "b.example.com:8080"}
	randomPaths      = []string{"*", "/", "/admin", "/admin/*", "*/end", "/users/{*}/posts", "/files/{**}", "/files/{**}/end", "/ad*"}
	randomHeaders    = []string{"*", "ann", "ann*", "*ob", "b*"}
)

func (r chaos) source() *securityv1beta1.Source {
	s := &securityv1beta1.Source{}
	r.fill(6, func(i int) (*[]string, *[]string, []string) {
		switch i {
		case 0:
			return &s.Principals, &s.NotPrincipals, randomPrincipals
		case 1:
			return &s.Namespaces, &s.NotNamespaces, randomNamespaces
		case 2:
			return &s.ServiceAccounts, &s.NotServiceAccounts, randomAccounts
		case 3:
			return &s.TrustDomains, &s.NotTrustDomains, []string{"cluster.local", "old.example", "old.*", "*.local", "*"}
		case 4:
			return &s.IpBlocks, &s.NotIpBlocks, randomRanges
		}
		return &s.RemoteIpBlocks, &s.NotRemoteIpBlocks, randomRanges
	})
	return s
}

func (r chaos) operation() *securityv1beta1.Operation {
	o := &securityv1beta1.Operation{}
	r.fill(4, func(i int) (*[]string, *[]string, []string) {
		switch i {
		case 0:
			return &o.Hosts, &o.NotHosts, randomHosts
		case 1:
			return &o.Ports, &o.NotPorts, []string{httpPort, streamPort}
		case 2:
			return &o.Methods, &o.NotMethods, []string{"*", "GET", "get", "P*", "p*", "*T", "DELETE"}
		}
		return &o.Paths, &o.NotPaths, randomPaths
	})
	return o
}

func (r chaos) condition() *securityv1beta1.Condition {
	keys := map[string][]string{
		"source.ip": randomRanges, "remote.ip": randomRanges, "destination.ip": {"127.77.59.1", "127.0.0.0/8", "10.0.0.0/8"},
		"source.namespace": randomNamespaces, "source.principal": randomPrincipals, "source.serviceAccount": randomAccounts,
		"destination.port": {httpPort, streamPort}, "connection.sni": {"*", "app.example.com", "*.example.com", "APP.*"},
		"request.headers[X-User]": randomHeaders, "request.headers[x-none]": randomHeaders,
	}
	w := &securityv1beta1.Condition{Key: r.one("source.ip", "remote.ip", "destination.ip", "source.namespace", "source.principal",
		"source.serviceAccount", "destination.port", "connection.sni", "request.headers[X-User]", "request.headers[X-User]", "request.headers[X-User]", "request.headers[x-none]")}
	r.fill(1, func(int) (*[]string, *[]string, []string) { return &w.Values, &w.NotValues, keys[w.GetKey()] })
	return w
}

// asked returns a random request to the workloads at an address.
func (r chaos) asked(server string, individually bool) asked {
	q := asked{
		individually: individually,
		stream:       r.IntN(6) == 0, port: httpPort, namespace: "default", domains: []string{"cluster.local", "old.example"},
		identity: r.one("", "", "cluster.local/ns/shop/sa/web", "old.example/ns/shop/sa/web", "cluster.local/ns/dev-1/sa/a.b", "cluster.local/ns/default/sa/web", "old.example/ns/dev/sa/aXb"),
		peer:     netip.MustParseAddr(r.one("127.77.59.3", "127.77.59.4", "127.77.60.1")), server: netip.MustParseAddr(server),
	}
	if q.identity != "" {
		q.sni = r.one("", "app.example.com", "App.Example.Com", "example.com")
	}
	q.client = q.peer
	if q.stream {
		q.port = streamPort
		return q
	}
	q.method = r.one("GET", "GET", "POST", "PUT", "DELETE", "OPTIONS")
	q.host = r.one("a.example.com", "A.EXAMPLE.com", "a.example.com.", "a.example.com:8080", "b.example.com:8080", "example.com", "a", "aXexample.com", "other,a.example.com", "a.example.com..:1")
	q.path = r.one("/", "/admin", "/Admin", "/admin?x=/end", "/admin/", "/admin/x/end", "/administrator", "/users/1/posts", "/users/*/posts", "/users/1/2/posts", "/files/", "/files/a/b", "/files/x/end", "/end", "//admin", "/ADMIN;x=1", "/users/1;a/posts", "/./admin", "/Users//posts/", "/files/..%2fx", "/admin/..%2fend")
	q.headers = map[string][]string{}
	for range r.IntN(3) {
		q.headers["x-user"] = append(q.headers["x-user"], r.one("ann", "bob", "anna", "Ann", "x, ann", "bob ,y"))
	}
	if r.IntN(3) == 0 {
		client := r.one("192.0.2.7", "192.0.2.8", "2001:db8::1")
		q.headers["x-forwarded-for"] = []string{"192.0.2.7, " + client}
		q.client = netip.MustParseAddr(client)
	}
	return q
}

// policiesText returns policies as a file.
func policiesText(set []*authorizationPolicy) string {
	var out strings.Builder
	for i, p := range set {
		fmt.Fprintf(&out, "---\n%s", policy("p"+strconv.Itoa(i), protojson.Format(p)))
	}
	return strings.TrimPrefix(out.String(), "---\n")
}

// randomCourt runs an Envoy that enforces each set of policies at ports of its own. Every second one
// has many rules besides.
func randomCourt(t *testing.T, address string, sets [][]*authorizationPolicy) *cachedCourt {
	t.Helper()
	var verdicts []verdict
	for i, set := range sets {
		text := policiesText(set)
		for _, action := range []securityv1beta1.AuthorizationPolicy_Action{securityv1beta1.AuthorizationPolicy_ALLOW, securityv1beta1.AuthorizationPolicy_DENY} {
			if i%2 == 1 && slices.ContainsFunc(set, func(p *authorizationPolicy) bool { return p.GetAction() == action }) {
				text += "---\n" + policy("many-"+strings.ToLower(action.String()), "{action: "+action.String()+", rules: ["+manyRules+"]}")
			}
		}
		verdicts = append(verdicts, verdict{name: strconv.Itoa(i), policies: text})
	}
	settings := func() *snapshot.Input {
		mesh := proto.CloneOf(meshconfig.Default())
		mesh.TrustDomainAliases = []string{"old.example"}
		mesh.PathNormalization = &meshv1alpha1.MeshConfig_ProxyPathNormalization{Normalization: meshv1alpha1.MeshConfig_ProxyPathNormalization_BASE}
		return &snapshot.Input{Mesh: mesh}
	}
	c := &cachedCourt{court: newCourt(t, address, settings, verdicts), open: map[string]*openConn{}}
	t.Cleanup(c.hangUp)
	return c
}

// cachedCourt keeps the connections for requests open.
type cachedCourt struct {
	*court
	open map[string]*openConn
}

type openConn struct {
	net.Conn
	reader *bufio.Reader
}

func (c *cachedCourt) hangUp() {
	for _, conn := range c.open {
		_ = conn.Close()
	}
	clear(c.open)
}

// permits sends a request and reports whether the application answered it.
func (c *cachedCourt) permits(t *testing.T, i int, q asked) bool {
	t.Helper()
	if q.stream {
		conn := c.dial(t, i, q)
		defer func() { _ = conn.Close() }()
		_, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: app\r\nConnection: close\r\n\r\n")
		status, readErr := conn.reader.ReadString('\n')
		return err == nil && readErr == nil && strings.Contains(status, " 200 ")
	}
	key := fmt.Sprint(i, q.identity, q.peer, q.sni)
	if c.open[key] == nil {
		c.open[key] = c.dial(t, i, q)
	}
	conn := c.open[key]
	var text strings.Builder
	fmt.Fprintf(&text, "%s %s HTTP/1.1\r\nHost: %s\r\n", q.method, q.path, q.host)
	for _, name := range []string{"x-user", "x-forwarded-for"} {
		for _, v := range q.headers[name] {
			fmt.Fprintf(&text, "%s: %s\r\n", name, v)
		}
	}
	if _, err := io.WriteString(conn, text.String()+"\r\n"); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(conn.reader, nil)
	if err != nil {
		t.Fatalf("%+v: %v", q, err)
	}
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusForbidden {
		t.Fatalf("%+v: status %d", q, resp.StatusCode)
	}
	return resp.StatusCode == http.StatusOK
}

func (c *cachedCourt) dial(t *testing.T, i int, q asked) *openConn {
	t.Helper()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: q.peer.AsSlice()}}
	conn, err := dialer.Dial("tcp", net.JoinHostPort(c.address, c.ports[i][strings.TrimPrefix(q.port, "PORT_")]))
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.SetDeadline(time.Now().Add(10 * time.Minute)); err != nil {
		t.Fatal(err)
	}
	if q.identity != "" {
		alpn := map[bool]string{false: "http/1.1", true: "istio"}[q.stream]
		conn = tls.Client(conn, &tls.Config{Certificates: []tls.Certificate{*c.pair(t, "spiffe://"+q.identity)}, ServerName: q.sni, InsecureSkipVerify: true, NextProtos: []string{alpn}}) //nolint:gosec // the server is not what is examined
	}
	return &openConn{conn, bufio.NewReader(conn)}
}
