// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package envoy

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// shell returns a process that runs a shell script instead of Envoy. The script prints "up" when it
// is ready.
func shell(t *testing.T, script string, edit func(*Config)) (*Process, *output) {
	t.Helper()
	out := &output{}
	cfg := Config{
		Binary: "/bin/sh", Args: []string{"-c", script}, Stdout: out, Stderr: out,
		Logger: testLogger(t), Registerer: prometheus.NewRegistry(),
	}
	if edit != nil {
		edit(&cfg)
	}
	p, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return p, out
}

// begin runs a process. It returns a function that stops it and a channel that receives its result.
func begin(t *testing.T, p *Process) (context.CancelFunc, <-chan error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error, 1)
	go func() { result <- p.Run(ctx) }()
	t.Cleanup(cancel)
	return cancel, result
}

func isUp(out *output) func() bool {
	return func() bool { return strings.Contains(out.String(), "up\n") }
}

func exits(p *Process, cause string) float64 {
	var m dto.Metric
	if err := p.exits.WithLabelValues(cause).Write(&m); err != nil {
		return -1
	}
	return m.GetCounter().GetValue()
}

func TestRunReportsCrash(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		script string
		want   ExitError
		cause  string
		text   string
	}{
		"exit 0":  {"exit 0", ExitError{}, "exited", "exited with code 0 although"},
		"exit 3":  {"exit 3", ExitError{Code: 3}, "failed", "exited with code 3"},
		"SIGKILL": {"kill -9 $$", ExitError{Code: -1, Signal: syscall.SIGKILL}, "signal", "envoy was killed by signal 9 (killed); if it was not sent on purpose, look for out-of-memory"},
		"SIGSEGV": {"kill -SEGV $$", ExitError{Code: -1, Signal: syscall.SIGSEGV}, "signal", "signal 11 (segmentation fault)"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, _ := shell(t, c.script, nil)
			err := p.Run(t.Context())
			var got *ExitError
			if !errors.As(err, &got) {
				t.Fatalf("Run() = %v, want an *ExitError", err)
			}
			if diff := cmp.Diff(c.want, *got); diff != "" {
				t.Errorf("error (-want +got):\n%s", diff)
			}
			if !strings.Contains(err.Error(), c.text) {
				t.Errorf("error = %q, want %q in it", err, c.text)
			}
			if n := exits(p, c.cause); n != 1 {
				t.Errorf("exits by %s = %v, want 1", c.cause, n)
			}
		})
	}
}

func TestRunStops(t *testing.T) {
	t.Parallel()
	p, out := shell(t, `trap 'echo term; exit 0' TERM; echo up; while :; do sleep 0.05; done`, nil)
	cancel, result := begin(t, p)
	eventually(t, "the start", isUp(out))
	<-p.Started()
	if p.PID() == 0 {
		t.Error("PID() = 0 after the start")
	}
	cancel()
	if err := <-result; err != nil {
		t.Errorf("Run() = %v, want nil", err)
	}
	if !strings.Contains(out.String(), "term") || exits(p, "stopped") != 1 {
		t.Errorf("the child did not end by SIGTERM: output %q, stopped %v", out, exits(p, "stopped"))
	}
	if err := p.Run(t.Context()); err == nil {
		t.Error("a second Run returned no error")
	}
}

func TestRunKillsWhoDisobeys(t *testing.T) {
	t.Parallel()
	p, out := shell(t, `trap '' TERM; echo up; while :; do sleep 0.05; done`, func(c *Config) {
		c.Drain.KillAfter = 100 * time.Millisecond
	})
	cancel, result := begin(t, p)
	eventually(t, "the start", isUp(out))
	cancel()
	if err := <-result; err != nil {
		t.Errorf("Run() = %v, want nil", err)
	}
	if exits(p, "unstopped") != 1 {
		t.Error("the kill was not counted")
	}
}

