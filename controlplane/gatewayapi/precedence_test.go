// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package gatewayapi

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
	kubenetworkingv1 "k8s.io/api/networking/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// request contains the parts of a request that matches depend on.
type request struct {
	path, method     string
	headers, queries map[string]string
}

// matchedBy reports whether a request matches according to the specification.
func (q request) matchedBy(m gatewayv1.HTTPRouteMatch) bool {
	value := *m.Path.Value
	switch *m.Path.Type {
	case gatewayv1.PathMatchExact:
		if q.path != value {
			return false
		}
	default:
		value = strings.TrimSuffix(value, "/")
		if q.path != value && !strings.HasPrefix(q.path, value+"/") {
			return false
		}
	}
	if m.Method != nil && string(*m.Method) != q.method {
		return false
	}
	for _, h := range m.Headers {
		if q.headers[string(h.Name)] != h.Value {
			return false
		}
	}
	for _, p := range m.QueryParams {
		if q.queries[string(p.Name)] != p.Value {
			return false
		}
	}
	return true
}

// takenBy reports whether a converted route matches a request.
func (q request) takenBy(m *networkingv1alpha3.HTTPMatchRequest) bool {
	all := func(want map[string]*networkingv1alpha3.StringMatch, got map[string]string) bool {
		for name, v := range want {
			if got[name] != v.GetExact() {
				return false
			}
		}
		return true
	}
	path := q.path == m.GetUri().GetExact()
	if p := strings.TrimSuffix(m.GetUri().GetPrefix(), "/"); m.GetUri().GetExact() == "" {
		path = q.path == p || strings.HasPrefix(q.path, p+"/")
	}
	return path && (m.GetMethod() == nil || m.GetMethod().GetExact() == q.method) && all(m.GetHeaders(), q.headers) && all(m.GetQueryParams(), q.queries)
}

// rated is a matching route with the criteria of its precedence.
type rated struct {
	route *model.Config
	rule  int
	match gatewayv1.HTTPRouteMatch
}

// before implements the precedence of the specification of HTTPRouteRule.matches.
func (a rated) before(b rated) bool {
	exact := func(r rated) int { return b2i(*r.match.Path.Type == gatewayv1.PathMatchExact) }
	length := func(r rated) int { return len(strings.TrimSuffix(*r.match.Path.Value, "/")) }
	for _, by := range []func(rated) int{
		exact, length,
		func(r rated) int { return b2i(r.match.Method != nil) },
		func(r rated) int { return len(r.match.Headers) },
		func(r rated) int { return len(r.match.QueryParams) },
		func(r rated) int { return -int(r.route.Created.Unix()) },
		func(r rated) int {
			return strings.Compare(b.route.Namespace+"/"+b.route.Name, r.route.Namespace+"/"+r.route.Name)
		},
	} {
		if by(a) != by(b) {
			return by(a) > by(b)
		}
	}
	return a.rule < b.rule
}

func randomMatch(rnd *rand.Rand) gatewayv1.HTTPRouteMatch {
	kind := []gatewayv1.PathMatchType{gatewayv1.PathMatchExact, gatewayv1.PathMatchPathPrefix, gatewayv1.PathMatchPathPrefix}[rnd.IntN(3)]
	m := gatewayv1.HTTPRouteMatch{Path: &gatewayv1.HTTPPathMatch{Type: &kind, Value: pointer([]string{"/", "/a", "/a/", "/a/b", "/ab", "/a/b/c"}[rnd.IntN(6)])}}
	if rnd.IntN(3) == 0 {
		m.Method = pointer([]gatewayv1.HTTPMethod{"GET", "POST"}[rnd.IntN(2)])
	}
	for _, name := range []gatewayv1.HTTPHeaderName{"x", "y"} {
		if rnd.IntN(3) == 0 {
			m.Headers = append(m.Headers, gatewayv1.HTTPHeaderMatch{Name: name, Value: "1"})
		}
		if rnd.IntN(4) == 0 {
			m.QueryParams = append(m.QueryParams, gatewayv1.HTTPQueryParamMatch{Name: name, Value: "1"})
		}
	}
	return m
}

