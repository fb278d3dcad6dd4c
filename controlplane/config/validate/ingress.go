// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package validate

import (
	"fmt"
	"net/netip"
	"regexp"
	"strings"

	kubenetworkingv1 "k8s.io/api/networking/v1"

	"github.com/outrigger-mesh/outrigger/controlplane/config/field"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// The rules of Ingress and IngressClass are those of the API server; other
// stores have no API server in front of them.

var controllerPath = regexp.MustCompile(`^[A-Za-z0-9/\-._~%!$&'()*+,;=:]+$`)

const ingressClassAnnotation = "kubernetes.io/ingress.class"

func validateIngress(c *checker, cfg *model.Config) {
	in, ok := cfg.Spec.(*kubenetworkingv1.IngressSpec)
	if !ok {
		return
	}
	if len(in.Rules) == 0 && in.DefaultBackend == nil {
		c.errorf("spec.rules", "is empty: write rules or defaultBackend")
	}
	if name := in.IngressClassName; name != nil {
		c.fault("spec.ingressClassName", SubdomainFault(*name))
		if a, ok := cfg.Annotations[ingressClassAnnotation]; ok && a != *name {
			c.errorf("metadata.annotations["+ingressClassAnnotation+"]", "is %s, and spec.ingressClassName is %s: remove the annotation", field.Quote(a), field.Quote(*name))
		}
	}
	if in.DefaultBackend != nil {
		c.ingressBackend(in.DefaultBackend, "spec.defaultBackend")
	}
	for i, r := range in.Rules {
		at := field.Index("spec.rules", i)
		c.ingressHost(r.Host, at+".host")
		if r.HTTP == nil {
			continue
		}
		if len(r.HTTP.Paths) == 0 {
			c.errorf(at+".http.paths", "is empty: write at least one path")
		}
		for j := range r.HTTP.Paths {
			c.ingressPath(&r.HTTP.Paths[j], field.Index(at+".http.paths", j))
		}
	}
	for i, t := range in.TLS {
		at := field.Index("spec.tls", i)
		for j, h := range t.Hosts {
			c.fault(field.Index(at+".hosts", j), wildcardFault(h))
		}
		if t.SecretName != "" {
			c.fault(at+".secretName", SubdomainFault(t.SecretName))
		}
	}
}

// ingressHost checks the host of a rule; empty means every host.
func (c *checker) ingressHost(h, path string) {
	if h == "" {
		return
	}
	if _, err := netip.ParseAddr(h); err == nil {
		c.errorf(path, "is %s, an IP address: write a host name", field.Quote(h))
		return
	}
	c.fault(path, wildcardFault(h))
}

// wildcardFault checks a host in small letters with an optional first part
// "*".
func wildcardFault(h string) string {
	rest, wild := strings.CutPrefix(h, "*.")
	switch {
	case !wild && strings.Contains(h, "*"), wild && strings.Contains(rest, "*"):
		return "is " + field.Quote(h) + ": a wildcard must be the whole first part, as in *.example.com"
	case len(h) > maxName:
		return "is " + field.Quote(h) + ": at most 253 characters are allowed"
	}
	if SubdomainFault(rest) != "" {
		return "is " + field.Quote(h) + ": write a host name in lower case, such as shop.example.com" + hostHint(h)
	}
	return ""
}

func (c *checker) ingressPath(p *kubenetworkingv1.HTTPIngressPath, path string) {
	switch t := deref(p.PathType); {
	case p.PathType == nil:
		c.errorf(path+".pathType", "is missing: write Exact, Prefix or ImplementationSpecific")
	case t == kubenetworkingv1.PathTypeExact, t == kubenetworkingv1.PathTypePrefix:
		c.absolutePath(p.Path, path+".path")
	case t == kubenetworkingv1.PathTypeImplementationSpecific:
		if p.Path != "" && !strings.HasPrefix(p.Path, "/") {
			c.errorf(path+".path", "is %s: it must begin with \"/\"", field.Quote(p.Path))
		}
	default:
		c.errorf(path+".pathType", "is %s: write Exact, Prefix or ImplementationSpecific", field.Quote(string(t)))
	}
	c.ingressBackend(&p.Backend, path+".backend")
}

func (c *checker) ingressBackend(b *kubenetworkingv1.IngressBackend, path string) {
	switch {
	case b.Service != nil && b.Resource != nil:
		c.errorf(path, "has service and resource: remove one of them")
	case b.Service != nil:
		s := b.Service
		c.fault(path+".service.name", serviceNameFault(s.Name))
		switch port := s.Port; {
		case port.Name != "" && port.Number != 0:
			c.errorf(path+".service.port", "has name and number: remove one of them")
		case port.Name != "":
			c.fault(path+".service.port.name", servicePortFault(port.Name))
		case port.Number == 0:
			c.errorf(path+".service.port", "is missing: write number or name")
		case port.Number < 0 || port.Number > maxPort:
			c.errorf(path+".service.port.number", "is %d: a port is between 1 and 65535", port.Number)
		}
	case b.Resource != nil:
		r := b.Resource
		c.reference(r.APIGroup, r.Kind, r.Name, path+".resource")
	default:
		c.errorf(path, "is empty: write service or resource")
	}
}

// reference checks what names an object of any kind.
func (c *checker) reference(group *string, kind, name, path string) {
	if group != nil {
		c.fault(path+".apiGroup", SubdomainFault(*group))
	}
	for member, v := range field.Sorted(map[string]string{"kind": kind, "name": name}) {
		switch {
		case v == "":
			c.errorf(path+"."+member, "is missing: write it")
		case v == ".", v == "..", strings.ContainsAny(v, "/%"):
			c.errorf(path+"."+member, "is %s: \"/\", \"%%\", \".\" and \"..\" are not allowed", field.Quote(v))
		}
	}
}

// serviceNameFault checks the name of a Service of Kubernetes.
func serviceNameFault(s string) string {
	if text := DNSLabelFault(s); text != "" {
		return text
	}
	if s[0] >= '0' && s[0] <= '9' {
		return "is " + field.Quote(s) + ": the name of a Service begins with a letter"
	}
	return ""
}

// servicePortFault checks the name of a port of a Service.
func servicePortFault(s string) string {
	const most = 15
	if len(s) > most || DNSLabelFault(s) != "" || strings.Contains(s, "--") || !strings.ContainsAny(s, "abcdefghijklmnopqrstuvwxyz") {
		return fmt.Sprintf("is %s: write at most %d lower-case letters, digits and single \"-\", at least one of them a letter", field.Quote(s), most)
	}
	return ""
}

func validateIngressClass(c *checker, cfg *model.Config) {
	in, ok := cfg.Spec.(*kubenetworkingv1.IngressClassSpec)
	if !ok {
		return
	}
	c.controllerName(in.Controller, "spec.controller")
	p := in.Parameters
	if p == nil {
		return
	}
	c.reference(p.APIGroup, p.Kind, p.Name, "spec.parameters")
	const namespace = "spec.parameters.namespace"
	switch scope := deref(p.Scope); {
	case scope == kubenetworkingv1.IngressClassParametersReferenceScopeCluster:
		if p.Namespace != nil {
			c.errorf(namespace, "is %s, and spec.parameters.scope is Cluster: remove one of them", field.Quote(*p.Namespace))
		}
	case scope == kubenetworkingv1.IngressClassParametersReferenceScopeNamespace:
		if p.Namespace == nil {
			c.errorf(namespace, "is missing: spec.parameters.scope: Namespace needs it")
		} else {
			c.fault(namespace, DNSLabelFault(*p.Namespace))
		}
	default:
		c.errorf("spec.parameters.scope", "is %s: write Cluster or Namespace", field.Quote(scope))
	}
}

// controllerName checks a name such as istio.io/ingress-controller.
func (c *checker) controllerName(s, path string) {
	const most = 250
	domain, rest, ok := strings.Cut(s, "/")
	switch {
	case s == "":
		c.errorf(path, "is missing: write the name of a controller, such as istio.io/ingress-controller")
	case len(s) > most:
		c.errorf(path, "has %d characters: at most %d are allowed", len(s), most)
	case !ok || rest == "" || SubdomainFault(domain) != "" || !controllerPath.MatchString(rest):
		c.errorf(path, "is %s: write a domain and a path, such as istio.io/ingress-controller", field.Quote(s))
	}
}
