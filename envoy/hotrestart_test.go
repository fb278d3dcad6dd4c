// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package envoy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
)

// hotDrain is how long the old Envoy in a test drains.
const hotDrain = time.Second

// startHot runs an Envoy that supports hot restart. Its binary is a script that tests may replace.
// The content of the file "extra" next to it is merged over the bootstrap of an Envoy that starts,
// but not of one that only validates it.
func startHot(t *testing.T, edit func(*Config)) (*realEnvoy, context.CancelFunc, <-chan error) {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "envoy")
	writeBinary(t, binary, hotScript(findEnvoy(t)))
	e, cancel, ended := startEnvoy(t, func(c *Config) {
		c.Binary, c.AllowUnsafe = binary, true
		c.HotRestart = HotRestart{Sockets: filepath.Join(c.Dir, "hr"), Drain: hotDrain, Timeout: patience}
		c.Args = Args(ArgsInput{ConfigFile: "envoy.yaml", DrainDuration: hotDrain, LogLevel: "warning", Concurrency: 2, HotRestart: true})
		if edit != nil {
			edit(c)
		}
	})
	again, over := make(chan error, 1), make(chan struct{})
	go func() {
		again <- <-ended
		close(over) // for the cleanup: the test may read the result
	}()
	t.Cleanup(func() {
		cancel()
		<-over
		left, err := filepath.Glob(e.cfg.HotRestart.Sockets + "*")
		if err != nil || len(left) > 0 {
			t.Errorf("left behind: %v, %v", left, err)
		}
		if line := e.current.Load().line; line != nil {
			if _, err := os.Stat(line.shared); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("left behind: %s: %v", line.shared, err)
			}
		}
	})
	return e, cancel, again
}

func hotScript(real string) string {
	return `#!/bin/sh
extra="$(dirname "$0")/extra"
case "$*" in
*--version*|*hot-restart-version*|*validate*) exec ` + real + ` "$@" ;;
esac
if [ -e "$extra" ]; then exec ` + real + ` "$@" --config-yaml "$(cat "$extra")"; fi
exec ` + real + ` "$@"
`
}

// writeBinary atomically replaces a program.
func writeBinary(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path+".new", []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

func (e *realEnvoy) hotResults(result string) float64 {
	var m dto.Metric
	if err := e.hotRestarts.WithLabelValues(result).Write(&m); err != nil {
		return -1
	}
	return m.GetCounter().GetValue()
}

// hotRestart makes a new Envoy take over.
func (e *realEnvoy) hotRestart(t *testing.T) {
	t.Helper()
	before := e.PID()
	if !e.HotRestart("the test") {
		t.Fatal("a hot restart waits already")
	}
	eventually(t, "another envoy to take over", func() bool { return e.PID() != before })
}

// load consists of clients and a probe that count failures.
type load struct {
	stop     context.CancelFunc
	clients  sync.WaitGroup
	requests atomic.Int64
	failed   chan error
}

func (e *realEnvoy) load(t *testing.T) *load {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	l := &load{stop: stop, failed: make(chan error, 1000)}
	run := func(every time.Duration, ask func() error) {
		l.clients.Go(func() {
			for ctx.Err() == nil {
				if err := ask(); err != nil && ctx.Err() == nil {
					select {
					case l.failed <- err:
					default:
					}
				}
				l.requests.Add(1)
				wait(every, ctx.Done(), nil)
			}
		})
	}
	for i := range 8 {
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: i%2 == 0}, Timeout: patience}
		t.Cleanup(client.CloseIdleConnections)
		run(10*time.Millisecond, func() error {
			// Go does not retry a POST.
			resp, err := client.Post(fmt.Sprintf("http://%s:8080/", e.address), "", nil)
			if err != nil {
				return err
			}
			body, err := io.ReadAll(resp.Body)
			_ = resp.Body.Close() // it has been read to the end
			if err == nil && string(body) != "hello" {
				err = fmt.Errorf("%s: %q", resp.Status, body)
			}
			return err
		})
	}
	run(5*time.Millisecond, func() error {
		if err := e.Ready(ctx); err != nil {
			return fmt.Errorf("readiness: %w", err)
		}
		return nil
	})
	return l
}

