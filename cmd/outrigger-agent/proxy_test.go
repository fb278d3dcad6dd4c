// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/e2e/ownnet"
)

// TestMain runs the test binary as the agent if requested, so that exit codes, signals and the
// working directory are real.
func TestMain(m *testing.M) {
	if os.Getenv("OUTRIGGER_TEST_ROLE") == "agent" {
		os.Exit(run(os.Args, environment()))
	}
	os.Exit(ownnet.Tests(m).Run())
}

// runningAgent is a running agent.
type runningAgent struct {
	t       *testing.T
	cmd     *exec.Cmd
	dir     string
	address string
	out     *lockedBuffer
	ended   chan struct{}
}

type lockedBuffer struct {
	mu sync.Mutex // guards b
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// startAgent starts an agent with its own loopback address. extra are environment variables, and
// flags, which begin with --.
func startAgent(t *testing.T, address, proxyConfig string, cp *controlPlane, extra ...string) *runningAgent {
	t.Helper()
	dir := t.TempDir()
	writeIn(t, dir, "var/run/secrets/istio/root-cert.pem", cp.rootPEM())
	writeIn(t, dir, "var/run/secrets/tokens/istio-token", []byte("the-token\n"))
	writeIn(t, dir, "etc/istio/pod/labels", []byte("app=\"shop\"\n"))
	return startAgentIn(t, dir, address, proxyConfig, cp, extra...)
}

// writeIn writes a file below a directory.
func writeIn(t *testing.T, dir, path string, data []byte) {
	t.Helper()
	path = filepath.Join(dir, path)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// startAgentIn is like startAgent, with the files that exist in dir.
func startAgentIn(t *testing.T, dir, address, proxyConfig string, cp *controlPlane, extra ...string) *runningAgent {
	t.Helper()
	envoy := findEnvoy()
	if envoy == "" {
		t.Skip("no Envoy found: run `make envoy` or set ENVOY")
	}
	a := &runningAgent{t: t, dir: dir, address: address, out: &lockedBuffer{}, ended: make(chan struct{})}
	program, service := os.Args[0], false
	if own := filepath.Join(dir, ownName); exists(own) {
		program, service = own, true
	}
	a.cmd = exec.Command(program, "proxy", "sidecar", "--domain", "default.svc.cluster.local")
	a.cmd.Dir = a.dir
	a.cmd.Env = append([]string{
		"OUTRIGGER_TEST_ROLE=agent", "POD_NAME=shop-1", "POD_NAMESPACE=default", "SERVICE_ACCOUNT=shop", "INSTANCE_IP=" + address,
		"OUTRIGGER_BIND_ADDRESS=" + address, "ISTIOD_SAN=istiod.istio-system.svc", "ISTIO_META_CLUSTER_ID=Kubernetes",
		"ISTIO_META_INTERCEPTION_MODE=NONE", "XDS_HEADER_X-EXTRA=yes",
		fmt.Sprintf(`PROXY_CONFIG={"discoveryAddress":%q,"binaryPath":%q,"concurrency":1%s}`, cp.address, envoy, proxyConfig),
	}, extra...)
	for _, entry := range extra {
		if strings.HasPrefix(entry, "--") {
			a.cmd.Args = append(a.cmd.Args, entry)
		}
	}
	a.cmd.Stdout, a.cmd.Stderr = a.out, a.out
	if service {
		a.logToSocket()
	}
	if err := a.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = a.cmd.Wait() // the process state is checked
		close(a.ended)
	}()
	t.Cleanup(func() {
		_ = a.cmd.Process.Kill() // most processes have exited
		<-a.ended
		if t.Failed() {
			t.Logf("the agent wrote:\n%s", a.out)
		}
	})
	return a
}

// logToSocket has the agent print to a socket, as systemd does.
func (a *runningAgent) logToSocket() {
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		a.t.Fatal(err)
	}
	output, journal := os.NewFile(uintptr(pair[0]), "output"), os.NewFile(uintptr(pair[1]), "journal")
	a.cmd.Stdout, a.cmd.Stderr = output, output
	copied := make(chan struct{})
	go func() {
		_, _ = io.Copy(a.out, journal) // until all programs have ended
		close(copied)
	}()
	a.t.Cleanup(func() {
		_ = output.Close() // it is the agent's
		<-copied
		_ = journal.Close() // read to the end
	})
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func findEnvoy() string {
	for _, candidate := range []string{os.Getenv("ENVOY"), "../../bin/envoy", "envoy"} {
		if candidate == "" {
			continue
		}
		if path, err := exec.LookPath(candidate); err == nil {
			if abs, err := filepath.Abs(path); err == nil {
				return abs
			}
		}
	}
	return ""
}

func (a *runningAgent) get(port int, path string) (code int, body string) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://%s%s", net.JoinHostPort(a.address, fmt.Sprint(port)), path), nil)
	if err != nil {
		a.t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = resp.Body.Close() }()
	var b bytes.Buffer
	_, _ = b.ReadFrom(resp.Body) // part of the body suffices for the message
	return resp.StatusCode, b.String()
}

