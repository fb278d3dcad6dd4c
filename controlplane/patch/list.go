// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package patch

import (
	"slices"

	"google.golang.org/protobuf/proto"
)

// edit applies an operation on a list of named elements: the element that matches decides the
// position. With anyone, every element matches, so that INSERT_BEFORE is at the start and INSERT_AFTER
// at the end. edit reports whether it had an effect. It does not merge.
func edit[E proto.Message](list []E, p *Patch, anyone bool, matches func(E) bool) ([]E, bool) {
	if p.Operation == remove {
		n := len(list)
		list = slices.DeleteFunc(list, matches)
		return list, len(list) < n
	}
	if p.value == nil {
		return list, false
	}
	value, ok := proto.Clone(p.value).(E)
	if !ok {
		return list, false
	}
	at := slices.IndexFunc(list, matches)
	switch p.Operation {
	case add:
		return append(list, value), true
	case insertFirst:
		return slices.Insert(list, 0, value), true
	case insertBefore:
		if anyone {
			at = 0
		}
		if at >= 0 {
			return slices.Insert(list, at, value), true
		}
	case insertAfter:
		if anyone {
			at = len(list) - 1
		}
		if at >= 0 || anyone {
			return slices.Insert(list, at+1, value), true
		}
	case replace:
		if at >= 0 && !anyone {
			list[at] = value
			return list, true
		}
	}
	return list, false
}

func (p *Patch) merges() bool { return p.Operation == merge || p.Operation == mergeLists }

// into merges the value of the patch into a message.
func (p *Patch) into(dst proto.Message) { into(dst, p.value, p.Operation == mergeLists) }
