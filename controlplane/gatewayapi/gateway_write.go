// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package gatewayapi

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

func isIP(s string) bool {
	_, err := netip.ParseAddr(s)
	return err == nil
}

// writeGateways builds an Istio Gateway for each listener, and the statuses. Routes must have been
// attached before.
func (c *converter) writeGateways() {
	for _, n := range slices.SortedFunc(maps.Keys(c.gateways), compareNames) {
		g := c.gateways[n]
		for _, l := range g.listeners {
			if !l.serves() {
				continue
			}
			if l.set != nil {
				c.result.added[n] = append(c.result.added[n], l.Listener)
			}
			whole := c.istioGateway(l)
			if len(l.ended) == 0 {
				c.add(model.Gateway, l.owner(), whole)
			}
			for _, host := range slices.Sorted(maps.Keys(l.ended)) {
				one := whole.Clone()
				one.Name = l.hostGatewayName(host)
				if spec, ok := one.Spec.(*networkingv1alpha3.Gateway); ok {
					spec.Servers[0].Hosts = l.serverHosts(host)
				}
				c.add(model.Gateway, l.owner(), one)
			}
		}
		status := g.status()
		c.result.Status[g.Key] = status
		for _, set := range g.sets {
			c.result.Status[set.Key] = set.status(status)
		}
	}
}

func compareNames(a, b name) int {
	return strings.Compare(a.namespace+"/"+a.name, b.namespace+"/"+b.name)
}

func (c *converter) istioGateway(l *listener) *model.Config {
	g := l.of
	annotations := map[string]string{
		parentsAnnotation:   fmt.Sprintf("%s/%s/%s.%s", l.kind(), l.owner().Name, l.Name, l.owner().Namespace),
		semanticsAnnotation: "gateway",
	}
	spec := &networkingv1alpha3.Gateway{Selector: map[string]string{NameLabel: g.Name}}
	if len(g.services) > 0 {
		annotations[serviceAnnotation] = strings.Join(g.services, ",")
	}
	if len(g.selector) > 0 {
		spec.Selector = maps.Clone(g.selector)
	}
	protocol := string(l.Protocol)
	server := &networkingv1alpha3.Server{
		Port:  &networkingv1alpha3.Port{Number: uint32(l.Port), Name: "default", Protocol: protocol},
		Hosts: l.serverHosts(string(deref(l.Hostname))), Tls: l.serverTLS(), Bind: g.bind(),
	}
	spec.Servers = []*networkingv1alpha3.Server{server}
	return &model.Config{
		Key:  model.Key{Namespace: g.Namespace, Name: l.gatewayName()},
		Spec: spec, Labels: maps.Clone(g.Labels), Annotations: annotations,
	}
}

// bind returns the address that the listeners bind to. A loopback address is that of a proxy that
// shares a machine with others. All other addresses belong to a load balancer before the proxies
// and are not bound.
func (g *gateway) bind() string {
	if len(g.addresses) != 1 {
		return ""
	}
	return loopback(g.addresses[0].Value)
}

// loopback returns the address if it is a loopback address, or "".
func loopback(address string) string {
	if ip, err := netip.ParseAddr(address); err == nil && ip.IsLoopback() {
		return ip.String()
	}
	return ""
}

// serverHosts returns a host with the namespaces whose routes may attach.
func (l *listener) serverHosts(host string) []string {
	if host == "" {
		host = "*"
	}
	switch l.from() {
	case gatewayv1.NamespacesFromAll:
		return []string{"*/" + host}
	case gatewayv1.NamespacesFromSelector:
		own := l.owner().Namespace
		out := []string{own + "/" + host} // a server needs a host; nothing attaches to this one
		for _, ns := range slices.Sorted(maps.Keys(l.namespaces)) {
			if ns != own {
				out = append(out, ns+"/"+host)
			}
		}
		return out
	}
	return []string{l.owner().Namespace + "/" + host}
}

func (l *listener) serverTLS() *networkingv1alpha3.ServerTLSSettings {
	switch {
	case l.Protocol != gatewayv1.HTTPSProtocolType && l.Protocol != gatewayv1.TLSProtocolType:
		return nil
	case tlsMode(l.Listener) == gatewayv1.TLSModePassthrough:
		return &networkingv1alpha3.ServerTLSSettings{Mode: networkingv1alpha3.ServerTLSSettings_PASSTHROUGH}
	}
	tls := &networkingv1alpha3.ServerTLSSettings{Mode: networkingv1alpha3.ServerTLSSettings_SIMPLE, CredentialNames: l.credentials}
	if len(l.credentials) == 1 {
		tls.CredentialName, tls.CredentialNames = l.credentials[0], nil
	}
	l.clients.verify(tls)
	return tls
}

