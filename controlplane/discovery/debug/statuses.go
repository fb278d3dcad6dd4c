// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package debug

import (
	"maps"
	"slices"

	"github.com/outrigger-mesh/outrigger/controlplane/gatewayapi"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/report"
)

// maxStatuses is how many statuses of objects an answer contains.
const maxStatuses = 200

// addStatuses adds the statuses that proposed objects of the Gateway API would have, and then those of
// other objects whose status changes.
func addStatuses(out *report.WhatIf, then Outcome, change map[model.Key]*model.Config) {
	if then.After == nil {
		return
	}
	out.Unread = then.Unread
	var others []report.Status
	for _, key := range slices.SortedFunc(maps.Keys(then.After.Status), model.Key.Compare) {
		after := conditionsOf(then.After.Status[key])
		s := report.Status{Ref: refOf(key), Conditions: after}
		if _, proposed := change[key]; proposed {
			out.Statuses = append(out.Statuses, s)
		} else if then.Before != then.After && !slices.Equal(after, conditionsOf(then.Before.Status[key])) {
			others = append(others, s)
		}
	}
	out.Statuses = append(out.Statuses, others...)
	out.StatusesAll = len(out.Statuses)
	out.Statuses = out.Statuses[:min(len(out.Statuses), maxStatuses)]
}

func conditionsOf(status any) []report.Condition {
	out := []report.Condition{}
	for _, c := range gatewayapi.Conditions(status) {
		out = append(out, report.Condition{At: c.At, Type: c.Type, Status: string(c.Status), Reason: c.Reason, Message: c.Message, Bad: c.Bad()})
	}
	return out
}
