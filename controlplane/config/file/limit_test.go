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

// TestTooManyDocuments refuses a file, and keeps what it held before.
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

// TestFairOrder lets directories share what is read.
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
		t.Errorf("the order is %q", got)
	}
}

// TestFileStoreReadsAside applies a small change while a large file is read, and
// does not let what was read earlier win over what is newer.
func TestFileStoreReadsAside(t *testing.T) {
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
			t.Errorf("%s has the address %q, want %q", name, got, address)
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
	contents := <-out // the goroutine has read it, and the store has not seen that
	write("small.yaml", workload("small", "10.0.0.2"))
	s.refresh(t.Context())
	want("small", "10.0.0.2")
	// A writer of the store is never overtaken by what was read before.
	must(t, os.WriteFile(filepath.Join(dir, "large.yaml"), []byte(workload("w7", "10.0.0.6")), 0o600))
	_, err = s.fresh(t.Context(), defaultKey("w7"))
	must(t, err)
	s.look("large.yaml")
	want("w7", "10.0.0.6")
	s.takeAside(t.Context(), contents)
	want("w7", "10.0.0.6")
	want("w8", "")
	// Without a writer what was read aside counts.
	write("large.yaml", large.String())
	s.refresh(t.Context())
	s.readAside(t.Context(), out)
	s.takeAside(t.Context(), <-out)
	want("w7", "10.0.0.1")
	want("w8", "10.0.0.1")
}

// TestWriteLooksAtFewFiles writes to an object that very many files hold: it
// does not read all of them, so that others wait for it.
func TestWriteLooksAtFewFiles(t *testing.T) {
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
		t.Errorf("the address is %q, of %s", got, now.file.path)
	}
	read := 0
	for _, f := range s.tree.files {
		if f.info.Size() == int64(len(workload("a", "10.0.0.222"))) {
			read++
		}
	}
	if read != maxLooked {
		t.Errorf("%d files were read again, want %d", read, maxLooked)
	}
}

// look reads a file at once.
func (s *Store) look(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	path := filepath.Join(s.cfg.Dir, name)
	info, err := os.Stat(path)
	s.tree.look(context.Background(), path, info, err, true)
	s.publish()
}

// TestFileStoreFull refuses files that are too much together, and takes them
// when there is room.
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

// TestFileStoreManyProblems lists and logs the first problems of many, counts all
// of them, and hides no file behind another.
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
		t.Errorf("%d problems are listed, %d counted", len(problems), model.CountProblems(problems))
	}
	if !slices.ContainsFunc(problems, func(p model.Problem) bool { return p.Object.Name == "b" }) {
		t.Error("the problem of the other file is not listed")
	}
	if lines := strings.Count(out.String(), "\n"); lines != maxLogged+1 || !strings.Contains(out.String(), "name=b ") {
		t.Errorf("%d lines are logged, want %d:\n%.2000s", lines, maxLogged+1, out)
	}
	families, err := reg.Gather()
	must(t, err)
	for _, f := range families {
		if got := f.GetMetric()[0].GetGauge().GetValue(); f.GetName() == "outrigger_control_config_problems" && got != float64(model.CountProblems(problems)) {
			t.Errorf("the metric counts %v problems", got)
		}
	}
}

// TestOpenLinks takes the directories that links may lead to from the URL.
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
			t.Errorf("%q: the object is there: %v, want %v; problems: %v", parameters, got, want, s.Problems())
		}
	}
	for parameters, want := range map[string]string{"?links=x": "links=x is not an absolute path", "?link=/x": `the parameter "link" is unknown`} {
		if _, err := config.Open("fs://"+dir+parameters, config.OpenConfig{Drivers: drivers}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", parameters, err)
		}
	}
}

// TestStuckStoreDelaysNoOther has a directory whose look never ends beside
// another store: changes of that one cause events and can be read and listed.
func TestStuckStoreDelaysNoOther(t *testing.T) {
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
	files.mu.Lock() // as while a file is read
	objects, _ := codec.Decode("x", []byte(workload("a", "10.0.0.1")))
	_, err = other.Create(t.Context(), objects[0])
	must(t, err)
	if e := <-told; len(e) != 1 || e[0].New.Name != "a" {
		t.Errorf("the events are %v", e)
	}
	if a.Get(defaultKey("a")) == nil || len(a.List(model.WorkloadEntry, "")) != 1 || len(a.Problems()) != 0 {
		t.Error("the object is not there")
	}
	files.mu.Unlock()
	cancel()
	must(t, <-done)
}
