// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package objectstatus

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	analysisv1alpha1 "istio.io/api/analysis/v1alpha1"
	metav1alpha1 "istio.io/api/meta/v1alpha1"

	"github.com/outrigger-mesh/outrigger/controlplane/discovery"
	"github.com/outrigger-mesh/outrigger/controlplane/health"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/internal/clip"
)

// The types of the conditions. Reconciled is one of Istio's.
const (
	reconciledType = "Reconciled"
	analysisType   = "PassedAnalysis"
	matchedType    = "PatchesMatched" // of EnvoyFilters
)

// The values of a condition's status.
const (
	isTrue  = "True"
	isFalse = "False"
)

// The reasons of the conditions.
const (
	reasonAcknowledged = "Acknowledged"
	reasonBehind       = "NotAcknowledged"
	reasonRejected     = "Rejected"
	reasonProblems     = "ProblemsFound"
	reasonMatched      = "Matched"
	reasonIdle         = "NothingMatched"
)

// Limits of the text in a condition.
const (
	maxSentence  = 600 // bytes
	maxSentences = 8
)

// verdict is the content of a condition. The zero value means no condition.
type verdict struct{ status, reason, message string }

// distributed returns the verdict on the progress of the distribution, or the zero verdict if no
// proxy is connected.
func distributed(p discovery.Progress) verdict {
	switch {
	case p.Connected == 0:
		return verdict{}
	case p.Rejected > 0:
		text := fmt.Sprintf("rejected by %d of %s: %s reports for %s: %s", p.Rejected, proxies(p.Connected), rejecting(p), strings.ToUpper(p.Rejection.Type), clip.Text(p.Rejection.Reason, maxSentence))
		if p.Behind > 0 {
			text += fmt.Sprintf("; not yet acknowledged by %d", p.Behind)
		}
		return verdict{isFalse, reasonRejected, text}
	case p.Behind > 0:
		return verdict{isFalse, reasonBehind, fmt.Sprintf("%d of %s %s not acknowledged it yet", p.Behind, proxies(p.Connected), have(p.Behind))}
	}
	return verdict{isTrue, reasonAcknowledged, "in force in all proxies: acknowledged by " + connected(p.Connected)}
}

// matchedBy returns the verdict on what the patches of an EnvoyFilter match.
func matchedBy(m discovery.Matched) verdict {
	text := clip.Text(m.Text, maxSentence*maxSentences)
	if m.Idle > 0 {
		return verdict{isFalse, reasonIdle, fmt.Sprintf("%d of its patches match nothing: %s", m.Idle, text)}
	}
	return verdict{isTrue, reasonMatched, text}
}

// damped returns the verdict to write: the one in the status if only its counts are outdated and it is
// not older than recount.
func (v verdict) damped(c *model.Config, now time.Time) verdict {
	if c == nil {
		return v
	}
	old := conditionOf(statusOf(c), matchedType)
	if old.GetObservedGeneration() == c.SpecGeneration() && old.GetStatus() == v.status && now.Before(old.GetLastProbeTime().AsTime().Add(recount)) {
		return verdictOf(old)
	}
	return v
}

// rejecting returns the verified identity and the node id of the proxy that rejected an object.
func rejecting(p discovery.Progress) string {
	if p.Identity == "" {
		return p.Proxy + " (identity not proven)"
	}
	return fmt.Sprintf("%s (%s)", p.Proxy, p.Identity)
}

func proxies(n int) string {
	if n == 1 {
		return "1 proxy"
	}
	return fmt.Sprintf("%d proxies", n)
}

func have(n int) string {
	if n == 1 {
		return "has"
	}
	return "have"
}

func connected(n int) string {
	if n == 1 {
		return "the 1 that was connected"
	}
	return fmt.Sprintf("the %d that were connected", n)
}

// content is the desired content of an object's status, as far as it is known.
type content struct {
	// distribution is written unless it is zero.
	distribution verdict
	// problems replace earlier ones if analysed is true.
	problems []model.Problem
	analysed bool
	// matched is written unless it is zero, as it is while no proxy is selected.
	matched verdict
	// health is written unless it is nil.
	health *health.Verdict
}

// same reports whether two contents are equal.
func (c content) same(o content) bool {
	if (c.health == nil) != (o.health == nil) || c.health != nil && (c.health.Healthy != o.health.Healthy || c.health.Message != o.health.Message) {
		return false
	}
	return c.distribution == o.distribution && c.matched == o.matched && c.analysed == o.analysed && slices.Equal(c.problems, o.problems)
}

func (c content) empty() bool { return c.distribution == verdict{} && !c.analysed && c.health == nil }

// statusOf returns the status of an object, or nil if it has none.
func statusOf(c *model.Config) *metav1alpha1.IstioStatus {
	status, _ := c.Status.(*metav1alpha1.IstioStatus)
	return status
}

// conditionOf returns the condition of a type, or nil if there is none.
func conditionOf(status *metav1alpha1.IstioStatus, kind string) *metav1alpha1.IstioCondition {
	for _, c := range status.GetConditions() {
		if c.GetType() == kind {
			return c
		}
	}
	return nil
}

