// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package analyze

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	securityv1beta1 "istio.io/api/security/v1beta1"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
)

const (
	// maxTried is how many requests are tried with a rule of a workload, and maxSteps limits how many rules
	// of a workload they are compared with.
	maxTried = 4096
	maxSteps = 1 << 20
)

// request is one that stands for all requests which the values in policies do not tell apart.
type request struct {
	port               string
	stream             bool // a connection whose requests are not read
	method, path, host string
}

// meets reports whether a rule matches a request of a suitable client. Path templates are taken to match
// if the rule allows requests, and not to match otherwise.
func (q request) meets(r *securityv1beta1.Rule, allows bool) bool {
	return len(r.GetTo()) == 0 || slices.ContainsFunc(r.GetTo(), func(t *securityv1beta1.Rule_To) bool {
		o := t.GetOperation()
		if !within(o.GetPorts(), o.GetNotPorts(), q.port, allows) {
			return false
		}
		if q.stream { // as the control plane translates attributes of requests
			return !allows || len(o.GetHosts())+len(o.GetNotHosts())+len(o.GetMethods())+len(o.GetNotMethods())+len(o.GetPaths())+len(o.GetNotPaths()) == 0
		}
		return within(o.GetMethods(), o.GetNotMethods(), q.method, allows) && within(o.GetPaths(), o.GetNotPaths(), q.path, allows) &&
			within(lower(o.GetHosts()), lower(o.GetNotHosts()), q.host, allows)
	})
}

// within reports whether a value is among some patterns, all if there are none, and not among others.
func within(among, not []string, value string, allows bool) bool {
	in := func(list []string, unsure bool) bool {
		return slices.ContainsFunc(list, func(p string) bool {
			if strings.Contains(p, "{*") {
				return unsure
			}
			return pattern(p, value)
		})
	}
	return (len(among) == 0 || in(among, allows)) && !in(not, !allows)
}

func lower(list []string) []string {
	out := slices.Clone(list)
	for i := range out {
		out[i] = strings.ToLower(out[i])
	}
	return out
}

// values returns one value for each set of values that patterns do not tell apart. Rest is a text that no
// pattern contains.
func values(patterns map[string]bool, begin, rest string) []string {
	starts, ends, out := []string{begin}, []string{""}, map[string]bool{}
	for p := range patterns {
		switch suffix, isSuffix := strings.CutPrefix(p, "*"); {
		case isSuffix:
			ends = append(ends, suffix)
		case strings.HasSuffix(p, "*"):
			starts = append(starts, strings.TrimSuffix(p, "*"))
		default:
			out[p] = true
		}
	}
	for _, s := range starts {
		for _, e := range ends {
			if out[s+rest+e] = true; len(out) > maxTried {
				return nil
			}
		}
	}
	return slices.Sorted(maps.Keys(out))
}

// requestsOf returns requests to a port that stand for all, or none if there are too many.
func requestsOf(port workloadPort, rules []*securityv1beta1.Rule) (out []request) {
	methods, paths, hosts := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, m := range []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"} { // others are rare
		methods[m] = true
	}
	add := func(to map[string]bool, lists ...[]string) {
		for _, v := range slices.Concat(lists...) {
			to[v] = true
		}
	}
	for _, r := range rules {
		for _, t := range r.GetTo() {
			o := t.GetOperation()
			add(paths, o.GetPaths(), o.GetNotPaths())
			add(hosts, lower(o.GetHosts()), lower(o.GetNotHosts()))
			add(methods, o.GetMethods(), o.GetNotMethods())
		}
	}
	maps.DeleteFunc(methods, func(m string, _ bool) bool { return strings.Contains(m, "*") })
	number := fmt.Sprint(port.target)
	if p := port.port.Protocol; !p.IsHTTP() {
		out = append(out, request{port: number, stream: true})
		if !p.Sniffed() {
			return out
		}
	}
	all := [][]string{slices.Sorted(maps.Keys(methods)), values(paths, "/", "\x00"), values(hosts, "", "\x00")}
	if len(all[0])*len(all[1])*len(all[2]) > maxTried {
		return nil
	}
	for _, m := range all[0] {
		for _, p := range all[1] {
			for _, h := range all[2] {
				out = append(out, request{number, false, m, p, h})
			}
		}
	}
	return out
}

