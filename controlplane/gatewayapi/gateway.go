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

// gateway is a Gateway of one of the supported classes.
type gateway struct {
	object[gatewayv1.GatewaySpec]
	// listeners are those of the Gateway, then those of its ListenerSets.
	listeners []*listener
	sets      []*listenerSet // oldest first
	// services are the hosts of the services in spec.addresses. selector is the selector of the
	// first one.
	services  []string
	selector  map[string]string
	addresses []gatewayv1.GatewayStatusAddress
	// reason is why the Gateway as a whole is not accepted, or empty if it is.
	reason  gatewayv1.GatewayConditionReason
	message string
	// unusable is which address of the spec cannot be used, and why; empty means none.
	unusable string
	// fault is why the proxies are not deployed. What they serve does not depend on it.
	fault Fault
}

// Fault is why the proxies of a Gateway are not deployed. The zero Fault is none.
type Fault struct {
	Parameters bool // the Gateway is wrong: its ConfigMap or its metadata; else the cluster is
	Message    string
}

// Manages reports whether the proxies of a Gateway are deployed for it: it has no address, or one
// that a load balancer is to have.
func Manages(spec *gatewayv1.GatewaySpec) bool {
	switch len(spec.Addresses) {
	case 0:
		return true
	case 1:
		a := spec.Addresses[0]
		return orElse(a.Type, gatewayv1.IPAddressType) == gatewayv1.IPAddressType && loopback(a.Value) == ""
	}
	return false
}

// AccountName returns the service account of the workloads of a Gateway. The account is in the
// namespace of the Gateway.
func AccountName(g *model.Config, spec *gatewayv1.GatewaySpec) string {
	return cmp.Or(g.Annotations[AccountAnnotation], g.Name+"-"+string(spec.GatewayClassName))
}

// DeploymentName returns the name of the Deployment and the Service that are deployed for a Gateway.
func DeploymentName(g *model.Config, spec *gatewayv1.GatewaySpec) string {
	return cmp.Or(g.Annotations[NameAnnotation], g.Name+"-"+string(spec.GatewayClassName))
}

// listener is a listener of a Gateway.
type listener struct {
	gatewayv1.Listener
	of  *gateway
	set *listenerSet // nil for a listener of the Gateway itself
	// kinds are the kinds of routes that may attach.
	kinds []gatewayv1.RouteGroupKind
	// credentials are the certificates with which TLS is terminated.
	credentials []string
	// clients is how client certificates are verified; nil means not at all.
	clients *clientValidation
	// ended contains the hosts of TLSRoutes whose TLS the listener terminates. Each has its own
	// Istio Gateway, because connections cannot be distinguished after TLS is terminated.
	ended map[string]bool
	// attached is the number of attached routes; namespaces are their namespaces.
	attached   int32
	namespaces map[string]bool
	// The faults of the listener; an empty reason means none.
	refused, conflict, unresolved fault
}

// fault is the reason why a condition does not hold.
type fault struct{ reason, message string }

func (f fault) is() bool { return f.reason != "" }

// serves reports whether proxies receive the listener.
func (l *listener) serves() bool {
	broken := l.unresolved.is() && l.unresolved.reason != string(gatewayv1.ListenerReasonInvalidRouteKinds) && len(l.credentials) == 0
	return l.of.reason == "" && !l.refused.is() && !l.conflict.is() && !broken
}

// gatewayName returns the name of the Istio Gateway of a listener.
func (l *listener) gatewayName() string {
	if l.set != nil { // no name contains "_", so that no other listener has the name
		return l.of.Name + "-" + suffix + "-" + l.set.Namespace + "_" + l.set.Name + "_" + string(l.Name)
	}
	return l.of.Name + "-" + suffix + "-" + string(l.Name)
}

// kind returns the kind of the object that the listener is in.
func (l *listener) kind() string {
	if l.set != nil {
		return kindSet
	}
	return kindGateway
}

// owner returns the object that the listener is in.
func (l *listener) owner() *model.Config {
	if l.set != nil {
		return l.set.Config
	}
	return l.of.Config
}

// hostGatewayName returns the name of the Istio Gateway of a host in ended.
func (l *listener) hostGatewayName(host string) string {
	// No host label ends in "-", so that different hosts have different names.
	return l.gatewayName() + "-" + strings.ReplaceAll(host, "*", "any-")
}

