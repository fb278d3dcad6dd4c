// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package analyze

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	metav1alpha1 "istio.io/api/meta/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	kubenetworkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/outrigger-mesh/outrigger/controlplane/gatewayapi"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/internal/clip"
)

// defaultClass is the GatewayClass that the control plane creates.
const defaultClass = "istio"

// convert returns the objects that those of the Gateway API and Ingresses become.
func convert(kinds map[model.Kind][]*model.Config, m *Manifests, p *platform, mesh *meshv1alpha1.MeshConfig) *gatewayapi.Result {
	in := gatewayapi.Input{Mesh: mesh, Domain: defaultDomain, IngressNamespace: mesh.GetRootNamespace()}
	in.Roots = func(string, string) error { return nil } // none is known
	in.List = func(kind model.Kind) []*model.Config {
		if kind != model.GatewayClass || slices.ContainsFunc(kinds[kind], func(c *model.Config) bool { return c.Name == defaultClass }) {
			return kinds[kind]
		}
		return append(slices.Clip(kinds[kind]), &model.Config{
			Key: model.Key{Kind: model.GatewayClass, Name: defaultClass}, Spec: &gatewayv1.GatewayClassSpec{ControllerName: gatewayapi.Controller},
		})
	}
	if p != nil {
		in.Service = func(namespace, name string) *model.Service {
			if found := p.Service(namespace, name); found != nil {
				return found.Service
			}
			return nil
		}
		in.Selector = func(namespace, name string) map[string]string {
			if found := p.Service(namespace, name); found != nil {
				return found.Selector
			}
			return nil
		}
	}
	if m == nil {
		return gatewayapi.Convert(in)
	}
	if len(m.namespaces) > 0 {
		labels := map[string]map[string]string{}
		for _, n := range m.namespaces {
			labels[n.Name] = map[string]string{corev1.LabelMetadataName: n.Name}
			for k, v := range n.labels {
				labels[n.Name][k] = v
			}
		}
		in.NamespaceLabels = func(name string) map[string]string { return labels[name] }
	}
	if len(m.secrets) > 0 {
		in.Certificate = func(namespace, name string) error {
			if s := m.secrets[objectName{namespace, name}]; s != nil {
				return s.fault(objectName{namespace, name})
			}
			return fmt.Errorf("there is no Secret %s/%s", namespace, name)
		}
	} else {
		in.Certificate = func(string, string) error { return nil } // none is known
	}
	return gatewayapi.Convert(in)
}

// verdict is a condition of an object that does not hold.
type verdict struct{ kind, reason, message string }

// verdictsOf returns the conditions of a status that are False.
func verdictsOf(status any) (out []verdict) {
	if s, ok := status.(*metav1alpha1.IstioStatus); ok {
		for _, c := range s.GetConditions() {
			if c.GetStatus() == "False" {
				out = append(out, verdict{c.GetType(), c.GetReason(), c.GetMessage()})
			}
		}
		return out
	}
	for _, c := range gatewayapi.Conditions(status) {
		if c.Status == metav1.ConditionFalse && c.Bad() {
			out = append(out, verdict{c.Type, c.Reason, c.Message})
		}
	}
	return out
}

// conditions reports the conditions of objects that do not hold: those that files or a store contain,
// and those that the control plane would write.
func (a *analysis) conditions() {
	for _, c := range a.Manifests.conditions {
		a.negative(c.Object, c.source, c.verdict)
	}
	for _, c := range a.Objects {
		status, converted := a.Status[c.Key]
		if !converted {
			for _, v := range verdictsOf(c.Status) {
				a.negative(ObjectOf(c.Key), c.Source, v)
			}
			continue
		}
		for _, v := range verdictsOf(status) {
			switch {
			case a.Partial:
			case v.kind == string(gatewayv1.RouteConditionResolvedRefs) && (a.servicesKnown() || v.reason != string(gatewayv1.RouteReasonBackendNotFound)):
				a.report("IST0101", c, sentence(v.message), "Correct the reference, or create the object.")
			case v.kind == string(gatewayv1.RouteConditionAccepted):
				a.report("OUT0012", c, capital(sentence(v.message)), "Correct the object, or the one that it is attached to.")
			}
		}
	}
	if a.Partial {
		return
	}
	a.parents()
	each(a, model.Ingress, a.ingress)
}