// eventually waits until a condition holds.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(2 * time.Minute)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("timeout: %s", what)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func (a *runningAgent) waitReady() {
	a.t.Helper()
	last := ""
	eventually(a.t, "the proxy becomes ready", func() bool {
		select {
		case <-a.ended:
			a.t.Fatalf("the agent exited: %s", a.cmd.ProcessState)
		default:
		}
		code, body := a.get(15021, "/healthz/ready")
		if code != http.StatusOK && body != last && code != 0 {
			a.t.Logf("not ready: %d %s", code, body)
			last = body
		}
		return code == http.StatusOK
	})
}

func (a *runningAgent) waitEnd(want int) {
	a.t.Helper()
	select {
	case <-a.ended:
	case <-time.After(2 * time.Minute):
		a.t.Fatal("timeout waiting for the agent to exit")
	}
	if got := a.cmd.ProcessState.ExitCode(); got != want {
		a.t.Errorf("got exit code %d, want %d", got, want)
	}
}

// envoyPID returns the process ID of the agent's child.
func (a *runningAgent) envoyPID() int {
	a.t.Helper()
	_, after, found := strings.Cut(a.out.String(), "envoy started\tpid=")
	var pid int
	if _, err := fmt.Sscanf(after, "%d", &pid); !found || err != nil {
		a.t.Fatalf("the log contains no process ID: %v", err)
	}
	return pid
}

