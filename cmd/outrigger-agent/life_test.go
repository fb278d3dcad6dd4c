// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// secretUser is merged into the bootstrap: a cluster that needs the workload's certificate.
const secretUser = `static_resources:
  clusters:
  - name: needs-a-secret
    type: STATIC
    transport_socket:
      name: tls
      typed_config:
        "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext
        common_tls_context:
          tls_certificate_sds_secret_configs:
          - name: default
            sds_config:
              resource_api_version: V3
              api_config_source: {api_type: GRPC, transport_api_version: V3, grpc_services: [{envoy_grpc: {cluster_name: sds-grpc}}]}
`

// hasSecret reports whether the running Envoy has its certificate.
func (a *runningAgent) hasSecret() bool {
	_, body := a.get(15000, "/certs")
	return strings.Contains(body, "spiffe://cluster.local/ns/default/sa/shop")
}

func (a *runningAgent) killEnvoy(pid int) time.Time {
	a.t.Helper()
	killed := time.Now()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		a.t.Fatal(err)
	}
	return killed
}

// noAnswer is the reason for not being ready between the exit of Envoy and its detection by the
// agent.
const noAnswer = "ask envoy's admin port: "

// notReady waits until the proxy is not ready after a kill, and returns the response with the
// cause.
func (a *runningAgent) notReady(killed time.Time) (code int, body string) {
	for code, body = http.StatusOK, ""; code == http.StatusOK || strings.HasPrefix(body, noAnswer); {
		if code, body = a.get(15020, "/healthz/ready"); time.Since(killed) > 2*time.Minute {
			break
		}
	}
	return code, body
}

// lastEnvoyPID returns the process ID of the agent's newest child.
func (a *runningAgent) lastEnvoyPID() int {
	out := a.out.String()
	last := &runningAgent{t: a.t, out: &lockedBuffer{}}
	_, _ = last.out.Write([]byte(out[max(strings.LastIndex(out, "envoy started\tpid="), 0):])) // a buffer returns no errors
	return last.envoyPID()
}

// TestProxyEnvoyRestart checks that a crash ends readiness immediately, with the reason. Within the
// budget, Envoy must be restarted and receive everything again over the same sockets; beyond it,
// the agent must exit.
func TestProxyEnvoyRestart(t *testing.T) {
	t.Parallel()
	override := filepath.Join(t.TempDir(), "override.yaml")
	if err := os.WriteFile(override, []byte(secretUser), 0o600); err != nil {
		t.Fatal(err)
	}
	cp := newControlPlane(t)
	a := startAgent(t, "127.77.0.20", "", cp, "--envoy-restart=1/1h", "ISTIO_BOOTSTRAP_OVERRIDE="+override)
	a.waitReady()
	eventually(t, "envoy has its certificate", a.hasSecret)
	if code, body := a.get(15020, "/healthz/ready"); code != http.StatusOK {
		t.Fatalf("readiness: got %d %s, want 200", code, body)
	}
	sockets := []string{filepath.Join(a.dir, "etc/istio/proxy/XDS"), filepath.Join(a.dir, "var/run/secrets/workload-spiffe-uds/socket")}
	before := make([]os.FileInfo, len(sockets))
	for i, path := range sockets {
		var err error
		if before[i], err = os.Stat(path); err != nil {
			t.Fatal(err)
		}
	}
	signed, streams, _ := cp.calls()
	first := a.envoyPID()

	killed := a.killEnvoy(first)
	code, body := a.notReady(killed)
	if off := time.Since(killed); code != http.StatusServiceUnavailable || !strings.Contains(body, "envoy was killed by signal 9") {
		t.Errorf("%s after the kill: got %d %s, want 503 and the cause", off, code, body)
	} else {
		t.Logf("readiness was off %s after the kill: %s", off, body)
	}
	eventually(t, "the proxy is ready again", func() bool {
		code, body := a.get(15020, "/healthz/ready")
		if code == http.StatusServiceUnavailable && !strings.Contains(body, "envoy was killed by signal 9") && !strings.Contains(body, noAnswer) {
			t.Errorf("not ready during the restart: got %s, want the cause", body)
		}
		return code == http.StatusOK
	})
	t.Logf("ready again %s after the kill", time.Since(killed))
	eventually(t, "envoy has its certificate again", a.hasSecret)

	signedThen, streamsThen, _ := cp.calls()
	if len(streamsThen) != len(streams)+1 || len(signedThen) != len(signed) {
		t.Errorf("got %d streams and %d certificates, want one stream more than %d, and still %d", len(streamsThen), len(signedThen), len(streams), len(signed))
	}
	for i, path := range sockets {
		if after, err := os.Stat(path); err != nil || !os.SameFile(before[i], after) {
			t.Errorf("%s was replaced, error %v", path, err)
		}
	}
	if _, body := a.get(15020, "/metrics"); !strings.Contains(body, "\noutrigger_agent_envoy_restarts_total 1\n") {
		t.Error("the metric does not count the restart")
	}
	if out := a.out.String(); !strings.Contains(out, "is restarted") || !strings.Contains(out, "count=0") {
		t.Error("the log does not contain the remaining budget")
	}

	second := a.lastEnvoyPID()
	if second == first {
		t.Fatal("Envoy was not restarted")
	}
	a.killEnvoy(second)
	a.waitEnd(exitEnvoyCrashed)
	if out := a.out.String(); !strings.Contains(out, "the budget of envoy's restarts, 1/1h0m0s, is exhausted: envoy was killed by signal 9") {
		t.Error("the log does not contain that the budget is exhausted, with the cause")
	}
}

