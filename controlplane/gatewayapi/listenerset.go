// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package gatewayapi

import (
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// listenerSet is a ListenerSet of a Gateway of one of the supported classes.
type listenerSet struct {
	object[gatewayv1.ListenerSetSpec]
	of        *gateway
	listeners []*listener // nil if the Gateway does not allow the ListenerSet
	refused   fault
}

// readListenerSets adds the listeners of ListenerSets to those of their Gateways, the oldest first,
// and finds the conflicts.
func (c *converter) readListenerSets() {
	for _, o := range specs[gatewayv1.ListenerSetSpec](c, model.ListenerSet) {
		ref := o.spec.ParentRef
		if orElse(ref.Group, groupGateway) != groupGateway || orElse(ref.Kind, kindGateway) != kindGateway {
			continue
		}
		g := c.gateways[name{string(orElse(ref.Namespace, gatewayv1.Namespace(o.Namespace))), string(ref.Name)}]
		if g == nil {
			continue // belongs to another controller, or to none
		}
		set := &listenerSet{object: o, of: g}
		g.sets = append(g.sets, set)
		c.sets[name{o.Namespace, o.Name}] = set
		switch {
		case !c.allowsSet(g, o.Namespace):
			set.refused = fault{string(gatewayv1.ListenerSetReasonNotAllowed), "spec.allowedListeners of the Gateway does not allow ListenerSets of this namespace"}
			continue
		case g.reason != "":
			set.refused = fault{string(gatewayv1.ListenerSetReasonParentNotAccepted), "the Gateway is not accepted"}
		}
		for _, l := range o.spec.Listeners {
			if !slices.ContainsFunc(set.listeners, func(m *listener) bool { return m.Name == l.Name }) {
				set.listeners = append(set.listeners, c.readListener(g, set, gatewayv1.Listener(l)))
			}
		}
		g.listeners = append(g.listeners, set.listeners...)
	}
	for _, g := range c.gateways {
		g.conflicts()
	}
}

// conflicts marks listeners of the same port that cannot be distinguished. Of those in ListenerSets,
// whose number has no limit, the first remains; of those of the Gateway none does.
func (g *gateway) conflicts() {
	own := g.own()
	for i, a := range own {
		for _, b := range own[i+1:] {
			if a.Port != b.Port || a.refused.is() || b.refused.is() {
				continue
			}
			if why := conflict(a, b); why.is() {
				a.conflict, b.conflict = why, why
			}
		}
	}
	type slot struct {
		port        gatewayv1.PortNumber
		class, host string
	}
	served := map[slot]*listener{}                             // the first one of each host
	classes := map[gatewayv1.PortNumber]map[string]*listener{} // the first one of each class
	for i, l := range g.listeners {
		if l.refused.is() {
			continue
		}
		here := slot{l.Port, l.class(), string(deref(l.Hostname))}
		if l.Protocol == gatewayv1.TCPProtocolType {
			here.host = "" // the host has no effect
		}
		if i >= len(own) {
			before := served[here]
			for class, other := range classes[l.Port] {
				if class != here.class {
					before = other
				}
			}
			if before != nil {
				l.conflict = conflict(before, l)
				continue
			}
		}
		if classes[l.Port] == nil {
			classes[l.Port] = map[string]*listener{}
		}
		if served[here] == nil {
			served[here], classes[l.Port][here.class] = l, l
		}
	}
}

// class returns what listeners of one port must have in common.
func (l *listener) class() string {
	switch l.Protocol {
	case gatewayv1.HTTPSProtocolType, gatewayv1.TLSProtocolType:
		return "TLS"
	}
	return string(l.Protocol)
}

// conflict returns why two listeners of the same port cannot be distinguished.
func conflict(a, b *listener) fault {
	others := fmt.Sprintf("the listeners %s and %s", a.Name, b.Name)
	if b.set != nil { // its owner need not see those of others
		others = "the listener and an earlier one of the Gateway or of its ListenerSets"
	}
	switch {
	case a.class() != b.class():
		return fault{string(gatewayv1.ListenerReasonProtocolConflict), fmt.Sprintf("%s have different protocols at port %d", others, a.Port)}
	case a.Protocol == gatewayv1.TCPProtocolType, deref(a.Hostname) == deref(b.Hostname):
		return fault{string(gatewayv1.ListenerReasonHostnameConflict), fmt.Sprintf("%s have the same host at port %d", others, a.Port)}
	}
	return fault{}
}

// allowsSet reports whether ListenerSets of a namespace may add listeners to a Gateway.
func (c *converter) allowsSet(g *gateway, namespace string) bool {
	if g.spec.AllowedListeners == nil || g.spec.AllowedListeners.Namespaces == nil {
		return false
	}
	allowed := g.spec.AllowedListeners.Namespaces
	switch orElse(allowed.From, gatewayv1.NamespacesFromNone) {
	case gatewayv1.NamespacesFromAll:
		return true
	case gatewayv1.NamespacesFromSame:
		return namespace == g.Namespace
	case gatewayv1.NamespacesFromSelector:
		selector, err := metav1.LabelSelectorAsSelector(allowed.Selector)
		return err == nil && selector.Matches(labels.Set(c.labelsOf(namespace)))
	}
	return false
}

// own returns the listeners that are not those of ListenerSets.
func (g *gateway) own() []*listener {
	if i := slices.IndexFunc(g.listeners, func(l *listener) bool { return l.set != nil }); i >= 0 {
		return g.listeners[:i]
	}
	return g.listeners
}

// accepted reports whether a ListenerSet has a listener that is served.
func (s *listenerSet) accepted() bool {
	return !s.refused.is() && slices.ContainsFunc(s.listeners, (*listener).serves)
}

// status returns the status of a ListenerSet, whose Gateway has the status of.
func (s *listenerSet) status(of *gatewayv1.GatewayStatus) *gatewayv1.ListenerSetStatus {
	accepted := condition(gatewayv1.ListenerSetConditionAccepted, true, gatewayv1.ListenerSetReasonAccepted, "the ListenerSet is accepted")
	programmed := condition(gatewayv1.ListenerSetConditionProgrammed, true, gatewayv1.ListenerSetReasonProgrammed, "proxies of the Gateway receive the listeners")
	const invalid = "not all listeners are valid: see their conditions"
	switch {
	case s.refused.is():
		accepted = condition(gatewayv1.ListenerSetConditionAccepted, false, s.refused.reason, s.refused.message)
		programmed = condition(gatewayv1.ListenerSetConditionProgrammed, false, s.refused.reason, s.refused.message)
	case !s.accepted():
		accepted = condition(gatewayv1.ListenerSetConditionAccepted, false, gatewayv1.ListenerSetReasonListenersNotValid, "no listener is valid: see their conditions")
		programmed = condition(gatewayv1.ListenerSetConditionProgrammed, false, gatewayv1.ListenerSetReasonListenersNotValid, accepted.Message)
	case !slices.ContainsFunc(of.Conditions, func(c metav1.Condition) bool {
		return c.Type == string(gatewayv1.GatewayConditionProgrammed) && c.Status == metav1.ConditionTrue
	}):
		programmed = condition(gatewayv1.ListenerSetConditionProgrammed, false, gatewayv1.ListenerSetReasonPending, "the Gateway is not programmed: see its conditions")
	}
	if s.accepted() && slices.ContainsFunc(s.listeners, func(l *listener) bool { return !l.serves() }) {
		accepted.Reason, accepted.Message = string(gatewayv1.ListenerSetReasonListenersNotValid), invalid
	}
	out := &gatewayv1.ListenerSetStatus{Conditions: []metav1.Condition{accepted, programmed}}
	observe(out.Conditions, s.Generation)
	for _, l := range s.listeners {
		out.Listeners = append(out.Listeners, gatewayv1.ListenerEntryStatus(l.status()))
	}
	return out
}
