// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package envoy

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

func TestRealEnvoyIsStartedAgain(t *testing.T) {
	t.Parallel()
	e, cancel, result := startEnvoy(t, func(c *Config) { c.Restart = Restart{Count: 1, Window: time.Hour} })
	if err := e.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	first := e.PID()
	killed := time.Now()
	kill(t, e.current.Load(), syscall.SIGKILL)
	var err error
	for (err == nil || noAnswer(err)) && time.Since(killed) < 2*time.Minute {
		err = e.Ready(t.Context())
	}
	if off := time.Since(killed); err == nil || !strings.Contains(err.Error(), "envoy was killed by signal 9") {
		t.Errorf("%s after the kill, Ready() = %v, want the cause", off, err)
	}
	eventually(t, "the new envoy to be ready", func() bool {
		err := e.Ready(t.Context())
		if err != nil && !strings.Contains(err.Error(), "killed by signal 9") && !noAnswer(err) {
			t.Errorf("meanwhile, Ready() = %v, want the cause in it", err)
		}
		return err == nil
	})
	if e.PID() == first || restarts(e.Process) != 1 {
		t.Errorf("process %d after %d, %v restarts", e.PID(), first, restarts(e.Process))
	}
	if err := e.get(t, 8080); err != nil {
		t.Error(err)
	}
	cancel()
	if err := <-result; err != nil {
		t.Errorf("Run() = %v, want nil", err)
	}
}

// noAnswer reports whether Envoy's admin port did not respond: the process may be gone before its
// exit is detected.
func noAnswer(err error) bool { return strings.HasPrefix(err.Error(), "ask envoy's admin port: ") }

// TestReadyEndsWithEnvoy checks that a request that is in progress when Envoy exits returns at
// once.
func TestReadyEndsWithEnvoy(t *testing.T) {
	t.Parallel()
	asked, release := make(chan struct{}), make(chan struct{})
	admin := fakeAdmin(t, func(http.ResponseWriter, *http.Request) {
		close(asked)
		<-release
	})
	t.Cleanup(func() { close(release) })
	p, out := shell(t, `echo up; exec sleep 1000`, func(c *Config) { c.Admin = admin })
	_, result := begin(t, p)
	eventually(t, "the start", isUp(out))
	<-p.Started() // the output may arrive earlier
	answer := make(chan error, 1)
	go func() { answer <- p.Ready(t.Context()) }()
	select {
	case <-asked:
	case err := <-answer:
		t.Fatalf("Ready() = %v before Envoy was asked", err)
	}
	kill(t, p.current.Load(), syscall.SIGKILL)
	select {
	case err := <-answer:
		if err == nil || !strings.Contains(err.Error(), "envoy is down: envoy was killed by signal 9") {
			t.Errorf("Ready() = %v", err)
		}
	case <-time.After(2 * time.Minute):
		t.Error("readiness waits for an envoy that has ended")
	}
	if err := <-result; err == nil {
		t.Error("Run() = nil after a crash")
	}
}

// TestReadyNeedsConfiguration checks that an Envoy that lacks configuration is not ready, and that
// one that has been ready once remains ready.
func TestReadyNeedsConfiguration(t *testing.T) {
	t.Parallel()
	admin := fakeAdmin(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "cluster_manager.cds.update_success: 1\nlistener_manager.lds.update_success: 1\nlistener_manager.workers_started: 1\nserver.state: 0\n")
	})
	var lacks atomic.Pointer[error]
	want := errors.New("no routes")
	lacks.Store(&want)
	p, out := shell(t, `echo up; exec sleep 1000`, func(c *Config) {
		c.Admin = admin
		c.Configured = func(int) error { return *lacks.Load() }
	})
	cancel, result := begin(t, p)
	eventually(t, "the start", isUp(out))
	<-p.Started() // the output may arrive earlier
	if err := p.Ready(t.Context()); !errors.Is(err, want) {
		t.Errorf("without configuration: %v", err)
	}
	lacks.Store(new(error))
	if err := p.Ready(t.Context()); err != nil {
		t.Errorf("with it: %v", err)
	}
	lacks.Store(&want)
	if err := p.Ready(t.Context()); err != nil {
		t.Errorf("once it was ready: %v", err)
	}
	cancel()
	if err := <-result; err != nil {
		t.Error(err)
	}
}