// TestProxyDrainsBeforeExit checks the shutdown of a native sidecar: it drains first, and exits
// immediately when it is stopped later.
func TestProxyDrainsBeforeExit(t *testing.T) {
	t.Parallel()
	a := startAgent(t, "127.77.0.21", `,"terminationDrainDuration":"8s"`, newControlPlane(t))
	a.waitReady()
	begun := time.Now()
	answered := make(chan int, 1)
	go func() {
		resp, err := http.Post("http://127.77.0.21:15020/drain", "", nil)
		if err != nil {
			answered <- 0
			return
		}
		_ = resp.Body.Close() // only the code matters
		answered <- resp.StatusCode
	}()
	eventually(t, "the proxy is not ready", func() bool {
		code, body := a.get(15020, "/healthz/ready")
		return code == http.StatusServiceUnavailable && body == "draining\n"
	})
	if code := <-answered; code != http.StatusOK || time.Since(begun) < 8*time.Second {
		t.Errorf("POST /drain: got %d after %s, want 200 after 8 s", code, time.Since(begun))
	}
	if code, _ := a.get(15000, "/ready"); code == 0 {
		t.Error("Envoy exited before it was stopped")
	}
	ending := time.Now()
	if err := a.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	a.waitEnd(exitOK)
	if took := time.Since(ending); took > 8*time.Second {
		t.Errorf("the shutdown took %s although the drain was over", took)
	}
	if n := strings.Count(a.out.String(), "envoy is draining"); n != 1 {
		t.Errorf("Envoy was drained %d times, want once", n)
	}
}

func TestProxyRefusesLifeFlags(t *testing.T) {
	t.Parallel()
	for flag, want := range map[string]string{
		"--envoy-restart=often": `--envoy-restart: "often" is not a budget of restarts: write their number (1 to 1000) and a duration, such as 3/10m, or off`,
		"--envoy-restart=0/1m":  `--envoy-restart: "0/1m" is not a budget`,
		"--max-drain=0s":        "--max-drain is 0s: it must be longer than 0",
	} {
		cmd := newRootCommand(process{})
		cmd.SetArgs([]string{"proxy", "sidecar", flag})
		if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got error %v, want one with %q", flag, err, want)
		}
	}
}

// TestProxyExitsOnZeroConnections checks that persistent connections of probes and scrapes are not
// among those that the shutdown waits for.
func TestProxyExitsOnZeroConnections(t *testing.T) {
	t.Parallel()
	a := startAgent(t, "127.77.0.22", `,"terminationDrainDuration":"60s"`, newControlPlane(t),
		"EXIT_ON_ZERO_ACTIVE_CONNECTIONS=true", "MINIMUM_DRAIN_DURATION=300ms")
	a.waitReady()
	for _, port := range []string{"15021", "15090"} {
		conn, err := net.Dial("tcp", net.JoinHostPort(a.address, port))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
	}
	eventually(t, "envoy counts the connections", func() bool {
		_, body := a.get(15000, "/stats?filter=downstream_cx_active$")
		return len(regexp.MustCompile(`(?m)^listener\..*_(15021|15090)\.downstream_cx_active: [1-9]`).FindAllString(body, -1)) == 2
	})
	begun := time.Now()
	if err := a.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	a.waitEnd(exitOK)
	if took := time.Since(begun); took < 300*time.Millisecond || took > 50*time.Second {
		t.Errorf("the shutdown took %s, want MINIMUM_DRAIN_DURATION or a little more", took)
	}
}
