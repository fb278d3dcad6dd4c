// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package mesh

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// recorder records the events of a part.
type recorder struct {
	mu   sync.Mutex
	list []event
}

func (r *recorder) add(_ *part, e event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.list = append(r.list, e)
}

func (r *recorder) ended() []event {
	r.mu.Lock()
	defer r.mu.Unlock()
	var ended []event
	for _, e := range r.list {
		if e.kind == eventEnded {
			ended = append(ended, e)
		}
	}
	return ended
}

// newTestPart returns a part that runs the fake application.
func newTestPart(t *testing.T, r *recorder, args ...string) *part {
	t.Helper()
	out, err := newOutput(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(out.close)
	out.show = func(level, string) {}
	return &part{
		name: "web", role: roleApp, out: out, events: r.add, firstReady: make(chan struct{}),
		command: command{path: filepath.Join(programs(t), "app"), args: args, env: []string{"PORT=" + itoa(freePort(t))}},
		ready:   func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
		restart: restartPolicy{first: time.Millisecond, most: 4 * time.Millisecond, stable: time.Hour, startTries: 3},
		grace:   10 * time.Second,
	}
}

func TestPartThatNeverStarts(t *testing.T) {
	t.Parallel()
	var r recorder
	p := newTestPart(t, &r, "exit")
	err := p.run(t.Context())
	var failed *startError
	if !errors.As(err, &failed) {
		t.Fatalf("error %v", err)
	}
	for _, want := range []string{"web: the application does not start: it exited with code 3", "| app says hello exit", "| no line end"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %q lacks %q", err, want)
		}
	}
	if n := len(r.ended()); n != 2 {
		t.Errorf("%d restarts before giving up, want 2", n)
	}
}

func TestPartThatIsMissing(t *testing.T) {
	t.Parallel()
	var r recorder
	p := newTestPart(t, &r)
	p.command.path = "/no/such/program"
	if err := p.run(t.Context()); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("error %v", err)
	}
}

func TestPartBacksOff(t *testing.T) {
	t.Parallel()
	var r recorder
	p := newTestPart(t, &r, "exit")
	p.restart.startTries = 6
	if err := p.run(t.Context()); err == nil {
		t.Error("no error")
	}
	var waits []time.Duration
	for _, e := range r.ended() {
		waits = append(waits, e.wait/time.Millisecond)
		if e.why != "no line end" || e.exit.code != 3 {
			t.Errorf("event %+v", e)
		}
	}
	if want := []time.Duration{1, 2, 4, 4, 4}; !equal(waits, want) {
		t.Errorf("waits %v ms, want %v", waits, want)
	}
	p = newTestPart(t, &r, "exit")
	p.restart = restartPolicy{first: time.Millisecond, most: time.Hour, stable: 0, startTries: 20}
	r.list = nil
	if err := p.run(t.Context()); err == nil {
		t.Error("no error")
	}
	for _, e := range r.ended() {
		if e.wait != time.Millisecond {
			t.Errorf("a stable life does not reset the back-off: %s", e.wait)
		}
	}
}

func equal(a, b []time.Duration) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

// TestPartIsRestarted kills a part that has been ready and waits until it is ready again.
func TestPartIsRestarted(t *testing.T) {
	t.Parallel()
	var r recorder
	p := newTestPart(t, &r)
	address := "127.0.0.1:" + strings.TrimPrefix(p.command.env[0], "PORT=")
	p.ready = func(ctx context.Context) error { return poll(ctx, listens(address, (&net.Dialer{}).DialContext)) }
	pids := make(chan int, 10)
	p.prepare = func() error { return nil }
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.run(ctx) }()
	<-p.firstReady
	go func() { pids <- listenerPID(p.command.path) }()
	if err := syscall.Kill(<-pids, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "ready again", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		last := r.list[len(r.list)-1]
		return last.kind == eventReady && last.life == 2
	})
	if e := r.ended(); len(e) != 1 || e[0].exit.signal != syscall.SIGKILL || !strings.Contains(e[0].exit.String(), "terminated by signal 9 (killed)") {
		t.Errorf("events %+v", e)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if listens(address, (&net.Dialer{}).DialContext)(t.Context()) {
		t.Error("the application still runs")
	}
}

// listenerPID finds the process of a program by its path.
func listenerPID(path string) int {
	for _, pid := range processes(path) {
		return pid
	}
	return 0
}

// processes lists the processes whose command line names a path.
func processes(path string) []int {
	var pids []int
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline") // the pattern is valid
	for _, f := range files {
		line, err := os.ReadFile(f)
		if err != nil || !bytes.Contains(line, []byte(path)) {
			continue
		}
		if pid, err := strconv.Atoi(strings.Split(f, "/")[2]); err == nil && pid != os.Getpid() {
			pids = append(pids, pid)
		}
	}
	return pids
}

func TestStragglerIsKilled(t *testing.T) {
	t.Parallel()
	for _, way := range []string{"after its grace", "at once"} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			var r recorder
			p := newTestPart(t, &r, "deaf")
			kill := make(chan struct{})
			p.kill = kill
			if way == "at once" {
				close(kill)
			} else {
				p.grace = 20 * time.Millisecond
			}
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- p.run(ctx) }()
			eventually(t, "hello", func() bool { return strings.Contains(p.out.lastLines(), "hello") })
			began := time.Now()
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
			if time.Since(began) > time.Minute {
				t.Errorf("it took %s", time.Since(began))
			}
		})
	}
}

// TestGroupIsKilled checks that child processes are killed with their parent. Even if some keep the
// output open, everything is gone within ten seconds, with a margin for the machine.
func TestGraceAddsUp(t *testing.T) {
	t.Parallel()
	if all := graceWorkload + pipeDelay + graceControl + pipeDelay; all > 9*time.Second {
		t.Errorf("the end may take %s", all)
	}
}

func TestGroupIsKilled(t *testing.T) {
	t.Parallel()
	var r recorder
	p := newTestPart(t, &r, "parent")
	p.restart.startTries = 1
	began := time.Now()
	err := p.run(t.Context())
	if err == nil {
		t.Fatal("no error")
	}
	_, rest, _ := strings.Cut(err.Error(), "child ")
	pid, err := strconv.Atoi(strings.TrimSpace(rest))
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the child is gone", func() bool { return !alive(pid) })
	if time.Since(began) > time.Minute {
		t.Error("the end of the child was waited for")
	}
}

// alive reports whether a process runs; a zombie does not.
func alive(pid int) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(rest, "Z")
}
