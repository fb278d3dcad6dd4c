// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package analyze

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	securityv1beta1 "istio.io/api/security/v1beta1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
)

// dryRunAnnotation is on policies that only count.
const dryRunAnnotation = "istio.io/dry-run"

// authorizationPolicies finds policies that deny everything, and namespaces that do not exist.
func (a *analysis) authorizationPolicies() {
	closed := map[string]string{} // the workload that nothing allows, by the workloads of a policy
	each(a, model.AuthorizationPolicy, func(c *model.Config, spec *securityv1beta1.AuthorizationPolicy) {
		if c.Annotations[dryRunAnnotation] == "true" {
			return
		}
		a.sourceNamespaces(c, spec)
		if labels, selects := SelectorOf(c); selects && len(spec.GetRules()) > 0 {
			workloads := a.selected(a.scope(c), labels)
			a.unreadRules(c, spec, workloads)
			a.neverMatches(c, spec, workloads)
		}
		if i := slices.IndexFunc(spec.GetRules(), matchesAll); i >= 0 && spec.GetAction() == securityv1beta1.AuthorizationPolicy_DENY {
			why := "has no condition"
			if proto.Size(spec.GetRules()[i]) > 0 {
				why = "accepts all values in its conditions"
			}
			a.report("OUT0002", c, fmt.Sprintf("spec.rules[%d] %s, so the policy denies every request to %s.", i, why, a.target(c, spec)),
				"Add from, to or when to the rule, unless this is meant.")
		}
		if spec.GetAction() != securityv1beta1.AuthorizationPolicy_ALLOW || len(spec.GetRules()) > 0 || len(spec.GetTargetRefs()) > 0 || spec.GetTargetRef() != nil {
			return
		}
		key := a.scope(c) + " " + labelText(spec.GetSelector().GetMatchLabels())
		workload, known := closed[key]
		if !known {
			workload = a.closed(c, spec)
			closed[key] = workload
		}
		if workload != "" {
			a.report("OUT0003", c, fmt.Sprintf("The policy has no rules and no other policy allows requests to %s, so all are denied.", workload),
				"Add rules, or an ALLOW policy for the requests that are needed.")
		}
	})
}

// matchesAll reports whether a rule matches every request: each of its conditions accepts all values.
// One on identities does not, because clients may have none.
func matchesAll(r *securityv1beta1.Rule) bool {
	from := slices.ContainsFunc(r.GetFrom(), func(f *securityv1beta1.Rule_From) bool {
		s := proto.CloneOf(f.GetSource())
		for _, blocks := range []*[]string{&s.IpBlocks, &s.RemoteIpBlocks} {
			if slices.Contains(*blocks, "0.0.0.0/0") && slices.Contains(*blocks, "::/0") {
				*blocks = nil
			}
		}
		return proto.Size(s) == 0
	})
	to := slices.ContainsFunc(r.GetTo(), func(t *securityv1beta1.Rule_To) bool {
		o := proto.CloneOf(t.GetOperation())
		for _, values := range []*[]string{&o.Paths, &o.Methods, &o.Hosts} {
			if slices.Contains(*values, "*") || values == &o.Paths && slices.Contains(*values, "/*") {
				*values = nil
			}
		}
		return proto.Size(o) == 0
	})
	return len(r.GetWhen()) == 0 && (from || len(r.GetFrom()) == 0) && (to || len(r.GetTo()) == 0)
}

// target names the workloads of a policy.
func (a *analysis) target(c *model.Config, spec *securityv1beta1.AuthorizationPolicy) string {
	labels := labelText(spec.GetSelector().GetMatchLabels())
	switch in := a.scope(c); {
	case labels != "" && in == "":
		return "workloads with the labels " + labels
	case labels != "":
		return "workloads of " + in + " with the labels " + labels
	case in == "":
		return "all workloads of the mesh"
	default:
		return "all workloads of " + in
	}
}

// closed returns a workload of an ALLOW policy without rules that no other policy opens, or "".
func (a *analysis) closed(c *model.Config, spec *securityv1beta1.AuthorizationPolicy) string {
	selector := spec.GetSelector().GetMatchLabels()
	opens := func(p *snapshot.AuthorizationPolicy) bool {
		return !p.DryRun && p.Spec.GetAction() == securityv1beta1.AuthorizationPolicy_ALLOW && len(p.Spec.GetRules()) > 0
	}
	if a.workloads.size() == 0 { // those that the selector describes
		if !slices.ContainsFunc(a.Mesh.AuthorizationPolicies.For(c.Namespace, selector, nil), opens) {
			return a.target(c, spec)
		}
		return ""
	}
	var first string
	n := 0
	for _, w := range a.selected(a.scope(c), selector) {
		a.steps++
		if slices.ContainsFunc(a.Mesh.AuthorizationPolicies.For(w.Namespace, w.Labels, nil), opens) {
			continue
		}
		if n++; n == 1 {
			first = w.Namespace + "/" + w.Name
		}
	}
	if n > 1 {
		return fmt.Sprintf("%s and %d more workloads", first, n-1)
	}
	return first
}

