// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package health

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
	metav1alpha1 "istio.io/api/meta/v1alpha1"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// stored returns an entry with a condition, or without one if status is empty.
func stored(annotation, status, reason string, generation int64, at time.Time) *model.Config {
	c := &model.Config{
		Key: model.Key{Kind: model.WorkloadEntry, Namespace: "shop", Name: "w"}, Generation: 1,
		Spec: &networkingv1alpha3.WorkloadEntry{Address: "10.0.0.1", ServiceAccount: "web"},
	}
	if annotation != "" {
		c.Annotations = map[string]string{ChecksAnnotation: annotation}
	}
	if status != "" {
		c.Status = &metav1alpha1.IstioStatus{Conditions: []*metav1alpha1.IstioCondition{{
			Type: ConditionType, Status: status, Reason: reason, ObservedGeneration: generation, LastProbeTime: timestamppb.New(at),
		}}}
	}
	return c
}

func isDown(t *Table) bool { return len(t.Unhealthy()) > 0 }

// TestStoredConditions checks which stored statuses apply after a restart.
func TestStoredConditions(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		entry *model.Config
		down  bool
	}{
		"nothing":                         {stored("", "", "", 0, time.Time{}), false},
		"ours":                            {stored("", "False", ConditionReason, 1, time.Time{}), true},
		"ours, healthy":                   {stored("", "True", ConditionReason, 1, time.Time{}), false},
		"ours, of another spec":           {stored("", "False", ConditionReason, 2, time.Time{}), false},
		"condition of another controller": {stored("", "False", "", 1, time.Time{}), false},
		"condition of another controller, requested":         {stored("true", "False", "", 0, time.Time{}), true},
		"healthy condition of another controller, requested": {stored("true", "True", "", 0, time.Time{}), false},
		"unknown, requested":                                 {stored("true", "Unknown", "", 0, time.Time{}), true},
		"nothing, requested":                                 {stored("true", "", "", 0, time.Time{}), true},
		"ours, not requested":                                {stored("false", "False", ConditionReason, 1, time.Time{}), false},
		"invalid annotation":                                 {stored("perhaps", "False", "", 1, time.Time{}), false},
		"ours, invalid annotation":                           {stored("perhaps", "False", ConditionReason, 1, time.Time{}), true},
	} {
		table, err := New(Config{OnChange: func(model.Change) {}})
		if err != nil {
			t.Fatal(err)
		}
		table.Update([]*model.Config{tc.entry})
		if got := isDown(table); got != tc.down {
			t.Errorf("%s: out of service: %v, want %v", name, got, tc.down)
		}
		if _, ok := table.Verdict(tc.entry.Key); ok {
			t.Errorf("%s: a stored status became a verdict, which would be written again", name)
		}
	}
}

// TestStoredAndReportedStatus checks a status that contradicts the report of an agent, and a newer
// report to another replica.
func TestStoredAndReportedStatus(t *testing.T) {
	t.Parallel()
	var changes int
	var spoken []model.Key
	table, err := New(Config{OnChange: func(model.Change) { changes++ }, OnVerdict: func(keys []model.Key) { spoken = append(spoken, keys...) }})
	if err != nil {
		t.Fatal(err)
	}
	past, future := time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	want := func(what string, down bool, n int) {
		t.Helper()
		if isDown(table) != down || changes != n {
			t.Errorf("%s: out of service: %v after %d changes, want %v after %d", what, isDown(table), changes, down, n)
		}
	}
	table.Update([]*model.Config{stored("", "False", ConditionReason, 1, past)})
	want("after a restart", true, 0)
	table.Follow([]*model.Config{stored("", "False", ConditionReason, 1, past)})
	want("unchanged status", true, 0)
	weighted := stored("", "False", ConditionReason, 1, past)
	weighted.Generation, weighted.Spec.(*networkingv1alpha3.WorkloadEntry).Weight = 2, 7
	table.Update([]*model.Config{weighted})
	want("changed weight", true, 0)
	proxy := &model.Proxy{ID: "p", Namespace: "shop", ServiceAccount: "web", IPs: []string{"10.0.0.1"}}
	table.Report(proxy, true, "")
	want("agent reports otherwise", false, 1)
	if v, ok := table.Verdict(weighted.Key); !ok || !v.Healthy || len(spoken) != 1 {
		t.Errorf("Verdict() = %v, %v after changes of %v; want healthy after one change", v, ok, spoken)
	}
	table.Follow([]*model.Config{stored("", "False", ConditionReason, 1, future)})
	want("newer status while the agent is connected", false, 1)
	table.Gone(proxy)
	table.Follow([]*model.Config{stored("", "False", ConditionReason, 1, past)})
	want("older status after the agent disconnected", false, 1)
	table.Follow([]*model.Config{stored("", "False", ConditionReason, 1, future)})
	want("newer status after the agent disconnected", true, 2)
	if _, ok := table.Verdict(weighted.Key); ok {
		t.Error("an outdated verdict would be written")
	}
	table.Follow([]*model.Config{stored("", "True", ConditionReason, 1, future)})
	want("healthy status after the agent disconnected", false, 3)
	moved := stored("", "False", ConditionReason, 1, future)
	moved.Generation, moved.Spec.(*networkingv1alpha3.WorkloadEntry).Address = 2, "10.0.0.2"
	table.Update([]*model.Config{moved})
	want("changed address", false, 3)
}