func (l *load) end(t *testing.T) {
	t.Helper()
	l.stop()
	l.clients.Wait()
	close(l.failed)
	for err := range l.failed {
		t.Errorf("a request failed: %v", err)
	}
	t.Logf("%d requests", l.requests.Load())
}

func TestRealHotRestart(t *testing.T) {
	t.Parallel()
	var held, asked atomic.Bool
	e, cancel, result := startHot(t, func(c *Config) {
		c.HotRestart.Possible = func() error {
			if held.Load() {
				asked.Store(true)
				return errors.New("the test holds it")
			}
			return nil
		}
	})
	l := e.load(t)
	for range 3 {
		before := e.PID()
		e.hotRestart(t)
		eventually(t, "the end of the old envoy", func() bool { return !alive(before) })
	}
	if r, err := e.admin.Readiness(t.Context()); err != nil || r.Epoch != 3 {
		t.Errorf("epoch %d, %v, want 3", r.Epoch, err)
	}
	// One request can be pending while another is in progress.
	held.Store(true)
	e.HotRestart("held")
	eventually(t, "a hot restart to be under way", asked.Load)
	if !e.HotRestart("queued") || e.HotRestart("one too many") {
		t.Error("while one is under way, exactly one more should wait")
	}
	held.Store(false)
	eventually(t, "five takeovers", func() bool { return e.hotResults(resultOK) == 5 })
	l.end(t)
	cancel()
	if err := <-result; err != nil {
		t.Errorf("Run() = %v", err)
	}
}

// waitsForever keeps an Envoy from becoming ready: it waits for configuration that never arrives.
const waitsForever = `{dynamic_resources: {lds_config: {ads: {}, resource_api_version: V3, initial_fetch_timeout: 0s},
  ads_config: {api_type: DELTA_GRPC, transport_api_version: V3, grpc_services: [{envoy_grpc: {cluster_name: nobody}}]}},
  static_resources: {clusters: [{name: nobody, type: STATIC, typed_extension_protocol_options: {envoy.extensions.upstreams.http.v3.HttpProtocolOptions: {
  "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions, explicit_http_config: {http2_protocol_options: {}}}},
  load_assignment: {cluster_name: nobody, endpoints: [{lb_endpoints: [{endpoint: {address: {pipe: {path: /nowhere}}}}]}]}}]}}`

// TestRealHotRestartFails checks that if a new Envoy fails, the old one keeps serving and another
// hot restart is possible.
func TestRealHotRestartFails(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		extra, log string
		timeout    time.Duration
	}{
		"it never gets ready":  {waitsForever, "did not take over within", 2 * time.Second},
		"it ends by itself":    {`{static_resources: {clusters: [{name: no, type: EDS}]}}`, "exited with code 1", patience},
		"it cannot start":      {`{admin: {address: {socket_address: {address: 192.0.2.1, port_value: 1}}}}`, "exited with code 1", patience},
		"its bootstrap is bad": {`{admin: 1}`, "exited with code 1", patience},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			log := &output{}
			e, _, _ := startHot(t, func(c *Config) {
				c.HotRestart.Timeout = tc.timeout
				c.Logger = bothLoggers(t, log)
			})
			extra := filepath.Join(filepath.Dir(e.cfg.Binary), "extra")
			if err := os.WriteFile(extra, []byte(tc.extra), 0o600); err != nil {
				t.Fatal(err)
			}
			l := e.load(t)
			before := e.PID()
			e.HotRestart("the test")
			eventually(t, "the failure", func() bool { return e.hotResults(resultFailed) == 1 })
			if e.PID() != before || !strings.Contains(log.String(), tc.log) {
				t.Errorf("envoy is %d, was %d; want %q in the log:\n%s", e.PID(), before, tc.log, log)
			}
			if err := os.Remove(extra); err != nil {
				t.Fatal(err)
			}
			e.hot.Timeout = patience // of the next one
			e.hotRestart(t)
			l.end(t)
			if e.hotResults(resultOK) != 1 {
				t.Error("the next hot restart is not counted as one that succeeded")
			}
		})
	}
}

