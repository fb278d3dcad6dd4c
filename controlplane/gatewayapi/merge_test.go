// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package gatewayapi

import (
	"testing"
	"time"

	kubenetworkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

func parent(controller gatewayv1.GatewayController, name string, conditions ...metav1.Condition) gatewayv1.RouteParentStatus {
	return gatewayv1.RouteParentStatus{ParentRef: gatewayv1.ParentReference{Name: gatewayv1.ObjectName(name)}, ControllerName: controller, Conditions: conditions}
}

// TestMergeRoute checks that a second merge changes nothing, so that a status is written only once.
// Entries of other controllers must stay, entries of this controller for removed parents must be
// removed, and a condition must keep the time of its last change.
func TestMergeRoute(t *testing.T) {
	t.Parallel()
	first, later := time.Unix(1000, 0), time.Unix(2000, 0)
	accepted := condition(gatewayv1.RouteConditionAccepted, true, gatewayv1.RouteReasonAccepted, "yes")
	partial := condition(gatewayv1.RouteConditionPartiallyInvalid, true, gatewayv1.RouteReasonUnsupportedValue, "some")
	there := &gatewayv1.HTTPRouteStatus{RouteStatus: gatewayv1.RouteStatus{Parents: []gatewayv1.RouteParentStatus{
		parent("example.com/other", "edge", accepted), parent(Controller, "gone", accepted),
	}}}
	want := &gatewayv1.HTTPRouteStatus{RouteStatus: gatewayv1.RouteStatus{Parents: []gatewayv1.RouteParentStatus{parent(Controller, "edge", accepted, partial)}}}
	merged, differs := Merge(there, want, first)
	got := merged.(*gatewayv1.HTTPRouteStatus).Parents
	if !differs || len(got) != 2 || got[0].ControllerName != "example.com/other" || got[1].ParentRef.Name != "edge" || !got[1].Conditions[0].LastTransitionTime.Time.Equal(first) {
		t.Fatalf("Merge() = %+v, differs %t", got, differs)
	}
	if len(there.Parents) != 2 || there.Parents[1].ParentRef.Name != "gone" || !want.Parents[0].Conditions[0].LastTransitionTime.IsZero() {
		t.Error("Merge changed its arguments")
	}
	if again, differs := Merge(merged, want, later); differs {
		t.Errorf("merging the same status again differs: %+v", again)
	}
	want = &gatewayv1.HTTPRouteStatus{RouteStatus: gatewayv1.RouteStatus{Parents: []gatewayv1.RouteParentStatus{
		parent(Controller, "edge", condition(gatewayv1.RouteConditionAccepted, true, gatewayv1.RouteReasonAccepted, "another message")),
	}}}
	merged, differs = Merge(merged, want, later)
	got = merged.(*gatewayv1.HTTPRouteStatus).Parents
	if !differs || len(got[1].Conditions) != 1 || !got[1].Conditions[0].LastTransitionTime.Time.Equal(first) {
		t.Errorf("Merge() = %+v, want one condition with its old time", got[1])
	}
	if merged, differs = Merge(merged, &gatewayv1.HTTPRouteStatus{RouteStatus: gatewayv1.RouteStatus{Parents: []gatewayv1.RouteParentStatus{}}}, later); !differs || len(merged.(*gatewayv1.HTTPRouteStatus).Parents) != 1 {
		t.Errorf("merging a status without parents: got %+v, differs %t", merged, differs)
	}
}

func TestMergeGateway(t *testing.T) {
	t.Parallel()
	first, later := time.Unix(1000, 0), time.Unix(2000, 0)
	programmed := func(holds bool) metav1.Condition {
		return condition(gatewayv1.ListenerConditionProgrammed, holds, gatewayv1.ListenerReasonProgrammed, "")
	}
	want := func(holds bool) *gatewayv1.GatewayStatus {
		return &gatewayv1.GatewayStatus{
			Conditions: []metav1.Condition{condition(gatewayv1.GatewayConditionAccepted, true, gatewayv1.GatewayReasonAccepted, "")},
			Listeners:  []gatewayv1.ListenerStatus{{Name: "http", SupportedKinds: []gatewayv1.RouteGroupKind{}, Conditions: []metav1.Condition{programmed(holds)}}},
		}
	}
	foreign := metav1.Condition{Type: "example.com/Seen", Status: metav1.ConditionTrue}
	merged, differs := Merge(&gatewayv1.GatewayStatus{Conditions: []metav1.Condition{foreign}, Listeners: []gatewayv1.ListenerStatus{{Name: "gone"}}}, want(true), first)
	got := merged.(*gatewayv1.GatewayStatus)
	if !differs || len(got.Conditions) != 2 || got.Conditions[0].Type != foreign.Type || len(got.Listeners) != 1 {
		t.Fatalf("Merge() = %+v", got)
	}
	if _, differs := Merge(merged, want(true), later); differs {
		t.Error("merging the same status again differs")
	}
	merged, differs = Merge(merged, want(false), later)
	if got = merged.(*gatewayv1.GatewayStatus); !differs || !got.Listeners[0].Conditions[0].LastTransitionTime.Time.Equal(later) || !got.Conditions[1].LastTransitionTime.Time.Equal(first) {
		t.Errorf("Merge() of a changed listener = %+v", got)
	}
}

// TestMergeNothing checks that an empty status is not written to an object without a status.
func TestMergeNothing(t *testing.T) {
	t.Parallel()
	for _, want := range []any{&gatewayv1.TLSRouteStatus{}, &gatewayv1.TCPRouteStatus{}, &gatewayv1.GRPCRouteStatus{}, &gatewayv1.PolicyStatus{}, &kubenetworkingv1.IngressStatus{}} {
		if _, differs := Merge(nil, want, time.Unix(1, 0)); differs {
			t.Errorf("an empty %T differs from no status", want)
		}
	}
	if _, differs := Merge(nil, &kubenetworkingv1.IngressStatus{LoadBalancer: kubenetworkingv1.IngressLoadBalancerStatus{
		Ingress: []kubenetworkingv1.IngressLoadBalancerIngress{{IP: "192.0.2.1"}},
	}}, time.Unix(1, 0)); !differs {
		t.Error("an address does not differ from no status")
	}
}

// TestMergeInsecure checks that the condition of a Gateway that accepts all client certificates goes
// when it does not hold, and that conditions of others stay.
func TestMergeInsecure(t *testing.T) {
	t.Parallel()
	insecure := condition(gatewayv1.GatewayConditionInsecureFrontendValidationMode, true, gatewayv1.GatewayReasonConfigurationChanged, "")
	foreign := metav1.Condition{Type: "example.com/Other", Status: metav1.ConditionTrue}
	there := &gatewayv1.GatewayStatus{Conditions: []metav1.Condition{insecure, foreign}}
	for _, want := range []*gatewayv1.GatewayStatus{{Conditions: []metav1.Condition{insecure}}, {}} {
		got, _ := Merge(there, want, time.Now())
		merged, ok := got.(*gatewayv1.GatewayStatus)
		if !ok || len(merged.Conditions) != 1+len(want.Conditions) || merged.Conditions[len(want.Conditions)].Type != foreign.Type {
			t.Errorf("merged %v into %v: got %v", want, there, got)
		}
	}
}
