// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package file

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/controlplane/config"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// loadOnce runs a store until it has loaded its directory, as a control plane
// that is killed then.
func loadOnce(t *testing.T, dir, lastGood string) *Store {
	t.Helper()
	s, err := New(Config{Dir: dir, LastGood: lastGood})
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	<-s.Synced()
	cancel()
	must(t, <-done)
	return s
}

// A restart while a file is bad keeps what was in force.
func TestLastGoodOutlivesTheProcess(t *testing.T) {
	t.Parallel()
	dir, lastGood := t.TempDir(), filepath.Join(t.TempDir(), "last-good")
	file := filepath.Join(dir, "x.yaml")
	key := model.Key{Kind: model.WorkloadEntry, Namespace: "default", Name: "a"}
	write := func(content string) { must(t, os.WriteFile(file, []byte(content), 0o600)) }

	write(workload("a", "10.0.0.1") + workload("b", "10.0.0.2"))
	s, err := New(Config{Dir: dir, LastGood: lastGood})
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

	again := loadOnce(t, dir, lastGood)
	got := again.Get(key)
	if got == nil || got.ResourceVersion != before.ResourceVersion {
		t.Fatalf("after a restart the object is %v, want its last good version %v", got, before)
	}
	if p := again.Problems(); len(p) != 1 || !strings.HasSuffix(p[0].Reason, "the last good version stays in force") {
		t.Errorf("problems: %v", p)
	}
	write("a: [\n")
	if got := loadOnce(t, dir, lastGood).Get(key); got == nil {
		t.Error("the object is lost with a file that is no YAML")
	}
	write(workload("a", "10.0.0.9"))
	mended := loadOnce(t, dir, lastGood)
	if got := mended.Get(key); got == nil || got.ResourceVersion == before.ResourceVersion || len(mended.Problems()) > 0 {
		t.Errorf("the mended object is %v, %v", got, mended.Problems())
	}
	if left, err := os.ReadDir(lastGood); err != nil || len(left) > 0 {
		t.Errorf("%v, %v are left of what was mended", left, err)
	}
}

// What is gone while nobody looks is gone.
func TestLastGoodOfGoneFiles(t *testing.T) {
	t.Parallel()
	dir, lastGood := t.TempDir(), t.TempDir()
	l := lastGood + "/"
	must(t, os.WriteFile(l+"0123.yaml", []byte(workload("a", "10.0.0.1")), 0o600))
	if list := loadOnce(t, dir, lastGood).List(model.WorkloadEntry, ""); len(list) > 0 {
		t.Errorf("the store holds %v", list)
	}
	if _, err := os.Stat(l + "0123.yaml"); err == nil {
		t.Error("what was kept of a file that is gone is still there")
	}
}
