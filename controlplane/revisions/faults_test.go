// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package revisions

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// TestDamagedFiles damages the files of an earlier run. The next run must keep what it can read, say
// what is missing, and record.
func TestDamagedFiles(t *testing.T) {
	t.Parallel()
	edit := func(name string, change func(raw []byte) []byte) func(t *testing.T, dir string) {
		return func(t *testing.T, dir string) {
			path := filepath.Join(dir, name)
			raw, err := os.ReadFile(path)
			if err == nil {
				err = os.WriteFile(path, change(raw), 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	line := func(raw []byte, n int) (from, to int) {
		for ; n > 0; n-- {
			from += bytes.IndexByte(raw[from:], '\n') + 1
		}
		return from, from + bytes.IndexByte(raw[from:], '\n')
	}
	spoil := func(n int) func([]byte) []byte {
		return func(raw []byte) []byte {
			from, to := line(raw, n)
			clear(raw[from:to])
			return raw
		}
	}
	const a, b, c, d = "a created", "a updated", "b created", "c created"
	for name, tc := range map[string]struct {
		damage  func(t *testing.T, dir string)
		want    []string // of List
		damaged int
	}{
		"a line cut by a crash":          {edit(currentFile, func(raw []byte) []byte { return raw[:len(raw)-10] }), []string{a, b, "b created unseen", d}, 0},
		"a block of zeros at the end":    {edit(currentFile, func(raw []byte) []byte { return append(raw, make([]byte, maxLine+1)...) }), []string{a, b, c, d}, 0},
		"a block of zeros before others": {edit(currentFile, func(raw []byte) []byte { return append(append(raw, make([]byte, maxLine+1)...), '\n') }), []string{a, b, c, d}, 1},
		"a line of zeros":                {edit(currentFile, spoil(2)), []string{a, c, "a updated unseen", d}, 1},
		"a first line of zeros":          {edit(currentFile, spoil(0)), []string{"a found", "b found", d}, 1},
		"nothing readable":               {edit(currentFile, func([]byte) []byte { return []byte("?\n\n\t{}\n") }), []string{"a found", "b found", d}, 2},
		"an empty file":                  {edit(currentFile, func([]byte) []byte { return nil }), []string{"a found", "b found", d}, 0},
		"an interrupted rotation": {func(t *testing.T, dir string) {
			if err := os.Rename(filepath.Join(dir, currentFile), filepath.Join(dir, previousFile)); err != nil {
				t.Fatal(err)
			}
		}, []string{a, b, c, d}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, 0)
				r.change("a", "one")
				r.change("a", "two")
				r.change("b", "one")
				r.stop()
				tc.damage(t, r.dir)
				r.start(0)
				began := time.Now().Add(-time.Minute)
				end := r.change("c", "one")
				expect(t, "List", r.lines(Filter{}), tc.want)
				h, err := r.log.List(Filter{})
				if err != nil || h.Damaged != tc.damaged || h.Begins.IsZero() {
					t.Errorf("List = %d damaged lines, begins at %s, %v; want %d", h.Damaged, h.Begins, err, tc.damaged)
				}
				if got := r.log.Problem(); (tc.damaged > 0) != strings.Contains(got, fmt.Sprintf("damaged lines of its files: %d;", tc.damaged)) {
					t.Errorf("Problem = %q", got)
				}
				h, err = r.log.List(Filter{Name: "c"})
				if err != nil || h.Damaged != tc.damaged || len(h.Versions) != 1 {
					t.Errorf("List(c) = %+v, %v; want one version and %d damaged lines", h, err, tc.damaged)
				}
				expect(t, "Changes", r.hosts(began, end), []string{"c - one"})
				r.stop()
				r.start(1) // replaces the files at the next change
				last := r.change("c", "two")
				expect(t, "Changes after the files were replaced", r.hosts(end, last), []string{"c one two"})
				r.stop()
			})
		})
	}
}

