// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package envoy

import (
	"errors"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
)

func restarts(p *Process) float64 {
	var m dto.Metric
	if err := p.restarts.Write(&m); err != nil {
		return -1
	}
	return m.GetCounter().GetValue()
}

func TestParseRestart(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Restart{
		"off": {}, "1/1s": {1, time.Second}, "3/10m": {3, 10 * time.Minute}, "1000/24h": {1000, 24 * time.Hour},
	} {
		if got, err := ParseRestart(text); err != nil || got != want {
			t.Errorf("ParseRestart(%q) = %v, %v, want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "3", "3/", "/10m", "0/10m", "-1/10m", "1001/10m", "3/0s", "3/-1m", "3/10", "x/10m", "3/10m/1", "OFF", " 3/10m"} {
		if got, err := ParseRestart(text); err == nil || !strings.Contains(err.Error(), "such as 3/10m, or off") {
			t.Errorf("ParseRestart(%q) = %v, %v, want an error that says what to write", text, got, err)
		}
	}
}

func FuzzParseRestart(f *testing.F) {
	f.Add("3/10m")
	f.Add("off")
	f.Add("99999999999999999999/1h")
	f.Fuzz(func(t *testing.T, text string) {
		r, err := ParseRestart(text)
		if err != nil {
			return
		}
		if again, err := ParseRestart(r.String()); err != nil || again != r {
			t.Errorf("ParseRestart(%q) = %v, which is read as %v, %v", text, r, again, err)
		}
	})
}

func TestBudgetSlides(t *testing.T) {
	t.Parallel()
	b := budget{Restart: Restart{Count: 2, Window: 10 * time.Minute}}
	start := time.Unix(0, 0)
	for i, step := range []struct {
		begin, end time.Duration
		left       int
		delay      time.Duration
		within     bool
	}{
		{0, 10 * time.Minute, 1, 0, true},                                           // a long life: no delay
		{11 * time.Minute, 11*time.Minute + time.Second, 0, firstDelay, true},       // a short life
		{12 * time.Minute, 12*time.Minute + time.Second, 0, 0, false},               // budget exhausted
		{19 * time.Minute, 20*time.Minute - 1, 0, 0, false},                         // still exhausted
		{20*time.Minute - time.Second, 20 * time.Minute, 0, 2 * firstDelay, true},   // the first restart has left the window
		{20 * time.Minute, 20*time.Minute + time.Second, 0, 0, false},               // exhausted again
		{40*time.Minute - time.Second, 40 * time.Minute, 1, 4 * firstDelay, true},   // all restarts have left the window
		{40 * time.Minute, 40*time.Minute + shortLife, 0, 0, true},                  // a long life resets the delay
		{60*time.Minute - time.Second, 60 * time.Minute, 1, firstDelay, true},       // starts with the first delay
		{120*time.Minute - time.Second, 120 * time.Minute, 1, 2 * firstDelay, true}, // continues to double
	} {
		left, delay, within := b.take(start.Add(step.begin), start.Add(step.end))
		if left != step.left || delay != step.delay || within != step.within {
			t.Errorf("step %d: %d left, delay %s, %t, want %d, %s, %t", i, left, delay, within, step.left, step.delay, step.within)
		}
	}
	b = budget{Restart: Restart{Count: maxRestarts, Window: time.Hour}}
	for range maxRestarts {
		if _, delay, within := b.take(start, start); !within || delay <= 0 || delay > lastDelay {
			t.Fatalf("delay %s, %t", delay, within)
		}
	}
}

func TestBudgetIsUsedUp(t *testing.T) {
	t.Parallel()
	p, out := shell(t, "echo up; exit 3", func(c *Config) { c.Restart = Restart{Count: 2, Window: time.Hour} })
	err := p.Run(t.Context())
	var crash *ExitError
	if !errors.As(err, &crash) || crash.Code != 3 || !strings.Contains(err.Error(), "the budget of envoy's restarts, 2/1h0m0s, is exhausted: envoy exited with code 3") {
		t.Errorf("Run() = %v, want the budget and the last cause", err)
	}
	if starts := strings.Count(out.String(), "up\n"); starts != 3 || restarts(p) != 2 || exits(p, "failed") != 3 {
		t.Errorf("%d starts, %v restarts, %v exits", starts, restarts(p), exits(p, "failed"))
	}
}

func TestNoRestart(t *testing.T) {
	t.Parallel()
	budget := Restart{Count: 5, Window: time.Hour}
	t.Run("of an envoy that was asked to end", func(t *testing.T) {
		t.Parallel()
		p, _ := shell(t, "exit 0", func(c *Config) { c.Restart = budget })
		var exit *ExitError
		if err := p.Run(t.Context()); !errors.As(err, &exit) || exit.Code != 0 || restarts(p) != 0 {
			t.Errorf("Run() = %v after %v restarts", err, restarts(p))
		}
	})
	t.Run("while the agent drains", func(t *testing.T) {
		t.Parallel()
		p, out := shell(t, `echo up; exec sleep 1000`, func(c *Config) { c.Restart, c.Drain.Duration = budget, time.Hour })
		cancel, result := begin(t, p)
		eventually(t, "the start", isUp(out))
		cancel()
		eventually(t, "the drain", p.Draining)
		kill(t, p.current.Load(), syscall.SIGKILL)
		var exit *ExitError
		if err := <-result; !errors.As(err, &exit) || restarts(p) != 0 {
			t.Errorf("Run() = %v after %v restarts", err, restarts(p))
		}
	})
	t.Run("when the agent is to end meanwhile", func(t *testing.T) {
		t.Parallel()
		p, _ := shell(t, `exit 3`, func(c *Config) { c.Restart = Restart{Count: 1000, Window: time.Hour} })
		cancel, result := begin(t, p)
		eventually(t, "restarts", func() bool { return restarts(p) > 1 })
		cancel()
		select {
		case err := <-result:
			// A nil error separates two Envoys; crash is the exit of one.
			if exit := (*ExitError)(nil); err != nil && !errors.As(err, &exit) {
				t.Errorf("Run() = %v", err)
			}
		case <-time.After(2 * time.Minute):
			t.Error("a crashing envoy prevents the agent from stopping")
		}
	})
}

// TestRestartOfMissingBinary checks that a restart waits for a binary that is missing for a moment
// while it is replaced, but a first start does not.
func TestRestartOfMissingBinary(t *testing.T) {
	t.Parallel()
	binary := filepath.Join(t.TempDir(), "envoy")
	writeBinary(t, binary, "#!/bin/sh\nmv \"$0\" \"$0.away\"\nexit 3\n")
	p, out := shell(t, "", func(c *Config) {
		c.Binary, c.Args, c.Restart = binary, nil, Restart{Count: 1000, Window: time.Hour}
	})
	cancel, result := begin(t, p)
	eventually(t, "two restarts without a binary", func() bool { return restarts(p) > 1 })
	writeBinary(t, binary, "#!/bin/sh\necho up\nexec sleep 1000\n")
	eventually(t, "the start", isUp(out))
	cancel()
	if err := <-result; err != nil {
		t.Errorf("Run() = %v", err)
	}

	p, _ = shell(t, "", func(c *Config) {
		c.Binary, c.Restart = filepath.Join(t.TempDir(), "nothing"), Restart{Count: 1000, Window: time.Hour}
	})
	if err := p.Run(t.Context()); err == nil || restarts(p) != 0 {
		t.Errorf("Run() = %v after %v restarts, want an error at once", err, restarts(p))
	}
}
