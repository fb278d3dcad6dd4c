// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/outrigger-mesh/outrigger/controlplane/config/mcp/adstest"
)

const meshHost = "127.77.62.101"

// mounted is a ConfigMap as the kubelet mounts it: the files are links through a link to a
// directory, which is replaced.
type mounted struct {
	dir     string
	version int
}

func (m *mounted) put(t *testing.T, files map[string]string) {
	t.Helper()
	m.version++
	data := fmt.Sprintf("..%d", m.version)
	err := os.Mkdir(filepath.Join(m.dir, data), 0o700)
	for name, text := range files {
		err = errors.Join(err, os.WriteFile(filepath.Join(m.dir, data, name), []byte(text), 0o600))
		if _, there := os.Lstat(filepath.Join(m.dir, name)); there != nil {
			err = errors.Join(err, os.Symlink(filepath.Join("..data", name), filepath.Join(m.dir, name)))
		}
	}
	err = errors.Join(err, os.Symlink(data, filepath.Join(m.dir, "..new")), os.Rename(filepath.Join(m.dir, "..new"), filepath.Join(m.dir, "..data")))
	if m.version > 1 {
		err = errors.Join(err, os.RemoveAll(filepath.Join(m.dir, fmt.Sprintf("..%d", m.version-1))))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// serveLogged is like serve, and returns the log.
func serveLogged(t *testing.T, set func(*Config)) (*Server, *logBuffer) {
	t.Helper()
	cfg := testConfig(t)
	cfg.Listen = ListenConfig{Plaintext: meshHost + ":0", Secure: meshHost + ":0", HTTP: meshHost + ":0"}
	set(&cfg)
	log := &logBuffer{}
	s, err := New(t.Context(), cfg, slog.New(slog.NewTextHandler(log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	waitFor(t, "the control plane is ready", s.discovery.Ready)
	return s, log
}

// connected returns a proxy connected to the plaintext port.
func connected(t *testing.T, s *Server, extra map[string]any) *adstest.Client {
	t.Helper()
	conn, err := grpc.NewClient(s.ports.listeners.plaintext.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() }) // nothing is left to read
	meta := map[string]any{"NAMESPACE": "shop", "INTERCEPTION_MODE": "NONE", "HTTP_PROXY_PORT": "15007"}
	for k, v := range extra {
		meta[k] = v
	}
	md, err := structpb.NewStruct(meta)
	if err != nil {
		t.Fatal(err)
	}
	c, err := adstest.Connect(t.Context(), conn, &corev3.Node{Id: "sidecar~127.77.62.102~client.shop~shop.svc.cluster.local", Metadata: md})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func await(t *testing.T, c *adstest.Client, what string, ok func(adstest.State) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if _, err := c.Wait(ctx, ok); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// mentions reports whether an outbound listener contains a text.
func mentions(text string) func(adstest.State) bool {
	return func(state adstest.State) bool {
		for _, l := range state.HTTPListeners {
			if strings.Contains(l.String(), text) {
				return true
			}
		}
		return false
	}
}

// TestFollowsMeshConfig checks that a change of the mesh config reaches proxies without a restart,
// through the links of a mounted ConfigMap. An invalid or missing file is reported and changes
// nothing, and the next valid file applies.
func TestFollowsMeshConfig(t *testing.T) {
	t.Parallel()
	m := &mounted{dir: t.TempDir()}
	m.put(t, map[string]string{"mesh": "accessLogFile: /dev/first\n"})
	file := filepath.Join(m.dir, "mesh")
	s, log := serveLogged(t, func(c *Config) {
		c.ConfigDir = t.TempDir()
		c.Mesh.File = file
	})
	c := connected(t, s, nil)
	await(t, c, "the first log file", mentions("/dev/first"))
	m.put(t, map[string]string{"mesh": "accessLogFile: /dev/second\ninboundTrafficPolicy: {mode: LOCALHOST}\nproxyHtpPort: 1\n"})
	await(t, c, "the second log file", mentions("/dev/second"))
	waitFor(t, "fields without effect are logged", func() bool {
		return strings.Contains(log.String(), "name=inboundTrafficPolicy") && strings.Contains(log.String(), "name=proxyHtpPort")
	})
	for text, says := range map[string]string{
		"accessLogFile: /dev/bad\nconnectTimeout: 90s\n": "connectTimeout is 1m30s; it must be from 1ms to 30s",
		"accessLogFile: [\n":                             "line ",
		"":                                               "it is empty",
		"accessLogFile: /dev/bad\ncaCertificates: [{pem: x}]\n":                   rootsOfMesh,
		"accessLogFile: /dev/bad\ncaCertificates: [{spiffeBundleUrl: https://x}]": "caCertificates[0]",
	} {
		m.put(t, map[string]string{"mesh": text})
		waitFor(t, "the log says "+says, func() bool { return strings.Contains(log.String(), says) })
		s.metric(t, `outrigger_control_mesh_config_rejected{source="mesh"} 1`)
		if got := s.replica(t).Faults; len(got) != 1 || !strings.Contains(got[0], "a change of the mesh config (mesh) is rejected") || !strings.Contains(got[0], says) {
			t.Errorf("the faults of the control plane are %q, want %q", got, says)
		}
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "that it is gone is reported", func() bool { return strings.Contains(log.String(), "it was deleted") })
	if got := s.settings.Current().Mesh.GetAccessLogFile(); got != "/dev/second" {
		t.Errorf("an invalid mesh config was applied: %s", got)
	}
	m.put(t, map[string]string{"mesh": "accessLogFile: /dev/third\n"})
	await(t, c, "the third log file", mentions("/dev/third"))
	s.metric(t, `outrigger_control_mesh_config_rejected{source="mesh"} 0`)
	if got := s.replica(t).Faults; len(got) > 0 {
		t.Errorf("the faults of the control plane are %q, want none", got)
	}
	s.metric(t, `outrigger_control_mesh_config_reloads_total{result="applied",source="mesh"} 2`)
	m.put(t, map[string]string{"mesh": "{}\n"})
	await(t, c, "the defaults", func(state adstest.State) bool { return !mentions("/dev/third")(state) })
	if strings.Contains(log.String(), "/dev/bad") {
		t.Errorf("an invalid mesh config was used: %s", log.String())
	}
}

// TestMeshConfigIsCreated checks that a file created later is found, also with its directories.
// Settings that require a restart are reported and keep their values; all others apply.
func TestMeshConfigIsCreated(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "etc", "istio", "mesh")
	other := serve(t, nil)
	s, log := serveLogged(t, func(c *Config) {
		c.ConfigDir = t.TempDir()
		c.Mesh.File = file
		c.Mesh.NetworksFile = filepath.Join(dir, "none")
	})
	c := connected(t, s, nil)
	await(t, c, "the defaults", func(state adstest.State) bool { return len(state.HTTPListeners) > 0 })
	clients := s.identity.clients.Load()
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	text := "accessLogFile: /dev/late\ntrustDomain: elsewhere.test\ntrustDomainAliases: [before.test]\nconfigSources: [{address: 'fs:///x'}]\ncaCertificates:\n- pem: |\n    " +
		strings.ReplaceAll(strings.TrimSpace(string(other.identity.authority.RootPEM())), "\n", "\n    ") + "\n"
	write(t, map[string][]byte{file: []byte(text)})
	await(t, c, "the created file", mentions("/dev/late"))
	for name, line := range map[string]string{"trustDomain": ":2", "configSources": ":4"} {
		if !strings.Contains(log.String(), "only after a restart of the control plane\" component=control source="+file+line+" name="+name) {
			t.Errorf("the log does not report %s: %s", name, log.String())
		}
	}
	now := s.settings.Current().Mesh
	if now.GetTrustDomain() != "cluster.local" || len(now.GetConfigSources()) > 0 || s.identity.clients.Load() == clients {
		t.Errorf("settings in force: got %v", now)
	}
	if !strings.Contains(string(s.identity.authority.RootPEM()), strings.TrimSpace(string(other.identity.authority.RootPEM()))) {
		t.Error("the additional root is not trusted")
	}
	write(t, map[string][]byte{file: []byte("accessLogFile: /dev/later\n")})
	await(t, c, "the next settings", mentions("/dev/later"))
	if strings.Contains(string(s.identity.authority.RootPEM()), strings.TrimSpace(string(other.identity.authority.RootPEM()))) {
		t.Error("the additional root is still trusted")
	}
}

const farMachine = `apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: far, namespace: shop}
spec: {address: 127.77.62.103, network: far, serviceAccount: web, labels: {app: web, security.istio.io/tlsMode: istio}}
`

// TestFollowsNetworks checks that changes of the networks change how endpoints in other networks
// are reached.
func TestFollowsNetworks(t *testing.T) {
	t.Parallel()
	dir, m := t.TempDir(), &mounted{dir: t.TempDir()}
	networks := func(gateway string) map[string]string {
		return map[string]string{"meshNetworks": "networks: {far: {gateways: [{address: " + gateway + ", port: 15443}]}}\n"}
	}
	m.put(t, networks("192.0.2.1"))
	write(t, map[string][]byte{filepath.Join(dir, "service.yaml"): []byte(shopService), filepath.Join(dir, "far.yaml"): []byte(farMachine)})
	s, log := serveLogged(t, func(c *Config) {
		c.ConfigDir = dir
		c.Mesh.File = filepath.Join(dir, "none")
		c.Mesh.NetworksFile = filepath.Join(m.dir, "meshNetworks")
	})
	c := connected(t, s, map[string]any{"NETWORK": "near"})
	at := func(want string) {
		t.Helper()
		await(t, c, want, func(state adstest.State) bool {
			return slices.Equal(addressesOf(state, "outbound|80||web.shop.svc.cluster.local"), []string{want})
		})
	}
	at("192.0.2.1")
	m.put(t, networks("192.0.2.2"))
	at("192.0.2.2")
	m.put(t, map[string]string{"meshNetworks": "networks: {far: {endpoints: [{fromCidr: 10.0.0.0/99}]}}\n"})
	waitFor(t, "the log contains the error", func() bool {
		return strings.Contains(log.String(), `networks.far.endpoints[0].fromCidr is \"10.0.0.0/99\"`)
	})
	s.metric(t, `outrigger_control_mesh_config_rejected{source="networks"} 1`)
	at("192.0.2.2")
	m.put(t, networks("192.0.2.3"))
	at("192.0.2.3")
}

func TestMeshConfigRefusedAtStart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	bad, networks := filepath.Join(dir, "mesh"), filepath.Join(dir, "networks")
	write(t, map[string][]byte{bad: []byte("proxyListenPort: 0\n"), networks: []byte("networks: {a: {gateways: [{address: x, port: 0}]}}\n")})
	for says, set := range map[string]func(*Config){
		bad + ": mesh config: proxyListenPort is 0; it must be":                    func(c *Config) { c.Mesh.File = bad },
		networks + ": mesh networks: networks.a.gateways[0].port is 0; it must be": func(c *Config) { c.Mesh.NetworksFile = networks },
	} {
		if _, err := makeServer(t, set); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("got error %v, want one with %q", err, says)
		}
	}
}
