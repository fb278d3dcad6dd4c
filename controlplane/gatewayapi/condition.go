// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package gatewayapi

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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
