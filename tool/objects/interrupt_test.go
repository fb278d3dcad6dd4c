// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package objects

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/spf13/cobra"

	"github.com/outrigger-mesh/outrigger/controlplane/config"
	"github.com/outrigger-mesh/outrigger/controlplane/config/memory"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// stopper is a store that simulates an interrupt after some writes.
type stopper struct {
	config.Store
	after int
	stop  func()
}

func (s *stopper) Create(ctx context.Context, c *model.Config) (string, error) {
	version, err := s.Store.Create(ctx, c)
	if s.after--; s.after == 0 {
		s.stop()
	}
	return version, err
}

// interrupted runs a command that stop interrupts, and returns its output.
func interrupted(t *testing.T, cfg Config, ctx context.Context, args ...string) (out, errs string) {
	t.Helper()
	root := &cobra.Command{Use: "outrigger", SilenceErrors: true, SilenceUsage: true}
	cfg.Past = past{}.of
	root.AddCommand(Commands(cfg)...)
	var stdout, stderr bytes.Buffer
	root.SetOut(&stdout)
	root.SetErr(&stderr)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if !errors.Is(err, errInterrupted) {
		t.Errorf("outrigger %s: got error %v, want %v", args, err, errInterrupted)
	}
	fmt.Fprint(&stderr, err)
	return stdout.String(), stderr.String()
}

// TestInterruptedWrite checks that an interrupted command prints its progress once, and not a line
// for each object that was not written.
func TestInterruptedWrite(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var text strings.Builder
	for i := range 50 {
		fmt.Fprintf(&text, "---\napiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata: {name: w%d}\nspec: {address: 10.0.0.1}\n", i)
	}
	cfg := Config{
		Open: func(string, []model.Kind) (config.Store, error) {
			return &stopper{Store: memory.New("memory://"), after: 3, stop: cancel}, nil
		},
		Default: func() (string, error) { return "memory://", nil },
		In:      strings.NewReader(text.String()),
	}
	out, errs := interrupted(t, cfg, ctx, "create", "-f", "-")
	if strings.Count(out, "created") != 3 || errs != "interrupted: 3 of 50 are done" {
		t.Errorf("got output %q and errors %q", out, errs)
	}
}

// TestInterruptedDecoding interrupts a command while it decodes a file.
func TestInterruptedDecoding(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	p := &part{source: "f", data: []byte(strings.Repeat("---\napiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata: {name: w}\nspec: {address: 10.0.0.1}\n", 2))}
	if (&fileFlags{}).take(ctx, p); !errors.Is(p.err, context.Canceled) || len(p.objects)+len(p.problems) > 0 {
		t.Errorf("got %d objects, %d problems, error %v; want none and that it was canceled", len(p.objects), len(p.problems), p.err)
	}
}

// TestInterruptedRead checks that reading from a terminal or pipe without input can be interrupted.
func TestInterruptedRead(t *testing.T) {
	t.Parallel()
	never, hold := io.Pipe()
	defer func() { _ = hold.Close() }() // lets the reader return
	pipe := filepath.Join(t.TempDir(), "pipe.yaml")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, file := range []string{"-", pipe} {
		interrupted(t, Config{In: never}, ctx, "validate", "-f", file)
	}
	// The reader of the pipe waits until the pipe has a writer.
	w, err := os.OpenFile(pipe, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_ = w.Close() // nothing was written
}

// TestDirectories checks that pipes in a directory are ignored, and that the directory may be a
// link.
func TestDirectories(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	s.file("real/entries.yaml", entry)
	if err := syscall.Mkfifo(filepath.Join(s.dir, "real", "pipe.yaml"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("real", filepath.Join(s.dir, "link")); err != nil {
		t.Fatal(err)
	}
	s.want("validate -f DIR/link", 0, "2 objects valid, 0 errors, 0 warnings\n", "")
	s.want("validate -f DIR/real/", 0, "2 objects valid, 0 errors, 0 warnings\n", "")
}

// TestEmptyInput checks that empty input is reported, because it is usually the result of a
// failed pipe.
func TestEmptyInput(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	s.file("empty.yaml", "# nothing\n")
	s.want("apply -f DIR/empty.yaml", 1, "", "outrigger: no objects in empty.yaml: nothing was written\n")
	s.want("delete -f DIR/empty.yaml", 1, "", "outrigger: no objects in empty.yaml: nothing was deleted\n")
	s.want("diff -f DIR/empty.yaml", 2, "", "outrigger: no objects in empty.yaml: nothing was compared\n")
	s.want("validate -f DIR/empty.yaml", 0, "0 objects valid, 0 errors, 0 warnings\n", "")
	s.want("delete vs -l team=none", 0, "", "no objects found\n")
	s.want("delete vs a -f DIR/empty.yaml", 2, "", "outrigger: -f and \"vs\" exclude each other: delete the objects of files, or the named ones\n")
}

// TestNamesCanBePassedOn checks that the output of get -o name can be passed to get and delete, and
// that a table of all namespaces contains each name once.
func TestNamesCanBePassedOn(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	s.file("entries.yaml", strings.Replace(entry, "kind: WorkloadEntry\nmetadata: {name: two, namespace: shop}\nspec: {address: 10.0.0.2}",
		"kind: Sidecar\nmetadata: {name: two, namespace: shop}\nspec: {egress: [{hosts: [\"./*\"]}]}", 1))
	s.want("apply -f DIR/entries.yaml", 0, "workloadentry/one applied\nsidecar/two in shop applied\n", "")
	s.want("get sidecar -n shop -o name", 0, "sidecar/two\n", "")
	s.want("get we,sidecar -A", 0, "NAMESPACE   NAME                ADDRESS    AGE\ndefault     workloadentry/one   10.0.0.1   0s\n\n"+
		"NAMESPACE   NAME          AGE\nshop        sidecar/two   0s\n", "")
	s.want("delete sidecar/two -n shop", 0, "sidecar/two in shop deleted\n", "")
}

// TestApplyObjectOfOtherStore checks applying an exported object to a store that does not have
// it. The resource version means that the object exists, so the error must contain the cure.
func TestApplyObjectOfOtherStore(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	s.file("entries.yaml", strings.Replace(entry, "{name: one,", "{name: one, resourceVersion: \"7\",", 1))
	s.want("apply -f DIR/entries.yaml", 1, "workloadentry/two in shop applied\n", "error: entries.yaml:1: update WorkloadEntry/default/one: it does not exist: "+
		"metadata.resourceVersion is that of a deleted object, or of another store; remove it to create the object\n"+
		"outrigger: 1 of 2 failed; the others are done\n")
}
