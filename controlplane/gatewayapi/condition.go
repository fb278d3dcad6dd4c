// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package gatewayapi

import (
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// condition makes a condition; its time is set when it is written.
func condition[T, R ~string](of T, holds bool, reason R, message string) metav1.Condition {
	status := metav1.ConditionTrue
	if !holds {
		status = metav1.ConditionFalse
	}
	return metav1.Condition{Type: string(of), Status: status, Reason: string(reason), Message: clip(message)}
}

// clip keeps a message within what the API server takes.
func clip(s string) string {
	const most = 32 << 10
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "")
	}
	return s
}

// mergeConditions puts conditions into those that are there: those of other types
// stay, and what says the same keeps its time.
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

// onlyConditions is mergeConditions, and drops those of types that are not among
// the wanted ones.
func onlyConditions(there, want []metav1.Condition, now metav1.Time) []metav1.Condition {
	kept := slices.DeleteFunc(slices.Clone(there), func(c metav1.Condition) bool {
		return !slices.ContainsFunc(want, func(w metav1.Condition) bool { return w.Type == c.Type })
	})
	return mergeConditions(kept, want, now)
}