// apply returns the desired status of an object, and reports whether it differs from the current
// one. It keeps what other writers have set.
func (c content) apply(object *model.Config, now time.Time) (*metav1alpha1.IstioStatus, bool) {
	old := statusOf(object)
	next := &metav1alpha1.IstioStatus{}
	if old != nil {
		next = proto.CloneOf(old)
	}
	generation := object.SpecGeneration()
	if c.distribution != (verdict{}) {
		set(next, reconciledType, c.distribution, generation, now)
		next.ObservedGeneration = object.Generation
	}
	if c.analysed {
		next.ValidationMessages = messages(next.GetValidationMessages(), c.problems)
		if len(c.problems) > 0 {
			set(next, analysisType, verdict{isFalse, reasonProblems, sentences(c.problems)}, generation, now)
		} else {
			next.Conditions = slices.DeleteFunc(next.GetConditions(), func(c *metav1alpha1.IstioCondition) bool { return c.GetType() == analysisType })
		}
	}
	if c.matched != (verdict{}) {
		set(next, matchedType, c.matched, generation, now)
	}
	if c.health != nil {
		v := verdict{isFalse, health.ConditionReason, clip.Text(c.health.Message, maxSentence)}
		if c.health.Healthy {
			v.status = isTrue
		}
		set(next, health.ConditionType, v, generation, c.health.At)
	}
	return next, !proto.Equal(next, orEmpty(old))
}

func orEmpty(s *metav1alpha1.IstioStatus) *metav1alpha1.IstioStatus {
	if s == nil {
		return &metav1alpha1.IstioStatus{}
	}
	return s
}

// set sets a condition. It does not modify a condition that has the desired content.
func set(status *metav1alpha1.IstioStatus, kind string, v verdict, generation int64, now time.Time) {
	next := &metav1alpha1.IstioCondition{
		Type: kind, Status: v.status, Reason: v.reason, Message: v.message, ObservedGeneration: generation,
		LastProbeTime: timestamppb.New(now), LastTransitionTime: timestamppb.New(now),
	}
	old := conditionOf(status, kind)
	if old == nil {
		status.Conditions = append(status.Conditions, next)
		return
	}
	if old.GetStatus() == v.status {
		if verdictOf(old) == v && old.GetObservedGeneration() == generation {
			return
		}
		next.LastTransitionTime = cmp.Or(old.GetLastTransitionTime(), next.GetLastTransitionTime())
	}
	status.Conditions[slices.Index(status.GetConditions(), old)] = next
}

func verdictOf(c *metav1alpha1.IstioCondition) verdict {
	return verdict{c.GetStatus(), c.GetReason(), c.GetMessage()}
}

// said returns the distribution verdict in the status of an object, or the zero verdict if it
// refers to an earlier generation.
func said(c *model.Config) verdict {
	condition := conditionOf(statusOf(c), reconciledType)
	if condition == nil || condition.GetObservedGeneration() != c.SpecGeneration() {
		return verdict{}
	}
	return verdictOf(condition)
}

// sentences returns the problems as text.
func sentences(problems []model.Problem) string {
	var list []string
	for _, p := range problems[:min(len(problems), maxSentences)] {
		list = append(list, clip.Text(p.Reason, maxSentence))
	}
	if more := len(problems) - len(list); more > 0 {
		list = append(list, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(list, "; ")
}

// messageTypes are the types of messages. Those with IST are Istio's and known to its tools; the
// others have no equivalent in Istio.
var messageTypes = []*analysisv1alpha1.AnalysisMessageBase_Type{
	{Name: "ReferencedResourceNotFound", Code: "IST0101"},
	{Name: "SchemaValidationError", Code: "IST0106"},
	{Name: "TakesNoFullEffect", Code: "OUT0001"},
}

// typeOf returns the type of a problem, as an index into messageTypes, and its level.
func typeOf(p model.Problem) (int, analysisv1alpha1.AnalysisMessageBase_Level) {
	switch {
	case p.Dangling:
		return 0, analysisv1alpha1.AnalysisMessageBase_ERROR
	case p.Warning:
		return 2, analysisv1alpha1.AnalysisMessageBase_WARNING
	}
	return 1, analysisv1alpha1.AnalysisMessageBase_ERROR
}

// messages returns one message for each problem, after the existing messages whose types other
// writers use.
func messages(old []*analysisv1alpha1.AnalysisMessageBase, problems []model.Problem) []*analysisv1alpha1.AnalysisMessageBase {
	var out []*analysisv1alpha1.AnalysisMessageBase
	for _, m := range old {
		if !slices.ContainsFunc(messageTypes, func(t *analysisv1alpha1.AnalysisMessageBase_Type) bool { return t.GetCode() == m.GetType().GetCode() }) {
			out = append(out, m)
		}
	}
	for _, p := range problems {
		kind, level := typeOf(p)
		m := &analysisv1alpha1.AnalysisMessageBase{Type: proto.CloneOf(messageTypes[kind]), Level: level}
		if code := m.GetType().GetCode(); strings.HasPrefix(code, "IST") {
			m.DocumentationUrl = "https://istio.io/latest/docs/reference/config/analysis/" + strings.ToLower(code) + "/"
		}
		out = append(out, m)
	}
	return out
}
