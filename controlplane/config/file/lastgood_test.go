// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package file

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	metav1alpha1 "istio.io/api/meta/v1alpha1"

	"github.com/outrigger-mesh/outrigger/controlplane/config"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// loadOnce runs a store until it has loaded its directory, like a control plane that is killed
// afterwards.
func loadOnce(t *testing.T, dir, state string) *Store {
	t.Helper()
	s, err := New(Config{Dir: dir, State: state, Keep: true})
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	<-s.Synced()
	cancel()
	must(t, <-done)
	return s
}

// TestLastGoodSurvivesRestart checks that a restart while a file is invalid keeps the last good
// version of its object in force.
func TestLastGoodSurvivesRestart(t *testing.T) {
	t.Parallel()
	dir, state := t.TempDir(), filepath.Join(t.TempDir(), "state")
	file := filepath.Join(dir, "x.yaml")
	key := model.Key{Kind: model.WorkloadEntry, Namespace: "default", Name: "a"}
	write := func(content string) { must(t, os.WriteFile(file, []byte(content), 0o600)) }

	write(workload("a", "10.0.0.1") + workload("b", "10.0.0.2"))
	s, err := New(Config{Dir: dir, State: state, Keep: true})
	must(t, err)
	changed := make(chan model.Change, 10)
	s.RegisterEventHandler(func(e []config.Event) { changed <- config.Change(e) })
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	<-changed
	before := s.Get(key)
	write(workload("a", "not an address!") + workload("b", "10.0.0.3"))
	<-changed // b
	cancel()
	must(t, <-done)

	again := loadOnce(t, dir, state)
	got := again.Get(key)
	if got == nil || got.ResourceVersion != before.ResourceVersion {
		t.Fatalf("after a restart the object is %v, want its last good version %v", got, before)
	}
	if p := again.Problems(); len(p) != 1 || !strings.HasSuffix(p[0].Reason, "the last good version stays in force") {
		t.Errorf("problems: got %v, want that the last good version stays in force", p)
	}
	write("a: [\n")
	if got := loadOnce(t, dir, state).Get(key); got == nil {
		t.Error("the object was lost when its file was not YAML")
	}
	write(workload("a", "10.0.0.9"))
	fixed := loadOnce(t, dir, state)
	if got := fixed.Get(key); got == nil || got.ResourceVersion == before.ResourceVersion || len(fixed.Problems()) > 0 {
		t.Errorf("the corrected object: got %v, problems %v", got, fixed.Problems())
	}
	if left, err := os.ReadDir(filepath.Join(state, "last-good")); err != nil || len(left) > 0 {
		t.Errorf("last good versions remain after the correction: %v, error %v", left, err)
	}
}

// TestLastGoodOfRemovedFiles checks that the objects of files removed while no process runs are
// removed.
func TestLastGoodOfRemovedFiles(t *testing.T) {
	t.Parallel()
	dir, state := t.TempDir(), t.TempDir()
	l := state + "/last-good/"
	must(t, os.Mkdir(l, 0o700), os.WriteFile(l+"0123.yaml", []byte(workload("a", "10.0.0.1")), 0o600))
	if list := loadOnce(t, dir, state).List(model.WorkloadEntry, ""); len(list) > 0 {
		t.Errorf("objects: got %v, want none", list)
	}
	if _, err := os.Stat(l + "0123.yaml"); err == nil {
		t.Error("the last good version of a removed file was not removed")
	}
}

// TestOnlyObjectsInDirectory checks that writes, status and last good versions leave no other files
// than those of objects in the user's directory.
func TestOnlyObjectsInDirectory(t *testing.T) {
	t.Parallel()
	dir, state := t.TempDir(), filepath.Join(t.TempDir(), "state")
	must(t, os.WriteFile(filepath.Join(dir, "a.yaml"), []byte(workload("a", "10.0.0.1")), 0o600))
	r := followWith(t, Config{Dir: dir, State: state, Keep: true})
	c := r.Get(defaultKey("a")).Clone()
	c.Status = &metav1alpha1.IstioStatus{ObservedGeneration: 7}
	_, err := r.UpdateStatus(t.Context(), c)
	must(t, err)
	b := c.Clone()
	b.Name, b.Status, b.ResourceVersion, b.Source = "b", nil, "", ""
	_, err = r.Create(t.Context(), b)
	must(t, err)
	r.write("a.yaml", "kind: [\n")
	r.wantProblem("a.yaml:1: this is not YAML")
	var names []string
	must(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if !d.IsDir() {
			names = append(names, strings.TrimPrefix(path, dir))
		}
		return err
	}))
	if want := []string{"/a.yaml", "/default/workloadentry-b.yaml"}; !slices.Equal(names, want) {
		t.Errorf("files: got %q, want %q", names, want)
	}
	// Another process reads the objects and their status.
	other, err := New(Config{Dir: dir, State: state})
	must(t, err)
	other.lookAtAll()
	other.refresh(t.Context())
	if got := other.Get(defaultKey("a")); got == nil || got.Status == nil {
		t.Errorf("another process: got %v, want the object with its status", got)
	}
}