// TestDamagedObject changes a letter of an object in the files. The version must not be used.
func TestDamagedObject(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 0)
		one := r.change("a", "one")
		two := r.change("a", "two")
		path := filepath.Join(r.dir, currentFile)
		raw, err := os.ReadFile(path)
		if err == nil {
			err = os.WriteFile(path, bytes.Replace(raw, []byte(`"one"`), []byte(`"onf"`), 1), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.log.Changes(one, two); err == nil || !strings.Contains(err.Error(), "it is damaged") {
			t.Errorf("Changes = %v, want an error about the damaged object", err)
		}
		h, err := r.log.List(Filter{Name: "a"})
		if err != nil || len(h.Versions) != 2 {
			t.Fatalf("List = %+v, %v, want both versions", h, err)
		}
		if h, err := r.log.List(Filter{Revision: h.Versions[0].Revision}); err != nil || len(h.Versions) != 0 || h.Damaged != 1 {
			t.Errorf("List of the damaged revision = %+v, %v, want none", h, err)
		}
		r.stop()
	})
}

// TestFullDisk checks that a control plane whose disk is full keeps answering about the time before,
// says since when and why it records nothing, and continues once there is space.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	for name, fill := range map[string]func(t *testing.T, r *rig){
		"at a change": func(t *testing.T, r *rig) {
			full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
			if err == nil {
				_, err = r.log.file.WriteString(`{"kind":"VirtualSer`) // what the disk had space for
			}
			if err != nil {
				t.Fatal(err)
			}
			_ = r.log.file.Close() // without unwritten data
			r.log.file = full
		},
		"at a replacement": func(t *testing.T, r *rig) {
			r.log.cfg.FileSize = 1
			if err := os.Symlink("/dev/full", filepath.Join(r.dir, nextFile)); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, 0)
				one := r.change("a", "one")
				two := r.change("a", "two")
				fill(t, r)
				filled := time.Now()
				r.log.Note(model.NewChange(r.store.set("a", "three")), filled)
				r.sleep(time.Second)
				r.log.Note(model.NewChange(r.store.set("b", "one")), time.Now())
				at := r.sleep(time.Second)
				h, err := r.log.List(Filter{Namespace: "shop"})
				if err != nil || len(h.Versions) < 2 || !h.Stopped.Equal(filled) || !strings.Contains(h.Reason, syscall.ENOSPC.Error()) {
					t.Errorf("while the disk is full: List = %+v, %v; want two versions, and that it stopped at %s", h, err, filled)
				}
				expect(t, "Changes before", r.hosts(one, two), []string{"a one two"})
				if _, err := r.log.Changes(one, at); err == nil || !strings.Contains(err.Error(), "not recorded since") {
					t.Errorf("Changes until a time that is not recorded: %v, want an error", err)
				}
				last := r.sleep(2 * retry)
				h, err = r.log.List(Filter{})
				if err != nil || !h.Stopped.IsZero() || h.Damaged > 0 {
					t.Errorf("after there was space: List = %+v, %v", h, err)
				}
				expect(t, "Changes after", r.hosts(two, last), []string{"a two three", "b - one"})
				r.stop()
				r.start(0)
				expect(t, "Changes after a restart", r.hosts(two, last), []string{"a two three", "b - one"})
				r.stop()
			})
		})
	}
}

// TestTaken checks that a control plane does not answer from the files of another one, and that it
// records when the other one has ended.
func TestTaken(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 0)
		second := New(r.log.cfg)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- second.Run(ctx) }()
		second.Note(model.NewChange(r.store.set("a", "one")), time.Now())
		if _, err := second.List(Filter{}); err == nil || !strings.Contains(err.Error(), "another control plane") {
			t.Errorf("List = %v, want an error about the other control plane", err)
		}
		r.stop()
		r.sleep(2 * retry)
		r.log = second
		r.change("a", "two")
		expect(t, "List after the other one has ended", r.lines(Filter{}), []string{"a found", "a updated"})
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run = %v, want nil", err)
		}
	})
}
