// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package config

import "github.com/outrigger-mesh/outrigger/controlplane/model"

// EventType is the type of a change of an object.
type EventType int

// The numbers are those of Istio's model.Event.
const (
	Added EventType = iota
	Updated
	Deleted
)

func (t EventType) String() string {
	switch t {
	case Added:
		return "add"
	case Updated:
		return "update"
	}
	return "delete"
}

// Event is one change of one object. Old is nil for [Added], New for
// [Deleted].
type Event struct {
	Type     EventType
	Old, New *model.Config
}

// newEvent returns the event between two states of an object, at most one of which is
// nil.
func newEvent(before, after *model.Config) Event {
	e := Event{Type: Updated, Old: before, New: after}
	switch {
	case before == nil:
		e.Type = Added
	case after == nil:
		e.Type = Deleted
	}
	return e
}

// Current returns the newest state of the object in the event.
func (e Event) Current() *model.Config {
	if e.New != nil {
		return e.New
	}
	return e.Old
}

// Change returns the union of what events changed.
func Change(events []Event) model.Change {
	keys := make([]model.Key, len(events))
	for i, e := range events {
		keys[i] = e.Current().Key
	}
	return model.NewChange(keys...)
}