// status returns the status of a Gateway.
func (g *gateway) status() *gatewayv1.GatewayStatus {
	out := &gatewayv1.GatewayStatus{Addresses: g.addresses, Listeners: []gatewayv1.ListenerStatus{}}
	valid, serving := 0, 0
	for _, l := range g.listeners {
		serving += b2i(l.serves())
	}
	for _, l := range g.own() {
		out.Listeners = append(out.Listeners, l.status())
		valid += b2i(!l.refused.is() && !l.conflict.is())
	}
	if allowed := g.spec.AllowedListeners; allowed != nil || len(g.sets) > 0 {
		attached := int32(0)
		for _, set := range g.sets {
			attached += int32(b2i(set.accepted()))
		}
		out.AttachedListenerSets = &attached
	}
	accepted := condition(gatewayv1.GatewayConditionAccepted, true, gatewayv1.GatewayReasonAccepted, "the Gateway is accepted")
	switch {
	case g.reason != "":
		accepted = condition(gatewayv1.GatewayConditionAccepted, false, g.reason, g.message)
	case g.fault.Parameters:
		accepted = condition(gatewayv1.GatewayConditionAccepted, false, gatewayv1.GatewayReasonInvalidParameters, g.fault.Message)
	case valid < len(g.own()):
		accepted = condition(gatewayv1.GatewayConditionAccepted, valid > 0, gatewayv1.GatewayReasonListenersNotValid, "not all listeners are accepted: see their conditions")
	}
	programmed := condition(gatewayv1.GatewayConditionProgrammed, true, gatewayv1.GatewayReasonProgrammed, "proxies with the label "+NameLabel+"="+g.Name+" receive the listeners")
	switch {
	case g.reason != "", serving == 0:
		programmed = condition(gatewayv1.GatewayConditionProgrammed, false, gatewayv1.GatewayReasonInvalid, "no listener can be served")
	case g.fault.Parameters:
		programmed = condition(gatewayv1.GatewayConditionProgrammed, false, gatewayv1.GatewayReasonInvalid, g.fault.Message)
	case g.fault.Message != "":
		programmed = condition(gatewayv1.GatewayConditionProgrammed, false, gatewayv1.GatewayReasonNoResources, g.fault.Message)
	case g.unusable != "":
		programmed = condition(gatewayv1.GatewayConditionProgrammed, false, gatewayv1.GatewayReasonAddressNotUsable, g.unusable)
	case len(g.addresses) == 0:
		programmed = condition(gatewayv1.GatewayConditionProgrammed, false, gatewayv1.GatewayReasonAddressNotAssigned,
			fmt.Sprintf("no address is known: there is no Service %s or %s with one; name a Service or an address in spec.addresses", DeploymentName(g.Config, g.spec), g.Name))
	}
	out.Conditions = []metav1.Condition{accepted, programmed}
	if g.insecureFallback() {
		out.Conditions = append(out.Conditions, condition(gatewayv1.GatewayConditionInsecureFrontendValidationMode, true, gatewayv1.GatewayReasonConfigurationChanged,
			"spec.tls.frontend: AllowInsecureFallback accepts every client certificate, so identities of clients prove nothing at these listeners"))
	}
	observe(out.Conditions, g.Generation)
	return out
}

func observe(conditions []metav1.Condition, generation int64) {
	for i := range conditions {
		conditions[i].ObservedGeneration = generation
	}
}

func (l *listener) status() gatewayv1.ListenerStatus {
	accepted := condition(gatewayv1.ListenerConditionAccepted, true, gatewayv1.ListenerReasonAccepted, "the listener is accepted")
	conflicted := condition(gatewayv1.ListenerConditionConflicted, false, gatewayv1.ListenerReasonNoConflicts, "no other listener conflicts")
	resolved := condition(gatewayv1.ListenerConditionResolvedRefs, true, gatewayv1.ListenerReasonResolvedRefs, "all references of the listener are resolved")
	programmed := condition(gatewayv1.ListenerConditionProgrammed, true, gatewayv1.ListenerReasonProgrammed, "proxies receive the listener")
	switch {
	case l.refused.is():
		accepted = condition(gatewayv1.ListenerConditionAccepted, false, l.refused.reason, l.refused.message)
	case l.conflict.is():
		accepted = condition(gatewayv1.ListenerConditionAccepted, false, l.conflict.reason, l.conflict.message)
		conflicted = condition(gatewayv1.ListenerConditionConflicted, true, l.conflict.reason, l.conflict.message)
	}
	if l.unresolved.is() {
		resolved = condition(gatewayv1.ListenerConditionResolvedRefs, false, l.unresolved.reason, l.unresolved.message)
	}
	if !l.serves() || l.unresolved.is() {
		programmed = condition(gatewayv1.ListenerConditionProgrammed, l.serves(), gatewayv1.ListenerReasonInvalid, "the listener is not fully valid: see the other conditions")
		if l.serves() {
			programmed.Reason = string(gatewayv1.ListenerReasonProgrammed)
		} else if l.set != nil && l.conflict.is() {
			programmed.Reason = l.conflict.reason
		}
	}
	out := gatewayv1.ListenerStatus{
		Name: l.Name, SupportedKinds: l.kinds, AttachedRoutes: l.attached,
		Conditions: []metav1.Condition{accepted, conflicted, programmed, resolved},
	}
	observe(out.Conditions, l.owner().Generation)
	return out
}
