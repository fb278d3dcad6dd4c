// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package analyze

import (
	"fmt"
	"slices"
	"strings"

	extensionsv1alpha1 "istio.io/api/extensions/v1alpha1"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
	securityv1beta1 "istio.io/api/security/v1beta1"
	telemetryv1alpha1 "istio.io/api/telemetry/v1alpha1"
	typev1beta1 "istio.io/api/type/v1beta1"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// SelectorOf returns the selector of the workloads of an object; ok is false for kinds without.
func SelectorOf(c *model.Config) (labels map[string]string, ok bool) {
	switch s := c.Spec.(type) {
	case *securityv1beta1.AuthorizationPolicy:
		return s.GetSelector().GetMatchLabels(), len(s.GetTargetRefs()) == 0 && s.GetTargetRef() == nil
	case *securityv1beta1.RequestAuthentication:
		return s.GetSelector().GetMatchLabels(), len(s.GetTargetRefs()) == 0 && s.GetTargetRef() == nil
	case *securityv1beta1.PeerAuthentication:
		return s.GetSelector().GetMatchLabels(), true
	case *networkingv1alpha3.Sidecar:
		return s.GetWorkloadSelector().GetLabels(), true
	case *networkingv1alpha3.EnvoyFilter:
		return s.GetWorkloadSelector().GetLabels(), len(s.GetTargetRefs()) == 0
	case *telemetryv1alpha1.Telemetry:
		return s.GetSelector().GetMatchLabels(), len(s.GetTargetRefs()) == 0 && s.GetTargetRef() == nil
	case *extensionsv1alpha1.WasmPlugin:
		return s.GetSelector().GetMatchLabels(), len(s.GetTargetRefs()) == 0 && s.GetTargetRef() == nil
	case *extensionsv1alpha1.TrafficExtension:
		return s.GetSelector().GetMatchLabels(), len(s.GetTargetRefs()) == 0
	case *networkingv1alpha3.ServiceEntry:
		return s.GetWorkloadSelector().GetLabels(), true
	}
	return nil, false
}

// selectors finds objects that no workload has the labels for.
func (a *analysis) selectors() {
	if a.workloads.size() == 0 {
		return
	}
	for _, c := range a.Objects {
		labels, ok := SelectorOf(c)
		scope := a.scope(c)
		if c.Kind == model.AuthorizationPolicy && ok && len(labels) == 0 && scope != "" && a.workloads.namespaces[scope] == nil {
			a.report("IST0127", c, fmt.Sprintf("No workload is in the namespace %s, so the object has no effect.", scope), "Correct the namespace, or remove the object.")
		}
		if !ok || len(labels) == 0 {
			continue
		}
		switch c.Kind {
		case model.Sidecar, model.PeerAuthentication, model.ServiceEntry:
			scope = c.Namespace // with a selector, only in its own
		}
		if a.selects(scope, labels) {
			continue
		}
		where := "the namespace " + scope
		if scope == "" {
			where = "the mesh"
		}
		a.report("IST0127", c, fmt.Sprintf("No workload of %s has the labels %s, so the object has no effect.", where, labelText(labels)),
			"Correct the selector, or the labels of the workloads.")
	}
}

// targeted is a policy that may name its targets.
type targeted interface {
	GetTargetRefs() []*typev1beta1.PolicyTargetReference
}

// targets finds objects that policies name as their targets and that do not exist.
func (a *analysis) targets() {
	if a.Partial {
		return
	}
	for _, c := range a.Objects {
		spec, ok := c.Spec.(targeted)
		if !ok {
			continue
		}
		for i, ref := range spec.GetTargetRefs() {
			kind := model.Kind(ref.GetKind())
			exists := true
			switch ref.GetGroup() + "/" + ref.GetKind() {
			case "gateway.networking.k8s.io/Gateway":
				kind = model.KubernetesGateway
				exists = a.has(kind, c.Namespace, ref.GetName()) || len(a.kinds[kind]) == 0 && !a.servicesKnown()
			case "networking.istio.io/ServiceEntry":
				exists = a.has(kind, c.Namespace, ref.GetName())
			case "/Service", "core/Service":
				host := a.Mesh.ResolveHost(ref.GetName(), c.Namespace)
				exists = !a.servicesKnown() || a.Mesh.Services.ForHost(host, c.Namespace) != nil
			}
			if !exists {
				a.report("IST0101", c, fmt.Sprintf("spec.targetRefs[%d]: there is no %s %s/%s, so the policy has no effect there.", i, ref.GetKind(), c.Namespace, ref.GetName()), "Correct the name, or create the object.")
			}
		}
	}
}

// has reports whether an object exists.
func (a *analysis) has(kind model.Kind, namespace, name string) bool {
	if a.byName == nil {
		a.byName = map[model.Key]bool{}
		for _, c := range a.Objects {
			a.byName[c.Key] = true
		}
	}
	return a.byName[model.Key{Kind: kind, Namespace: namespace, Name: name}]
}

// conflict are the codes of objects of which only one counts for a workload.
type conflict struct {
	kind            model.Kind
	whole, selected string // codes
}

// oneOfNamespace finds objects of a kind of which only the oldest counts for a namespace or a
// workload.
func (a *analysis) oneOfNamespace() {
	for _, kind := range []conflict{
		{model.Sidecar, "IST0111", "IST0110"}, {model.Telemetry, "IST0160", "IST0159"}, {model.PeerAuthentication, "OUT0010", "OUT0010"},
	} {
		whole := map[string]*model.Config{}
		byLabels := map[objectName]*model.Config{}
		byWorkload := map[*Workload]*model.Config{}
		for _, c := range a.kinds[kind.kind] {
			labels, ok := SelectorOf(c)
			switch {
			case !ok:
			case len(labels) == 0:
				if first := whole[c.Namespace]; first != nil {
					a.report(kind.whole, c, fmt.Sprintf("The older %s %s also applies to the whole namespace %s, and wins.", kind.kind, nameOf(first), c.Namespace), "Merge the objects, or write a selector.")
				} else {
					whole[c.Namespace] = c
				}
			default:
				key := objectName{c.Namespace, labelText(labels)}
				first := byLabels[key]
				if first == nil {
					byLabels[key] = c
					first = a.firstOfWorkloads(c, labels, byWorkload)
				}
				if first != nil {
					a.report(kind.selected, c, fmt.Sprintf("The older %s %s selects a workload of this one too, and wins there.", kind.kind, nameOf(first)), "Merge the objects, or write selectors that do not overlap.")
				}
			}
		}
	}
}

// firstOfWorkloads records an object for the workloads that it selects, and returns an older one that
// selects one of them.
func (a *analysis) firstOfWorkloads(c *model.Config, labels map[string]string, of map[*Workload]*model.Config) (first *model.Config) {
	for _, w := range a.selected(c.Namespace, labels) {
		if of[w] == nil {
			of[w] = c
		} else if first == nil {
			first = of[w]
		}
	}
	return first
}

// sidecars finds hosts that Sidecars import and no service has.
func (a *analysis) sidecars() {
	if !a.servicesKnown() {
		return
	}
	hosts, parents := a.hostsByNamespace()
	each(a, model.Sidecar, func(c *model.Config, spec *networkingv1alpha3.Sidecar) {
		for i, e := range spec.GetEgress() {
			for j, h := range e.GetHosts() {
				namespace, host, ok := strings.Cut(h, "/")
				if !ok || host == "*" || namespace == "~" {
					continue
				}
				switch namespace {
				case ".":
					namespace = c.Namespace
				case "*":
					namespace = ""
				}
				known := hosts[objectName{namespace, strings.ToLower(host)}]
				if suffix, wild := strings.CutPrefix(host, "*"); wild {
					known = known || parents[objectName{namespace, strings.ToLower(suffix)}]
				}
				if !known {
					a.report("OUT0009", c, fmt.Sprintf("spec.egress[%d].hosts[%d]: no service matches %q, so the line imports nothing.", i, j, h), "Correct the namespace or the host, or remove the line.")
				}
			}
		}
	})
}

// hostsByNamespace returns all hosts of services and VirtualServices, and the suffixes of them that
// begin with a dot, by namespace and for all namespaces together.
func (a *analysis) hostsByNamespace() (hosts, parents map[objectName]bool) {
	hosts, parents = map[objectName]bool{}, map[objectName]bool{}
	add := func(namespace, host string) {
		host = strings.ToLower(host)
		for _, in := range []string{namespace, ""} {
			hosts[objectName{in, host}] = true
			for rest := host; ; {
				i := strings.IndexByte(rest, '.')
				if i < 0 {
					break
				}
				parents[objectName{in, rest[i:]}] = true
				rest = rest[i+1:]
			}
		}
	}
	for _, svc := range a.Mesh.Services.Sorted {
		add(svc.Namespace, svc.Hostname)
	}
	each(a, model.VirtualService, func(c *model.Config, spec *networkingv1alpha3.VirtualService) {
		for _, h := range spec.GetHosts() {
			add(c.Namespace, a.Mesh.ResolveHost(h, c.Namespace))
		}
	})
	return hosts, parents
}

// telemetries finds settings without a provider.
func (a *analysis) telemetries() {
	if a.AssumedMesh || a.Partial {
		a.providers = a.providers || len(a.kinds[model.Telemetry]) > 0
		return
	}
	each(a, model.Telemetry, func(c *model.Config, spec *telemetryv1alpha1.Telemetry) {
		defaults := a.Mesh.Config.GetDefaultProviders()
		missing := func(at string, providers []*telemetryv1alpha1.ProviderRef, inherited []string) {
			if len(providers) == 0 && len(inherited) == 0 && !a.namesProvider(c) {
				a.report("IST0157", c, fmt.Sprintf("%s names no provider, and the mesh config has no default one, so the settings have no effect.", at), "Write providers, or defaultProviders in the mesh config.")
			}
		}
		for i, t := range spec.GetTracing() {
			if !t.GetDisableSpanReporting().GetValue() {
				missing(fmt.Sprintf("spec.tracing[%d]", i), t.GetProviders(), defaults.GetTracing())
			}
		}
		for i, t := range spec.GetMetrics() {
			missing(fmt.Sprintf("spec.metrics[%d]", i), t.GetProviders(), defaults.GetMetrics())
		}
		for i, t := range spec.GetAccessLogging() {
			if !t.GetDisabled().GetValue() { // what the mesh config names elsewhere can be disabled
				missing(fmt.Sprintf("spec.accessLogging[%d]", i), t.GetProviders(), defaults.GetAccessLogging())
			}
		}
	})
}

// namesProvider reports whether a wider Telemetry object may name a provider that one inherits.
func (a *analysis) namesProvider(c *model.Config) bool {
	return slices.ContainsFunc(a.kinds[model.Telemetry], func(o *model.Config) bool {
		labels, _ := SelectorOf(o)
		wider := o != c && len(labels) == 0 && (o.Namespace == a.root() || o.Namespace == c.Namespace)
		spec := specOf[telemetryv1alpha1.Telemetry](o)
		if !wider || spec == nil {
			return false
		}
		for _, t := range spec.GetTracing() {
			if len(t.GetProviders()) > 0 {
				return true
			}
		}
		for _, t := range spec.GetMetrics() {
			if len(t.GetProviders()) > 0 {
				return true
			}
		}
		return slices.ContainsFunc(spec.GetAccessLogging(), func(t *telemetryv1alpha1.AccessLogging) bool { return len(t.GetProviders()) > 0 })
	})
}