// TestProxyLife covers the lifecycle of a sidecar: start, ready, drain, exit.
func TestProxyLife(t *testing.T) {
	t.Parallel()
	cp := newControlPlane(t)
	a := startAgent(t, "127.77.0.2", `,"terminationDrainDuration":"1s"`, cp)
	a.waitReady()

	signed, streams, node := cp.calls()
	if len(signed) != 1 || len(streams) == 0 {
		t.Fatalf("%d certificates were signed and %d streams opened, want 1 and at least 1", len(signed), len(streams))
	}
	for name, want := range map[string]string{"authorization": "Bearer the-token", "clusterid": "Kubernetes"} {
		if got := signed[0].metadata.Get(name); len(got) != 1 || got[0] != want {
			t.Errorf("header %s of the certificate request: got %q", name, got)
		}
	}
	if got := streams[0].metadata.Get("x-extra"); len(got) != 1 || got[0] != "yes" {
		t.Errorf("header x-extra of the stream: got %q, want yes", got)
	}
	if want := "sidecar~127.77.0.2~shop-1.default~default.svc.cluster.local"; node != want {
		t.Errorf("node ID: got %q, want %q", node, want)
	}
	for path, port := range map[string]int{"/stats/prometheus": 15090, "/metrics": 15020, "/ready": 15000} {
		if code, body := a.get(port, path); code != http.StatusOK {
			t.Errorf("%d%s: got %d %s, want 200", port, path, code, body)
		}
	}
	if code, body := a.get(15020, "/stats/prometheus"); code != http.StatusOK || !strings.Contains(body, "envoy_cluster_manager_cds_update_success") || !strings.Contains(body, "go_goroutines") {
		t.Errorf("merged metrics: got %d, %d bytes", code, len(body))
	} else if clash := regexp.MustCompile(`(?m)^(go|process)_\w+`).FindString(body); clash != "" {
		t.Errorf("the agent's metric %s would conflict with the application's", clash)
	}
	if strings.Contains(a.out.String(), "the-token") {
		t.Error("the log contains the token")
	}
	for _, file := range []string{"etc/istio/proxy/envoy-rev.json", "etc/istio/proxy/XDS", "var/run/secrets/workload-spiffe-uds/socket"} {
		if info, err := os.Stat(filepath.Join(a.dir, file)); err != nil || info.Mode().Perm()&0o007 != 0 {
			t.Errorf("%s: got %v, error %v", file, info, err)
		}
	}
	pid := a.envoyPID()
	if err := a.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the proxy is not ready", func() bool { code, _ := a.get(15020, "/healthz/ready"); return code == http.StatusServiceUnavailable })
	if err := syscall.Kill(pid, 0); err != nil {
		t.Errorf("Envoy exited before the drain was over: %v", err)
	}
	a.waitEnd(exitOK)
	if err := syscall.Kill(pid, 0); err == nil {
		t.Error("Envoy is still running after the agent exited")
	}
	for _, file := range []string{"etc/istio/proxy/envoy-rev.json", "etc/istio/proxy/XDS", "var/run/secrets/workload-spiffe-uds/socket"} {
		if _, err := os.Stat(filepath.Join(a.dir, file)); !os.IsNotExist(err) {
			t.Errorf("%s was not removed: %v", file, err)
		}
	}
}

