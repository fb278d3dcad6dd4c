// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package file

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/outrigger-mesh/outrigger/controlplane/config"
	"github.com/outrigger-mesh/outrigger/controlplane/config/codec"
	"github.com/outrigger-mesh/outrigger/controlplane/config/memory"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// TestTooManyDocuments checks that a file with too many documents is rejected, and that the objects
// that it had before remain.
func TestTooManyDocuments(t *testing.T) {
	t.Parallel()
	r := follow(t, func(dir string) {
		must(t, os.WriteFile(filepath.Join(dir, "a.yaml"), []byte(workload("a", "10.0.0.1")), 0o600))
	})
	r.wantAddress("a", "10.0.0.1")
	r.write("a.yaml", workload("a", "10.0.0.2")+strings.Repeat("---\nkind: [\n", codec.MaxDocuments))
	r.wantProblem(fmt.Sprintf("a.yaml:1: the file has %d documents, and at most %d are read: split it into several files; its previous object stays in force", codec.MaxDocuments+1, codec.MaxDocuments))
	r.wantAddress("a", "10.0.0.1")
}

// TestFairOrder checks that files of several directories are read alternately.
func TestFairOrder(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	files := map[string]os.FileInfo{}
	add := func(name string, size int) {
		path := filepath.Join(dir, name)
		must(t, os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, make([]byte, size), 0o600))
		info, err := os.Stat(path)
		must(t, err)
		files[name] = info
	}
	for i := range 100 {
		add(fmt.Sprintf("a/%02d", i), 10_000)
	}
	add("b/large", 505_000)
	add("b/small", 7000)
	add("c/one", 15_000)
	var got []string
	for _, f := range fairOrder(files) {
		got = append(got, f.path)
	}
	at := func(name string) int { return slices.Index(got, name) }
	if at("b/small") != 0 || at("c/one") > 3 || at("b/large") < 40 || at("b/large") > 60 || len(got) != 103 {
		t.Errorf("got order %q", got)
	}
}

// TestFileStoreReadsInBackground checks that a small change is applied while a large file is read,
// and that an older content does not replace a newer one.
func TestFileStoreReadsInBackground(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s, err := New(Config{Dir: dir, Settle: time.Nanosecond})
	must(t, err)
	var large strings.Builder
	for i := range 2000 {
		large.WriteString(workload(fmt.Sprintf("w%d", i), "10.0.0.1"))
	}
	write := func(name, text string) {
		path := filepath.Join(dir, name)
		must(t, os.WriteFile(path, []byte(text), 0o600))
		s.note(fsnotify.Event{Name: path, Op: fsnotify.Write})
	}
	r := &running{Store: s}
	want := func(name, address string) {
		t.Helper()
		if got := r.address(name); got != address {
			t.Errorf("address of %s: got %q, want %q", name, got, address)
		}
	}
	s.lookAtAll()
	s.refresh(t.Context())
	write("large.yaml", large.String())
	write("small.yaml", workload("small", "10.0.0.1"))
	s.refresh(t.Context())
	want("small", "10.0.0.1")
	want("w7", "")
	out := make(chan map[string]content, 1)
	s.readAside(t.Context(), out)
	contents := <-out // the goroutine has read it, but the store has not applied it
	write("small.yaml", workload("small", "10.0.0.2"))
	s.refresh(t.Context())
	want("small", "10.0.0.2")
	// A write of the store takes precedence over content that was read before it.
	must(t, os.WriteFile(filepath.Join(dir, "large.yaml"), []byte(workload("w7", "10.0.0.6")), 0o600))
	_, err = s.fresh(t.Context(), defaultKey("w7"))
	must(t, err)
	s.look("large.yaml")
	want("w7", "10.0.0.6")
	s.takeAside(t.Context(), contents)
	want("w7", "10.0.0.6")
	want("w8", "")
	// Without such a write, the content that was read is applied.
	write("large.yaml", large.String())
	s.refresh(t.Context())
	s.readAside(t.Context(), out)
	s.takeAside(t.Context(), <-out)
	want("w7", "10.0.0.1")
	want("w8", "10.0.0.1")
}

// TestWriteReadsFewFiles checks that a write to an object that very many files contain does not
// read all of them, which would delay other writes.
func TestWriteReadsFewFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s, err := New(Config{Dir: dir})
	must(t, err)
	write := func(address string) {
		for i := range 3 * maxLooked {
			must(t, os.WriteFile(filepath.Join(dir, fmt.Sprintf("%03d.yaml", i)), []byte(workload("a", address)), 0o600))
		}
	}
	write("10.0.0.1")
	s.lookAtAll()
	s.refresh(t.Context())
	write("10.0.0.222")
	now, err := s.fresh(t.Context(), defaultKey("a"))
	must(t, err)
	if got := (&running{Store: s}).address("a"); got != "10.0.0.222" || filepath.Base(now.file.path) != "000.yaml" {
		t.Errorf("address: got %q of %s, want 10.0.0.222 of 000.yaml", got, now.file.path)
	}
	read := 0
	for _, f := range s.tree.files {
		if f.info.Size() == int64(len(workload("a", "10.0.0.222"))) {
			read++
		}
	}
	if read != maxLooked {
		t.Errorf("%d files were read, want %d", read, maxLooked)
	}
}

// look reads a file immediately.
func (s *Store) look(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	path := filepath.Join(s.cfg.Dir, name)
	info, err := os.Stat(path)
	s.tree.look(context.Background(), path, info, err, true)
	s.publish()
}

