// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package analyze

import (
	"fmt"
	"slices"
	"strings"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
	securityv1beta1 "istio.io/api/security/v1beta1"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
)

// httpsPort is the port that servers expect TLS at.
const httpsPort = 443

// ofProtocol are the routes of one protocol, and where they apply.
type ofProtocol struct {
	field   string
	service func(model.Protocol) bool
	server  func(protocol model.Protocol, passthrough bool) bool
}

// protocols returns the protocols that routes have.
func protocols() []ofProtocol {
	return []ofProtocol{
		{"http", model.Protocol.IsHTTP, func(p model.Protocol, passthrough bool) bool {
			return p.IsHTTP() || p == model.ProtocolHTTPS && !passthrough
		}},
		{"tls", model.Protocol.IsTLS, func(p model.Protocol, passthrough bool) bool { return p.IsTLS() && passthrough }},
		{"tcp", model.Protocol.IsTCP, func(p model.Protocol, passthrough bool) bool {
			return p.IsTCP() && p != model.ProtocolHTTPS && !passthrough
		}},
	}
}

// routeProtocols finds routes for a protocol that is read nowhere where the VirtualService applies.
func (a *analysis) routeProtocols(c *model.Config, spec *networkingv1alpha3.VirtualService) {
	counts := map[string]int{"http": len(spec.GetHttp()), "tls": len(spec.GetTls()), "tcp": len(spec.GetTcp())}
	var hosts []string
	for _, h := range spec.GetHosts() {
		hosts = append(hosts, a.Mesh.ResolveHost(h, c.Namespace))
	}
	for _, of := range protocols() {
		if counts[of.field] == 0 {
			continue
		}
		for _, name := range gatewayNames(c, spec) {
			switch {
			case name == meshGateway:
				if svc := a.unlike(c, hosts, of); svc != nil {
					a.report("OUT0014", c, fmt.Sprintf("spec.%s has no effect: no port of the service %q is for %s, only for %s.", of.field, svc.Hostname, strings.ToUpper(of.field), protocolsOf(svc)),
						"Write the routes of the protocol of the port, or begin the name of the port with the protocol that it has.")
				}
			case !a.readAt(a.Mesh.Gateways.Get(name), c, hosts, of):
				a.report("OUT0014", c, fmt.Sprintf("spec.%s has no effect at the Gateway %s: none of its servers for these hosts reads %s.", of.field, name, strings.ToUpper(of.field)),
					"Write tls for TLS that the Gateway passes through, http for what it decrypts, tcp for other protocols; or change the server.")
			}
		}
	}
}

// unlike returns a service of hosts, if none of their services has a port of a protocol.
func (a *analysis) unlike(c *model.Config, hosts []string, of ofProtocol) (found *model.Service) {
	for _, h := range hosts {
		svc := a.Mesh.Services.ForHost(h, c.Namespace)
		if svc == nil || len(svc.Ports) == 0 {
			continue
		}
		if slices.ContainsFunc(svc.Ports, func(p model.Port) bool { return of.service(p.Protocol) || p.Protocol.Sniffed() }) {
			return nil
		}
		found = svc
	}
	return found
}

// protocolsOf lists the protocols of the ports of a service.
func protocolsOf(svc *model.Service) string {
	var out []string
	for _, p := range svc.Ports {
		if text := p.Protocol.String(); !slices.Contains(out, text) {
			out = append(out, text)
		}
	}
	return names(out)
}

// readAt reports whether a server of a Gateway reads a protocol for one of the hosts, or none has them.
func (a *analysis) readAt(gateway *snapshot.Gateway, c *model.Config, hosts []string, of ofProtocol) bool {
	if gateway == nil {
		return true
	}
	served := false
	for _, s := range gateway.Spec.GetServers() {
		a.steps++
		if len(snapshot.IntersectHosts(gateway.ServerHosts(s, c.Namespace), hosts)) == 0 {
			continue
		}
		mode := s.GetTls().GetMode()
		if of.server(model.ParseProtocol(s.GetPort().GetProtocol()), mode == networkingv1alpha3.ServerTLSSettings_PASSTHROUGH || mode == networkingv1alpha3.ServerTLSSettings_AUTO_PASSTHROUGH) {
			return true
		}
		served = true
	}
	return !served
}

// faults finds retries and timeouts of routes with faults, which do not apply to these.
func (a *analysis) faults(c *model.Config, spec *networkingv1alpha3.VirtualService) {
	for i, r := range spec.GetHttp() {
		if r.GetFault() != nil && (r.GetRetries().GetAttempts() > 0 || r.GetTimeout() != nil) {
			a.report("OUT0017", c, fmt.Sprintf("spec.http[%d]: faults come before the retries and the timeout of the route, which do not apply to them.", i),
				"Inject the faults at a service behind this one, or test with the retries of the client.")
		}
	}
}

// unrepeated finds routes for sidecars that requests of a gateway to the same service do not follow.
func (a *analysis) unrepeated(hosts map[gatewayHost][]*model.Config) {
	each(a, model.VirtualService, func(c *model.Config, spec *networkingv1alpha3.VirtualService) {
		if !slices.ContainsFunc(spec.GetGateways(), func(g string) bool { return g != meshGateway }) {
			return
		}
		for i, r := range spec.GetHttp() {
			for j, d := range r.GetRoute() {
				to := d.GetDestination()
				for _, other := range hosts[gatewayHost{meshGateway, a.Mesh.ResolveHost(to.GetHost(), c.Namespace)}] {
					a.steps++
					if routes := specOf[networkingv1alpha3.VirtualService](other); other != c && to.GetSubset() == "" && len(routes.GetHttp()) > 0 {
						a.report("OUT0013", c, fmt.Sprintf("spec.http[%d].route[%d]: the routes of the VirtualService %s for %q are for requests of sidecars, not for those that this route sends there.", i, j, nameOf(other), to.GetHost()),
							"Repeat here what is needed of them, such as the subset.")
						return
					}
				}
			}
		}
	})
}

