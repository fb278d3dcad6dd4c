// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package gatewayapi

import (
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/outrigger-mesh/outrigger/internal/clip"
)

// maxMessage is the maximum length of a message that the API server accepts, in bytes.
const maxMessage = 32 << 10

// condition returns a condition without a time, which is set when the condition is written.
func condition[T, R ~string](of T, holds bool, reason R, message string) metav1.Condition {
	status := metav1.ConditionTrue
	if !holds {
		status = metav1.ConditionFalse
	}
	return metav1.Condition{Type: string(of), Status: status, Reason: string(reason), Message: clip.Start(message, maxMessage)}
}

// mergeConditions merges conditions into the existing ones. Conditions of other types stay, and
// unchanged conditions keep their time.
func mergeConditions(there, want []metav1.Condition, now metav1.Time) []metav1.Condition {
	out := slices.Clone(there)
	for _, w := range want {
		w.LastTransitionTime = now
		i := slices.IndexFunc(out, func(c metav1.Condition) bool { return c.Type == w.Type })
		if i < 0 {
			out = append(out, w)
			continue
		}
		if out[i].Status == w.Status {
			w.LastTransitionTime = out[i].LastTransitionTime
		}
		out[i] = w
	}
	return out
}

// onlyConditions is like mergeConditions, but removes conditions of other types.
func onlyConditions(there, want []metav1.Condition, now metav1.Time) []metav1.Condition {
	kept := slices.DeleteFunc(slices.Clone(there), func(c metav1.Condition) bool {
		return !slices.ContainsFunc(want, func(w metav1.Condition) bool { return w.Type == c.Type })
	})
	return mergeConditions(kept, want, now)
}

// Condition is a condition of a status, or of a part of one.
type Condition struct {
	// At names the parent of a route, the listener of a Gateway, or the ancestor of a policy; empty for
	// the object itself.
	At string
	metav1.Condition
}

// Bad reports whether the condition says that something is wrong.
func (c Condition) Bad() bool {
	negative := c.Type == string(gatewayv1.ListenerConditionConflicted) || c.Type == string(gatewayv1.GatewayConditionInsecureFrontendValidationMode)
	return (c.Status == metav1.ConditionTrue) == negative
}

// Conditions returns the conditions of a status and of its parts.
func Conditions(status any) (out []Condition) {
	add := func(at string, list []metav1.Condition) {
		for _, c := range list {
			out = append(out, Condition{at, c})
		}
	}
	route := func(s gatewayv1.RouteStatus) {
		for _, p := range s.Parents {
			add(parentText(p.ParentRef), p.Conditions)
		}
	}
	switch s := status.(type) {
	case *gatewayv1.GatewayClassStatus:
		add("", s.Conditions)
	case *gatewayv1.GatewayStatus:
		add("", s.Conditions)
		for _, l := range s.Listeners {
			add("listener "+string(l.Name), l.Conditions)
		}
	case *gatewayv1.ListenerSetStatus:
		add("", s.Conditions)
		for _, l := range s.Listeners {
			add("listener "+string(l.Name), l.Conditions)
		}
	case *gatewayv1.HTTPRouteStatus:
		route(s.RouteStatus)
	case *gatewayv1.GRPCRouteStatus:
		route(s.RouteStatus)
	case *gatewayv1.TLSRouteStatus:
		route(s.RouteStatus)
	case *gatewayv1.TCPRouteStatus:
		route(s.RouteStatus)
	case *gatewayv1.PolicyStatus:
		for _, a := range s.Ancestors {
			add(parentText(a.AncestorRef), a.Conditions)
		}
	}
	return out
}

// parentText returns a parent with what its reference names of it.
func parentText(ref gatewayv1.ParentReference) string {
	out := string(orElse(ref.Kind, kindGateway)) + " "
	if ref.Namespace != nil {
		out += string(*ref.Namespace) + "/"
	}
	out += string(ref.Name)
	if ref.SectionName != nil {
		out += " listener " + string(*ref.SectionName)
	}
	if ref.Port != nil {
		out += fmt.Sprintf(" port %d", *ref.Port)
	}
	return out
}