// refusal is a set of policies that lets no request through.
type refusal struct {
	by      []*snapshot.AuthorizationPolicy // that refuse, or allow what nobody requests
	allowed bool                            // by are policies that allow
	err     error                           // why an authorizer cannot be asked
}

// refusalOf returns the policies of a workload that together refuse every request to some ports, or nil.
// It returns nil too if a single rule does, or if there is none that allows: these are other findings.
func (a *analysis) refusalOf(namespace string, policies []*snapshot.AuthorizationPolicy, ports []workloadPort) *refusal {
	out := &refusal{}
	var refusing, allowing []*securityv1beta1.Rule
	var open []*snapshot.AuthorizationPolicy
	for _, p := range policies {
		custom, unasked := p.Spec.GetAction() == securityv1beta1.AuthorizationPolicy_CUSTOM, error(nil)
		if custom && !a.AssumedMesh {
			_, unasked = a.Mesh.Authorizer(p.Spec.GetProvider().GetName(), namespace, nil)
		}
		switch {
		case p.DryRun:
		case p.Spec.GetAction() == securityv1beta1.AuthorizationPolicy_ALLOW:
			open, allowing = append(open, p), append(allowing, p.Spec.GetRules()...)
		case unasked != nil, p.Spec.GetAction() == securityv1beta1.AuthorizationPolicy_DENY:
			rules := slices.DeleteFunc(slices.Clone(p.Spec.GetRules()), func(r *securityv1beta1.Rule) bool {
				return !matchesAll(&securityv1beta1.Rule{From: r.GetFrom(), When: r.GetWhen()}) // it depends on the client
			})
			if !custom && slices.ContainsFunc(rules, matchesAll) {
				return nil
			}
			if len(rules) > 0 {
				out.by, refusing, out.err = append(out.by, p), append(refusing, rules...), cmp.Or(out.err, unasked)
			}
		}
	}
	switch {
	case len(open) > 0 && len(allowing) == 0:
		return nil
	case len(open) > 0 && a.refuse(nil, allowing, ports):
		return &refusal{by: open, allowed: true}
	case len(refusing) > 0 && a.refuse(refusing, []*securityv1beta1.Rule{{}}, ports):
		return out
	case len(refusing)*len(open) > 0 && a.refuse(refusing, allowing, ports):
		out.by = append(out.by, open...)
		return out
	}
	return nil
}

// refuse reports whether rules leave no request to some ports: each is refused, or not allowed.
func (a *analysis) refuse(refusing, allowing []*securityv1beta1.Rule, ports []workloadPort) bool {
	meets := func(q request, rules []*securityv1beta1.Rule, allows bool) bool {
		return slices.ContainsFunc(rules, func(r *securityv1beta1.Rule) bool { a.steps++; return q.meets(r, allows) })
	}
	last := a.steps + maxSteps
	for _, port := range ports {
		for i := range allowing { // what one of them allows
			rules := allowing[i : i+1]
			requests := requestsOf(port, slices.Concat(refusing, rules))
			if len(requests) == 0 || slices.ContainsFunc(requests, func(q request) bool { return a.steps > last || meets(q, rules, true) && !meets(q, refusing, false) }) {
				return false // or there are too many
			}
		}
	}
	return true
}

// listening returns the ports of a workload, or some that stand for all if none are known.
func (a *analysis) listening(w *Workload, policies []*snapshot.AuthorizationPolicy) []workloadPort {
	var out []workloadPort
	known := map[uint32]bool{}
	add := func(p workloadPort) {
		if !known[p.target] {
			known[p.target], out = true, append(out, p)
		}
	}
	for _, p := range a.portsOf(w) {
		add(p)
	}
	if a.podPorts == nil {
		a.podPorts = map[objectName][]uint32{}
		for _, p := range a.Manifests.pods {
			for _, c := range p.containers() {
				for _, port := range c.Ports {
					a.podPorts[objectName{p.namespace, p.name}] = append(a.podPorts[objectName{p.namespace, p.name}], uint32(max(port.ContainerPort, 0)))
				}
			}
		}
	}
	for _, n := range a.podPorts[objectName{w.Namespace, w.Name}] {
		add(workloadPort{target: n})
	}
	if len(out) > 0 {
		return out
	}
	add(workloadPort{}) // a port that no policy names
	for _, p := range policies {
		for _, r := range p.Spec.GetRules() {
			for _, t := range r.GetTo() {
				for _, text := range t.GetOperation().GetPorts() {
					var n uint32
					if _, err := fmt.Sscan(text, &n); err == nil && len(out) < maxTried {
						add(workloadPort{target: n})
					}
				}
			}
		}
	}
	return out
}

