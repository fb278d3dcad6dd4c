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
	// ConditionType is the type of the condition that contains the health of the application in
	// the status of a WorkloadEntry, as in Istio.
	ConditionType = "Healthy"
	// ConditionReason is the reason of conditions that originate from a [Table].
	ConditionReason = "AgentReport"
	// ChecksAnnotation enables the condition of an entry. The entry is then out of service until
	// it has the condition. Registration sets the annotation.
	ChecksAnnotation = "proxy.istio.io/health-checks-enabled"
)

// reported is the health in the status of an entry.
type reported struct {
	healthy bool
	message string
	at      time.Time // of the report; zero if unknown
}

// reportIn reads the health from the status of an entry, or returns nil if the status does not
// determine it. As in Istio, the condition applies if the annotation enables it. In addition, a
// condition from a report to this control plane always applies while the spec of the entry is
// unchanged, so that a restart does not put an unhealthy machine back into service. If the
// annotation is false, the status is ignored.
func reportIn(c *model.Config) *reported {
	if isDeaf(c) {
		return nil
	}
	checks, err := strconv.ParseBool(c.Annotations[ChecksAnnotation])
	checks = checks && err == nil
	condition := conditionOf(c)
	switch {
	case condition == nil && checks:
		return &reported{message: "no agent has reported a healthy application yet"}
	case condition == nil:
		return nil
	case !checks && (condition.GetReason() != ConditionReason || condition.GetObservedGeneration() != c.SpecGeneration()):
		return nil
	}
	t := &reported{healthy: condition.GetStatus() == "True", message: condition.GetMessage()}
	if condition.GetLastProbeTime() != nil {
		t.at = condition.GetLastProbeTime().AsTime()
	}
	return t
}

// isDeaf reports whether the status of an entry must be ignored.
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

// hear records the health in the status of an entry. The status applies if no agent has reported
// to this replica, or if it is newer than a report whose stream has ended. The caller holds mu.
func (t *Table) hear(e *entry, now *reported) {
	e.reported = now
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
	case e.reported != nil:
		return !e.reported.healthy, e.reported.message
	}
	return false, ""
}

// Follow updates entries of which only the status has changed, because another replica of the
// control plane may have received a report. It calls OnChange for entries that go out of service
// or come back.
func (t *Table) Follow(objects []*model.Config) {
	var changed []verdict
	t.mu.Lock()
	for _, c := range objects {
		e := t.entries.byKey[c.Key]
		if e == nil {
			continue // a later Update adds it
		}
		t.hear(e, reportIn(c))
		changed = append(changed, t.settle(e)...)
	}
	t.mu.Unlock()
	t.tell(changed)
	t.changed(changed)
}

// Verdict is the health that an agent reported to this replica for an entry.
type Verdict struct {
	Healthy bool
	Message string // from the agent
	At      time.Time
}

// Verdict returns the health that was reported to this replica for an entry. It returns false if
// there was no report.
func (t *Table) Verdict(key model.Key) (Verdict, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.entries.byKey[key]
	if e == nil || e.verdict == nil {
		return Verdict{}, false
	}
	return Verdict{Healthy: e.verdict.healthy, Message: e.verdict.message, At: e.verdict.at}, true
}