// originated finds ports at which a rule adds TLS to connections that already have it.
func (a *analysis) originated(c *model.Config, spec *networkingv1alpha3.DestinationRule, svc *model.Service) {
	for _, p := range svc.Ports {
		if p.Protocol.IsTLS() && snapshot.OriginatesTLS(tlsOf(spec.GetTrafficPolicy(), p.Number)) && !a.decrypted()[hostPort{svc.Hostname, p.Number}] {
			a.report("OUT0015", c, fmt.Sprintf("spec.trafficPolicy: the rule adds TLS at the port %d of %q, whose clients already send it: the port is for %s.", p.Number, svc.Hostname, p.Protocol),
				"Remove the TLS settings, or make the protocol of the port HTTP if clients send plaintext.")
			return
		}
	}
}

// tlsOf returns the TLS settings of a policy for a port.
func tlsOf(policy *networkingv1alpha3.TrafficPolicy, port uint32) *networkingv1alpha3.ClientTLSSettings {
	for _, p := range policy.GetPortLevelSettings() {
		if p.GetPort().GetNumber() == port { // they replace the others
			return p.GetTls()
		}
	}
	return policy.GetTls()
}

// decrypted returns the ports that routes of HTTP lead to.
func (a *analysis) decrypted() map[hostPort]bool {
	if a.httpRouted == nil {
		a.httpRouted = map[hostPort]bool{}
		each(a, model.VirtualService, func(c *model.Config, spec *networkingv1alpha3.VirtualService) {
			for _, r := range spec.GetHttp() {
				for _, d := range r.GetRoute() {
					to := d.GetDestination()
					a.httpRouted[hostPort{a.Mesh.ResolveHost(to.GetHost(), c.Namespace), to.GetPort().GetNumber()}] = true
				}
			}
		})
	}
	return a.httpRouted
}

// plaintext finds ports of TLS outside the mesh to which requests are sent without it.
func (a *analysis) plaintext(c *model.Config, spec *networkingv1alpha3.ServiceEntry) {
	if spec.GetLocation() != networkingv1alpha3.ServiceEntry_MESH_EXTERNAL {
		return
	}
	for i, p := range spec.GetPorts() {
		if p.GetNumber() != httpsPort && p.GetTargetPort() != httpsPort || !model.ParseProtocol(p.GetProtocol()).IsHTTP() {
			continue
		}
		for _, h := range spec.GetHosts() {
			rule := a.Mesh.DestinationRules.For(model.ServiceKey{Hostname: strings.ToLower(h), Namespace: c.Namespace}, c.Namespace, nil)
			if rule != nil && snapshot.OriginatesTLS(tlsOf(rule.Policy, p.GetNumber())) {
				continue
			}
			a.report("OUT0016", c, fmt.Sprintf("spec.ports[%d]: requests to %q are sent to its port %d without TLS: the protocol is %s, and no DestinationRule adds TLS.", i, h, httpsPort, p.GetProtocol()),
				"Write protocol: HTTPS if clients send TLS, or a DestinationRule with the TLS mode SIMPLE.")
			break
		}
	}
}

// streams returns the ports of a workload that services name as a protocol other than HTTP.
func (a *analysis) streams(w *Workload) []workloadPort {
	return slices.DeleteFunc(slices.Clone(a.portsOf(w)), func(p workloadPort) bool { return p.port.Protocol.IsHTTP() || p.port.Protocol.Sniffed() })
}

// unreadRules finds rules about requests at ports where requests are not read.
func (a *analysis) unreadRules(c *model.Config, spec *securityv1beta1.AuthorizationPolicy, workloads []*Workload) {
	effects := map[securityv1beta1.AuthorizationPolicy_Action]string{
		securityv1beta1.AuthorizationPolicy_ALLOW: "allows no connection",
		securityv1beta1.AuthorizationPolicy_DENY:  "denies every connection that its other attributes match",
	}
	effect, known := effects[spec.GetAction()]
	i := slices.IndexFunc(spec.GetRules(), readsRequests)
	if !known || i < 0 {
		return
	}
	for _, w := range workloads {
		for _, p := range a.streams(w) {
			a.report("OUT0014", c, fmt.Sprintf("spec.rules[%d] is about requests, but the port %d of the service %q is for %s: there it %s.", i, p.port.Number, p.service.Hostname, p.port.Protocol, effect),
				"Write the ports of the workload that the rule is for in to.operation.ports, and a rule for the others.")
			return
		}
	}
}

// readsRequests reports whether a rule has attributes of requests, and is for no port in particular.
func readsRequests(r *securityv1beta1.Rule) bool {
	ofRequests := slices.ContainsFunc(r.GetFrom(), func(f *securityv1beta1.Rule_From) bool {
		return len(f.GetSource().GetRequestPrincipals())+len(f.GetSource().GetNotRequestPrincipals()) > 0
	}) || slices.ContainsFunc(r.GetWhen(), func(w *securityv1beta1.Condition) bool { return strings.HasPrefix(w.GetKey(), "request.") })
	for _, t := range r.GetTo() {
		o := t.GetOperation()
		if len(o.GetPorts())+len(o.GetNotPorts()) > 0 {
			return false
		}
		ofRequests = ofRequests || len(o.GetHosts())+len(o.GetNotHosts())+len(o.GetMethods())+len(o.GetNotMethods())+len(o.GetPaths())+len(o.GetNotPaths()) > 0
	}
	return ofRequests
}
