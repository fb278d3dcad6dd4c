// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package gatewayapi

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// gateway is a Gateway of one of our classes.
type gateway struct {
	object[gatewayv1.GatewaySpec]
	listeners []*listener
	// services are the hosts of the services that spec.addresses names, selector
	// is that of the first.
	services  []string
	selector  map[string]string
	addresses []gatewayv1.GatewayStatusAddress
	// reason says why the Gateway as a whole is not accepted; empty if it is.
	reason  gatewayv1.GatewayConditionReason
	message string
}

// account returns the service account of the workloads of a Gateway, which is in
// its namespace.
func (g *gateway) account() string {
	return cmp.Or(g.Annotations[AccountAnnotation], g.Name+"-"+string(g.spec.GatewayClassName))
}

// listener is one of its listeners.
type listener struct {
	gatewayv1.Listener
	of *gateway
	// kinds are the routes that may attach.
	kinds []gatewayv1.RouteGroupKind
	// credentials are what TLS is ended with.
	credentials []string
	// ended are the hosts of TLSRoutes whose TLS the listener ends. Each has an Istio
	// Gateway of its own: connections are told apart by nothing else afterwards.
	ended map[string]bool
	// attached are the routes; namespaces theirs.
	attached   int32
	namespaces map[string]bool
	// What is wrong with it; empty reasons mean nothing.
	refused, conflict, unresolved fault
}

// fault is why a condition does not hold.
type fault struct{ reason, message string }

func (f fault) is() bool { return f.reason != "" }

// serves reports whether proxies get the listener.
func (l *listener) serves() bool {
	broken := l.unresolved.is() && l.unresolved.reason != string(gatewayv1.ListenerReasonInvalidRouteKinds) && len(l.credentials) == 0
	return l.of.reason == "" && !l.refused.is() && !l.conflict.is() && !broken
}

// gatewayName is the name of the Istio Gateway of a listener.
func (l *listener) gatewayName() string {
	return l.of.Name + "-" + suffix + "-" + string(l.Name)
}

// hostGatewayName is the name of the Istio Gateway of a host of ended.
func (l *listener) hostGatewayName(host string) string {
	// No label of a host ends in "-", so that different hosts have different names.
	return l.gatewayName() + "-" + strings.ReplaceAll(host, "*", "any-")
}

// readGateways finds the Gateways of our classes, and what is right with them.
func (c *converter) readGateways() {
	classes := map[string]bool{}
	for _, o := range specs[gatewayv1.GatewayClassSpec](c, model.GatewayClass) {
		if o.spec.ControllerName == Controller {
			classes[o.Name] = o.spec.ParametersRef == nil
			c.result.Status[o.Key] = classStatus(o)
		}
	}
	for _, o := range specs[gatewayv1.GatewaySpec](c, model.KubernetesGateway) {
		accepted, ours := classes[string(o.spec.GatewayClassName)]
		if !ours {
			continue
		}
		g := &gateway{object: o}
		for _, l := range o.spec.Listeners {
			// No store lets a second one of a name in: what is said of it would be said
			// of the first, and the status never be written for good.
			if !slices.ContainsFunc(g.listeners, func(m *listener) bool { return m.Name == l.Name }) {
				g.listeners = append(g.listeners, c.readListener(g, l))
			}
		}
		conflicts(g.listeners)
		switch {
		case !accepted:
			g.reject(gatewayv1.GatewayReasonInvalidParameters, "the GatewayClass %s has parameters, which no version serves", o.spec.GatewayClassName)
		case o.spec.Infrastructure != nil && o.spec.Infrastructure.ParametersRef != nil:
			g.reject(gatewayv1.GatewayReasonInvalidParameters, "spec.infrastructure.parametersRef: nothing is deployed for a Gateway, so that it has no parameters")
		}
		c.addresses(g)
		c.gateways[name{o.Namespace, o.Name}] = g
	}
}

func (g *gateway) reject(reason gatewayv1.GatewayConditionReason, format string, args ...any) {
	if g.reason == "" {
		g.reason, g.message = reason, fmt.Sprintf(format, args...)
	}
}

// addresses finds where a Gateway takes requests: what spec.addresses says, or the
// addresses of the Service that is named like the Gateway and its class.
func (c *converter) addresses(g *gateway) {
	ip, host := gatewayv1.IPAddressType, gatewayv1.HostnameAddressType
	add := func(values ...string) {
		for _, v := range values {
			a := gatewayv1.GatewayStatusAddress{Type: &host, Value: v}
			if isIP(v) {
				a.Type = &ip
			}
			if !slices.ContainsFunc(g.addresses, func(b gatewayv1.GatewayStatusAddress) bool { return b.Value == v }) {
				g.addresses = append(g.addresses, a)
			}
		}
	}
	chosen := false
	for _, a := range g.spec.Addresses {
		switch kind := orElse(a.Type, ip); {
		case a.Value == "":
		case kind == ip:
			chosen = true
			add(a.Value)
		case kind == host:
			chosen = true
			n, full := c.serviceNamed(a.Value, g.Namespace)
			g.services = append(g.services, full)
			if s := c.service(n); s != nil && n.namespace == g.Namespace {
				add(external(s)...)
				if g.selector == nil && c.in.Selector != nil {
					g.selector = c.in.Selector(n.namespace, n.name)
				}
				continue
			}
			g.reject(gatewayv1.GatewayReasonUnsupportedAddress, "spec.addresses: there is no Service %s in the namespace of the Gateway", a.Value)
		default:
			chosen = true
			g.reject(gatewayv1.GatewayReasonUnsupportedAddress, "spec.addresses: the type %s is not served: write IPAddress or Hostname", kind)
		}
	}
	if chosen {
		return
	}
	for _, of := range []string{g.Name + "-" + string(g.spec.GatewayClassName), g.Name} {
		if s := c.service(name{g.Namespace, of}); s != nil {
			add(external(s)...)
			return
		}
	}
}

