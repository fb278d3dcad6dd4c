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

// The types of the conditions. Reconciled is Istio's.
const (
	reconciledType = "Reconciled"
	analysisType   = "PassedAnalysis"
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
)

// Bounds of the text in a condition.
const (
	maxSentence  = 600 // bytes
	maxSentences = 8
)

// verdict is what a condition says; the zero value says nothing.
type verdict struct{ status, reason, message string }

// distributed returns the verdict of how far the proxies are. Without a proxy there
// is none.
func distributed(p discovery.Progress) verdict {
	switch {
	case p.Connected == 0:
		return verdict{}
	case p.Rejected > 0:
		text := fmt.Sprintf("rejected by %d of %s: %s says of %s: %s", p.Rejected, proxies(p.Connected), rejecting(p), strings.ToUpper(p.Rejection.Type), clip.Text(p.Rejection.Reason, maxSentence))
		if p.Behind > 0 {
			text += fmt.Sprintf("; not yet acknowledged by %d", p.Behind)
		}
		return verdict{isFalse, reasonRejected, text}
	case p.Behind > 0:
		return verdict{isFalse, reasonBehind, fmt.Sprintf("%d of %s %s not acknowledged it yet", p.Behind, proxies(p.Connected), have(p.Behind))}
	}
	return verdict{isTrue, reasonAcknowledged, "in force in all proxies: acknowledged by " + connected(p.Connected)}
}

// rejecting names the proxy that rejected an object: its proven identity, and
// what it calls itself.
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

// content is what the status of an object should say, as far as it is known.
type content struct {
	// distribution is said if it is not empty.
	distribution verdict
	// problems are said, and what was said of earlier ones removed, if analysed.
	problems []model.Problem
	analysed bool
	// health is said if it is not nil.
	health *health.Verdict
}

// same reports whether two contents say the same.
func (c content) same(o content) bool {
	if (c.health == nil) != (o.health == nil) || c.health != nil && (c.health.Healthy != o.health.Healthy || c.health.Message != o.health.Message) {
		return false
	}
	return c.distribution == o.distribution && c.analysed == o.analysed && slices.Equal(c.problems, o.problems)
}

func (c content) empty() bool { return c.distribution == verdict{} && !c.analysed && c.health == nil }

// statusOf returns the status of an object; nil when there is none.
func statusOf(c *model.Config) *metav1alpha1.IstioStatus {
	status, _ := c.Status.(*metav1alpha1.IstioStatus)
	return status
}

// conditionOf returns the condition of a type, nil if there is none.
func conditionOf(status *metav1alpha1.IstioStatus, kind string) *metav1alpha1.IstioCondition {
	for _, c := range status.GetConditions() {
		if c.GetType() == kind {
			return c
		}
	}
	return nil
}

// apply returns the status that an object should have, and whether that is another
// one than it has. What others wrote stays.
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

// set makes a condition say something. One that says it already stays as it is.
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

// said returns what the status of an object says of the distribution of its state;
// nothing if that is of an earlier one.
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

// Types of messages. Those with IST are Istio's, so that tools know them; the
// others are what Istio has no type for.
var messageTypes = []*analysisv1alpha1.AnalysisMessageBase_Type{
	{Name: "ReferencedResourceNotFound", Code: "IST0101"},
	{Name: "SchemaValidationError", Code: "IST0106"},
	{Name: "TakesNoFullEffect", Code: "OUT0001"},
}

// typeOf returns type and level of a problem: the index into messageTypes.
func typeOf(p model.Problem) (int, analysisv1alpha1.AnalysisMessageBase_Level) {
	switch {
	case p.Dangling:
		return 0, analysisv1alpha1.AnalysisMessageBase_ERROR
	case p.Warning:
		return 2, analysisv1alpha1.AnalysisMessageBase_WARNING
	}
	return 1, analysisv1alpha1.AnalysisMessageBase_ERROR
}

// messages returns the messages of problems, one each, behind those of the types of
// others.
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
