// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package autoregister

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// TestProperty applies random sequences of events: machines connect, disconnect, reconnect to
// another replica and have two streams; replicas crash and restart under the same or another name;
// the store is slow, or fails before or after a write; entries are removed and marked. Finally, the
// entries must be exactly those of the connected machines, each owned by a replica of its machine.
// A machine that has been connected to a live replica for a while must always have an entry.
func TestProperty(t *testing.T) {
	for seed := range uint64(60) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			in(t, func(m *mesh) { newScene(m, seed).play(t) })
		})
	}
}

type scene struct {
	m        *mesh
	rand     *rand.Rand
	replicas [2]*replica
	lives    int
	streams  []*ended
	// since is the time from which a machine has been connected without a conflict.
	since map[string]time.Time
}

// ended is an open stream.
type ended struct {
	machine, replica int
	leave            func()
}

func newScene(m *mesh, seed uint64) *scene {
	s := &scene{m: m, rand: rand.New(rand.NewPCG(seed, 1)), since: map[string]time.Time{}}
	m.create(group())
	m.faulty.delay = time.Duration(seed%3) * 700 * time.Millisecond
	for i := range s.replicas {
		s.start(i)
	}
	return s
}

func (s *scene) start(i int) {
	name := fmt.Sprintf("replica-%d", i)
	if s.rand.IntN(2) == 0 {
		s.lives++
		name = fmt.Sprintf("life-%d", s.lives)
	}
	s.replicas[i] = s.m.replica(name)
}

const machines = 6

func nameOf(i int) string { return fmt.Sprintf("web-10.0.0.%d", i+1) }

func (s *scene) connect(i, at int) {
	p := machine(fmt.Sprintf("10.0.0.%d", i+1))
	s.streams = append(s.streams, &ended{i, at, s.replicas[at].connect(p)})
}

func (s *scene) leave(i int) {
	s.streams[i].leave()
	s.streams = slices.Delete(s.streams, i, i+1)
}

func (s *scene) upTo(d time.Duration) time.Duration { return time.Duration(s.rand.Int64N(int64(d))) }

// step performs one event.
func (s *scene) step() {
	switch n := s.rand.IntN(20); {
	case n < 8:
		s.connect(s.rand.IntN(machines), s.rand.IntN(2))
	case n < 14 && len(s.streams) > 0:
		s.leave(s.rand.IntN(len(s.streams)))
	case n < 15: // the machines of a crashed replica move to the other one, return later, or never return
		i := s.rand.IntN(2)
		s.replicas[i].crash()
		var stay []*ended
		var lost []int
		for _, st := range s.streams {
			if st.replica == i {
				lost = append(lost, st.machine)
				delete(s.since, nameOf(st.machine))
			} else {
				stay = append(stay, st)
			}
		}
		s.streams = stay
		time.Sleep(s.upTo(time.Minute))
		s.start(i)
		for _, machine := range lost {
			if s.rand.IntN(3) > 0 {
				s.connect(machine, s.rand.IntN(2))
			}
		}
	case n < 16:
		s.m.faulty.set(errors.New("away"), s.rand.IntN(2) == 0)
		time.Sleep(s.upTo(time.Minute))
		s.m.faulty.set(nil, false)
		clear(s.since)
	case n < 17:
		if c := s.any(); c != nil {
			s.m.delete(c.Key)
			clear(s.since)
		}
	case n < 18:
		if c := s.any(); c != nil {
			s.m.patch(c.Key, func(c *model.Config) {
				delete(c.Annotations, connectedAnnotation)
				c.Annotations[disconnectedAnnotation] = "sometime"
			})
		}
	}
}

// any returns a random entry of the store, or nil if there is none.
func (s *scene) any() *model.Config {
	list := s.m.store.List(model.WorkloadEntry, "")
	if len(list) == 0 {
		return nil
	}
	return list[s.rand.IntN(len(list))]
}

// holders returns the replicas that each machine is connected to.
func (s *scene) holders() map[string][]string {
	out := map[string][]string{}
	for _, st := range s.streams {
		out[nameOf(st.machine)] = append(out[nameOf(st.machine)], s.replicas[st.replica].cfg.Instance)
	}
	return out
}

func (s *scene) play(t *testing.T) {
	for range 60 {
		s.step()
		after(s.upTo([]time.Duration{time.Nanosecond, time.Second, 2 * grace, 2 * time.Minute}[s.rand.IntN(4)]))
		holders := s.holders()
		for name := range s.since {
			if holders[name] == nil {
				delete(s.since, name)
			}
		}
		for name := range holders {
			if s.since[name].IsZero() {
				s.since[name] = time.Now()
			}
			if time.Since(s.since[name]) > longPause*2 && s.m.entry(name) == nil {
				t.Fatalf("%s is connected but has no entry", name)
			}
		}
	}
	// Wait until the replica that was checked last has been checked again.
	after(3 * orphaned)
	wrong := s.wrong()
	for range 3 {
		if wrong != "" {
			after(slack)
			wrong = s.wrong()
		}
	}
	if wrong != "" {
		t.Error(wrong)
	}
	var names []string
	for name := range s.holders() {
		names = append(names, name)
	}
	s.m.wantEntries("at the end", names...)
}

// wrong returns an entry that is not owned by a replica of its machine, or "" if there is none.
func (s *scene) wrong() string {
	for name, at := range s.holders() {
		c := s.m.entry(name)
		if c == nil {
			return fmt.Sprintf("%s is connected to %q and has no entry", name, at)
		}
		if a := c.Annotations; !slices.Contains(at, a[controllerAnnotation]) || a[disconnectedAnnotation] != "" {
			return fmt.Sprintf("%s is connected to %q, its entry says %v", name, at, a)
		}
	}
	return ""
}