// passedAnalysis is the condition that lists the problems of an object, each with maxReason bytes at most,
// as package objectstatus writes it.
const (
	passedAnalysis = "PassedAnalysis"
	maxReason      = 600
)

// listed matches what is left of the message of a condition without the reasons that it lists.
var listed = regexp.MustCompile(`^(?:; |and \d+ more)*$`)

// reported reports whether the control plane made a condition from problems of an object, which have
// findings of their own.
func (a *analysis) reported(o Object, v verdict) bool {
	if v.kind != passedAnalysis {
		return false
	}
	if a.reasons == nil {
		problems := slices.Clone(a.Problems)
		if !a.Partial {
			problems = append(problems, a.Mesh.Problems...)
		}
		a.reasons = map[Object][]string{}
		for _, p := range problems {
			a.reasons[ObjectOf(p.Object)] = append(a.reasons[ObjectOf(p.Object)], p.Reason)
		}
	}
	rest := v.message
	for _, reason := range a.reasons[o] {
		rest = strings.Replace(rest, clip.Text(reason, maxReason), "", 1)
	}
	return listed.MatchString(rest)
}

func (a *analysis) negative(o Object, source string, v verdict) {
	if a.reported(o, v) {
		return
	}
	a.add("IST0171", o, source, sentence(fmt.Sprintf("status: the condition %s is False (%s): %s", v.kind, v.reason, plain(v.message))), "Correct what the condition names.")
}

// parents finds routes of Gateways of the Gateway API that do not exist.
func (a *analysis) parents() {
	gateways := map[objectName]bool{}
	for _, c := range a.kinds[model.KubernetesGateway] {
		gateways[objectName{c.Namespace, c.Name}] = true
	}
	if a.Partial || len(gateways) == 0 && !a.servicesKnown() {
		return
	}
	check := func(c *model.Config, refs []gatewayv1.ParentReference) {
		for i, ref := range refs {
			name := objectName{c.Namespace, string(ref.Name)}
			if ref.Namespace != nil {
				name.namespace = string(*ref.Namespace)
			}
			if (ref.Kind == nil || *ref.Kind == "Gateway") && (ref.Group == nil || *ref.Group == gatewayv1.GroupName) && !gateways[name] {
				a.report("IST0101", c, fmt.Sprintf("spec.parentRefs[%d]: there is no Gateway %s/%s, so the route has no effect there.", i, name.namespace, name.name), "Correct the name, or create the Gateway.")
			}
		}
	}
	each(a, model.HTTPRoute, func(c *model.Config, s *gatewayv1.HTTPRouteSpec) { check(c, s.ParentRefs) })
	each(a, model.GRPCRoute, func(c *model.Config, s *gatewayv1.GRPCRouteSpec) { check(c, s.ParentRefs) })
	each(a, model.TLSRoute, func(c *model.Config, s *gatewayv1.TLSRouteSpec) { check(c, s.ParentRefs) })
	each(a, model.TCPRoute, func(c *model.Config, s *gatewayv1.TCPRouteSpec) { check(c, s.ParentRefs) })
}

// ingress checks the Services of an Ingress.
func (a *analysis) ingress(c *model.Config, spec *kubenetworkingv1.IngressSpec) {
	if !a.servicesKnown() {
		return
	}
	check := func(at string, b *kubenetworkingv1.IngressBackend) {
		if b == nil || b.Service == nil {
			return
		}
		host := a.Mesh.ResolveHost(b.Service.Name, c.Namespace)
		svc := a.Mesh.Services.ForHost(host, c.Namespace)
		number := uint32(max(b.Service.Port.Number, 0))
		switch {
		case svc == nil:
			a.report("IST0101", c, fmt.Sprintf("%s: there is no Service %q, so its requests are answered with 503.", at, b.Service.Name), "Correct the name, or create the Service.")
		case number != 0 && !hasPort(svc, number):
			a.report("OUT0007", c, fmt.Sprintf("%s: the Service %q has no port %d, so its requests are answered with 503.", at, b.Service.Name, number), fmt.Sprintf("Write one of its ports (%s).", portsOf(svc)))
		}
	}
	check("spec.defaultBackend", spec.DefaultBackend)
	for i, r := range spec.Rules {
		if r.HTTP == nil {
			continue
		}
		for j, p := range r.HTTP.Paths {
			check(fmt.Sprintf("spec.rules[%d].http.paths[%d].backend", i, j), &p.Backend)
		}
	}
}
