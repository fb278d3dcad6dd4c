// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"strings"

	"github.com/outrigger-mesh/outrigger/controlplane/report"
)

// statuses prints the conditions that objects of the Gateway API would have: those that hold in one
// line for each parent or listener, and the others with their reasons.
func (v view) statuses(w report.WhatIf) {
	if len(w.Statuses) == 0 {
		return
	}
	v.say("\nStatus with the change:\n")
	shown, left := cut(v.flags, w.Statuses)
	for _, s := range shown {
		v.say("  %s\n", named(s.Ref))
		if len(s.Conditions) == 0 {
			v.say("    not attached: the control plane serves none of its parents or targets\n")
		}
		for rest := s.Conditions; len(rest) > 0; {
			n := 1
			for n < len(rest) && rest[n].At == rest[0].At {
				n++
			}
			v.conditions(rest[:n])
			rest = rest[n:]
		}
	}
	v.more(left + w.StatusesAll - len(w.Statuses))
	for _, name := range w.Unread {
		v.say("  ConfigMap %s is not read yet, as no object in force names it; its roots count as valid\n", name)
	}
}

// conditions prints the conditions of one part of an object.
func (v view) conditions(list []report.Condition) {
	var holds []string
	for _, c := range list {
		if !c.Bad && c.Status == "True" {
			holds = append(holds, c.Type)
		}
	}
	at := list[0].At
	if len(holds) > 0 {
		v.say("    %s\n", strings.TrimPrefix(at+": ", ": ")+strings.Join(holds, ", "))
	}
	for _, c := range list {
		if !c.Bad {
			continue
		}
		v.say("    %s%s is %s, %s: %s\n", strings.TrimPrefix(at+": ", ": "), c.Type, c.Status, c.Reason, oneLine(c.Message))
	}
}

// rejects reports whether an object would not be accepted, or have a reference that cannot be resolved.
func rejects(list []report.Status) bool {
	for _, s := range list {
		for _, c := range s.Conditions {
			if c.Bad && (c.Type == "Accepted" || c.Type == "ResolvedRefs") {
				return true
			}
		}
	}
	return false
}