// TestFileStoreFull checks that files that are too large in total are rejected, and accepted once
// there is room.
func TestFileStoreFull(t *testing.T) {
	t.Parallel()
	const size = 15 << 20
	comment := "#" + strings.Repeat("x", size) + "\n"
	r := followWith(t, Config{Dir: t.TempDir(), Rescan: 20 * time.Millisecond})
	for i := range 4 {
		must(t, os.Mkdir(filepath.Join(r.dir, fmt.Sprintf("big%d", i)), 0o700))
		r.write(fmt.Sprintf("big%d/a.yaml", i), comment+workload(fmt.Sprintf("w%d", i), "10.0.0.1"))
		r.wantAddress(fmt.Sprintf("w%d", i), "10.0.0.1")
	}
	r.write("small.yaml", workload("small", "10.0.0.1"))
	must(t, os.Mkdir(filepath.Join(r.dir, "big4"), 0o700))
	r.write("big4/a.yaml", comment+workload("w4", "10.0.0.1"))
	r.wantProblem("big4/a.yaml: the file cannot be read: the files of the config directory have more than 64 MiB")
	r.wantAddress("small", "10.0.0.1")
	must(t, os.RemoveAll(filepath.Join(r.dir, "big0")))
	r.wantAddress("w4", "10.0.0.1")
	r.eventually("there is no problem", func() bool { return len(r.Problems()) == 0 })
}

var drivers = map[string]config.Driver{"fs": Open}

// TestFileStoreManyProblems checks that the first of many problems are listed and logged, and that
// all are counted. The problems of one file must not hide those of another.
func TestFileStoreManyProblems(t *testing.T) {
	t.Parallel()
	const n = 3000
	dir, reg, out := t.TempDir(), prometheus.NewRegistry(), &logBuffer{}
	var text strings.Builder
	for i := range n {
		text.WriteString(workload(fmt.Sprintf("w%d", i), "bad address"))
	}
	must(t, os.WriteFile(filepath.Join(dir, "a.yaml"), []byte(text.String()), 0o600), os.WriteFile(filepath.Join(dir, "b.yaml"), []byte(workload("b", "bad address")), 0o600))
	opened, err := config.Open("fs://"+dir, config.OpenConfig{Drivers: drivers, Registerer: reg, Logger: slog.New(slog.NewTextHandler(out, nil))})
	must(t, err)
	s := opened.(*Store)
	s.lookAtAll()
	s.refresh(t.Context())
	problems := s.Problems()
	if len(problems) != model.MaxProblems+1 || model.CountProblems(problems) < n+1 {
		t.Errorf("%d problems are listed and %d counted, want %d and at least %d", len(problems), model.CountProblems(problems), model.MaxProblems+1, n+1)
	}
	if !slices.ContainsFunc(problems, func(p model.Problem) bool { return p.Object.Name == "b" }) {
		t.Error("the problem of the other file is not listed")
	}
	if lines := strings.Count(out.String(), "\n"); lines != maxLogged+1 || !strings.Contains(out.String(), "name=b ") {
		t.Errorf("%d lines in the log, want %d:\n%.2000s", lines, maxLogged+1, out)
	}
	families, err := reg.Gather()
	must(t, err)
	for _, f := range families {
		if got := f.GetMetric()[0].GetGauge().GetValue(); f.GetName() == "outrigger_control_config_problems" && got != float64(model.CountProblems(problems)) {
			t.Errorf("the metric is %v, want the number of problems", got)
		}
	}
}

// TestOpenLinks checks that the URL sets the directories that links may lead to.
func TestOpenLinks(t *testing.T) {
	t.Parallel()
	dir, outside := t.TempDir(), t.TempDir()
	must(t, os.WriteFile(filepath.Join(outside, "a.yaml"), []byte(workload("a", "10.0.0.1")), 0o600), os.Symlink(outside, filepath.Join(dir, "link")))
	for parameters, want := range map[string]bool{"": false, "?links=" + outside: true, "?links=/": true, "?links=/nowhere": false} {
		opened, err := config.Open("fs://"+dir+parameters, config.OpenConfig{Drivers: drivers})
		must(t, err)
		s := opened.(*Store)
		s.lookAtAll()
		s.refresh(t.Context())
		if got := s.Get(defaultKey("a")) != nil; got != want || len(s.Problems()) == 0 != want {
			t.Errorf("%q: the object exists: %v, want %v; problems: %v", parameters, got, want, s.Problems())
		}
	}
	for parameters, want := range map[string]string{"?links=x": "links=x is not an absolute path", "?link=/x": `the parameter "link" is unknown`} {
		if _, err := config.Open("fs://"+dir+parameters, config.OpenConfig{Drivers: drivers}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Open with %q = %v, want an error with %q", parameters, err, want)
		}
	}
}

// TestStuckStoreDoesNotBlockOthers checks that while a store is blocked reading its directory,
// changes of another store cause events, and its objects can be read and listed.
func TestStuckStoreDoesNotBlockOthers(t *testing.T) {
	t.Parallel()
	files, err := New(Config{Dir: t.TempDir()})
	must(t, err)
	other := memory.New("memory://")
	a := config.NewAggregate(other, files, other)
	told := make(chan []config.Event, 10)
	a.RegisterEventHandler(func(e []config.Event) { told <- e })
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	<-a.Synced()
	files.mu.Lock() // blocks the store, as reading a file does
	objects, _ := codec.Decode("x", []byte(workload("a", "10.0.0.1")))
	_, err = other.Create(t.Context(), objects[0])
	must(t, err)
	if e := <-told; len(e) != 1 || e[0].New.Name != "a" {
		t.Errorf("events: got %v, want one for a", e)
	}
	if a.Get(defaultKey("a")) == nil || len(a.List(model.WorkloadEntry, "")) != 1 || len(a.Problems()) != 0 {
		t.Error("the object of the other store cannot be read or listed")
	}
	files.mu.Unlock()
	cancel()
	must(t, <-done)
}
