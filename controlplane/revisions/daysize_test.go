// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package revisions

import (
	"errors"
	"maps"
	"os"
	"runtime"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/report"
)

// proxies returns the number of Pods.
func (d *day) proxies() (n int) {
	for _, svc := range d.pods.services {
		n += len(svc.Endpoints) / 2
	}
	return n
}

// size returns the bytes of all files of a log.
func (d *day) size(l *Log) (n int64) {
	files, err := os.ReadDir(l.cfg.Dir)
	if err != nil {
		d.t.Fatal(err)
	}
	for _, f := range files {
		info, err := f.Info()
		if err != nil {
			d.t.Fatal(err)
		}
		n += info.Size()
	}
	return n
}

// TestDay checks the sizes of a history. With 1,000 proxies, a day fits into half of the files, which
// is what remains when they are replaced, and all files into 200 MB.
func TestDay(t *testing.T) {
	t.Parallel()
	const hours = 2
	d := newDay(t, 200, 0)
	var base [2]int64
	for i, l := range d.logs {
		base[i] = l.size
	}
	d.run(hours)
	var most int64
	for i, l := range d.logs {
		if size := base[i] + (l.size-base[i])*24/hours; size == base[i] || size > defaultFileSize {
			t.Errorf("%s: a day takes %d bytes, want %d at most", l.cfg.Dir, size, defaultFileSize)
		}
		most += 2*l.cfg.FileSize + base[i] // the next file is written before the older one is removed
	}
	if n := d.proxies(); n < 900 || n > 1100 || most > 200e6 {
		t.Errorf("%d proxies take %d bytes at most, want 1,000 and 200 MB", n, most)
	}
}

// TestFullDay lets the files of a history be replaced several times. The oldest versions go first, the
// answers say since when the history reaches, and since then each moment is known exactly.
func TestFullDay(t *testing.T) {
	t.Parallel()
	const size, hours = 64 << 10, 16
	d := newDay(t, 4, size)
	objects := d.logs[0]
	type moment struct {
		at      time.Time
		objects map[model.Key]*model.Config
		mesh    *meshv1alpha1.MeshConfig
	}
	var moments []moment
	var begins time.Time
	replaced := 0
	for range hours {
		d.run(1)
		moments = append(moments, moment{d.now, maps.Clone(d.store.objects), d.mesh})
		for _, l := range d.logs {
			if n := d.size(l); n > 2*size+64<<10 {
				t.Errorf("%s has %d bytes, want %d and one change at most", l.cfg.Dir, n, 2*size)
			}
		}
		d.pass(time.Second)
		h, err := objects.List(Filter{})
		if err != nil || h.Begins.Before(begins) {
			t.Fatalf("the history begins at %s, %v; before, it began at %s", h.Begins, err, begins)
		}
		if h.Begins.After(begins) && !begins.IsZero() {
			replaced++
		}
		begins = h.Begins
	}
	if replaced < 2 {
		t.Errorf("the oldest versions went %d times, want twice", replaced)
	}
	known := 0
	for _, m := range moments {
		changes, err := objects.Changes(m.at, d.now)
		if m.at.Before(begins) {
			if !errors.Is(err, EarlierError{begins}) {
				t.Errorf("Changes since %s = %v, want an error with %s", m.at, err, begins)
			}
			continue
		} else if err != nil {
			t.Fatal(err)
		}
		known++
		for _, c := range changes {
			if c.Kind == string(model.MeshConfigKind) {
				old, err := Mesh(*c.Before)
				if diff := cmp.Diff(m.mesh, old, protocmp.Transform()); err != nil || diff != "" {
					t.Errorf("mesh config at %s: %v %s", m.at, err, diff)
				}
				m.mesh = d.mesh
				continue
			}
			old, err := Object(*c.Before)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(m.objects[old.Key].Spec, old.Spec, protocmp.Transform()); diff != "" {
				t.Errorf("%s at %s: %s", old.Key, m.at, diff)
			}
			delete(m.objects, old.Key)
		}
		if m.mesh != d.mesh {
			t.Errorf("the mesh config has changed since %s, but Changes has no earlier version", m.at)
		}
		for key, c := range m.objects {
			if d.store.objects[key] != c {
				t.Errorf("%s has changed since %s, but Changes has no earlier version", key, m.at)
			}
		}
	}
	if known == 0 {
		t.Error("no hour is known")
	}
}

