// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package health

import (
	"strconv"
	"time"

	metav1alpha1 "istio.io/api/meta/v1alpha1"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

const (
	// ConditionType is the type of the condition that says in the status of a
	// WorkloadEntry whether its application is healthy, as Istio's.
	ConditionType = "Healthy"
	// ConditionReason marks the conditions that [Table] is the source of.
	ConditionReason = "AgentReport"
	// ChecksAnnotation says of an entry that its condition counts; without the
	// condition it is out of service. Registration sets it.
	ChecksAnnotation = "proxy.istio.io/health-checks-enabled"
)

// told is what the status of an entry says.
type told struct {
	healthy bool
	message string
	at      time.Time // of the report; zero if nobody said
}

// toldBy reads the status of an entry; nil means that it says nothing that
// counts. As in Istio, the condition counts where the annotation says so. Beyond
// Istio, one that comes from a report to this control plane always does, as long
// as the entry is what was spoken of: so does a restart not bring a machine back
// that is not healthy. The annotation with false lets nothing count.
func toldBy(c *model.Config) *told {
	if isDeaf(c) {
		return nil
	}
	checks, err := strconv.ParseBool(c.Annotations[ChecksAnnotation])
	checks = checks && err == nil
	condition := conditionOf(c)
	switch {
	case condition == nil && checks:
		return &told{message: "no agent has said yet that the application is healthy"}
	case condition == nil:
		return nil
	case !checks && (condition.GetReason() != ConditionReason || condition.GetObservedGeneration() != c.SpecGeneration()):
		return nil
	}
	t := &told{healthy: condition.GetStatus() == "True", message: condition.GetMessage()}
	if condition.GetLastProbeTime() != nil {
		t.at = condition.GetLastProbeTime().AsTime()
	}
	return t
}

// isDeaf reports whether an entry is asked not to mind its status.
func isDeaf(c *model.Config) bool {
	on, err := strconv.ParseBool(c.Annotations[ChecksAnnotation])
	return err == nil && !on
}

func conditionOf(c *model.Config) *metav1alpha1.IstioCondition {
	status, ok := c.Status.(*metav1alpha1.IstioStatus)
	if !ok {
		return nil
	}
	for _, condition := range status.GetConditions() {
		if condition.GetType() == ConditionType {
			return condition
		}
	}
	return nil
}

// hear takes what the status of an entry says now. It counts where nobody has
// reported here, or where another replica was informed later than a report whose stream
// is gone. The caller holds mu.
func (t *Table) hear(e *entry, now *told) {
	e.told = now
	if e.verdict == nil || now == nil || !now.at.After(e.verdict.at) {
		return
	}
	if _, open := t.live[e.verdict.proxy]; !open {
		e.verdict = nil
	}
}

// isDown reports whether an entry is out of service, and why.
func (e *entry) isDown() (down bool, why string) {
	switch {
	case e.verdict != nil:
		return !e.verdict.healthy, e.verdict.message
	case e.told != nil:
		return !e.told.healthy, e.told.message
	}
	return false, ""
}

// Follow takes entries of which nothing but the status has changed: another
// replica of the control plane may have received a report. OnChange hears of
// what that takes out of service or brings back.
func (t *Table) Follow(objects []*model.Config) {
	var changed []verdict
	t.mu.Lock()
	for _, c := range objects {
		e := t.entries.byKey[c.Key]
		if e == nil {
			continue // it comes with an Update
		}
		t.hear(e, toldBy(c))
		changed = append(changed, t.settle(e)...)
	}
	t.mu.Unlock()
	t.tell(changed)
	t.changed(changed)
}

// Verdict is what an agent said to this control plane of the application of an
// entry.
type Verdict struct {
	Healthy bool
	Message string // of the agent
	At      time.Time
}

// Verdict returns what was said of an entry here; false means that nobody has.
func (t *Table) Verdict(key model.Key) (Verdict, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.entries.byKey[key]
	if e == nil || e.verdict == nil {
		return Verdict{}, false
	}
	return Verdict{Healthy: e.verdict.healthy, Message: e.verdict.message, At: e.verdict.at}, true
}
