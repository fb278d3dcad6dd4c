// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package snapshot

import (
	"cmp"
	"fmt"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// mostMatches is the maximum number of matches of an object, which delegates can multiply.
const mostMatches = 10_000

// lendersOf returns the objects without hosts, which can only be delegates, by namespace/name.
func lendersOf(objs []*model.Config) map[string]*model.Config {
	out := make(map[string]*model.Config)
	for _, obj := range objs {
		if spec, ok := obj.Spec.(*networkingv1alpha3.VirtualService); ok && len(spec.GetHosts()) == 0 {
			out[obj.Namespace+"/"+obj.Name] = obj
		}
	}
	return out
}

// lends reports whether another object names this one as a delegate.
func (v *VirtualServices) lends(obj *model.Config) bool { return v.lent[obj.Key] }

// delegate replaces the routes that name a delegate by the routes of that delegate. A route whose
// delegate cannot be used is kept, so that its requests do not match later routes.
func (v *VirtualService) delegate(lenders map[string]*model.Config, set settings) {
	routes := v.Spec.GetHttp()
	has := false
	for _, r := range routes {
		has = has || r.GetDelegate() != nil
	}
	if !has {
		return
	}
	var merged []*networkingv1alpha3.HTTPRoute
	total := 0
	add := func(r *networkingv1alpha3.HTTPRoute, from *model.Config, rule int) {
		merged = append(merged, r)
		v.origins = append(v.origins, Origin{Config: from, Rule: rule})
	}
	for i, root := range routes {
		if root.GetDelegate() == nil {
			add(root, v.Config, i)
			continue
		}
		name := cmp.Or(root.GetDelegate().GetNamespace(), v.Config.Namespace) + "/" + root.GetDelegate().GetName()
		lender := lenders[name]
		v.delegates = append(v.delegates, lender)
		if lender == nil {
			v.report(i, true, "there is no VirtualService %s without hosts: requests of the route are answered with 503; correct the name, or create it without spec.hosts", name)
			add(root, v.Config, i)
			continue
		}
		spec, _ := lender.Spec.(*networkingv1alpha3.VirtualService)
		if !visible(exportTo(spec.GetExportTo(), set.exportRoutes), lender.Namespace, v.Config.Namespace) {
			v.report(i, true, "the VirtualService %s is not exported to the namespace %s: requests of the route are answered with 503; add the namespace to its spec.exportTo", name, v.Config.Namespace)
			add(root, v.Config, i)
			continue
		}
		if total += product(root, spec); total > mostMatches {
			v.report(i, false, "with the VirtualService %s the object would have %d matches, more than %d: requests of the route are answered with 503; write fewer matches", name, total, mostMatches)
			add(root, v.Config, i)
			continue
		}
		root = qualified(root, v.Config.Namespace, set)
		for j, sub := range spec.GetHttp() {
			r, conflict := lend(root, qualified(sub, lender.Namespace, set))
			if conflict != "" {
				v.report(i, false, "spec.http[%d] of the VirtualService %s %s and is ignored; a route of a delegate can only narrow the matches of the route that names it", j, name, conflict)
				continue
			}
			if sub.GetDelegate() != nil {
				v.report(i, false, "spec.http[%d] of the VirtualService %s names a delegate itself: its requests are answered with 503; write the routes there", j, name)
			}
			add(r, lender, j)
		}
	}
	spec, _ := proto.Clone(v.Spec).(*networkingv1alpha3.VirtualService)
	spec.Http = merged
	v.Spec = spec
}

// product returns the maximum number of matches of the routes of a delegate when merged with the
// root route.
func product(root *networkingv1alpha3.HTTPRoute, delegate *networkingv1alpha3.VirtualService) int {
	n := 0
	for _, sub := range delegate.GetHttp() {
		n += max(1, len(sub.GetMatch()))
	}
	return n * max(1, len(root.GetMatch()))
}

func (v *VirtualService) report(route int, dangling bool, format string, args ...any) {
	v.problems = append(v.problems, model.Problem{
		Object: v.Config.Key, Source: v.Config.Source, Dangling: dangling,
		Reason: fmt.Sprintf("spec.http[%d].delegate: ", route) + fmt.Sprintf(format, args...),
	})
}

// qualified returns a copy of a route with fully qualified names, so that it has the same meaning
// in another namespace.
func qualified(in *networkingv1alpha3.HTTPRoute, namespace string, set settings) *networkingv1alpha3.HTTPRoute {
	out, _ := proto.Clone(in).(*networkingv1alpha3.HTTPRoute)
	resolve := func(d *networkingv1alpha3.Destination) {
		if d != nil {
			d.Host = set.resolveHost(d.GetHost(), namespace)
		}
	}
	for _, d := range out.GetRoute() {
		resolve(d.GetDestination())
	}
	resolve(out.GetMirror())
	for _, m := range out.GetMirrors() {
		resolve(m.GetDestination())
	}
	for _, m := range out.GetMatch() {
		for i, g := range m.GetGateways() {
			if g != "mesh" {
				m.Gateways[i] = GatewayName(g, namespace)
			}
		}
	}
	return out
}

// lend merges a route of a delegate with the root route that names the delegate. The result matches
// only requests that both match, and inherits the fields that the delegate's route does not set.
// Both arguments are copies that lend may modify. If the routes cannot be merged, conflict is the
// reason.
func lend(root, sub *networkingv1alpha3.HTTPRoute) (out *networkingv1alpha3.HTTPRoute, conflict string) {
	matches, conflict := lendMatches(root.GetMatch(), sub.GetMatch())
	if conflict != "" {
		return nil, conflict
	}
	sub.Match = matches
	sub.Name = joined(root.GetName(), sub.GetName())
	mirrored := sub.GetMirror() != nil || len(sub.GetMirrors()) > 0
	from, to := root.ProtoReflect(), sub.ProtoReflect()
	from.Range(func(fd protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		switch fd.Name() {
		case "name", "match", "route", "redirect", "direct_response", "delegate":
			return true
		case "mirror", "mirrors":
			if mirrored {
				return true
			}
		}
		if !to.Has(fd) {
			to.Set(fd, value)
		}
		return true
	})
	return sub, ""
}

func joined(root, sub string) string {
	if root == "" || sub == "" {
		return root + sub
	}
	return root + "-" + sub
}

// lendMatches returns the intersections of all pairs of matches that can have requests in common.
// It is a conflict if a match of the delegate has no such pair.
func lendMatches(root, sub []*networkingv1alpha3.HTTPMatchRequest) (out []*networkingv1alpha3.HTTPMatchRequest, conflict string) {
	if len(root) == 0 {
		return sub, ""
	}
	if len(sub) == 0 {
		return root, ""
	}
	for j, s := range sub {
		before := len(out)
		field := ""
		for _, r := range root {
			m, bad := lendMatch(r, s)
			if bad == "" {
				out = append(out, m)
			}
			field = cmp.Or(field, bad)
		}
		if len(out) == before {
			return nil, fmt.Sprintf("conflicts in match[%d].%s with the route that names the delegate", j, field)
		}
	}
	return out, ""
}

// lendMatch returns the intersection of two matches, or the field that conflicts. The match of the
// delegate must be the narrower one; regular expressions cannot be compared.
func lendMatch(root, sub *networkingv1alpha3.HTTPMatchRequest) (out *networkingv1alpha3.HTTPMatchRequest, conflict string) {
	out, _ = proto.Clone(sub).(*networkingv1alpha3.HTTPMatchRequest)
	if out == nil {
		out = &networkingv1alpha3.HTTPMatchRequest{}
	}
	out.Name = joined(root.GetName(), sub.GetName())
	out.StatPrefix = cmp.Or(sub.GetStatPrefix(), root.GetStatPrefix())
	if root.GetUri() != nil {
		if sub.GetUri() != nil && root.GetIgnoreUriCase() != sub.GetIgnoreUriCase() {
			return nil, "ignoreUriCase"
		}
		out.IgnoreUriCase = root.GetIgnoreUriCase()
	}
	for _, f := range []struct {
		name string
		root *networkingv1alpha3.StringMatch
		out  **networkingv1alpha3.StringMatch
	}{
		{"uri", root.GetUri(), &out.Uri},
		{"scheme", root.GetScheme(), &out.Scheme},
		{"method", root.GetMethod(), &out.Method},
		{"authority", root.GetAuthority(), &out.Authority},
	} {
		m, ok := narrower(f.root, *f.out)
		if !ok {
			return nil, f.name
		}
		*f.out = m
	}
	for _, f := range []struct {
		name    string
		root    map[string]*networkingv1alpha3.StringMatch
		out     *map[string]*networkingv1alpha3.StringMatch
		combine func(root, sub *networkingv1alpha3.StringMatch) (*networkingv1alpha3.StringMatch, bool)
	}{
		{"headers", root.GetHeaders(), &out.Headers, narrower},
		{"withoutHeaders", root.GetWithoutHeaders(), &out.WithoutHeaders, wider},
		{"queryParams", root.GetQueryParams(), &out.QueryParams, narrower},
	} {
		if bad := lendValues(f.root, f.out, f.combine); bad != "" {
			return nil, f.name + "[" + bad + "]"
		}
	}
	return out, lendCallers(root, out)
}

// lendValues merges the matches of the root into those of a delegate. The conflict is the smallest
// name whose matches exclude each other.
func lendValues(root map[string]*networkingv1alpha3.StringMatch, out *map[string]*networkingv1alpha3.StringMatch,
	combine func(root, sub *networkingv1alpha3.StringMatch) (*networkingv1alpha3.StringMatch, bool),
) (conflict string) {
	for name, r := range root {
		sub, both := (*out)[name]
		m, ok := r, true
		if both {
			m, ok = combine(r, sub)
		}
		if !ok && (conflict == "" || name < conflict) {
			conflict = name
		}
		if *out == nil {
			*out = make(map[string]*networkingv1alpha3.StringMatch, len(root))
		}
		(*out)[name] = m
	}
	return conflict
}

// lendCallers adds the conditions of the root on port, client and gateways to a match of a
// delegate. It returns the field that conflicts, or "".
func lendCallers(root, out *networkingv1alpha3.HTTPMatchRequest) (conflict string) {
	switch {
	case root.GetPort() != 0 && out.GetPort() != 0 && root.GetPort() != out.GetPort():
		return "port"
	case root.GetSourceNamespace() != "" && out.GetSourceNamespace() != "" && root.GetSourceNamespace() != out.GetSourceNamespace():
		return "sourceNamespace"
	}
	out.Port = cmp.Or(out.GetPort(), root.GetPort())
	out.SourceNamespace = cmp.Or(out.GetSourceNamespace(), root.GetSourceNamespace())
	for k, r := range root.GetSourceLabels() {
		if s, both := out.GetSourceLabels()[k]; both && s != r {
			return "sourceLabels"
		}
		if out.SourceLabels == nil {
			out.SourceLabels = make(map[string]string, len(root.GetSourceLabels()))
		}
		out.SourceLabels[k] = r
	}
	allowed := make(map[string]bool, len(root.GetGateways()))
	for _, g := range root.GetGateways() {
		allowed[g] = true
	}
	for _, g := range out.GetGateways() {
		if len(allowed) > 0 && !allowed[g] {
			return "gateways"
		}
	}
	if len(out.GetGateways()) == 0 {
		out.Gateways = root.GetGateways()
	}
	return ""
}
