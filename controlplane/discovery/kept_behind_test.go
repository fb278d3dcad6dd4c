// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"log/slog"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/outrigger-mesh/outrigger/controlplane/generate"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
)

// laggards are streams of one circle that come to snapshots one by one, as slow
// readers do.
type laggards struct {
	circle *circle
	worlds map[uint64]sets
}

// world says what is made in a snapshot: listeners by name, with their hashes.
func (l *laggards) world(sequence uint64, listeners map[string]uint64) {
	table := &table{}
	content := map[string]string{}
	for name, version := range listeners {
		content[name] = name + "=" + versionOf(version)
	}
	table.set(generate.TypeListener, content)
	mesh := table.freeze()
	var made sets
	for i, typeURL := range generate.Types {
		made[i] = table.Generate(mesh, nil, typeURL)
	}
	l.worlds[sequence] = made
}

func newLaggards() *laggards {
	k := newKeeper(Config{CanaryPush: true, Logger: slog.New(slog.DiscardHandler)}, newShared(), nil)
	k.patience = time.Hour
	c := &circle{
		keeper: k, streams: map[*stream]struct{}{}, scopes: map[sets]*scope{},
		variants: map[resourceKey]*variant{}, trials: map[resourceKey]*trial{}, atOnce: 1,
	}
	return &laggards{circle: c, worlds: map[uint64]sets{}}
}

func (l *laggards) join() *stream {
	st := &stream{proxy: &model.Proxy{IPs: []string{"127.77.61.1"}}, wake: make(chan struct{}, 1)}
	st.place.circle = l.circle
	l.circle.streams[st] = struct{}{}
	return st
}

// come brings a stream to a snapshot.
func (l *laggards) come(st *stream, sequence uint64) {
	st.mesh = &published{Mesh: &snapshot.Mesh{Sequence: sequence}}
	l.circle.move(st, l.circle.scopeOf(st, l.worlds[sequence]))
	st.place.sequence = sequence
}

// given is the version that a stream is given under a name, "" for none.
func (l *laggards) given(st *stream, name string) string {
	for _, set := range st.place.scope.view(viewKey{}).sets {
		if res := set.Get(name); res != nil {
			var a anypb.Any
			if proto.Unmarshal(res.Any, &a) == nil {
				return string(a.GetValue())
			}
		}
	}
	return ""
}

// A proxy that missed snapshots and is the first in the next one does not bring
// back to the others what they had long ago.
func TestBehindIsNotLastGood(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		slowFirst bool
	}{"the slow one first": {true}, "the slow one last": {false}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLaggards()
			l.world(1, map[string]uint64{"l": 1, "m": 1, "left": 1})
			l.world(2, map[string]uint64{"l": 2, "m": 2, "n": 1})
			l.world(3, map[string]uint64{"l": 2, "m": 3, "n": 1, "o": 1})
			slow, quick := l.join(), l.join()
			l.come(slow, 1)
			l.come(quick, 1)
			l.come(quick, 2)
			for _, v := range l.circle.variants { // all of the second snapshot was taken
				v.take(time.Hour)
			}
			l.circle.decided(false)
			if got := l.given(quick, "l"); got != "l=2" {
				t.Fatalf("the quick one is given %q, want l=2", got)
			}
			// That it was taken is forgotten after a while.
			clear(l.circle.variants)
			clear(l.circle.trials)
			order := []*stream{slow, quick}
			if !tc.slowFirst {
				order = []*stream{quick, slow}
			}
			for _, st := range order {
				l.come(st, 3)
			}
			for name, want := range map[string]string{
				"l":    "l=2", // both snapshots have it
				"m":    "m=2", // on trial: in its place is what the quick one had
				"n":    "n=1",
				"o":    "",
				"left": "", // gone since the second snapshot
			} {
				if got := l.given(quick, name); got != want {
					t.Errorf("of %s the quick one is given %q, want %q", name, got, want)
				}
			}
		})
	}
}