// TestRealHotRestartRefused checks that problems that are found before the start do not affect the
// old Envoy.
func TestRealHotRestartRefused(t *testing.T) {
	t.Parallel()
	log := &output{}
	_, unsafe := CheckVersion(t.Context(), findEnvoy(t), false)
	e, _, _ := startHot(t, func(c *Config) { c.Logger, c.AllowUnsafe = bothLoggers(t, log), unsafe != nil })
	good := hotScript(findEnvoy(t))
	l := e.load(t)
	refused := 0.0
	type refusal struct{ script, want string }
	refusals := []refusal{
		{"#!/bin/sh\necho broken; exit 1\n", "broken"},
		{"#!/bin/sh\necho 'envoy  version: abc/1.30.0/Clean/RELEASE/BoringSSL'\n", "1.36 or newer is needed"},
		{strings.Replace(good, `case "$*" in`, `case "$*" in *--hot-restart-version) echo 10.96; exit;;`, 1), "its hot restart version is 10.96, that of the running one is 11.104"},
		{strings.Replace(good, `case "$*" in`, `case "$*" in *validate) echo no such filter; exit 1;;`, 1), "no such filter"},
	}
	if unsafe == nil { // otherwise the Envoy of the test itself is unsafe, and allowed
		refusals = append(refusals, refusal{"#!/bin/sh\necho 'envoy  version: abc/1.38.3/Clean/RELEASE/BoringSSL'\n", "CVE-2026-73511"})
	}
	for _, c := range refusals {
		// These hot restarts are not requested: the binary changes.
		writeBinary(t, e.cfg.Binary, c.script)
		refused++
		// A binary that changes during a refusal may be refused twice.
		eventually(t, "a refusal over "+c.want, func() bool {
			return e.hotResults(resultRefused) >= refused && strings.Contains(log.String(), c.want)
		})
	}
	if e.Epoch(t) != 0 {
		t.Error("the old envoy does not answer at its admin port any more")
	}
	before := e.PID()
	writeBinary(t, e.cfg.Binary, good)
	eventually(t, "the new binary to take over", func() bool { return e.PID() != before })
	l.end(t)
}