// TestRealEnvoyDrainsBeforeItsEnd checks that shutdown does not wait again if a drain has completed
// before.
func TestRealEnvoyDrainsBeforeItsEnd(t *testing.T) {
	t.Parallel()
	const duration = 5 * time.Second
	e, cancel, result := startEnvoy(t, func(c *Config) { c.Drain = DrainConfig{InboundOnly: true, Duration: duration} })
	begun := time.Now()
	gone, leave := context.WithCancel(t.Context())
	go e.Drain(gone) // the first caller gives up, but the drain continues
	eventually(t, "the drain", e.Draining)
	leave()
	e.Drain(t.Context())
	if lasted := time.Since(begun); lasted < duration {
		t.Errorf("the drain lasted %s, want %s", lasted, duration)
	}
	for _, port := range []int{8080, 15001} {
		if err := e.get(t, port); err != nil {
			t.Errorf("after the drain: %v", err)
		}
	}
	ending := time.Now()
	cancel()
	if err := <-result; err != nil {
		t.Errorf("Run() = %v, want nil", err)
	}
	if took := time.Since(ending); took >= duration {
		t.Errorf("the end took %s although the drain was over", took)
	}
}

// TestEndDuringDrain checks that a shutdown during a drain waits only for the rest of the drain.
func TestEndDuringDrain(t *testing.T) {
	t.Parallel()
	const duration = 600 * time.Millisecond
	p, out := shell(t, obedient, func(c *Config) { c.Drain.Duration = duration })
	cancel, result := begin(t, p)
	eventually(t, "the start", isUp(out))
	<-p.Started() // the output may arrive earlier
	begun := time.Now()
	go p.Drain(t.Context())
	eventually(t, "the drain", p.Draining)
	cancel()
	if err := <-result; err != nil {
		t.Errorf("Run() = %v, want nil", err)
	}
	if lasted := time.Since(begun); lasted < duration {
		t.Errorf("the end came after %s, want %s", lasted, duration)
	}
}

// TestRealEnvoyOnIPv6LeavesInTime checks that probes that keep IPv6 listeners open do not delay
// shutdown, and that other open connections delay it only for a limited time.
func TestRealEnvoyOnIPv6LeavesInTime(t *testing.T) {
	t.Parallel()
	port := freeIPv6Port(t)
	for name, ignore := range map[string][]int{"the probe's connection does not count": {port}, "the bound": nil} {
		const bound = 1500 * time.Millisecond
		listener := fmt.Sprintf("{static_resources: {listeners: [%s]}}", ipv6Listener(port))
		e, cancel, result := startEnvoy(t, func(c *Config) {
			c.Args = append(c.Args, "--config-yaml", listener)
			c.Drain = DrainConfig{ExitOnZero: true, MaxDuration: bound, IgnorePorts: ignore}
		})
		conn, err := net.Dial("tcp", fmt.Sprintf("[::1]:%d", port))
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, "the connection to be counted", func() bool {
			n, err := e.admin.ActiveConnections(t.Context())
			return err == nil && n == 1
		})
		begun := time.Now()
		cancel()
		if err := <-result; err != nil {
			t.Errorf("%s: Run() = %v, want nil", name, err)
		}
		if lasted := time.Since(begun); (lasted >= bound) != (ignore == nil) || lasted > 3*bound {
			t.Errorf("%s: the drain lasted %s", name, lasted)
		}
		_ = conn.Close() // envoy has exited
	}
}

func freeIPv6Port(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		t.Skip("this machine has no IPv6: " + err.Error())
	}
	defer func() { _ = l.Close() }()
	return l.Addr().(*net.TCPAddr).Port
}

func ipv6Listener(port int) string {
	return fmt.Sprintf(`{name: six, address: {socket_address: {address: "::1", port_value: %d}}, filter_chains: [{filters: [{name: echo,
  typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.network.echo.v3.Echo}}]}]}`, port)
}

// TestRealEnvoyGetsTheHardLimitOfFiles checks that Envoy gets the hard limit of open files although
// the agent was started with a lower one.
func TestRealEnvoyGetsTheHardLimitOfFiles(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	agent := exec.Command("/bin/sh", "-c", `ulimit -Sn 256 && ulimit -Hn 4096 && exec "$0" "$@"`, self, findEnvoy(t), "--config-yaml", "{}", "--disable-hot-restart")
	agent.Env = append(os.Environ(), roleVariable+"=agent")
	stdout, err := agent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := agent.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = agent.Process.Kill() // it never exits on its own
		_ = agent.Wait()
	}()
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	limits, err := os.ReadFile("/proc/" + strings.TrimSpace(line) + "/limits")
	if err != nil {
		t.Fatal(err)
	}
	for text := range strings.Lines(string(limits)) {
		if fields := strings.Fields(text); strings.HasPrefix(text, "Max open files") && (fields[3] != "4096" || fields[4] != "4096") {
			t.Errorf("limit of open files: soft %s, hard %s, want 4096", fields[3], fields[4])
		}
	}
}