// sourceNamespaces finds namespaces of sources that do not exist.
func (a *analysis) sourceNamespaces(c *model.Config, spec *securityv1beta1.AuthorizationPolicy) {
	if len(a.Manifests.namespaces) == 0 {
		return
	}
	known := map[string]bool{"default": true}
	for _, n := range a.Manifests.namespaces {
		known[n.Name] = true
	}
	exists := func(name string) bool {
		if strings.Contains(name, "*") {
			return slices.ContainsFunc(slices.Collect(maps.Keys(known)), func(n string) bool { return pattern(name, n) })
		}
		return known[name] || system(name)
	}
	for i, r := range spec.GetRules() {
		for j, f := range r.GetFrom() {
			check := func(list, name string) {
				if !exists(name) {
					a.report("IST0101", c, fmt.Sprintf("spec.rules[%d].from[%d].source.%s: there is no namespace %q.", i, j, list, name), "Correct the name.")
				}
			}
			for _, name := range f.GetSource().GetNamespaces() {
				check("namespaces", name)
			}
			for _, name := range f.GetSource().GetNotNamespaces() {
				check("notNamespaces", name)
			}
			for _, principal := range f.GetSource().GetPrincipals() {
				if parts := strings.Split(principal, "/"); len(parts) == 5 && parts[0] == defaultDomain && parts[1] == "ns" {
					check("principals", parts[2])
				}
			}
		}
	}
}

// rewriteAnnotation is on pods whose probes go to the application instead of the agent.
const rewriteAnnotation = "sidecar.istio.io/rewriteAppHTTPProbers"

// probes finds pods whose probes a policy refuses. Probes that the injector rewrites go to the agent,
// which no policy is for.
func (a *analysis) probes() {
	for _, p := range a.Manifests.pods {
		if p.annotations[rewriteAnnotation] != "false" {
			continue
		}
		for _, container := range p.spec.Containers {
			for i, probe := range []*corev1.Probe{container.ReadinessProbe, container.LivenessProbe, container.StartupProbe} {
				if probe == nil || probe.HTTPGet == nil {
					continue // others prove only that a connection opens
				}
				name, port := [...]string{"readinessProbe", "livenessProbe", "startupProbe"}[i], p.portOf(probe.HTTPGet.Port)
				if by := a.refuses(p, port, cmp.Or(probe.HTTPGet.Path, "/")); by != "" {
					a.add("OUT0004", p.Object, p.source, fmt.Sprintf("The %s of the container %s to port %d is not rewritten (%s: \"false\"), and %s refuses it.", name, container.Name, port, rewriteAnnotation, by),
						"Remove the annotation, or allow the probe.")
				}
			}
		}
	}
}

// portOf returns the number of a port of a probe.
func (p *pod) portOf(port intstr.IntOrString) uint32 {
	if port.StrVal != "" {
		return p.ports()[port.StrVal]
	}
	return uint32(max(port.IntVal, 0))
}

// refuses names the object that refuses plaintext requests without an identity to a port and path, or
// returns "".
func (a *analysis) refuses(p *pod, port uint32, path string) string {
	if a.Mesh.PeerAuthentications.Mode(p.namespace, p.labels, port) == snapshot.MutualTLSStrict {
		if of := a.Mesh.PeerAuthentications.Of(p.namespace, p.labels); len(of) > 0 {
			return "the PeerAuthentication " + nameOf(of[len(of)-1])
		}
	}
	allowing, allowed := "", false
	for _, policy := range a.Mesh.AuthorizationPolicies.For(p.namespace, p.labels, nil) {
		if policy.DryRun {
			continue
		}
		allows := policy.Spec.GetAction() == securityv1beta1.AuthorizationPolicy_ALLOW
		matches := slices.ContainsFunc(policy.Spec.GetRules(), func(r *securityv1beta1.Rule) bool { return matchesProbe(r, port, path, allows) })
		switch policy.Spec.GetAction() {
		case securityv1beta1.AuthorizationPolicy_DENY:
			if matches {
				return "the AuthorizationPolicy " + nameOf(policy.Config)
			}
		case securityv1beta1.AuthorizationPolicy_ALLOW:
			if allowed = allowed || matches; allowing == "" {
				allowing = "the AuthorizationPolicy " + nameOf(policy.Config)
			}
		case securityv1beta1.AuthorizationPolicy_CUSTOM, securityv1beta1.AuthorizationPolicy_AUDIT:
		}
	}
	if allowed {
		return ""
	}
	return allowing
}

// matchesProbe reports whether a rule matches GET requests of a kubelet, which has no identity. A rule
// with conditions on sources, or with when, is taken not to match.
func matchesProbe(r *securityv1beta1.Rule, port uint32, path string, allows bool) bool {
	q := request{port: fmt.Sprint(port), method: "GET", path: path, host: "\x00"} // the address of the pod
	return len(r.GetFrom())+len(r.GetWhen()) == 0 && q.meets(r, allows)
}

// pattern reports whether an exact value, a prefix*, a *suffix or * matches.
func pattern(p, value string) bool {
	if suffix, ok := strings.CutPrefix(p, "*"); ok {
		return strings.HasSuffix(value, suffix)
	}
	if prefix, ok := strings.CutSuffix(p, "*"); ok {
		return strings.HasPrefix(value, prefix)
	}
	return p == value
}