// fill lets time pass until the files of a log are nearly full, when there is most to read.
func (d *day) fill(i int) {
	l := d.logs[i]
	keys := slices.SortedFunc(maps.Keys(d.pods.services), model.Key.Compare)
	for n := 0; l.size < l.cfg.FileSize*95/100 || d.size(l) < l.cfg.FileSize*19/10; n++ {
		key := keys[n%len(keys)]
		if i == 0 {
			d.note(model.NewChange(d.configure(model.VirtualService, key.Namespace, key.Name)))
		} else {
			d.scale(key, 1, "full")
			d.scale(key, -1, "")
			d.note(model.NewChange(key))
		}
		d.pass(10 * time.Second)
	}
}

// measured returns the CPU time of a function in milliseconds: the median of five times.
func measured(b *testing.B, f func()) float64 {
	used := func() time.Duration {
		var u syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
			b.Fatal(err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	var all []time.Duration
	for range 5 {
		before := used()
		f()
		all = append(all, used()-before)
	}
	slices.Sort(all)
	return all[len(all)/2].Seconds() * 1000
}

// BenchmarkDay records 24 hours of 1,000 proxies, and asks what outrigger history, diff, rollback and
// explain request ask. It does so again when the files are full. The time of the clock is simulated.
func BenchmarkDay(b *testing.B) {
	for b.Loop() {
		d := newDay(b, 200, 0)
		d.run(24)
		b.ReportMetric(float64(d.proxies()), "proxies")
		b.ReportMetric(float64(d.size(d.logs[0])+d.size(d.logs[1]))/1e6, "disk-MB")
		d.ask(b, "")
		for i := range d.logs {
			d.fill(i)
		}
		b.ReportMetric(float64(d.size(d.logs[0])+d.size(d.logs[1]))/1e6, "full-disk-MB")
		d.ask(b, "full-")
		kept := heap()
		for _, l := range d.logs {
			l.known, l.limits = nil, nil
		}
		b.ReportMetric((kept-heap())/1e6, "kept-MB")
		runtime.KeepAlive(d)
	}
}

func (d *day) ask(b *testing.B, prefix string) {
	list := func(l *Log, f Filter) (h report.History) {
		h, err := l.List(f)
		if err != nil || len(h.Versions) == 0 {
			b.Fatal(len(h.Versions), err)
		}
		return h
	}
	begins := map[*Log]time.Time{}
	for _, l := range d.logs {
		begins[l] = list(l, Filter{}).Begins
	}
	changes := func(l *Log) int {
		all, err := l.Changes(begins[l], d.now)
		if err != nil || len(all) == 0 {
			b.Fatal(len(all), err)
		}
		for _, c := range all {
			switch {
			case l == d.logs[1]:
				_, err = Service(*c.Before)
			case c.Kind == string(model.MeshConfigKind):
				_, err = Mesh(*c.Before)
			default:
				_, err = Object(*c.Before)
			}
			if err != nil {
				b.Fatal(err)
			}
		}
		return len(all)
	}
	one := Filter{Kind: model.VirtualService, Namespace: "team-3", Name: "service-3"}
	b.ReportMetric(measured(b, func() { list(d.logs[0], Filter{}) }), prefix+"history-ms")
	b.ReportMetric(measured(b, func() { list(d.logs[1], Filter{}) }), prefix+"history-service-ms")
	b.ReportMetric(measured(b, func() { changes(d.logs[0]) }), prefix+"diff-ms")
	b.ReportMetric(measured(b, func() { changes(d.logs[0]); changes(d.logs[1]) }), prefix+"at-ms")
	b.ReportMetric(measured(b, func() {
		all := list(d.logs[0], one)
		one := one
		one.Revision = all.Versions[0].Revision
		list(d.logs[0], one)
	}), prefix+"rollback-ms")
}

// heap returns the bytes of memory in use.
func heap() float64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}