// serviceNamed reads a name of a Service: short, or a host of the cluster.
func (c *converter) serviceNamed(text, namespace string) (n name, host string) {
	short, rest, _ := strings.Cut(text, ".")
	n = name{namespace, short}
	if of, _, _ := strings.Cut(rest, "."); of != "" {
		n.namespace = of
	}
	return n, n.name + "." + n.namespace + ".svc." + c.in.Domain
}

// external returns the addresses at which a Service takes requests from outside
// the cluster, or else inside. A Service that waits for its load balancer has none:
// clients would take its cluster IP for the address that is to be used.
func external(s *model.Service) []string {
	var out []string
	for _, list := range s.ExternalAddresses {
		out = append(out, list...)
	}
	if len(out) == 0 && !s.AwaitsAddress {
		out = append(out, s.Addresses...)
		for _, list := range s.ClusterAddresses {
			out = append(out, list...)
		}
	}
	slices.SortFunc(out, func(a, b string) int {
		if isIP(a) != isIP(b) { // addresses before names
			return cmp.Compare(b2i(isIP(b)), b2i(isIP(a)))
		}
		return cmp.Compare(a, b)
	})
	return slices.Compact(out)
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

// routes of a protocol; a protocol that is missing is not served.
func protocolKinds(l gatewayv1.Listener) ([]gatewayv1.Kind, bool) {
	switch l.Protocol {
	case gatewayv1.HTTPProtocolType, gatewayv1.HTTPSProtocolType:
		return []gatewayv1.Kind{"HTTPRoute", "GRPCRoute"}, true
	case gatewayv1.TLSProtocolType:
		if tlsMode(l) == gatewayv1.TLSModePassthrough {
			return []gatewayv1.Kind{"TLSRoute"}, true
		}
		return []gatewayv1.Kind{"TLSRoute", "TCPRoute"}, true
	case gatewayv1.TCPProtocolType:
		return []gatewayv1.Kind{"TCPRoute"}, true
	}
	return nil, false
}

func tlsMode(l gatewayv1.Listener) gatewayv1.TLSModeType {
	if l.TLS == nil {
		return gatewayv1.TLSModeTerminate
	}
	return orElse(l.TLS.Mode, gatewayv1.TLSModeTerminate)
}

// readListener checks what a listener says by itself.
func (c *converter) readListener(g *gateway, in gatewayv1.Listener) *listener {
	l := &listener{Listener: in, of: g, namespaces: map[string]bool{}, ended: map[string]bool{}}
	kinds, served := protocolKinds(in)
	if !served {
		l.refused = fault{string(gatewayv1.ListenerReasonUnsupportedProtocol), fmt.Sprintf("the protocol %s is not served: write HTTP, HTTPS, TLS or TCP", in.Protocol)}
	}
	c.certificates(l)
	c.frontend(l)
	group := gatewayv1.Group(groupGateway)
	l.kinds = []gatewayv1.RouteGroupKind{} // the definition demands a list
	if in.AllowedRoutes == nil || len(in.AllowedRoutes.Kinds) == 0 {
		for _, kind := range kinds {
			l.kinds = append(l.kinds, gatewayv1.RouteGroupKind{Group: &group, Kind: kind})
		}
		return l
	}
	for _, k := range in.AllowedRoutes.Kinds {
		if orElse(k.Group, groupGateway) != groupGateway || !slices.Contains(kinds, k.Kind) {
			if !l.unresolved.is() { // without a certificate it is closed, whatever else is wrong
				l.unresolved = fault{
					string(gatewayv1.ListenerReasonInvalidRouteKinds),
					fmt.Sprintf("allowedRoutes.kinds names %s, which is no route of a %s listener", k.Kind, in.Protocol),
				}
			}
			continue
		}
		l.kinds = append(l.kinds, gatewayv1.RouteGroupKind{Group: &group, Kind: k.Kind})
	}
	return l
}

// certificates resolves the references of a listener that ends TLS.
func (c *converter) certificates(l *listener) {
	secure := l.Protocol == gatewayv1.HTTPSProtocolType || l.Protocol == gatewayv1.TLSProtocolType
	if !secure || tlsMode(l.Listener) == gatewayv1.TLSModePassthrough {
		if l.Protocol == gatewayv1.HTTPSProtocolType {
			l.refused = fault{string(gatewayv1.ListenerReasonUnsupportedValue), "tls.mode Passthrough needs the protocol TLS"}
		}
		return
	}
	if l.TLS == nil || len(l.TLS.CertificateRefs) == 0 {
		l.unresolved = fault{string(gatewayv1.ListenerReasonInvalidCertificateRef), "tls.certificateRefs is empty: name a Secret of the type kubernetes.io/tls"}
		return
	}
	for _, ref := range l.TLS.CertificateRefs {
		to := name{string(orElse(ref.Namespace, gatewayv1.Namespace(l.of.Namespace))), string(ref.Name)}
		switch group, kind := string(deref(ref.Group)), string(orElse(ref.Kind, kindSecret)); {
		case group != "" || kind != kindSecret:
			l.unresolved = fault{string(gatewayv1.ListenerReasonInvalidCertificateRef), fmt.Sprintf("tls.certificateRefs names a %s/%s: only Secrets are served", group, kind)}
		case !c.allowed(reference{kind: model.KubernetesGateway, namespace: l.of.Namespace, toKind: kindSecret, to: to}):
			l.unresolved = fault{
				string(gatewayv1.ListenerReasonRefNotPermitted),
				fmt.Sprintf("no ReferenceGrant of namespace %s allows a Gateway of namespace %s the Secret %s", to.namespace, l.of.Namespace, to.name),
			}
		default:
			if err := c.certificate(to); err != nil {
				l.unresolved = fault{string(gatewayv1.ListenerReasonInvalidCertificateRef), err.Error()}
				continue
			}
			l.credentials = append(l.credentials, "kubernetes-gateway://"+to.namespace+"/"+to.name)
			of := name{l.of.Namespace, l.of.account()}
			if c.result.credentials[of] == nil {
				c.result.credentials[of] = map[name]bool{}
			}
			c.result.credentials[of][to] = true
		}
	}
}

func (c *converter) certificate(n name) error {
	c.result.secrets[n] = true
	if c.in.Certificate == nil {
		return fmt.Errorf("the Secret %s/%s: the control plane reads no Secrets (OUTRIGGER_CREDENTIALS)", n.namespace, n.name)
	}
	return c.in.Certificate(n.namespace, n.name)
}

// frontend refuses a listener whose clients would have to show certificates: it
// must not be open to everybody meanwhile.
func (c *converter) frontend(l *listener) {
	if l.Protocol != gatewayv1.HTTPSProtocolType || l.of.spec.TLS == nil || l.of.spec.TLS.Frontend == nil {
		return
	}
	f := l.of.spec.TLS.Frontend
	validation := f.Default.Validation
	for _, p := range f.PerPort {
		if p.Port == l.Port {
			validation = p.TLS.Validation
		}
	}
	if validation != nil {
		l.credentials = nil
		l.unresolved = fault{string(gatewayv1.ListenerReasonInvalidCACertificateKind), "spec.tls.frontend: certificates of clients are not checked in this version, so that the listener is closed"}
	}
}

// conflicts finds listeners of one port that cannot be told apart.
func conflicts(all []*listener) {
	class := func(l *listener) string {
		switch l.Protocol {
		case gatewayv1.HTTPSProtocolType, gatewayv1.TLSProtocolType:
			return "TLS"
		}
		return string(l.Protocol)
	}
	for i, a := range all {
		for _, b := range all[i+1:] {
			if a.Port != b.Port || a.refused.is() || b.refused.is() {
				continue
			}
			var why fault
			switch {
			case class(a) != class(b):
				why = fault{string(gatewayv1.ListenerReasonProtocolConflict), fmt.Sprintf("listeners of port %d have the protocols %s and %s", a.Port, a.Protocol, b.Protocol)}
			case a.Protocol == gatewayv1.TCPProtocolType, deref(a.Hostname) == deref(b.Hostname):
				why = fault{string(gatewayv1.ListenerReasonHostnameConflict), fmt.Sprintf("the listeners %s and %s of port %d have the same host", a.Name, b.Name, a.Port)}
			default:
				continue
			}
			a.conflict, b.conflict = why, why
		}
	}
}

func classStatus(o object[gatewayv1.GatewayClassSpec]) *gatewayv1.GatewayClassStatus {
	accepted := condition(gatewayv1.GatewayClassConditionStatusAccepted, true, gatewayv1.GatewayClassReasonAccepted, "the class is served")
	if o.spec.ParametersRef != nil {
		accepted = condition(gatewayv1.GatewayClassConditionStatusAccepted, false, gatewayv1.GatewayClassReasonInvalidParameters, "spec.parametersRef: the class has no parameters: remove it")
	}
	accepted.ObservedGeneration = o.Generation
	status := &gatewayv1.GatewayClassStatus{Conditions: []metav1.Condition{accepted}}
	for _, f := range Features() {
		status.SupportedFeatures = append(status.SupportedFeatures, gatewayv1.SupportedFeature{Name: gatewayv1.FeatureName(f)})
	}
	return status
}
