// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package file

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/config"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// logBuffer is a buffer that is safe for concurrent use by a logger and a test.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer // guarded by mu
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// running is a store that follows a directory created for the test.
type running struct {
	*Store
	t       *testing.T
	dir     string
	log     *logBuffer
	changes chan model.Change
}

// follow starts a store. It first calls setup, if not nil, to fill the directory.
func follow(t *testing.T, setup func(dir string)) *running {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "config")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if setup != nil {
		setup(dir)
	}
	return followWith(t, Config{Dir: dir})
}

func followWith(t *testing.T, cfg Config) *running {
	t.Helper()
	log := &logBuffer{}
	cfg.Logger = slog.New(slog.NewTextHandler(log, nil))
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	r := &running{Store: s, t: t, dir: cfg.Dir, log: log, changes: make(chan model.Change, 10_000)}
	s.RegisterEventHandler(func(e []config.Event) { r.changes <- config.Change(e) })
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run() = %v, want nil", err)
		}
	})
	<-s.Synced()
	for range len(r.changes) {
		<-r.changes // the first load
	}
	return r
}

func (r *running) eventually(what string, ok func() bool) {
	r.t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			r.t.Fatalf("condition not met in time: %s\nproblems: %v\nlog: %s", what, r.Problems(), r.log)
		}
	}
}

// next waits for the next change.
func (r *running) next() model.Change {
	r.t.Helper()
	select {
	case c := <-r.changes:
		return c
	case <-time.After(2 * time.Minute):
		r.t.Fatalf("timeout waiting for a change; problems: %v", r.Problems())
		return model.Change{}
	}
}

func (r *running) write(name, text string) {
	r.t.Helper()
	if err := os.WriteFile(filepath.Join(r.dir, name), []byte(text), 0o600); err != nil {
		r.t.Fatal(err)
	}
}

func (r *running) rename(from, to string) {
	r.t.Helper()
	if err := os.Rename(filepath.Join(r.dir, from), filepath.Join(r.dir, to)); err != nil {
		r.t.Fatal(err)
	}
}

// address returns the address of a WorkloadEntry, or "" if it does not exist.
func (r *running) address(name string) string {
	c := r.Get(model.Key{Kind: model.WorkloadEntry, Namespace: "default", Name: name})
	if c == nil {
		return ""
	}
	return c.Spec.(*networkingv1alpha3.WorkloadEntry).GetAddress()
}

func (r *running) wantAddress(name, address string) {
	r.t.Helper()
	r.eventually(fmt.Sprintf("%s has the address %q", name, address), func() bool { return r.address(name) == address })
}

func (r *running) wantProblem(text string) {
	r.t.Helper()
	r.eventually("a problem with "+text, func() bool {
		for _, p := range r.Problems() {
			if strings.Contains(p.String(), text) {
				return true
			}
		}
		return false
	})
}

func workload(name, address string) string {
	return "apiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata: {name: " + name + "}\nspec: {address: " + address + "}\n---\n"
}

func TestFileStoreFollowsEdits(t *testing.T) {
	t.Parallel()
	r := follow(t, nil)
	r.write("a.yaml", workload("a", "10.0.0.1"))
	if c := r.next(); !c.Touches(model.WorkloadEntry) || len(c.Keys) != 1 {
		t.Fatalf("change: got %v, want one WorkloadEntry", c)
	}
	r.wantAddress("a", "10.0.0.1")

	// Truncate and write.
	r.write("a.yaml", workload("a", "10.0.0.2"))
	r.wantAddress("a", "10.0.0.2")

	// Write a new file and rename it over the old one.
	r.write("a.yaml.tmp", workload("a", "10.0.0.3"))
	r.write(".b.yaml", workload("hidden", "10.0.0.9"))
	r.write("b.yaml~", workload("hidden", "10.0.0.9"))
	r.rename("a.yaml.tmp", "a.yaml")
	r.wantAddress("a", "10.0.0.3")

	// Subdirectories that are created later, and both file name extensions.
	if err := os.MkdirAll(filepath.Join(r.dir, "sub/deep"), 0o700); err != nil {
		t.Fatal(err)
	}
	r.write("sub/deep/b.yml", workload("b", "10.0.0.4"))
	r.wantAddress("b", "10.0.0.4")
	r.write("sub/deep/b.yml", workload("b", "10.0.0.5"))
	r.wantAddress("b", "10.0.0.5")

	if got := r.address("hidden"); got != "" {
		t.Errorf("a temporary file was read: address %s", got)
	}
	if err := os.RemoveAll(filepath.Join(r.dir, "sub")); err != nil {
		t.Fatal(err)
	}
	r.wantAddress("b", "")
	r.write("a.yaml", "")
	r.wantAddress("a", "")
	if p := r.Problems(); len(p) > 0 {
		t.Errorf("problems: got %v, want none", p)
	}
}

