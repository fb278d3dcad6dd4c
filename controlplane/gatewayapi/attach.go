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

// route is a route of any kind during its conversion.
type route struct {
	*model.Config
	hostnames []string
	// byHost is true if requests contain the name of their host.
	byHost bool
	// mesh means that the rules are converted for parents that are Services. Clients in the mesh reach
	// the backends without the route, too, so references to them need no ReferenceGrant.
	mesh bool
	// unresolved is the first reference of a rule that cannot be resolved.
	unresolved fault
	// gateways are the Gateways that the route is attached to.
	gateways []name
}

// attachment is a parent at which a route receives requests.
type attachment struct {
	listener *listener // nil for a Service
	hosts    []string
	service  *model.Service // nil for a listener
	of       name           // of the service
	port     uint32         // of the service; 0 means all
	gateway  string         // the Istio Gateway of the listener; empty means the default one
}

func (r *route) unresolve(reason gatewayv1.RouteConditionReason, format string, args ...any) {
	if !r.unresolved.is() {
		r.unresolved = fault{string(reason), fmt.Sprintf(format, args...)}
	}
}

// attach resolves the parents of a route. It returns the attachments and the status of each
// parent, which finish completes after the rules were converted.
func (c *converter) attach(r *route, parents []gatewayv1.ParentReference) (places []attachment, status []gatewayv1.RouteParentStatus) {
	for _, ref := range parents {
		ns := string(orElse(ref.Namespace, gatewayv1.Namespace(r.Namespace)))
		to := name{ns, string(ref.Name)}
		group, kind := string(orElse(ref.Group, groupGateway)), string(orElse(ref.Kind, kindGateway))
		var why fault
		controller := gatewayv1.GatewayController(Controller)
		switch {
		case group == groupGateway && kind == kindGateway:
			g := c.gateways[to]
			if g == nil {
				continue // belongs to another controller, or to none
			}
			var at []attachment
			at, why = c.attachTo(r, g.own(), "Gateway", ref)
			places = append(places, at...)
			r.reaches(g, at)
		case group == groupGateway && kind == kindSet:
			set := c.sets[to]
			if set == nil {
				continue // the same
			}
			var at []attachment
			at, why = c.attachTo(r, set.listeners, "ListenerSet", ref)
			places = append(places, at...)
			r.reaches(set.of, at)
		case (group == "" || group == "core") && kind == kindService:
			controller = MeshController
			s := c.service(to)
			if s == nil {
				why = fault{string(gatewayv1.RouteReasonNoMatchingParent), fmt.Sprintf("there is no Service %s/%s", to.namespace, to.name)}
				break
			}
			if port := uint32(deref(ref.Port)); port != 0 && !slices.ContainsFunc(s.Ports, func(p model.Port) bool { return p.Number == port }) {
				why = fault{string(gatewayv1.RouteReasonNoMatchingParent), fmt.Sprintf("the Service %s/%s has no port %d", to.namespace, to.name, port)}
				break
			}
			places = append(places, attachment{service: s, of: to, port: uint32(deref(ref.Port)), hosts: []string{s.Hostname}})
		default:
			continue
		}
		accepted := condition(gatewayv1.RouteConditionAccepted, true, gatewayv1.RouteReasonAccepted, "the route is accepted")
		if why.is() {
			accepted = condition(gatewayv1.RouteConditionAccepted, false, why.reason, why.message)
		}
		status = append(status, gatewayv1.RouteParentStatus{ParentRef: ref, ControllerName: controller, Conditions: []metav1.Condition{accepted}})
	}
	return places, status
}

// reaches records that a route is attached to a Gateway, unless at is empty.
func (r *route) reaches(g *gateway, at []attachment) {
	if n := (name{g.Namespace, g.Name}); len(at) > 0 && !slices.Contains(r.gateways, n) {
		r.gateways = append(r.gateways, n)
	}
}