// refusals finds workloads whose policies refuse all requests together, but none of them alone.
func (a *analysis) refusals() {
	type tried struct {
		*refusal
		ports     []workloadPort
		workloads []string
	}
	memo, order := map[string]*tried{}, []*tried(nil)
	try := func(w *Workload, name string) {
		policies := a.Mesh.AuthorizationPolicies.For(w.Namespace, w.Labels, nil)
		if len(policies) == 0 {
			return
		}
		ports := a.listening(w, policies)
		key := w.Namespace
		for _, p := range policies {
			key += p.Key
		}
		for _, p := range ports {
			key += fmt.Sprint(" ", p.target, p.port.Protocol)
		}
		if memo[key] == nil {
			memo[key] = &tried{refusal: a.refusalOf(w.Namespace, policies, ports), ports: ports}
			order = append(order, memo[key])
		}
		memo[key].workloads = append(memo[key].workloads, name)
	}
	for _, w := range a.workloads.all {
		a.steps++
		try(w, w.Namespace+"/"+w.Name)
	}
	if a.workloads.size() == 0 { // those that selectors describe
		each(a, model.AuthorizationPolicy, func(c *model.Config, spec *securityv1beta1.AuthorizationPolicy) {
			if len(spec.GetTargetRefs()) == 0 && spec.GetTargetRef() == nil {
				try(&Workload{Namespace: c.Namespace, Labels: spec.GetSelector().GetMatchLabels()}, a.target(c, spec))
			}
		})
	}
	for _, t := range order {
		if t.refusal != nil {
			a.refusal(t.refusal, t.ports, t.workloads)
		}
	}
}

// refusal reports policies that refuse all requests to workloads, at the newest of them.
func (a *analysis) refusal(r *refusal, ports []workloadPort, workloads []string) {
	to := workloads[0]
	if n := len(workloads) - 1; n > 0 {
		to = fmt.Sprintf("%s and %d more workloads", to, n)
	}
	newest := slices.MaxFunc(r.by, func(x, y *snapshot.AuthorizationPolicy) int { return model.Older(x.Config, y.Config) })
	var list []string
	for _, p := range r.by {
		list = append(list, nameOf(p.Config))
	}
	switch {
	case r.err != nil:
		i := slices.IndexFunc(r.by, func(p *snapshot.AuthorizationPolicy) bool {
			return p.Spec.GetAction() == securityv1beta1.AuthorizationPolicy_CUSTOM
		})
		why, cure := sentences(r.err.Error())
		a.report("OUT0020", r.by[i].Config, fmt.Sprintf("spec.provider: %s What the rules match is denied, which leaves no request to %s.", why, to), cure)
	case r.allowed:
		var numbers []string
		for _, p := range ports {
			numbers = append(numbers, fmt.Sprint(p.target))
		}
		a.report("OUT0020", newest.Config, fmt.Sprintf("spec.rules allows no request to %s at the ports %s, and no other policy does, so all are denied.", to, names(numbers)),
			"Write a port of the workload, or remove the condition.")
	case len(r.by) == 1:
		a.report("OUT0020", newest.Config, fmt.Sprintf("spec.rules together deny every request to %s.", to), "Leave out a port, a method or a path, unless this is meant.")
	default:
		a.report("OUT0020", newest.Config, fmt.Sprintf("The policies %s together deny every request to %s.", names(list), to), "Leave out a port, a method or a path, unless this is meant.")
	}
}
