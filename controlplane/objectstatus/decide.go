// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package objectstatus

import (
	"time"

	"github.com/outrigger-mesh/outrigger/controlplane/discovery"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// jobs returns the pending writes and the time of the next check. Without a distribution, this
// replica writes health only. The caller holds mu.
func (w *Writer) jobs(now time.Time, dist *discovery.Distribution) (list []job, due time.Time) {
	due = now.Add(poll)
	look := func(key model.Key) {
		j, again := w.job(key, now, dist)
		if j != nil {
			list = append(list, *j)
		}
		if !again.IsZero() && again.Before(due) {
			due = again
		}
	}
	for key := range w.dirty {
		look(key)
	}
	if dist != nil {
		for key := range w.open {
			if !w.dirty[key] {
				look(key)
			}
		}
	}
	return list, due
}

// job returns the pending write of one object, or nil, and the time of the next check. The caller
// holds mu.
func (w *Writer) job(key model.Key, now time.Time, dist *discovery.Distribution) (*job, time.Time) {
	o := w.objects[key]
	if o == nil {
		delete(w.dirty, key)
		return nil, time.Time{}
	}
	if now.Before(o.retry) {
		return nil, o.retry
	}
	j := &job{key: key, object: o, config: o.config, generation: o.generation, epoch: o.epoch}
	if w.cfg.Health != nil && key.Kind == model.WorkloadEntry {
		if v, ok := w.cfg.Health(key); ok {
			j.want.health = &v
		}
	}
	var again time.Time
	if dist != nil {
		var v verdict
		hold := false
		if v, again, hold = w.distribution(key, o, now, dist); !hold {
			j.want.distribution, j.want.analysed, j.want.problems = v, true, w.problems[key]
			j.want.matched = w.matched[key].damped(o.config, now)
			for _, p := range j.want.problems {
				j.invalid = j.invalid || !p.Warning && !p.Dangling
			}
		} else if j.want.health == nil {
			return nil, again
		}
		if hold {
			w.dirty[key] = true // the distribution is written later
		}
	}
	if j.want.empty() {
		delete(w.dirty, key)
		return nil, again
	}
	differs := !j.want.same(o.done)
	if differs && o.config != nil && !j.invalid {
		_, differs = j.want.apply(o.config, now)
	}
	if differs {
		return j, again
	}
	if j.want.analysed || dist == nil {
		w.settled(key, o, j.want)
	}
	return nil, again
}

// settled records that the status of an object has the desired content. The caller holds mu.
func (w *Writer) settled(key model.Key, o *object, want content) {
	o.done = want
	if want.distribution.status == isTrue {
		w.close(key, o)
	}
	delete(w.dirty, key)
}

// distribution returns the distribution verdict to write, the time of the next check, and whether
// writing the distribution and the problems must wait until then. The caller holds mu.
func (w *Writer) distribution(key model.Key, o *object, now time.Time, dist *discovery.Distribution) (v verdict, again time.Time, hold bool) {
	switch {
	case o.closed || o.config == nil:
		return verdict{}, time.Time{}, false
	case o.phase != published:
		return verdict{}, time.Time{}, true // Published wakes the rounds
	case now.Before(o.since.Add(settling)):
		return verdict{}, o.since.Add(settling), true
	}
	v = distributed(dist.Of(o.sequence))
	if v.reason == reasonBehind && now.Before(o.since.Add(patience)) {
		return verdict{}, o.since.Add(patience), true
	}
	if v == (verdict{}) {
		return v, time.Time{}, false
	}
	was := said(o.config)
	if v.status == isTrue && was.status == isTrue {
		w.close(key, o) // another replica has written the verdict first
		return verdict{}, time.Time{}, false
	}
	if again = mayOverrule(o, was, v, now); !again.IsZero() {
		return verdict{}, again, false
	}
	return v, time.Time{}, false
}

// mayOverrule returns the time at which a verdict may replace the one in the status for the same
// generation. Zero means now.
func mayOverrule(o *object, was, v verdict, now time.Time) time.Time {
	own := was == o.own
	switch {
	case was == verdict{}, own && v.status == isTrue:
		return time.Time{}
	case v.reason == reasonBehind && was.status == isTrue:
		// Another replica wrote that all of its proxies have the object. The proxies of this
		// replica will accept or reject it.
		return now.Add(poll)
	case own && was.reason == v.reason:
		if next := o.written.Add(recount); now.Before(next) {
			return next
		}
		return time.Time{}
	case own || was.status == isTrue:
		return time.Time{}
	}
	if o.foreign != was {
		o.foreign, o.foreignSince = was, now
	}
	if next := o.foreignSince.Add(takeover); now.Before(next) {
		return next
	}
	return time.Time{}
}

// missing returns the number of objects that some proxies have not applied.
func (w *Writer) missing() float64 {
	dist := w.cfg.Distribution()
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	for key, o := range w.objects {
		if o.config == nil || o.phase != published || !w.inForce(key.Kind) {
			continue
		}
		if p := dist.Of(o.sequence); p.Behind+p.Rejected > 0 {
			n++
		}
	}
	return float64(n)
}

// Distribution returns the progress of the connected proxies with the last change of an object,
// and the proxies that lack it. It returns false for an object that is not in a snapshot or does
// not affect proxies.
func (w *Writer) Distribution(key model.Key) (p discovery.Progress, missing []discovery.ProxyStanding, known bool) {
	dist := w.cfg.Distribution()
	w.mu.Lock()
	defer w.mu.Unlock()
	o := w.objects[key]
	if o == nil || o.config == nil || o.phase != published || !w.inForce(key.Kind) {
		return p, nil, false
	}
	return dist.Of(o.sequence), dist.Missing(o.sequence), true
}