// attachTo returns those of the listeners of a parent that a parentRef selects.
func (c *converter) attachTo(r *route, listeners []*listener, parent string, ref gatewayv1.ParentReference) (places []attachment, why fault) {
	named, allowed := false, false
	for _, l := range listeners {
		if ref.SectionName != nil && *ref.SectionName != l.Name || ref.Port != nil && *ref.Port != l.Port {
			continue
		}
		named = true
		if !slices.ContainsFunc(l.kinds, func(k gatewayv1.RouteGroupKind) bool { return string(k.Kind) == string(r.Kind) }) || !c.admits(l, r.Namespace) {
			continue
		}
		allowed = true
		hosts := []string{"*"}
		if r.byHost {
			hosts = hostnames(string(deref(l.Hostname)), r.hostnames)
		}
		if len(hosts) == 0 {
			continue
		}
		l.attached++
		l.namespaces[r.Namespace] = true
		places = append(places, attachment{listener: l, hosts: hosts})
	}
	switch {
	case len(places) > 0:
		return places, fault{}
	case !named:
		return nil, fault{string(gatewayv1.RouteReasonNoMatchingParent), "the " + parent + " has no listener of that name and port"}
	case !allowed:
		return nil, fault{string(gatewayv1.RouteReasonNotAllowedByListeners), fmt.Sprintf("no listener allows a %s of namespace %s", r.Kind, r.Namespace)}
	}
	return nil, fault{string(gatewayv1.RouteReasonNoMatchingListenerHostname), "no listener has a host in common with the route"}
}

// from returns the namespaces from which routes may attach.
func (l *listener) from() gatewayv1.FromNamespaces {
	if l.AllowedRoutes == nil || l.AllowedRoutes.Namespaces == nil {
		return gatewayv1.NamespacesFromSame
	}
	return orElse(l.AllowedRoutes.Namespaces.From, gatewayv1.NamespacesFromSame)
}

// admits reports whether a listener accepts routes of a namespace.
func (c *converter) admits(l *listener, namespace string) bool {
	switch l.from() {
	case gatewayv1.NamespacesFromAll:
		return true
	case gatewayv1.NamespacesFromSelector:
		selector, err := metav1.LabelSelectorAsSelector(l.AllowedRoutes.Namespaces.Selector)
		return err == nil && selector.Matches(labels.Set(c.labelsOf(namespace)))
	}
	return namespace == l.owner().Namespace
}

func (c *converter) labelsOf(namespace string) map[string]string {
	c.result.namespaces = true
	if c.in.NamespaceLabels != nil {
		if of := c.in.NamespaceLabels(namespace); of != nil {
			return of
		}
	}
	return map[string]string{"kubernetes.io/metadata.name": namespace}
}

// convert resolves the parents of a route and calls do for those that are Gateways or ListenerSets
// and for those that are Services, unless there are none. It returns the status of the route.
func (c *converter) convert(r *route, parents []gatewayv1.ParentReference, do func(*route, []attachment)) gatewayv1.RouteStatus {
	places, status := c.attach(r, parents)
	for _, mesh := range []bool{false, true} {
		if !slices.ContainsFunc(status, func(s gatewayv1.RouteParentStatus) bool { return (s.ControllerName == MeshController) == mesh }) {
			continue
		}
		side := *r
		if side.mesh = mesh; mesh {
			side.gateways = nil
		}
		do(&side, slices.DeleteFunc(slices.Clone(places), func(at attachment) bool { return (at.service != nil) != mesh }))
		side.finish(status)
	}
	if status == nil {
		status = []gatewayv1.RouteParentStatus{}
	}
	return gatewayv1.RouteStatus{Parents: status}
}

// finish adds the faults of the rules to the status of the parents for which they were converted.
func (r *route) finish(status []gatewayv1.RouteParentStatus) {
	resolved := condition(gatewayv1.RouteConditionResolvedRefs, true, gatewayv1.RouteReasonResolvedRefs, "all references of the route are resolved")
	if r.unresolved.is() {
		resolved = condition(gatewayv1.RouteConditionResolvedRefs, false, r.unresolved.reason, r.unresolved.message)
	}
	for i := range status {
		if s := &status[i]; (s.ControllerName == MeshController) == r.mesh {
			s.Conditions = append(s.Conditions, resolved)
			observe(s.Conditions, r.Generation)
		}
	}
}
