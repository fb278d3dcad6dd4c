// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package gatewayapi

import (
	"reflect"
	"slices"
	"time"

	kubenetworkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// Merge merges a computed status into the stored one. Entries and conditions of other controllers
// stay. It reports whether the result differs from the stored status. It modifies neither
// argument.
func Merge(there, want any, now time.Time) (status any, differs bool) {
	at := metav1.NewTime(now.Truncate(time.Second)) // the precision of the API server
	switch want := want.(type) {
	case *gatewayv1.GatewayClassStatus:
		old := copyOf[gatewayv1.GatewayClassStatus](there)
		next := *want
		next.Conditions = mergeConditions(old.Conditions, want.Conditions, at)
		status = &next
	case *gatewayv1.GatewayStatus:
		status = mergeGateway(copyOf[gatewayv1.GatewayStatus](there), want, at)
	case *gatewayv1.ListenerSetStatus:
		status = mergeSet(copyOf[gatewayv1.ListenerSetStatus](there), want, at)
	case *gatewayv1.HTTPRouteStatus:
		status = &gatewayv1.HTTPRouteStatus{RouteStatus: mergeRoute(copyOf[gatewayv1.HTTPRouteStatus](there).RouteStatus, want.RouteStatus, at)}
	case *gatewayv1.GRPCRouteStatus:
		status = &gatewayv1.GRPCRouteStatus{RouteStatus: mergeRoute(copyOf[gatewayv1.GRPCRouteStatus](there).RouteStatus, want.RouteStatus, at)}
	case *gatewayv1.TLSRouteStatus:
		status = &gatewayv1.TLSRouteStatus{RouteStatus: mergeRoute(copyOf[gatewayv1.TLSRouteStatus](there).RouteStatus, want.RouteStatus, at)}
	case *gatewayv1.TCPRouteStatus:
		status = &gatewayv1.TCPRouteStatus{RouteStatus: mergeRoute(copyOf[gatewayv1.TCPRouteStatus](there).RouteStatus, want.RouteStatus, at)}
	case *gatewayv1.PolicyStatus:
		status = mergePolicy(copyOf[gatewayv1.PolicyStatus](there), want, at)
	case *kubenetworkingv1.IngressStatus:
		status = want
	default:
		return there, false
	}
	return status, !same(there, status)
}

// same compares two statuses. An empty status equals a missing one.
func same(there, status any) bool {
	if there == nil || reflect.ValueOf(there).IsNil() {
		return saysNothing(status)
	}
	return equality.Semantic.DeepEqual(there, status)
}

func saysNothing(status any) bool {
	switch s := status.(type) {
	case *gatewayv1.HTTPRouteStatus:
		return len(s.Parents) == 0
	case *gatewayv1.GRPCRouteStatus:
		return len(s.Parents) == 0
	case *gatewayv1.TLSRouteStatus:
		return len(s.Parents) == 0
	case *gatewayv1.TCPRouteStatus:
		return len(s.Parents) == 0
	case *gatewayv1.PolicyStatus:
		return len(s.Ancestors) == 0
	case *kubenetworkingv1.IngressStatus:
		return len(s.LoadBalancer.Ingress) == 0
	}
	return false
}

// copyOf returns a copy of a status, or an empty one if there is none.
func copyOf[T any](there any) *T {
	if v, ok := there.(*T); ok && v != nil {
		c, _ := model.CloneSpec(v).(*T)
		return c
	}
	return new(T)
}

func mergeGateway(old, want *gatewayv1.GatewayStatus, now metav1.Time) *gatewayv1.GatewayStatus {
	next := *old
	next.Addresses = want.Addresses
	// This condition must go when it does not hold.
	const insecure = string(gatewayv1.GatewayConditionInsecureFrontendValidationMode)
	kept := slices.DeleteFunc(slices.Clone(old.Conditions), func(c metav1.Condition) bool { return c.Type == insecure && !gatewayHas(want, insecure) })
	next.Conditions = mergeConditions(kept, want.Conditions, now)
	next.AttachedListenerSets = want.AttachedListenerSets
	next.Listeners = nil
	for _, l := range want.Listeners {
		i := slices.IndexFunc(old.Listeners, func(o gatewayv1.ListenerStatus) bool { return o.Name == l.Name })
		var before []metav1.Condition
		if i >= 0 {
			before = old.Listeners[i].Conditions
		}
		l.Conditions = mergeConditions(before, l.Conditions, now)
		next.Listeners = append(next.Listeners, l)
	}
	return &next
}

func mergeSet(old, want *gatewayv1.ListenerSetStatus, now metav1.Time) *gatewayv1.ListenerSetStatus {
	next := &gatewayv1.ListenerSetStatus{Conditions: mergeConditions(old.Conditions, want.Conditions, now)}
	for _, l := range want.Listeners {
		i := slices.IndexFunc(old.Listeners, func(o gatewayv1.ListenerEntryStatus) bool { return o.Name == l.Name })
		var before []metav1.Condition
		if i >= 0 {
			before = old.Listeners[i].Conditions
		}
		l.Conditions = mergeConditions(before, l.Conditions, now)
		next.Listeners = append(next.Listeners, l)
	}
	return next
}

func gatewayHas(s *gatewayv1.GatewayStatus, condition string) bool {
	return slices.ContainsFunc(s.Conditions, func(c metav1.Condition) bool { return c.Type == condition })
}

func ours(c gatewayv1.GatewayController) bool { return c == Controller || c == MeshController }

// mergeRoute keeps the entries of other controllers in their order.
func mergeRoute(old, want gatewayv1.RouteStatus, now metav1.Time) gatewayv1.RouteStatus {
	find := func(list []gatewayv1.RouteParentStatus, p gatewayv1.RouteParentStatus) int {
		return slices.IndexFunc(list, func(q gatewayv1.RouteParentStatus) bool {
			return q.ControllerName == p.ControllerName && equality.Semantic.DeepEqual(q.ParentRef, p.ParentRef)
		})
	}
	next := gatewayv1.RouteStatus{Parents: []gatewayv1.RouteParentStatus{}}
	for _, p := range old.Parents {
		if !ours(p.ControllerName) || find(want.Parents, p) >= 0 {
			next.Parents = append(next.Parents, p)
		}
	}
	for _, p := range want.Parents {
		i := find(next.Parents, p)
		if i < 0 {
			p.Conditions = mergeConditions(nil, p.Conditions, now)
			next.Parents = append(next.Parents, p)
			continue
		}
		next.Parents[i].Conditions = onlyConditions(next.Parents[i].Conditions, p.Conditions, now)
	}
	return next
}

// maxAncestors is the maximum number of ancestors that the schema of a policy allows.
const maxAncestors = 16

func mergePolicy(old, want *gatewayv1.PolicyStatus, now metav1.Time) *gatewayv1.PolicyStatus {
	find := func(list []gatewayv1.PolicyAncestorStatus, a gatewayv1.PolicyAncestorStatus) int {
		return slices.IndexFunc(list, func(b gatewayv1.PolicyAncestorStatus) bool {
			return b.ControllerName == a.ControllerName && equality.Semantic.DeepEqual(b.AncestorRef, a.AncestorRef)
		})
	}
	next := &gatewayv1.PolicyStatus{Ancestors: []gatewayv1.PolicyAncestorStatus{}}
	for _, a := range old.Ancestors {
		if a.ControllerName != Controller || find(want.Ancestors, a) >= 0 {
			next.Ancestors = append(next.Ancestors, a)
		}
	}
	for _, a := range want.Ancestors {
		i := find(next.Ancestors, a)
		switch {
		case i >= 0:
			next.Ancestors[i].Conditions = onlyConditions(next.Ancestors[i].Conditions, a.Conditions, now)
		case len(next.Ancestors) < maxAncestors:
			a.Conditions = mergeConditions(nil, a.Conditions, now)
			next.Ancestors = append(next.Ancestors, a)
		}
	}
	return next
}