func TestNowEndsAtOnce(t *testing.T) {
	t.Parallel()
	for name, cancelFirst := range map[string]bool{"while it runs": false, "while it drains": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			now, log := make(chan struct{}), &output{}
			p, out := shell(t, `trap '' TERM; echo up; while :; do sleep 0.05; done`, func(c *Config) {
				c.Drain = DrainConfig{Duration: time.Hour, KillAfter: time.Hour, Now: now}
				c.Logger = bothLoggers(t, log)
			})
			cancel, result := begin(t, p)
			eventually(t, "the start", isUp(out))
			if cancelFirst {
				cancel()
			}
			close(now)
			if err := <-result; err != nil {
				t.Errorf("Run() = %v, want nil", err)
			}
			if text := log.String(); !strings.Contains(text, "an immediate end was requested") || strings.Contains(text, "not exited in time") {
				t.Errorf("the log says %q", text)
			}
		})
	}
}

func TestCrashWhileDraining(t *testing.T) {
	t.Parallel()
	for signal, crash := range map[syscall.Signal]bool{syscall.SIGABRT: true, syscall.SIGTERM: false} {
		p, out := shell(t, `echo up; exec sleep 1000`, func(c *Config) { c.Drain.Duration = time.Hour })
		cancel, result := begin(t, p)
		eventually(t, "the start", isUp(out))
		<-p.Started() // the output may arrive earlier
		cancel()
		kill(t, p.current.Load(), signal)
		err := <-result
		var exit *ExitError
		if got := errors.As(err, &exit); got != crash {
			t.Errorf("%s during the drain: Run() = %v, want a crash: %t", signal, err, crash)
		}
	}
}

func TestRunWithDoneContextStartsNothing(t *testing.T) {
	t.Parallel()
	p, _ := shell(t, "exit 3", nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := p.Run(ctx); err != nil || p.PID() != 0 {
		t.Errorf("Run() = %v, process id %d, want no start", err, p.PID())
	}
}

func TestRunWithoutBinary(t *testing.T) {
	t.Parallel()
	p, _ := shell(t, "", func(c *Config) { c.Binary = "/nowhere/envoy" })
	if err := p.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "start envoy /nowhere/envoy") {
		t.Errorf("Run() = %v, want the path of the binary", err)
	}
}

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	good := Config{Binary: "envoy", Logger: testLogger(t)}
	for want, edit := range map[string]func(*Config){
		"no envoy binary": func(c *Config) { c.Binary = "" },
		"no logger":       func(c *Config) { c.Logger = nil },
		"negative":        func(c *Config) { c.Drain.Duration = -1 },
	} {
		cfg := good
		edit(&cfg)
		if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("New() = %v, want %q", err, want)
		}
	}
	if _, err := New(good); err != nil {
		t.Errorf("New() = %v", err)
	}
}

func TestChildDiesWithAgent(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	agent := exec.Command(self)
	agent.Env = append(os.Environ(), roleVariable+"=agent")
	stdout, err := agent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := agent.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		t.Fatalf("the agent said %q", line)
	}
	if !alive(pid) {
		t.Fatal("the child is not alive before its agent is killed")
	}
	if err := agent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = agent.Wait() // it was killed, so an error is expected
	eventually(t, "the end of the child", func() bool { return !alive(pid) })
}

// alive reports whether a process runs; a zombie does not.
func alive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(rest, "Z") && !strings.HasPrefix(rest, "X")
}

func TestOOMKills(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	for path, text := range map[string]string{
		"pod/a/memory.events":           "low 0\noom 9\noom_kill 2\noom_group_kill 0\n",
		"memory.events":                 "oom_kill 3\n",
		"memory/old/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 4\n",
		"pod/broken/memory.events":      "oom_kill many\n",
	} {
		full := filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(full), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(full, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for own, want := range map[string]uint64{
		"0::/pod/a\n":                  2,
		"0::/unseen\n":                 3,
		"0::/pod/broken\n":             3,
		"4:memory:/old\n0::/nothing\n": 4,
		"":                             0,
		"garbage":                      0,
	} {
		if got := oomKillsIn(root, own); got != want {
			t.Errorf("kills in %q = %d, want %d", own, got, want)
		}
	}
	err := &ExitError{Code: -1, Signal: syscall.SIGKILL, OOM: true}
	if !strings.Contains(err.Error(), "out of memory") || err.cause() != "oom" {
		t.Errorf("error = %v, cause %s", err, err.cause())
	}
}