// TestPrecedenceOfRequests routes random requests through random routes. The result must be the one
// that the specification requires, regardless of the order of objects.
func TestPrecedenceOfRequests(t *testing.T) {
	t.Parallel()
	went := 0
	for seed := range uint64(300) {
		rnd := rand.New(rand.NewPCG(seed, 64))
		world := input(t, "apiVersion: gateway.networking.k8s.io/v1\nkind: GatewayClass\nmetadata: {name: istio}\nspec: {controllerName: istio.io/gateway-controller}\n"+
			"---\napiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {name: gw, namespace: n}\n"+
			"spec: {gatewayClassName: istio, listeners: [{name: http, port: 80, protocol: HTTP, allowedRoutes: {namespaces: {from: All}}}]}\n")
		var routes []*model.Config
		var all []rated
		for i := range 1 + rnd.IntN(5) {
			spec := &gatewayv1.HTTPRouteSpec{CommonRouteSpec: gatewayv1.CommonRouteSpec{ParentRefs: []gatewayv1.ParentReference{{Name: "gw", Namespace: pointer(gatewayv1.Namespace("n"))}}}}
			o := &model.Config{
				Key:     model.Key{Kind: model.HTTPRoute, Namespace: []string{"n", "o"}[rnd.IntN(2)], Name: fmt.Sprint("r", i)},
				Created: time.Unix(int64(rnd.IntN(2)), 0), Spec: spec,
			}
			for j := range 1 + rnd.IntN(3) {
				rule := gatewayv1.HTTPRouteRule{Name: pointer(gatewayv1.SectionName(fmt.Sprint("rule", j)))}
				for range 1 + rnd.IntN(2) {
					m := randomMatch(rnd)
					rule.Matches = append(rule.Matches, m)
					all = append(all, rated{o, j, m})
				}
				spec.Rules = append(spec.Rules, rule)
			}
			routes = append(routes, o)
		}
		rnd.Shuffle(len(routes), func(i, j int) { routes[i], routes[j] = routes[j], routes[i] })
		list := world.List
		world.List = func(kind model.Kind) []*model.Config {
			if kind == model.HTTPRoute {
				return routes
			}
			return list(kind)
		}
		made := Convert(world).Objects[model.VirtualService]
		if len(made) != 1 {
			t.Fatalf("seed %d: %d VirtualServices, want one", seed, len(made))
		}
		vs, _ := made[0].Spec.(*networkingv1alpha3.VirtualService)
		for range 50 {
			q := request{path: []string{"/", "/a", "/a/b", "/a/b/c", "/ab", "/abc", "/x"}[rnd.IntN(7)], method: []string{"GET", "POST"}[rnd.IntN(2)], headers: map[string]string{}, queries: map[string]string{}}
			for _, name := range []string{"x", "y"} {
				q.headers[name], q.queries[name] = fmt.Sprint(rnd.IntN(2)), fmt.Sprint(rnd.IntN(2))
			}
			want := ""
			for i, r := range all {
				if q.matchedBy(r.match) && !slices.ContainsFunc(all[:i], func(o rated) bool { return q.matchedBy(o.match) && !r.before(o) }) &&
					!slices.ContainsFunc(all[i+1:], func(o rated) bool { return q.matchedBy(o.match) && o.before(r) }) {
					want = fmt.Sprintf("%s.%s.rule%d", r.route.Namespace, r.route.Name, r.rule)
				}
			}
			got := ""
			if i := slices.IndexFunc(vs.GetHttp(), func(r *networkingv1alpha3.HTTPRoute) bool { return q.takenBy(r.GetMatch()[0]) }); i >= 0 {
				got = vs.GetHttp()[i].GetName()
				went++
			}
			if got != want {
				t.Fatalf("seed %d: %+v is routed by %q, want %q", seed, q, got, want)
			}
		}
	}
	if went < 5000 {
		t.Errorf("only %d requests matched a route, want 5000", went)
	}
}

// TestUniqueNames checks that converted objects have unique names, even for hosts that differ
// only in dots.
func TestUniqueNames(t *testing.T) {
	t.Parallel()
	spec := &kubenetworkingv1.IngressSpec{IngressClassName: pointer("istio")}
	for _, host := range []string{"a.b.c", "a-b.c", "a.b-c", "a-b-c"} {
		spec.Rules = append(spec.Rules, kubenetworkingv1.IngressRule{Host: host, IngressRuleValue: kubenetworkingv1.IngressRuleValue{HTTP: &kubenetworkingv1.HTTPIngressRuleValue{
			Paths: []kubenetworkingv1.HTTPIngressPath{{Path: "/", Backend: kubenetworkingv1.IngressBackend{Service: &kubenetworkingv1.IngressServiceBackend{Name: "web", Port: kubenetworkingv1.ServiceBackendPort{Number: 80}}}}},
		}}})
	}
	in := input(t, "apiVersion: networking.k8s.io/v1\nkind: IngressClass\nmetadata: {name: istio}\nspec: {controller: istio.io/ingress-controller}\n")
	list := in.List
	in.List = func(kind model.Kind) []*model.Config {
		if kind == model.Ingress {
			return []*model.Config{{Key: model.Key{Kind: model.Ingress, Namespace: "n", Name: "i"}, Spec: spec}}
		}
		return list(kind)
	}
	seen := map[model.Key]bool{}
	for _, o := range Convert(in).Objects[model.VirtualService] {
		if seen[o.Key] {
			t.Errorf("two objects have the key %s", o.Key)
		}
		seen[o.Key] = true
	}
	if len(seen) != 4 {
		t.Errorf("%d VirtualServices for 4 hosts", len(seen))
	}
	l := &listener{of: &gateway{}}
	l.of.Config = &model.Config{Key: model.Key{Name: "gw"}}
	names := map[string]bool{}
	for _, host := range []string{"a.b", "a-b", "*.a.b", "any.a.b", "any.a-b", "*.a-b"} {
		if name := l.hostGatewayName(host); names[name] {
			t.Errorf("several hosts have the name %s", name)
		} else {
			names[name] = true
		}
	}
}
