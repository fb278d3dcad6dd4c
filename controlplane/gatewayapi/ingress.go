// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package gatewayapi

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
	kubenetworkingv1 "k8s.io/api/networking/v1"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

const (
	ingressController      = "istio.io/ingress-controller"
	ingressClassAnnotation = "kubernetes.io/ingress.class"
	defaultIngressService  = "istio-ingressgateway"
)

// ingressPath is one path of an Ingress at a host.
type ingressPath struct {
	weight
	route *networkingv1alpha3.HTTPRoute
	from  *model.Config
}

// ingresses converts the Ingresses of this control plane: each to a Gateway, and each host to a
// VirtualService with the paths of all Ingresses that name it.
func (c *converter) ingresses() {
	mode := c.in.Mesh.GetIngressControllerMode()
	if mode == meshv1alpha1.MeshConfig_OFF {
		return
	}
	hosts := map[string][]ingressPath{}
	for _, o := range specs[kubenetworkingv1.IngressSpec](c, model.Ingress) {
		if !c.ownsIngress(o) {
			continue
		}
		c.add(model.Gateway, o.Config, c.ingressGateway(o))
		c.ingressPaths(o, hosts)
		c.result.Status[o.Key] = c.ingressStatus()
	}
	for _, host := range slices.Sorted(maps.Keys(hosts)) {
		paths := hosts[host]
		slices.SortStableFunc(paths, func(a, b ingressPath) int { return ingressPrecedence(a.weight, b.weight) })
		oldest := slices.MinFunc(paths, func(a, b ingressPath) int { return older(a.from, b.from) }).from
		var from []*model.Config
		spec := &networkingv1alpha3.VirtualService{Hosts: []string{host}}
		for _, p := range paths {
			if of := c.in.IngressNamespace + "/" + ingressGatewayName(p.from); !slices.Contains(spec.Gateways, of) {
				spec.Gateways = append(spec.Gateways, of)
			}
			spec.Http = append(spec.Http, p.route)
			from = append(from, p.from)
		}
		slices.Sort(spec.Gateways)
		c.add(model.VirtualService, oldest, &model.Config{
			Key:         model.Key{Namespace: oldest.Namespace, Name: strings.ReplaceAll(host, ".", "-") + "-" + oldest.Name + "-" + ingressSuffix},
			Annotations: map[string]string{semanticsAnnotation: "ingress"}, From: sourceKeys(from), Spec: spec,
		})
	}
}

// ingressPrecedence orders paths: the longest first, then exact paths, then the oldest.
func ingressPrecedence(a, b weight) int {
	return cmp.Or(cmp.Compare(b.length, a.length), cmp.Compare(b.path, a.path), older(a.of, b.of), cmp.Compare(a.position, b.position))
}

// ownsIngress reports whether an Ingress belongs to this control plane.
func (c *converter) ownsIngress(o object[kubenetworkingv1.IngressSpec]) bool {
	if class, ok := o.Annotations[ingressClassAnnotation]; ok {
		return class == cmp.Or(c.in.Mesh.GetIngressClass(), "istio")
	}
	if o.spec.IngressClassName == nil {
		return c.in.Mesh.GetIngressControllerMode() == meshv1alpha1.MeshConfig_DEFAULT
	}
	for _, class := range c.in.List(model.IngressClass) {
		if spec, ok := class.Spec.(*kubenetworkingv1.IngressClassSpec); ok && class.Name == *o.spec.IngressClassName {
			return spec.Controller == ingressController
		}
	}
	return false
}

func ingressGatewayName(o *model.Config) string {
	return o.Name + "-" + ingressSuffix + "-" + o.Namespace
}

func (c *converter) ingressGateway(o object[kubenetworkingv1.IngressSpec]) *model.Config {
	selector := c.in.Mesh.GetIngressSelector()
	if service := c.in.Mesh.GetIngressService(); selector == "" && service != defaultIngressService {
		selector = service
	}
	spec := &networkingv1alpha3.Gateway{Selector: map[string]string{"istio": cmp.Or(selector, "ingressgateway")}}
	for i, t := range o.spec.TLS {
		if t.SecretName == "" {
			c.problem(o.Config, fmt.Sprintf("spec.tls[%d]: secretName is missing: the hosts are not served over TLS", i))
			continue
		}
		hosts := t.Hosts
		if len(hosts) == 0 {
			hosts = []string{"*"}
		}
		spec.Servers = append(spec.Servers, &networkingv1alpha3.Server{
			Port:  &networkingv1alpha3.Port{Number: 443, Protocol: "HTTPS", Name: fmt.Sprintf("https-443-ingress-%s-%s-%d", o.Name, o.Namespace, i)},
			Hosts: hosts,
			Tls:   &networkingv1alpha3.ServerTLSSettings{Mode: networkingv1alpha3.ServerTLSSettings_SIMPLE, CredentialName: t.SecretName},
		})
	}
	spec.Servers = append(spec.Servers, &networkingv1alpha3.Server{
		Port:  &networkingv1alpha3.Port{Number: 80, Protocol: "HTTP", Name: fmt.Sprintf("http-80-ingress-%s-%s", o.Name, o.Namespace)},
		Hosts: []string{"*"},
	})
	if at := c.ingressAddresses(); len(at) == 1 {
		for _, s := range spec.Servers {
			s.Bind = loopback(at[0])
		}
	}
	return &model.Config{Key: model.Key{Namespace: c.in.IngressNamespace, Name: ingressGatewayName(o.Config)}, Spec: spec}
}

