// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package server

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/outrigger-mesh/outrigger/controlplane/config"
	"github.com/outrigger-mesh/outrigger/controlplane/config/mcp/adstest"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

const mcpHost = "127.77.111.2"

func waitFor(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("condition not met in time: " + what)
		}
	}
}

// takes writes a mesh config with a config source, and returns its file.
func takes(t *testing.T, source string) string {
	t.Helper()
	mesh := filepath.Join(t.TempDir(), "mesh")
	write(t, map[string][]byte{mesh: fmt.Appendf(nil, "configSources: [{address: %q}]\n", source)})
	return mesh
}

// secureSource returns the address of a control plane as a config source, over TLS and with a
// token.
func secureSource(t *testing.T, s *Server, token string) string {
	t.Helper()
	dir := t.TempDir()
	ca, file := filepath.Join(dir, "ca"), filepath.Join(dir, "token")
	write(t, map[string][]byte{ca: s.identity.authority.RootPEM(), file: []byte(token)})
	return fmt.Sprintf("xds://%s?ca=%s&token=%s", s.ports.listeners.secure.Addr(), ca, file)
}

// TestReceivesConfiguration checks that one control plane receives its configuration from another
// over either kind of stream, and that its proxies receive changes made there. The proxies' client
// follows clusters to endpoints and listeners to routes.
func TestReceivesConfiguration(t *testing.T) {
	t.Parallel()
	for name, query := range map[string]string{"full states": "", "delta": "&delta=true"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			i := newIssuer(t)
			dir := t.TempDir()
			put := func(name string, text []byte) {
				t.Helper()
				write(t, map[string][]byte{filepath.Join(dir, name): text})
			}
			put("service.yaml", []byte(shopService))
			put("a.yaml", machineFile("1"))
			source := serve(t, func(c *Config) {
				c.ConfigDir = dir
				c.Callers.JWTRule = fmt.Sprintf(`{"issuer":"tests","audiences":["istio-ca"],"jwksUri":%q}`, i.url+"/keys")
				c.Callers.Hosts = []string{testHost}
				c.MCPReaders = []string{"shop/web"}
			})
			s := serve(t, func(c *Config) {
				c.Mesh.File, c.Listen.Plaintext = takes(t, secureSource(t, source, i.token(t, "istio-ca"))+query), mcpHost+":0"
				c.Namespace = "shop"
			})
			waitFor(t, "the control plane is ready", s.discovery.Ready)
			key := model.Key{Kind: model.WorkloadEntry, Namespace: "shop", Name: "web-1"}
			if s.objects.store.Get(key) == nil || !config.SameContent(s.objects.store.Get(key), source.objects.store.Get(key)) {
				t.Fatalf("the object differs from that of the source: %v", s.objects.store.Get(key))
			}
			if _, err := s.objects.store.Create(t.Context(), s.objects.store.Get(key)); err == nil {
				t.Error("Create() of an object from a source succeeded, want an error")
			}
			c := proxyOf(t, s)
			endpoints := func(want ...string) {
				t.Helper()
				ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
				defer cancel()
				state, err := c.Wait(ctx, func(state adstest.State) bool {
					got := addressesOf(state, "outbound|80||web.shop.svc.cluster.local")
					return slices.Equal(got, want) && len(state.Routes) > 0
				})
				if err != nil {
					t.Fatalf("%v: clusters: got %v, endpoints: %v, routes: %v", err,
						slices.Collect(maps.Keys(state.EDSClusters)), state.Endpoints, slices.Collect(maps.Keys(state.Routes)))
				}
			}
			endpoints("127.77.63.1")
			put("b.yaml", machineFile("2"))
			endpoints("127.77.63.1", "127.77.63.2")
			if err := os.Remove(filepath.Join(dir, "a.yaml")); err != nil {
				t.Fatal(err)
			}
			endpoints("127.77.63.2")
		})
	}
}

func addressesOf(state adstest.State, cluster string) []string {
	var all []string
	for _, l := range state.Endpoints[cluster].GetEndpoints() {
		for _, e := range l.GetLbEndpoints() {
			all = append(all, e.GetEndpoint().GetAddress().GetSocketAddress().GetAddress())
		}
	}
	slices.Sort(all)
	return all
}

// proxyOf connects a proxy to the plaintext port.
func proxyOf(t *testing.T, s *Server) *adstest.Client {
	t.Helper()
	conn, err := grpc.NewClient(s.ports.listeners.plaintext.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() }) // nothing is left to read
	md, err := structpb.NewStruct(map[string]any{"NAMESPACE": "shop", "INTERCEPTION_MODE": "NONE", "HTTP_PROXY_PORT": "15007"})
	if err != nil {
		t.Fatal(err)
	}
	c, err := adstest.Connect(t.Context(), conn, &corev3.Node{Id: "sidecar~127.77.111.3~client.shop~shop.svc.cluster.local", Metadata: md})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestUnlistedReaderReceivesNothing checks that a control plane that is not in the list of readers
// receives nothing: neither over TLS with the token of another account, nor on the plaintext port.
// Meanwhile it must not be ready, and the log must contain the reason.
func TestUnlistedReaderReceivesNothing(t *testing.T) {
	t.Parallel()
	i := newIssuer(t)
	source := serve(t, func(c *Config) {
		c.Listen.Plaintext = mcpHost + ":0"
		c.Callers.JWTRule = fmt.Sprintf(`{"issuer":"tests","audiences":["istio-ca"],"jwksUri":%q}`, i.url+"/keys")
		c.Callers.Hosts = []string{testHost}
	})
	for name, tc := range map[string]struct{ from, says string }{
		"another account": {secureSource(t, source, i.token(t, "istio-ca")), "shop/web to OUTRIGGER_MCP_READERS"},
		"plaintext":       {"xds://" + source.ports.listeners.plaintext.Addr().String(), "connect to the TLS port"},
	} {
		cfg := testConfig(t)
		cfg.Mesh.File, cfg.Namespace = takes(t, tc.from), "shop"
		cfg.Listen.Secure, cfg.Listen.Plaintext = "", mcpHost+":0"
		var log logBuffer
		s, err := New(t.Context(), cfg, slog.New(slog.NewTextHandler(&log, nil)))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		waitFor(t, name+": the log says why", func() bool { return strings.Contains(log.String(), tc.says) })
		if s.discovery.Ready() || len(s.objects.store.Waiting()) != 1 || len(s.objects.store.List(model.WorkloadEntry, "")) > 0 {
			t.Errorf("%s: the control plane is ready or has objects", name)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if source.discovery.Connected() != 0 {
		t.Errorf("%d streams are open, want none", source.discovery.Connected())
	}
}

// logBuffer is a log that is safe for concurrent use.
type logBuffer struct {
	mu sync.Mutex // guards b
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func TestReadersOfObjects(t *testing.T) {
	t.Parallel()
	cfg := Config{Namespace: "mesh"}
	if got := (&Server{}).newMCP(cfg).Readers; !slices.Equal(got, []string{"mesh/*"}) {
		t.Errorf("default readers: got %v, want [mesh/*]", got)
	}
	cfg.MCPReaders = []string{"a/b"}
	if got := (&Server{}).newMCP(cfg).Readers; !slices.Equal(got, cfg.MCPReaders) {
		t.Errorf("readers: got %v, want the configured ones", got)
	}
}