func TestProxyEnvoyKilled(t *testing.T) {
	t.Parallel()
	a := startAgent(t, "127.77.0.3", "", newControlPlane(t))
	a.waitReady()
	if err := syscall.Kill(a.envoyPID(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	a.waitEnd(exitEnvoyCrashed)
	if out := a.out.String(); !strings.Contains(out, "outrigger-agent: envoy was killed by signal 9") {
		t.Error("the log does not contain the cause")
	}
}

func TestProxySecondSignal(t *testing.T) {
	t.Parallel()
	a := startAgent(t, "127.77.0.4", `,"terminationDrainDuration":"60s"`, newControlPlane(t))
	a.waitReady()
	for range 2 {
		if err := a.cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the agent drains", func() bool { return strings.Contains(a.out.String(), "envoy is draining") })
		time.Sleep(2 * duplicateSignal) // an earlier second signal is treated as a duplicate
	}
	a.waitEnd(exitOK)
}

// TestProxyDuplicateSignal checks that a signal sent to both the process and its group counts as
// one.
func TestProxyDuplicateSignal(t *testing.T) {
	t.Parallel()
	a := startAgent(t, "127.77.0.16", `,"terminationDrainDuration":"1s"`, newControlPlane(t))
	a.waitReady()
	begun := time.Now()
	for _, signal := range []os.Signal{syscall.SIGTERM, syscall.SIGINT} {
		if err := a.cmd.Process.Signal(signal); err != nil {
			t.Fatal(err)
		}
	}
	a.waitEnd(exitOK)
	if took := time.Since(begun); took < time.Second {
		t.Errorf("the shutdown took %s, so the drain was cut short", took)
	}
}

// TestProxyErrorsInJSON checks that with JSON logs each line is JSON, including those about an
// unknown flag and an error.
func TestProxyErrorsInJSON(t *testing.T) {
	t.Parallel()
	a := startAgent(t, "127.77.0.17", "", newControlPlane(t), "--newer=1", "--stsPort=1", "--log_as_json")
	a.waitEnd(exitError)
	out := a.out.String()
	for line := range strings.Lines(out) {
		if !json.Valid([]byte(line)) {
			t.Errorf("the line is not JSON: %s", line)
		}
	}
	for _, want := range []string{`"name":"--newer=1"`, "--stsPort is 1"} {
		if !strings.Contains(out, want) {
			t.Errorf("the log does not contain %s:\n%s", want, out)
		}
	}
}

// TestProxyReconnectsWithCertificate checks that the certificate issued for the token of the
// first call authenticates later calls.
func TestProxyReconnectsWithCertificate(t *testing.T) {
	t.Parallel()
	cp := newControlPlane(t)
	a := startAgent(t, "127.77.0.5", "", cp)
	a.waitReady()
	_, before, _ := cp.calls()
	if err := os.Remove(filepath.Join(a.dir, "var/run/secrets/tokens/istio-token")); err != nil {
		t.Fatal(err)
	}
	cp.dropStreams()
	eventually(t, "Envoy reconnects", func() bool { _, streams, _ := cp.calls(); return len(streams) > len(before) })
	_, streams, _ := cp.calls()
	last := streams[len(streams)-1]
	if want := "spiffe://cluster.local/ns/default/sa/shop"; last.identity != want || len(last.metadata.Get("authorization")) != 0 {
		t.Errorf("the new stream has client certificate %q and token %q", last.identity, last.metadata.Get("authorization"))
	}
	if code, body := a.get(15021, "/healthz/ready"); code != http.StatusOK {
		t.Errorf("readiness after the reconnect: got %d %s", code, body)
	}
}

func TestProxyRefuses(t *testing.T) {
	t.Parallel()
	cp := newControlPlane(t)
	busy, err := net.Listen("tcp", "127.77.0.6:15020")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = busy.Close() })
	old := filepath.Join(t.TempDir(), "envoy")
	if err := os.WriteFile(old, []byte("#!/bin/sh\nif [ \"$1\" = --version ]; then echo 'envoy version: 0123/1.30.1/Clean/RELEASE/BoringSSL'; else exit 1; fi\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		address, config string
		extra           []string
		want            string
	}{
		"status port in use":  {address: "127.77.0.6", want: "status port: listen tcp 127.77.0.6:15020: bind: address already in use; free the port"},
		"no root certificate": {address: "127.77.0.7", extra: []string{"XDS_ROOT_CA=/nowhere"}, want: "root certificates: open /nowhere"},
		"no envoy":            {address: "127.77.0.8", extra: []string{`PROXY_CONFIG={"binaryPath":"/nowhere/envoy"}`}, want: "/nowhere/envoy"},
		"old envoy":           {address: "127.77.0.15", extra: []string{fmt.Sprintf("PROXY_CONFIG={binaryPath: %q}", old)}, want: "is version 1.30.1, but 1.36 or newer is needed"},
		"bad proxy config":    {address: "127.77.0.9", config: `,"statusPort":"x"`, want: "environment variable PROXY_CONFIG: field statusPort"},
		"no namespace":        {address: "127.77.0.10", extra: []string{"POD_NAMESPACE="}, want: "POD_NAMESPACE is not set"},
		"no service account":  {address: "127.77.0.11", extra: []string{"SERVICE_ACCOUNT="}, want: "SERVICE_ACCOUNT"},
		"other provider":      {address: "127.77.0.12", extra: []string{"PILOT_CERT_PROVIDER=none"}, want: "PILOT_CERT_PROVIDER"},
		"bad prober":          {address: "127.77.0.13", extra: []string{"ISTIO_KUBE_APP_PROBERS={"}, want: "ISTIO_KUBE_APP_PROBERS"},
		"custom bootstrap":    {address: "127.77.0.14", config: `,"customConfigFile":"/x"`, want: "customConfigFile"},
	} {
		t.Run(name, func(t *testing.T) {
			a := startAgent(t, tc.address, tc.config, cp, tc.extra...)
			a.waitEnd(exitError)
			if out := a.out.String(); !strings.Contains(out, tc.want) {
				t.Errorf("the log does not contain %q:\n%s", tc.want, out)
			}
			if _, err := os.Stat(filepath.Join(a.dir, "etc/istio/proxy/XDS")); !os.IsNotExist(err) {
				t.Errorf("the socket was not removed: %v", err)
			}
		})
	}
}