// ingressPaths adds the paths of an Ingress to their hosts. The default backend receives requests
// that match no path of the Ingress.
func (c *converter) ingressPaths(o object[kubenetworkingv1.IngressSpec], hosts map[string][]ingressPath) {
	position := 0
	add := func(host string, uri *networkingv1alpha3.StringMatch, w weight, backend *kubenetworkingv1.IngressBackend, at string) {
		to := c.ingressBackend(o, backend, at)
		if to == nil {
			return
		}
		w.of, w.position = o.Config, position
		position++
		route := &networkingv1alpha3.HTTPRoute{Route: []*networkingv1alpha3.HTTPRouteDestination{{Destination: to}}}
		if uri != nil {
			route.Match = []*networkingv1alpha3.HTTPMatchRequest{{Uri: uri}}
		}
		hosts[host] = append(hosts[host], ingressPath{w, route, o.Config})
	}
	named := []string{"*"}
	for i, rule := range o.spec.Rules {
		host := cmp.Or(rule.Host, "*")
		if !slices.Contains(named, host) {
			named = append(named, host)
		}
		if rule.HTTP == nil {
			continue
		}
		for j := range rule.HTTP.Paths {
			p := &rule.HTTP.Paths[j]
			uri, w := ingressMatch(p)
			add(host, uri, w, &p.Backend, fmt.Sprintf("spec.rules[%d].http.paths[%d].backend", i, j))
		}
	}
	if o.spec.DefaultBackend != nil {
		for _, host := range named {
			add(host, nil, weight{length: -1}, o.spec.DefaultBackend, "spec.defaultBackend")
		}
	}
}

// ingressMatch converts a path.
func ingressMatch(p *kubenetworkingv1.HTTPIngressPath) (*networkingv1alpha3.StringMatch, weight) {
	path := cmp.Or(p.Path, "/")
	prefix := func(s string) (*networkingv1alpha3.StringMatch, weight) {
		s = orSlash(strings.TrimRight(s, "/"))
		return startingWith(s), weight{path: pathPrefix, length: len(s)}
	}
	switch kind := orElse(p.PathType, kubenetworkingv1.PathTypeImplementationSpecific); kind {
	case kubenetworkingv1.PathTypeExact:
	case kubenetworkingv1.PathTypePrefix:
		return prefix(path)
	default:
		if p.Path == "" {
			return prefix("/")
		}
		for _, end := range []string{".*", "/*"} {
			if rest, ok := strings.CutSuffix(path, end); ok {
				return prefix(rest)
			}
		}
	}
	return exactly(path), weight{path: pathExact, length: len(path)}
}

// ingressBackend returns the destination of a backend, or nil if it names none that accepts
// requests.
func (c *converter) ingressBackend(o object[kubenetworkingv1.IngressSpec], b *kubenetworkingv1.IngressBackend, at string) *networkingv1alpha3.Destination {
	if b.Service == nil {
		c.problem(o.Config, at+": resources are not supported: write a service")
		return nil
	}
	n := name{o.Namespace, b.Service.Name}
	s := c.service(n)
	port := uint32(b.Service.Port.Number)
	if b.Service.Port.Name != "" {
		i := -1
		if s != nil {
			i = slices.IndexFunc(s.Ports, func(p model.Port) bool { return p.Name == b.Service.Port.Name })
		}
		if i < 0 {
			c.problem(o.Config, fmt.Sprintf("%s: there is no Service %s/%s with a port named %s: requests of the path receive 404", at, n.namespace, n.name, b.Service.Port.Name))
			return nil
		}
		port = s.Ports[i].Number
	}
	host := n.name + "." + n.namespace + ".svc." + c.in.Domain
	if s != nil {
		host = s.Hostname
	}
	return &networkingv1alpha3.Destination{Host: host, Port: &networkingv1alpha3.PortSelector{Number: port}}
}

// ingressAddresses returns the external addresses that accept the requests of Ingresses.
func (c *converter) ingressAddresses() []string {
	s := c.service(name{c.in.IngressNamespace, cmp.Or(c.in.Mesh.GetIngressService(), defaultIngressService)})
	if s == nil || len(s.ExternalAddresses) == 0 {
		return nil
	}
	return external(s)
}

// ingressStatus returns the status of Ingresses, which lists these addresses.
func (c *converter) ingressStatus() *kubenetworkingv1.IngressStatus {
	out := &kubenetworkingv1.IngressStatus{}
	for _, a := range c.ingressAddresses() {
		point := kubenetworkingv1.IngressLoadBalancerIngress{Hostname: a}
		if isIP(a) {
			point = kubenetworkingv1.IngressLoadBalancerIngress{IP: a}
		}
		out.LoadBalancer.Ingress = append(out.LoadBalancer.Ingress, point)
	}
	return out
}
