// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package file

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/controlplane/config/codec"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

const (
	// killedWriterDir is set in the process that writes, to the directory.
	killedWriterDir = "OUTRIGGER_TEST_KILLED_WRITER"
	killedWrites    = 5000
	killedObjects   = 1000
	// inOneFile is the number of objects that are in one file, as a user wrote it.
	inOneFile = 50
	countKey  = "outrigger.example/count"
)

func killedKey(i int) model.Key {
	return model.Key{Kind: model.WorkloadEntry, Namespace: "default", Name: fmt.Sprintf("w%d", i)}
}

// TestKilledWriter kills a process during 5,000 writes. Every write that it acknowledged must be in
// the directory, and no file may be incomplete.
func TestKilledWriter(t *testing.T) {
	if dir := os.Getenv(killedWriterDir); dir != "" {
		writeUntilKilled(t, dir)
		return
	}
	t.Parallel()
	dir := t.TempDir()
	var userFile strings.Builder
	for i := range inOneFile {
		fmt.Fprintf(&userFile, "# comment %d\n%s", i, workload(fmt.Sprintf("w%d", i), "10.0.0.1"))
	}
	must(t, os.WriteFile(filepath.Join(dir, "user.yaml"), []byte(userFile.String()), 0o600))

	child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestKilledWriter$") //nolint:gosec // this binary
	child.Env = append(os.Environ(), killedWriterDir+"="+dir)
	out, err := child.StdoutPipe()
	must(t, err, child.Start())
	killAt := killedWrites/10 + rand.IntN(killedWrites*8/10)
	acknowledged, n, start := map[int]int{}, 0, time.Now()
	for lines := bufio.NewScanner(out); lines.Scan(); {
		i, count, ok := strings.Cut(lines.Text(), " ")
		if !ok {
			t.Fatalf("unexpected output of the writer: %q", lines.Text())
		}
		index, err := strconv.Atoi(i)
		must(t, err)
		acknowledged[index], err = strconv.Atoi(count)
		must(t, err)
		if n++; n == killAt {
			t.Logf("killed after %d writes in %v: %.0f/s", n, time.Since(start), float64(n)/time.Since(start).Seconds())
			must(t, child.Process.Kill())
		}
	}
	if err := child.Wait(); err == nil || n < killAt {
		t.Fatalf("the writer exited unexpectedly after %d writes: %v", n, err)
	}

	// Add a temporary file, in case the writer was not killed during a write.
	must(t, os.WriteFile(filepath.Join(dir, killedKey(0).Namespace, tempPrefix+"1"), []byte("half"), 0o600))
	// Make all temporary files old enough for the store to remove them.
	halves, err := filepath.Glob(filepath.Join(dir, "*", tempPrefix+"*"))
	must(t, err)
	for _, path := range halves {
		must(t, os.Chtimes(path, time.Time{}, time.Now().Add(-time.Hour)))
	}
	s := loadOnce(t, dir, "")
	if p := s.Problems(); len(p) > 0 {
		t.Errorf("problems: %v", p)
	}
	for i, count := range acknowledged {
		c := s.Get(killedKey(i))
		if c == nil {
			t.Errorf("%s was lost", killedKey(i))
		} else if got, _ := strconv.Atoi(c.Annotations[countKey]); got < count {
			t.Errorf("%s: got write %d, want at least %d", c.Key, got, count)
		}
	}
	text, err := os.ReadFile(filepath.Join(dir, "user.yaml"))
	must(t, err)
	if got := strings.Count(string(text), "# comment "); got != inOneFile {
		t.Errorf("%d of %d comments remain", got, inOneFile)
	}
	// The lock was released when the process was killed.
	if _, err := s.Patch(t.Context(), killedKey(0), func(c *model.Config) error { c.Labels = map[string]string{"after": "all"}; return nil }); err != nil {
		t.Error(err)
	}
	if left, err := filepath.Glob(filepath.Join(dir, "*", tempPrefix+"*")); err != nil || len(left) > 0 {
		t.Errorf("temporary files remain: %v, error %v", left, err)
	}
}

// writeUntilKilled creates and updates objects, and prints each write that is complete.
func writeUntilKilled(t *testing.T, dir string) {
	t.Helper()
	s, err := New(Config{Dir: dir})
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	<-s.Synced()
	for i := range killedWrites {
		c := s.Get(killedKey(i % killedObjects)).Clone()
		if c == nil {
			objects, _ := codec.Decode("", []byte(workload(killedKey(i%killedObjects).Name, "10.0.0.1")))
			c = objects[0]
			c.ResourceVersion = ""
		}
		write := s.Update
		if c.ResourceVersion == "" {
			write = s.Create
		}
		c.Annotations = map[string]string{countKey: strconv.Itoa(i)}
		_, err := write(t.Context(), c)
		must(t, err)
		_, err = fmt.Fprintf(os.Stdout, "%d %d\n", i%killedObjects, i)
		must(t, err)
	}
	cancel()
	must(t, <-done)
}
