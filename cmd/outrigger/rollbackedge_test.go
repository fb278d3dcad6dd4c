// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const twoEntries = "# head\napiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata: {name: one} # its name\nspec: {address: 10.1.0.1}\n" +
	"---\n# before two\napiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata: {name: two}\nspec:\n  # an address\n  address: 10.1.0.2 # of two\n"

// written is what the store writes of an object that has no text any more.
const written = "apiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata:\n  name: two\n  namespace: default\nspec:\n  address: 10.1.0.2\n"

var created = regexp.MustCompile(`  creationTimestamp: .*\n`)

// keeps waits until the control plane keeps the last good version of objects, or none.
func (m *running) keeps(some bool) {
	m.t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(10 * time.Millisecond) {
		paths, err := filepath.Glob(filepath.Join(filepath.Dir(m.dir), "state/config/*/last-good/*.yaml"))
		if err == nil && (len(paths) > 0) == some {
			return
		}
		if time.Now().After(deadline) {
			m.t.Fatalf("the last good versions are in %q, %v", paths, err)
		}
	}
}

// TestRollbackInFiles restores objects of files with several ones and with comments, after changes, mistakes
// and deletions.
func TestRollbackInFiles(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	m := startMesh(t, twoEntries)
	m.revisions("WorkloadEntry/two", 1)
	const restored = "workloadentry/two restored to revision "
	changed := strings.Replace(twoEntries, "10.1.0.2", "10.1.0.3", 1)
	first := m.text()
	check := func(args, wantOut, wantErr, files string) {
		t.Helper()
		out, errs := outrigger(t, strings.Fields(args)...)
		if !strings.Contains(out, wantOut) || (out == "") != (wantOut == "") || !strings.Contains(errs, wantErr) {
			t.Errorf("%s: got %s%s, want %q and %q", args, out, errs, wantOut, wantErr)
		}
		if got := m.text(); created.ReplaceAllString(got, "") != files {
			t.Errorf("%s: the store has\n%s, want\n%s", args, got, files)
		}
	}

	m.write("objects/all.yaml", changed)
	last := m.revisions("WorkloadEntry/two", 2)
	check("rollback we/two", restored+last[0], "", first)
	m.revisions("WorkloadEntry/two", 3)

	m.write("objects/all.yaml", strings.Replace(twoEntries, "address: 10.1.0.2", "adress: 10.1.0.2", 1))
	m.keeps(true)
	check("rollback we/two", restored+last[0], `unknown field "adress" in spec`, first[:strings.Index(first, "apiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata: {name: two}")]+written)
	m.keeps(false)

	m.write("objects/all.yaml", twoEntries+": {[")
	m.keeps(true)
	check("rollback we/two", "10.1.0.3", "the stored document is invalid and would be lost: correct or remove it first", m.text())
	announced := os.TempDir()
	t.Setenv("TMPDIR", t.TempDir()) // the state of the control plane is not found
	check("rollback we/two --store "+m.store()+" --control "+m.control, "", "workloadentry/two comes from this file: correct it first", m.text())
	t.Setenv("TMPDIR", announced)
	m.write("objects/all.yaml", twoEntries)
	m.keeps(false)

	check("delete we two", "workloadentry/two deleted", "", first[:strings.Index(first, "---")])
	m.revisions("WorkloadEntry/two", 4)
	check("rollback we/two", restored+last[0], "", first[:strings.Index(first, "---")]+"---\n"+written)
	m.revisions("WorkloadEntry/two", 5)

	if err := os.Remove(filepath.Join(m.dir, "all.yaml")); err != nil {
		t.Fatal(err)
	}
	m.revisions("WorkloadEntry/two", 6)
	check("rollback we/two --to "+last[1], restored+last[1], "", "all.yaml:\n"+strings.Replace(written, "10.1.0.2", "10.1.0.3", 1))
}

// TestRollbackRefused checks that a change that came meanwhile is not lost, and that a store without write
// access stays as it is.
func TestRollbackRefused(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	m := startMesh(t, twoEntries)
	m.revisions("WorkloadEntry/two", 1)
	m.write("objects/all.yaml", strings.Replace(twoEntries, "10.1.0.2", "10.1.0.3", 1))
	m.revisions("WorkloadEntry/two", 2)

	// Between the control plane and the command, somebody changes, creates or deletes the object.
	asked, text := 0, ""
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if asked++; asked == 1 {
			m.write("objects/all.yaml", text)
		}
		http.Redirect(w, r, "http://"+m.control+r.URL.String(), http.StatusTemporaryRedirect)
	}))
	defer proxy.Close()
	none := twoEntries[:strings.Index(twoEntries, "---")]
	for name, c := range map[string]struct{ before, after, err string }{
		"changed": {m.text()[len("all.yaml:\n"):], strings.Replace(twoEntries, "10.1.0.2", "10.1.0.4", 1), "it was changed in the meantime"},
		"created": {none, strings.Replace(twoEntries, "10.1.0.2", "10.1.0.5", 1), "it already exists"},
		"deleted": {twoEntries, none, "it does not exist"},
	} {
		m.write("objects/all.yaml", c.before)
		text, asked = c.after, 0
		if _, errs := outrigger(t, "rollback", "we/two", "--store", m.store(), "--control", proxy.URL); !strings.Contains(errs, c.err) {
			t.Errorf("%s: %s, want %q", name, errs, c.err)
		}
		if got := m.text(); got != "all.yaml:\n"+c.after {
			t.Errorf("%s: the store has\n%s", name, got)
		}
	}

	m.write("objects/all.yaml", twoEntries)
	if err := errors.Join(os.Chmod(filepath.Dir(filepath.Dir(m.dir)), 0o755), os.Chmod(filepath.Dir(m.dir), 0o755), os.Chmod(m.dir, 0o555), os.Chmod(m.dir+"/all.yaml", 0o444)); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.Chmod(m.dir, 0o700) }() // so that it can be removed
	if os.Getuid() == 0 {
		runtime.LockOSThread() // the file system's user ID is that of the thread
		defer runtime.UnlockOSThread()
		if err := unix.Setfsuid(65534); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = unix.Setfsuid(0) }() // it may have it again
	}
	if out, errs := outrigger(t, "rollback", "we/two", "--store", m.store(), "--control", m.control); strings.Contains(out, "restored") || !strings.Contains(errs, "the store is read only") || m.text() != "all.yaml:\n"+twoEntries {
		t.Errorf("read only: %s%s", out, errs)
	}
}