func (e *realEnvoy) Epoch(t *testing.T) int {
	t.Helper()
	r, err := e.admin.Readiness(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return r.Epoch
}

// TestRealHotRestartOldOneDies checks that the agent replaces an old Envoy that dies while it
// drains; otherwise the new one would exit as well.
func TestRealHotRestartOldOneDies(t *testing.T) {
	t.Parallel()
	e, cancel, result := startHot(t, nil)
	for attempt, killed := 0, 0; killed < 2; attempt++ {
		before := e.current.Load()
		e.hotRestart(t)
		if !kill(t, before, syscall.SIGKILL) {
			if attempt == 20 {
				t.Fatal("each old envoy has ended before it could be killed")
			}
			continue
		}
		killed++
		l := e.load(t)
		select {
		case <-time.After(2 * hotDrain): // the termination request is sent after hotDrain
		case err := <-result:
			t.Fatalf("Run() = %v", err)
		}
		l.end(t)
		if e.Epoch(t) != e.current.Load().epoch {
			t.Error("the new envoy does not answer")
		}
	}
	ending := time.Now()
	cancel()
	if err := <-result; err != nil {
		t.Errorf("Run() = %v", err)
	}
	if took := time.Since(ending); took > time.Minute {
		t.Errorf("the end took %s", took)
	}
}

// roundTripper is an http.RoundTripper.
type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestRealHotRestartOldOneDiesAtTheLastMoment checks that an old Envoy that dies after the
// takeover, but before the agent has noticed the takeover, does not affect the new one.
func TestRealHotRestartOldOneDiesAtTheLastMoment(t *testing.T) {
	t.Parallel()
	var old atomic.Pointer[child]
	var held atomic.Bool
	e, cancel, result := startHot(t, func(c *Config) {
		next := c.Admin.client.Transport
		c.Admin.client.Transport = roundTripper(func(r *http.Request) (*http.Response, error) {
			resp, err := next.RoundTrip(r)
			if err != nil || old.Load() == nil {
				return resp, err
			}
			body, err := io.ReadAll(resp.Body)
			_ = resp.Body.Close() // it has been read to the end
			resp.Body = io.NopCloser(bytes.NewReader(body))
			took := bytes.Contains(body, []byte("server.hot_restart_epoch: 1\n")) && bytes.Contains(body, []byte("listener_manager.workers_started: 1\n"))
			if took && held.CompareAndSwap(false, true) {
				// The agent does not notice while the old one dies.
				if err := old.Load().process.Signal(syscall.SIGKILL); err != nil {
					return nil, err
				}
				<-r.Context().Done()
				return nil, r.Context().Err()
			}
			return resp, err
		})
	})
	before := e.PID()
	old.Store(e.current.Load())
	e.HotRestart("the test")
	eventually(t, "another envoy to take over", func() bool { return e.PID() != before || len(result) > 0 })
	if e.PID() == before || !alive(e.PID()) || !held.Load() {
		t.Fatalf("envoy is %d, was %d, alive: %t", e.PID(), before, alive(e.PID()))
	}
	eventually(t, "the new envoy to be ready", func() bool { return e.Ready(t.Context()) == nil })
	if err := e.get(t, 8080); err != nil {
		t.Error(err)
	}
	cancel()
	if err := <-result; err != nil {
		t.Errorf("Run() = %v", err)
	}
}

// TestRealHotRestartNewOneDies checks that a new Envoy that crashes is restarted like any other, as
// the first of its own line, and that the old one completes its connections.
func TestRealHotRestartNewOneDies(t *testing.T) {
	t.Parallel()
	e, _, _ := startHot(t, func(c *Config) { c.Restart = Restart{Count: 1, Window: time.Hour} })
	e.hotRestart(t)
	line, pid := e.current.Load().line, e.PID()
	kill(t, e.current.Load(), syscall.SIGKILL)
	eventually(t, "another envoy to be ready", func() bool { return e.PID() != pid && e.Ready(t.Context()) == nil })
	if c := e.current.Load(); c.line == line || c.epoch != 0 || restarts(e.Process) != 1 {
		t.Errorf("epoch %d, the same line: %t, %v restarts", c.epoch, c.line == line, restarts(e.Process))
	}
	if err := e.get(t, 8080); err != nil {
		t.Error(err)
	}
	e.hotRestart(t)
}

func TestRealHotRestartEnds(t *testing.T) {
	t.Parallel()
	for name, when := range map[string]func(*realEnvoy) bool{
		"while the new one starts":      func(e *realEnvoy) bool { return e.hot.next.Load() != nil },
		"while the old one is draining": func(e *realEnvoy) bool { return e.hotResults(resultOK) == 1 },
		"before anything has begun":     func(e *realEnvoy) bool { return true },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e, cancel, result := startHot(t, func(c *Config) { c.HotRestart.Drain = 5 * time.Minute })
			old := e.PID()
			e.HotRestart("the test")
			eventually(t, name, func() bool { return when(e) })
			begun := time.Now()
			cancel()
			if err := <-result; err != nil {
				t.Errorf("Run() = %v", err)
			}
			if took := time.Since(begun); took > 4*time.Minute || alive(old) || alive(e.PID()) {
				t.Errorf("the end took %s; alive: %t, %t", took, alive(old), alive(e.PID()))
			}
		})
	}
}

// TestRealEnvoyIsDrainedAgain checks that a drain in progress continues in the next Envoy.
func TestRealEnvoyIsDrainedAgain(t *testing.T) {
	t.Parallel()
	e, _, _ := startEnvoy(t, func(c *Config) { c.Restart = Restart{Count: 1, Window: time.Hour} })
	e.Drain(t.Context())
	pid := e.PID()
	kill(t, e.current.Load(), syscall.SIGKILL)
	eventually(t, "another envoy to drain", func() bool {
		return e.PID() != pid && !e.keptAlive(t)
	})

	hot, _, _ := startHot(t, nil)
	hot.Drain(t.Context())
	hot.HotRestart("the test")
	eventually(t, "a refusal", func() bool { return hot.hotResults(resultRefused) == 1 })
}

// keptAlive reports whether Envoy keeps a connection open after a request.
func (e *realEnvoy) keptAlive(t *testing.T) bool {
	t.Helper()
	resp, err := http.Get(fmt.Sprintf("http://%s:8080/", e.address))
	if err != nil {
		return true // not listening yet
	}
	_ = resp.Body.Close() // only the header matters
	return !resp.Close
}
