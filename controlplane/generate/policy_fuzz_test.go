// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
	securityv1beta1 "istio.io/api/security/v1beta1"

	"github.com/outrigger-mesh/outrigger/bootstrap/meshconfig"
	"github.com/outrigger-mesh/outrigger/controlplane/generate/decision"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// policyWorld is a workload with policies, as a sidecar, a gateway and a gRPC server.
type policyWorld struct {
	objects   []*model.Config
	proxies   []*model.Proxy
	listeners []int // of each proxy, without policies
}

func newPolicyWorld(t testing.TB) policyWorld {
	t.Helper()
	const address = "127.77.58.7"
	ports := map[string]string{"HTTP": "8080", "TCP": "9000", "TLS": "8443", "APP": "8081"}
	text := verdictObjects + "---\n" + strings.ReplaceAll(edgeObjects, "ADDRESS", address) + "---\n" + tokenRules("one", `{issuer: "`+issuerA+`", jwks: '{"keys":[]}'}`)
	server := grpcAt(address, func(p *model.Proxy) { p.Namespace, p.Listens = "default", []string{"0.0.0.0:8080"} })
	w := policyWorld{
		objects: decode(t, replacePorts(strings.TrimSpace(text), ports)),
		proxies: []*model.Proxy{proxyAt(address), {ID: "edge.default", Role: "router", IPs: []string{address}, Namespace: "default", Labels: map[string]string{"app": "edge"}}, server},
	}
	for _, sets := range w.generate(nil) {
		w.listeners = append(w.listeners, len(sets[0].Resources))
	}
	return w
}

// generate returns the listeners of each proxy and the extensions that they refer to.
func (w policyWorld) generate(policies []*authorizationPolicy) [][2]*xds.Set {
	objects := w.objects[:len(w.objects):len(w.objects)]
	for i, p := range policies {
		objects = append(objects, &model.Config{Key: model.Key{Kind: model.AuthorizationPolicy, Namespace: "default", Name: fmt.Sprint("p-", i)}, Spec: p})
	}
	mesh := snapshot.Build(nil, inputOf(objects, meshconfig.Default()), model.Change{All: true})
	g := New(Config{})
	var out [][2]*xds.Set
	for _, p := range w.proxies {
		out = append(out, [2]*xds.Set{g.Generate(mesh, p, xds.TypeListener), g.Generate(mesh, p, xds.TypeExtension)})
	}
	return out
}

// check generates the configuration for policies and returns its size.
func (w policyWorld) check(t *testing.T, policies []*authorizationPolicy) (size int) {
	t.Helper()
	for i, sets := range w.generate(policies) {
		if len(sets[0].Resources) < w.listeners[i] && len(sets[0].Problems) == 0 {
			t.Errorf("%s: %d of %d listeners, and no problem", w.proxies[i].ID, len(sets[0].Resources), w.listeners[i])
		}
		for _, set := range sets {
			for _, r := range set.Resources {
				size += len(r.Any)
				checkValid(t, r.Name, unpack(t, r).ProtoReflect())
			}
		}
		envoy, err := decision.Load(sets[0], sets[1], w.proxies[i])
		if err != nil {
			t.Fatal(err)
		}
		for _, port := range []uint32{8080, 9000} {
			if _, err := envoy.Decide(decision.Request{
				Identity: "spiffe://cluster.local/ns/shop/sa/web", Peer: netip.MustParseAddr("192.0.2.7"), Server: netip.MustParseAddr(w.proxies[i].IPs[0]), Port: port,
				ALPN: []string{"istio-http/1.1", "istio"}, Method: "GET", Host: "a.example.com", Path: "/admin", Header: map[string][]string{"x-user": {"ann", "\xff"}},
			}); err != nil {
				t.Errorf("%s: %v", w.proxies[i].ID, err)
			}
		}
	}
	return size
}

// checkValid validates a message and all those within, also in typed configurations.
func checkValid(t *testing.T, name string, m protoreflect.Message) {
	t.Helper()
	if a, ok := m.Interface().(*anypb.Any); ok {
		inner, err := a.UnmarshalNew()
		if err != nil {
			t.Errorf("%s: %v", name, err)
			return
		}
		m = inner.ProtoReflect()
	}
	if v, ok := m.Interface().(interface{ ValidateAll() error }); ok {
		if err := v.ValidateAll(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.IsMap() && f.MapValue().Message() != nil:
			v.Map().Range(func(_ protoreflect.MapKey, v protoreflect.Value) bool { checkValid(t, name, v.Message()); return true })
		case f.IsList() && f.Message() != nil:
			for i := range v.List().Len() {
				checkValid(t, name, v.List().Get(i).Message())
			}
		case !f.IsMap() && !f.IsList() && f.Message() != nil:
			checkValid(t, name, v.Message())
		}
		return true
	})
}