// readGateways reads and checks the Gateways of the supported classes.
func (c *converter) readGateways() {
	classes := map[string]bool{}
	for _, o := range specs[gatewayv1.GatewayClassSpec](c, model.GatewayClass) {
		if o.spec.ControllerName == Controller {
			classes[o.Name] = o.spec.ParametersRef == nil
			c.result.Status[o.Key] = classStatus(o, c.in.Deployed != nil)
		}
	}
	for _, o := range specs[gatewayv1.GatewaySpec](c, model.KubernetesGateway) {
		accepted, ours := classes[string(o.spec.GatewayClassName)]
		if !ours {
			continue
		}
		g := &gateway{object: o}
		for _, l := range o.spec.Listeners {
			// The API server rejects listeners with duplicate names. Their status entries would be
			// indistinguishable, and the status would be rewritten forever.
			if !slices.ContainsFunc(g.listeners, func(m *listener) bool { return m.Name == l.Name }) {
				g.listeners = append(g.listeners, c.readListener(g, nil, l))
			}
		}
		switch {
		case !accepted:
			g.reject(gatewayv1.GatewayReasonInvalidParameters, "the GatewayClass %s has parameters, which are not supported", o.spec.GatewayClassName)
		case c.in.Deployed != nil && Manages(o.spec):
			g.fault = c.in.Deployed(o.Namespace, o.Name)
		case o.spec.Infrastructure != nil && o.spec.Infrastructure.ParametersRef != nil:
			g.reject(gatewayv1.GatewayReasonInvalidParameters, "spec.infrastructure.parametersRef: nothing is deployed for this Gateway, so the parameters have no effect")
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

// addresses determines where a Gateway receives requests: at spec.addresses, or at the addresses
// of the Service that is named after the Gateway and its class.
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
			if c.in.Deployed != nil && Manages(g.spec) && !c.assigned(g, a.Value) {
				continue
			}
			add(a.Value)
		case kind == host:
			chosen = true
			n, full := c.serviceNamed(a.Value, g.Namespace)
			if s := c.service(n); s != nil && n.namespace == g.Namespace {
				g.services = append(g.services, full)
				if found := external(s); len(s.ExternalAddresses) > 0 || len(found) == 0 {
					add(found...)
				} else {
					add(a.Value) // inside the cluster the name is the address
				}
				if g.selector == nil && c.in.Selector != nil {
					g.selector = c.in.Selector(n.namespace, n.name)
				}
				continue
			}
			g.unusable = fmt.Sprintf("spec.addresses: there is no Service %s in the namespace of the Gateway", a.Value)
		default:
			chosen = true
			g.reject(gatewayv1.GatewayReasonUnsupportedAddress, "spec.addresses: the type %s is not supported: write IPAddress or Hostname", kind)
		}
	}
	if chosen {
		return
	}
	for _, of := range []string{DeploymentName(g.Config, g.spec), g.Name} {
		if s := c.service(name{g.Namespace, of}); s != nil {
			add(external(s)...)
			return
		}
	}
}

// assigned reports whether the Service of a Gateway has the address that its spec asks for.
func (c *converter) assigned(g *gateway, address string) bool {
	s := c.service(name{g.Namespace, DeploymentName(g.Config, g.spec)})
	if s == nil || !slices.Contains(external(s), address) {
		g.unusable = fmt.Sprintf("spec.addresses: no load balancer has assigned %s to the Service %s", address, DeploymentName(g.Config, g.spec))
		return false
	}
	return true
}

// serviceNamed parses the name of a Service, either a short name or a host of the cluster.
func (c *converter) serviceNamed(text, namespace string) (n name, host string) {
	short, rest, _ := strings.Cut(text, ".")
	n = name{namespace, short}
	if of, _, _ := strings.Cut(rest, "."); of != "" {
		n.namespace = of
	}
	return n, n.name + "." + n.namespace + ".svc." + c.in.Domain
}