func TestFileStoreReportsOnlyDifferences(t *testing.T) {
	t.Parallel()
	r := follow(t, func(dir string) {
		if err := os.WriteFile(filepath.Join(dir, "all.yaml"), []byte(workload("a", "10.0.0.1")+workload("b", "10.0.0.2")), 0o600); err != nil {
			t.Fatal(err)
		}
	})
	r.write("all.yaml", "# a comment moves all lines\n"+workload("a", "10.0.0.1")+workload("b", "10.0.0.2"))
	r.eventually("the new line is reported", func() bool {
		return strings.HasSuffix(r.Get(model.Key{Kind: model.WorkloadEntry, Namespace: "default", Name: "a"}).Source, "all.yaml:2")
	})
	r.write("all.yaml", workload("b", "10.0.0.3")+workload("a", "10.0.0.1")+workload("c", "10.0.0.4"))
	c := r.next()
	want := model.NewChange(
		model.Key{Kind: model.WorkloadEntry, Namespace: "default", Name: "b"},
		model.Key{Kind: model.WorkloadEntry, Namespace: "default", Name: "c"})
	if fmt.Sprint(c) != fmt.Sprint(want) {
		t.Errorf("change: got %v, want %v", c, want)
	}
	if got := len(r.List(model.WorkloadEntry, "default")); got != 3 || len(r.List(model.WorkloadEntry, "other")) != 0 {
		t.Errorf("List(default) returned %d objects, want 3 and none in other", got)
	}
}

func TestFileStoreKeepsWhatWasGood(t *testing.T) {
	t.Parallel()
	r := follow(t, nil)
	r.write("all.yaml", workload("a", "10.0.0.1")+workload("b", "10.0.0.2"))
	r.wantAddress("b", "10.0.0.2")

	// One object becomes invalid: its last version stays, and the other object is updated.
	r.write("all.yaml", workload("a", "bad address")+workload("b", "10.0.0.3"))
	r.wantProblem(`spec.address is "bad address": it is not a host name; letters, digits, "-" and "." are allowed; ` +
		`the last good version stays in force until the control plane restarts`)
	r.wantAddress("b", "10.0.0.3")
	r.wantAddress("a", "10.0.0.1")
	if n := model.CountProblems(r.Problems()); n != 1 {
		t.Errorf("%d problems, want 1", n)
	}

	// An unreadable document could be any object, so all objects stay.
	r.write("all.yaml", "kind: [\n---\n"+workload("b", "10.0.0.4"))
	r.wantProblem("all.yaml:1: this is not YAML")
	r.wantAddress("b", "10.0.0.4")
	r.wantAddress("a", "10.0.0.1")

	// A new invalid object is a problem without other effects.
	r.write("new.yaml", workload("c", "-"))
	r.wantProblem("WorkloadEntry/default/c")

	r.write("all.yaml", workload("a", "10.0.0.5"))
	r.write("new.yaml", workload("c", "10.0.0.6"))
	r.wantAddress("a", "10.0.0.5")
	r.wantAddress("b", "")
	r.wantAddress("c", "10.0.0.6")
	r.eventually("no problems remain", func() bool { return len(r.Problems()) == 0 })
	r.eventually("the log reports it", func() bool {
		log := r.log.String()
		return strings.Count(log, "level=WARN") == 3 && strings.Count(log, "level=INFO") == 3
	})
}

func TestFileStoreFirstPathWins(t *testing.T) {
	t.Parallel()
	r := follow(t, nil)
	r.write("b.yaml", workload("a", "10.0.0.2"))
	r.wantAddress("a", "10.0.0.2")
	r.write("a.yaml", workload("a", "10.0.0.1"))
	r.wantProblem("b.yaml:1: WorkloadEntry/default/a: the same object is in " + r.dir + "/a.yaml:1, which comes first")
	r.wantAddress("a", "10.0.0.1")
	if err := os.Remove(filepath.Join(r.dir, "a.yaml")); err != nil {
		t.Fatal(err)
	}
	r.wantAddress("a", "10.0.0.2")
	r.eventually("no problem is left", func() bool { return len(r.Problems()) == 0 })
}

// TestFileStoreKeepsRewrittenFile rewrites a file in the way that editors do and reads it all
// the time. The object must never disappear.
func TestFileStoreKeepsRewrittenFile(t *testing.T) {
	t.Parallel()
	// A busy machine can suspend the test for a long time.
	r := followWith(t, Config{Dir: t.TempDir(), Settle: time.Minute})
	r.write("a.yaml", workload("a", "10.0.0.1"))
	r.wantAddress("a", "10.0.0.1")
	for i := range 30 {
		want := fmt.Sprintf("10.0.1.%d", i)
		if i%2 == 0 {
			// Like vim: move the old file away, then write a new one.
			r.rename("a.yaml", "a.yaml~")
		} else {
			r.write("a.yaml", "")
		}
		for deadline := time.Now().Add(15 * time.Millisecond); time.Now().Before(deadline); {
			if r.address("a") == "" {
				t.Fatal("the object disappeared while its file was rewritten")
			}
		}
		r.write("a.yaml", workload("a", want))
		r.eventually("the new address", func() bool {
			got := r.address("a")
			if got == "" {
				t.Fatal("the object disappeared while its file was rewritten")
			}
			return got == want
		})
	}
}