// spoil replaces values of a message by ones that are invalid or odd.
func (r chaos) spoil(m proto.Message) {
	m.ProtoReflect().Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.IsList() && f.Message() != nil:
			for i := range v.List().Len() {
				r.spoil(v.List().Get(i).Message().Interface())
			}
		case f.IsList() && f.Kind() == protoreflect.StringKind:
			for i := range v.List().Len() {
				if r.IntN(4) == 0 {
					v.List().Set(i, protoreflect.ValueOfString(r.odd()))
				}
			}
		case f.Message() != nil && !f.IsMap():
			r.spoil(v.Message().Interface())
		}
		return true
	})
}

func (r chaos) odd() string {
	return r.one("", "*", "**", "\xff", "\x00", "a\nb", "{*}", "{**}", "/{*", "/{**}{**}/", "%", "/%2f", "/"+strings.Repeat("a", 300), strings.Repeat("*", 50), `\C`, "(", "[", "x]-rule[1]",
		"10.0.0.0/33", "2001:db8::/129", "fe80::1%eth0", "99999", "-1", "spiffe://", "spiffe://a/ns/b/sa/c", "a/b/c", "é", "A,b", ":authority", "\u212a", strings.Repeat("/", 100))
}

// FuzzPolicies generates configuration from random policies, some of whose values are invalid. It
// must not panic, every message must be valid, and the size must be linear in the number of rules.
func FuzzPolicies(f *testing.F) {
	for seed := range uint64(40) {
		f.Add(seed)
	}
	w := newPolicyWorld(f)
	f.Fuzz(func(t *testing.T, seed uint64) {
		r := chaos{rand.New(rand.NewPCG(seed, 18))}
		policies := r.policies()
		for _, p := range policies {
			p.Action = securityv1beta1.AuthorizationPolicy_Action(r.IntN(4))
			r.spoil(p)
			for _, rule := range p.GetRules() {
				for _, c := range rule.GetWhen() {
					c.Key = r.rarely(r.odd(), c.GetKey(), "request.auth.claims[a][b]", "request.auth.principal", "request.auth.audiences", "experimental.envoy.filters.x[y]")
				}
			}
		}
		once := w.check(t, policies)
		const times = 8
		for _, p := range policies {
			rules := p.GetRules()
			for range times - 1 {
				p.Rules = append(p.Rules, rules...)
			}
		}
		if many := w.check(t, policies); many > 2*times*once {
			t.Errorf("the size is %d, and %d with %d times as many rules", once, many, times)
		}
	})
}

// FuzzPolicyValue generates configuration from one value in each attribute. Its size must be linear in
// that of the value.
func FuzzPolicyValue(f *testing.F) {
	for _, v := range []string{"/", "*", "a*", "*/a", "/{*}/b/{**}", "10.0.0.0/8", "80", "cluster.local/ns/a/sa/b", "\xff", "a,b", strings.Repeat("/", 300), strings.Repeat("a/{*}", 200), `(?i)[\C`} {
		f.Add(v, "request.headers[x-user]")
	}
	f.Add("a", "request.headers[x-\xff\x00]")
	f.Add("a", "request.headers[x-\n]")
	w := newPolicyWorld(f)
	f.Fuzz(func(t *testing.T, value, key string) {
		if len(value)+len(key) > 1<<10 {
			return
		}
		base := w.check(t, nil)
		one := []string{value}
		for action := range int32(4) {
			got := w.check(t, []*authorizationPolicy{{Action: securityv1beta1.AuthorizationPolicy_Action(action), Rules: []*securityv1beta1.Rule{
				{
					From: []*securityv1beta1.Rule_From{{Source: &securityv1beta1.Source{
						Principals: one, NotPrincipals: one, RequestPrincipals: one, NotRequestPrincipals: one, Namespaces: one, NotNamespaces: one, IpBlocks: one, NotIpBlocks: one,
						RemoteIpBlocks: one, NotRemoteIpBlocks: one, TrustDomains: one, NotTrustDomains: one, ServiceAccounts: one, NotServiceAccounts: one,
					}}},
					To: []*securityv1beta1.Rule_To{{Operation: &securityv1beta1.Operation{
						Hosts: one, NotHosts: one, Ports: one, NotPorts: one, Methods: one, NotMethods: one, Paths: one, NotPaths: one,
					}}},
					When: []*securityv1beta1.Condition{{Key: key, Values: one, NotValues: one}},
				},
				{To: []*securityv1beta1.Rule_To{{Operation: &securityv1beta1.Operation{Paths: one}}}},
			}}})
			if most := 40_000 + 2_000*(len(value)+len(key)); got-base > most {
				t.Errorf("%q, %q: %d bytes, at most %d are expected", value, key, got-base, most)
			}
		}
	})
}
