// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package envoy

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

const bootstrapYAML = `
admin: {address: {socket_address: {address: %[1]s, port_value: 15000}}}
node: {id: test, cluster: test}
dynamic_resources:
  lds_config: {path_config_source: {path: %[2]s/lds.yaml}}
  cds_config: {path_config_source: {path: %[2]s/cds.yaml}}
`

const listenerYAML = `
- "@type": type.googleapis.com/envoy.config.listener.v3.Listener
  name: %[1]s
  traffic_direction: %[1]s
  address: {socket_address: {address: %[2]s, port_value: %[3]d}}
  filter_chains:
  - filters:
    - name: http
      typed_config:
        "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
        stat_prefix: %[1]s
        route_config:
          virtual_hosts:
          - {name: all, domains: ["*"], routes: [{match: {prefix: "/"}, direct_response: {status: 200, body: {inline_string: hello}}}]}
        http_filters:
        - {name: router, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}
`

// addresses counts the loopback addresses in use by tests. Each Envoy gets its own, so that fixed
// ports never conflict.
var addresses atomic.Uint32

// realEnvoy is an Envoy with an inbound and an outbound listener.
type realEnvoy struct {
	*Process
	address string
	admin   *Admin
	out     *output
}

// startEnvoy runs a real Envoy and waits until it is ready.
func startEnvoy(t *testing.T, edit func(*Config)) (e *realEnvoy, cancel context.CancelFunc, result <-chan error) {
	t.Helper()
	binary := findEnvoy(t)
	pid := os.Getpid()
	address := fmt.Sprintf("127.%d.%d.%d", 100+pid>>8&63, pid&255, addresses.Add(1))
	dir := t.TempDir()
	listeners := "resources:" + fmt.Sprintf(listenerYAML, "INBOUND", address, 8080) + fmt.Sprintf(listenerYAML, "OUTBOUND", address, 15001)
	for name, text := range map[string]string{
		"envoy.yaml": fmt.Sprintf(bootstrapYAML, address, dir),
		"lds.yaml":   listeners,
		"cds.yaml":   "resources: []\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}

	e = &realEnvoy{address: address, admin: NewAdmin(address + ":15000"), out: &output{}}
	e.admin.client.Timeout = patience
	cfg := Config{
		Binary: binary, Dir: dir, Admin: e.admin, Stdout: e.out, Stderr: e.out,
		Args:   Args(ArgsInput{ConfigFile: "envoy.yaml", DrainDuration: 2 * time.Second, LogLevel: "warning,misc:error", Concurrency: 1}),
		Logger: testLogger(t), Registerer: prometheus.NewRegistry(),
	}
	edit(&cfg)
	p, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	e.Process = p
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("output of envoy:\n%s", e.out)
		}
	})
	cancel, result = begin(t, p)
	eventually(t, "envoy to be ready", func() bool {
		r, err := e.admin.Readiness(t.Context())
		return err == nil && r.Err() == nil
	})
	return e, cancel, result
}

func (e *realEnvoy) get(t *testing.T, port int) error {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, fmt.Sprintf("http://%s:%d/", e.address, port), nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err == nil && string(body) != "hello" {
		err = fmt.Errorf("%s: %q", resp.Status, body)
	}
	return err
}

func TestRealEnvoyDrainsAndStops(t *testing.T) {
	t.Parallel()
	e, cancel, result := startEnvoy(t, func(c *Config) {
		c.Drain = DrainConfig{InboundOnly: true, Duration: 4 * time.Second}
	})
	if err := e.get(t, 8080); err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	cancel()
	// Every request is served, even after Envoy's own drain time of two seconds.
	for time.Since(begun) < 3*time.Second {
		for _, port := range []int{8080, 15001} {
			if err := e.get(t, port); err != nil {
				t.Fatalf("%s into the drain: %v", time.Since(begun), err)
			}
		}
		time.Sleep(50 * time.Millisecond) // interval between the client's requests
	}
	if err := <-result; err != nil {
		t.Errorf("Run() = %v, want nil", err)
	}
	if lasted := time.Since(begun); lasted < 4*time.Second {
		t.Errorf("envoy ended %s after the drain had begun, want 4s or more", lasted)
	}
	if n := exits(e.Process, "stopped"); n != 1 {
		t.Errorf("exits by SIGTERM = %v, want 1", n)
	}
}

func TestRealEnvoyLeavesWithItsLastConnection(t *testing.T) {
	t.Parallel()
	e, cancel, result := startEnvoy(t, func(c *Config) {
		c.Drain = DrainConfig{ExitOnZero: true, MinDuration: 10 * time.Millisecond}
	})
	conn, err := net.Dial("tcp", e.address+":8080")
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the connection to be counted", func() bool {
		n, err := e.admin.ActiveConnections(t.Context())
		return err == nil && n == 1
	})
	cancel()
	select {
	case err := <-result:
		t.Fatalf("envoy ended with an open connection: %v", err)
	case <-time.After(1500 * time.Millisecond): // longer than one interval between counts
	}
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-result; err != nil {
		t.Errorf("Run() = %v, want nil", err)
	}
}

func TestRealEnvoyKilled(t *testing.T) {
	t.Parallel()
	e, _, result := startEnvoy(t, func(*Config) {})
	kill(t, e.current.Load(), syscall.SIGKILL)
	err := <-result
	var exit *ExitError
	if !errors.As(err, &exit) || exit.Signal != syscall.SIGKILL {
		t.Errorf("Run() = %v, want an *ExitError with signal 9", err)
	}
}

func TestRealEnvoyRefusesItsBootstrap(t *testing.T) {
	t.Parallel()
	binary, out := findEnvoy(t), &output{}
	p, err := New(Config{
		Binary: binary, Args: Args(ArgsInput{ConfigFile: "/nowhere.json"}), Stdout: out, Stderr: out, Logger: testLogger(t),
	})
	if err != nil {
		t.Fatal(err)
	}
	err = p.Run(t.Context())
	var exit *ExitError
	if !errors.As(err, &exit) || exit.Code != 1 {
		t.Errorf("Run() = %v, want an *ExitError with code 1", err)
	}
	if !strings.Contains(out.String(), "/nowhere.json") {
		t.Errorf("envoy's own reason is not in its output: %q", out)
	}
}

// TestRealEnvoyLogsToSocket runs Envoy with the standard output of a service of systemd, a socket.
// Its access log opens /dev/stdout.
func TestRealEnvoyLogsToSocket(t *testing.T) {
	t.Parallel()
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	stdout, journal := os.NewFile(uintptr(pair[0]), "stdout"), os.NewFile(uintptr(pair[1]), "journal")
	t.Cleanup(func() { _, _ = stdout.Close(), journal.Close() }) // they were read
	e, cancel, result := startEnvoy(t, func(c *Config) {
		c.Stdout = stdout
		path := filepath.Join(c.Dir, "lds.yaml")
		listeners, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		const accessLog = `
        access_log:
        - name: file
          typed_config:
            "@type": type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog
            path: /dev/stdout
            log_format: {text_format_source: {inline_string: "served by %RESPONSE_CODE%\n"}}
        route_config:`
		if err := os.WriteFile(path, bytes.ReplaceAll(listeners, []byte("\n        route_config:"), []byte(accessLog)), 0o600); err != nil {
			t.Fatal(err)
		}
	})
	if err := e.get(t, 8080); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(journal).ReadString('\n')
	if err != nil || line != "served by 200\n" {
		t.Errorf("the journal has %q, %v", line, err)
	}
	cancel()
	if err := <-result; err != nil {
		t.Errorf("Run() = %v, want nil", err)
	}
}
