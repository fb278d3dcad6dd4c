// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/certs"
)

// coldMesh is an agent with a control plane that can be stopped and started.
type coldMesh struct {
	*goControlPlane
	t            *testing.T
	dir, out     string
	proxyAddress string
	env          []string
}

func (m *coldMesh) start() *runningAgent {
	m.t.Helper()
	return startAgentIn(m.t, m.dir, m.proxyAddress, `,"terminationDrainDuration":"0s"`, m.controlPlane, m.env...)
}

func (m *coldMesh) end(a *runningAgent) {
	m.t.Helper()
	if err := a.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		m.t.Fatal(err)
	}
	a.waitEnd(exitOK)
}

// works checks everything that the agent and Envoy receive from the control plane.
func (m *coldMesh) works(a *runningAgent, generation string) {
	m.t.Helper()
	for _, url := range []string{"http://" + m.proxyAddress + ":8080", "https://" + m.proxyAddress + ":8443"} {
		if got, err := askEnvoy(m.client(), url); err != nil || got != (answer{http.StatusOK, "hello", "1", generation}) {
			m.t.Errorf("%s: got %+v, %v", url, got, err)
		}
	}
	resolver := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, network, m.proxyAddress+":15053")
	}}
	if ips, err := resolver.LookupHost(m.t.Context(), "catalog.default.svc.cluster.local."); err != nil || !slices.Equal(ips, []string{"10.1.2.3"}) {
		m.t.Errorf("catalog resolves to %q, %v", ips, err)
	}
	eventually(m.t, "both roots are written", func() bool {
		doc, err := os.ReadFile(filepath.Join(m.out, "root-cert.pem"))
		if err != nil {
			return false
		}
		chain, err := certs.ParseChain(doc)
		return err == nil && len(chain) == 2
	})
}

// TestProxyColdMesh checks that the last good configuration is complete: routes, Wasm plugins,
// names, roots, and with consent the keys of gateways. When the control plane returns, Envoy must
// switch to it without a failed request. A plugin that is no longer in the cache must not delay the
// start, and must deny all requests. The control plane is go-control-plane's.
func TestProxyColdMesh(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ address, delta string }{
		"delta": {"127.77.101.1", "true"}, "state of the world": {"127.77.101.2", "false"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testColdMesh(t, c.address, c.delta)
		})
	}
}

func testColdMesh(t *testing.T, address, delta string) {
	const hosts = "127.77.101.9"
	backend := serveOn(t, hosts, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") })
	modules := serveOn(t, hosts, func(w http.ResponseWriter, _ *http.Request) {
		module, _ := base64.StdEncoding.DecodeString(pluginModule) // the constant is valid
		_, _ = w.Write(module)
	})
	m := &coldMesh{
		goControlPlane: newGoControlPlane(t, address, backend.Listener.Addr().String(), modules.URL+"/plugin.wasm"),
		t:              t, dir: t.TempDir(), out: t.TempDir(), proxyAddress: address,
	}
	m.env = []string{
		"OUTRIGGER_LAST_GOOD_IDENTITY=true", "OUTRIGGER_LAST_GOOD_SECRETS=true", "ISTIO_DELTA_XDS=" + delta, "ISTIO_META_DNS_CAPTURE=true", "PROXY_CONFIG_XDS_AGENT=true",
		"OUTRIGGER_WASM_ALLOWED_HOSTS=" + hosts, "OUTPUT_CERTS=" + m.out, "KUBERNETES_SERVICE_HOST=10.0.0.1",
	}
	writeIn(t, m.dir, "var/run/secrets/istio/root-cert.pem", m.rootPEM())
	writeIn(t, m.dir, "var/run/secrets/tokens/istio-token", []byte("the-token\n"))
	m.listen(t, hosts+":0")
	a := m.start()
	a.waitReady()
	m.works(a, "1")
	eventually(t, "the configuration is stored", func() bool {
		_, body := a.get(15020, "/stats/prometheus")
		return strings.Contains(body, "\noutrigger_agent_last_good_age_seconds ")
	})
	m.end(a)
	m.stop(t)
	modules.Close()
	for _, file := range []string{"root-cert.pem", "cert-chain.pem", "key.pem"} {
		if err := os.Remove(filepath.Join(m.out, file)); err != nil {
			t.Fatal(err)
		}
	}

	began := time.Now()
	a = m.start()
	a.waitReady()
	t.Logf("ready after %s without a control plane", time.Since(began))
	if _, body := a.get(15020, "/healthz/ready"); !strings.Contains(body, "serving last good from 20") {
		t.Errorf("readiness: got %s", body)
	}
	m.works(a, "1")

	l := startLoad("http://" + address + ":8080")
	// All clients are sending requests.
	eventually(t, "requests are being sent", func() bool { return l.asked.Load() > 100 })
	m.generation(t, "2")
	m.listen(t, m.address)
	client := &http.Client{Timeout: 5 * time.Second}
	defer client.CloseIdleConnections()
	eventually(t, "Envoy has the new configuration", func() bool {
		got, err := askEnvoy(client, "http://"+address+":8080")
		return err == nil && got.generation == "2"
	})
	eventually(t, "last good is no longer in use", func() bool {
		code, body := a.get(15020, "/healthz/ready")
		return code == http.StatusOK && !strings.Contains(body, "last good") && strings.Contains(body, "connected")
	})
	moved := l.asked.Load()
	eventually(t, "requests are sent after the switch", func() bool { return l.asked.Load() > moved+300 })
	failures := l.stop()
	t.Logf("%d requests during the switch", l.asked.Load())
	if len(failures) > 0 {
		t.Errorf("%d of %d requests failed when the control plane returned, the first: %s", len(failures), l.asked.Load(), failures[0])
	}
	m.works(a, "2")
	eventually(t, "the configuration is stored", func() bool {
		_, body := a.get(15020, "/stats/prometheus")
		var age float64
		_, after, _ := strings.Cut(body, "\noutrigger_agent_last_good_age_seconds ")
		_, err := fmt.Sscan(after, &age)
		return err == nil && age < time.Since(began).Seconds()
	})
	m.end(a)
	m.stop(t)

	m.withoutModule()
	m.withoutConsent()
}

// withoutConsent starts the agent after the consent to store secrets was withdrawn.
func (m *coldMesh) withoutConsent() {
	m.t.Helper()
	m.env = append(m.env, "OUTRIGGER_LAST_GOOD_SECRETS=false")
	a := m.start()
	a.waitReady()
	if got, err := askEnvoy(m.client(), "https://"+m.proxyAddress+":8443"); err == nil {
		m.t.Errorf("got %+v with a key that must not be stored", got)
	}
	m.end(a)
}

// withoutModule starts the agent without the cache of Wasm modules.
func (m *coldMesh) withoutModule() {
	m.t.Helper()
	data := filepath.Join(m.dir, "var/lib/istio/data")
	entries, err := os.ReadDir(data)
	if err != nil {
		m.t.Fatal(err)
	}
	removed := 0
	for _, e := range entries {
		if e.Name() != "last-good" {
			removed++
			if err := os.RemoveAll(filepath.Join(data, e.Name())); err != nil {
				m.t.Fatal(err)
			}
		}
	}
	if removed == 0 {
		m.t.Fatalf("the cache of Wasm modules was not found in %s", data)
	}
	a := m.start()
	a.waitReady()
	if got, err := askEnvoy(m.client(), "http://"+m.proxyAddress+":8080"); err != nil || got.code != http.StatusForbidden {
		m.t.Errorf("without the plugin: got %+v, error %v; want 403", got, err)
	}
	m.end(a)
}