// external returns the addresses of a Service that are reachable from outside the cluster, or else
// those inside. A Service that waits for its load balancer has none, because clients would use its
// cluster IP instead.
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
		if isIP(a) != isIP(b) { // addresses precede names
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

// protocolKinds returns the kinds of routes of a listener's protocol. It returns false for an
// unsupported protocol.
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

// readListener converts a listener and checks it by itself.
func (c *converter) readListener(g *gateway, set *listenerSet, in gatewayv1.Listener) *listener {
	l := &listener{Listener: in, of: g, set: set, namespaces: map[string]bool{}, ended: map[string]bool{}}
	kinds, served := protocolKinds(in)
	if !served {
		l.refused = fault{string(gatewayv1.ListenerReasonUnsupportedProtocol), fmt.Sprintf("the protocol %s is not supported: write HTTP, HTTPS, TLS or TCP", in.Protocol)}
	}
	c.certificates(l)
	c.frontend(l)
	group := gatewayv1.Group(groupGateway)
	l.kinds = []gatewayv1.RouteGroupKind{} // the schema requires a list
	if in.AllowedRoutes == nil || len(in.AllowedRoutes.Kinds) == 0 {
		for _, kind := range kinds {
			l.kinds = append(l.kinds, gatewayv1.RouteGroupKind{Group: &group, Kind: kind})
		}
		return l
	}
	for _, k := range in.AllowedRoutes.Kinds {
		if orElse(k.Group, groupGateway) != groupGateway || !slices.Contains(kinds, k.Kind) {
			if !l.unresolved.is() { // the listener is not served without a certificate
				l.unresolved = fault{
					string(gatewayv1.ListenerReasonInvalidRouteKinds),
					fmt.Sprintf("allowedRoutes.kinds names %s, which is not a route of a %s listener", k.Kind, in.Protocol),
				}
			}
			continue
		}
		l.kinds = append(l.kinds, gatewayv1.RouteGroupKind{Group: &group, Kind: k.Kind})
	}
	return l
}

// certificates resolves the certificate references of a listener that terminates TLS.
func (c *converter) certificates(l *listener) {
	secure := l.Protocol == gatewayv1.HTTPSProtocolType || l.Protocol == gatewayv1.TLSProtocolType
	if !secure || tlsMode(l.Listener) == gatewayv1.TLSModePassthrough {
		if l.Protocol == gatewayv1.HTTPSProtocolType {
			l.refused = fault{string(gatewayv1.ListenerReasonUnsupportedValue), "tls.mode Passthrough requires the protocol TLS"}
		}
		return
	}
	if l.TLS == nil || len(l.TLS.CertificateRefs) == 0 {
		l.unresolved = fault{string(gatewayv1.ListenerReasonInvalidCertificateRef), "tls.certificateRefs is empty: name a Secret of the type kubernetes.io/tls"}
		return
	}
	owner := l.owner()
	for _, ref := range l.TLS.CertificateRefs {
		to := name{string(orElse(ref.Namespace, gatewayv1.Namespace(owner.Namespace))), string(ref.Name)}
		switch group, kind := string(deref(ref.Group)), string(orElse(ref.Kind, kindSecret)); {
		case group != "" || kind != kindSecret:
			l.unresolved = fault{string(gatewayv1.ListenerReasonInvalidCertificateRef), fmt.Sprintf("tls.certificateRefs names a %s/%s: only Secrets are supported", group, kind)}
		case !c.allowed(reference{kind: owner.Kind, namespace: owner.Namespace, toKind: kindSecret, to: to}):
			l.unresolved = fault{
				string(gatewayv1.ListenerReasonRefNotPermitted),
				fmt.Sprintf("no ReferenceGrant of namespace %s allows a %s of namespace %s the Secret %s", to.namespace, l.kind(), owner.Namespace, to.name),
			}
		default:
			if err := c.certificate(to); err != nil {
				l.unresolved = fault{string(gatewayv1.ListenerReasonInvalidCertificateRef), err.Error()}
				continue
			}
			l.credentials = append(l.credentials, "kubernetes-gateway://"+to.namespace+"/"+to.name)
			of := name{l.of.Namespace, AccountName(l.of.Config, l.of.spec)}
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

func classStatus(o object[gatewayv1.GatewayClassSpec], deploys bool) *gatewayv1.GatewayClassStatus {
	accepted := condition(gatewayv1.GatewayClassConditionStatusAccepted, true, gatewayv1.GatewayClassReasonAccepted, "the class is served")
	if o.spec.ParametersRef != nil {
		accepted = condition(gatewayv1.GatewayClassConditionStatusAccepted, false, gatewayv1.GatewayClassReasonInvalidParameters, "spec.parametersRef: the class has no parameters: remove it")
	}
	accepted.ObservedGeneration = o.Generation
	status := &gatewayv1.GatewayClassStatus{Conditions: []metav1.Condition{accepted}}
	for _, f := range Features(deploys) {
		status.SupportedFeatures = append(status.SupportedFeatures, gatewayv1.SupportedFeature{Name: gatewayv1.FeatureName(f)})
	}
	return status
}
