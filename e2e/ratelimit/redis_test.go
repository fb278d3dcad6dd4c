// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package ratelimit

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/mediocregopher/radix/v4"
	"google.golang.org/protobuf/proto"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/bootstrap/meshconfig"
	"github.com/outrigger-mesh/outrigger/controlplane/generate"
	"github.com/outrigger-mesh/outrigger/controlplane/generate/envoyconf"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
	"github.com/outrigger-mesh/outrigger/e2e/envoytest"
	"github.com/outrigger-mesh/outrigger/e2e/ownnet"
)

// TestRedis has a client set and read keys through Envoy, which spreads them over two servers.
func TestRedis(t *testing.T) {
	const address, keys = "127.77.91.2", 40
	port, err := ownnet.FreePort(address)
	if err != nil {
		t.Fatal(err)
	}
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		t.Fatal(err)
	}
	service := &networkingv1alpha3.ServiceEntry{
		Hosts: []string{"cache.example.com"}, Resolution: networkingv1alpha3.ServiceEntry_STATIC,
		Ports: []*networkingv1alpha3.ServicePort{{Number: uint32(number), Name: "redis", Protocol: "REDIS"}},
	}
	servers := []*miniredis.Miniredis{miniredis.RunT(t), miniredis.RunT(t)}
	for _, s := range servers {
		at := s.Server().Addr()
		service.Endpoints = append(service.Endpoints, &networkingv1alpha3.WorkloadEntry{Address: at.IP.String(), Ports: map[string]uint32{"redis": uint32(at.Port)}})
	}
	runEnvoy(t, net.JoinHostPort(address, port), bootstrap(t, address, service, &networkingv1alpha3.Sidecar{Egress: []*networkingv1alpha3.IstioEgressListener{{
		Port: &networkingv1alpha3.SidecarPort{Number: uint32(number), Name: "redis", Protocol: "REDIS"}, Hosts: []string{"./*"},
	}}}))

	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	client, err := radix.Dial(ctx, "tcp", net.JoinHostPort(address, port))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() }) // the answers were read
	names := make([]string, keys)
	for i := range names {
		names[i] = fmt.Sprintf("cart-%d", i)
		if err := client.Do(ctx, radix.Cmd(nil, "SET", names[i], strconv.Itoa(i))); err != nil {
			t.Fatal(err)
		}
	}
	var values []string // of keys at both servers, which Envoy asks
	if err := client.Do(ctx, radix.Cmd(&values, "MGET", names...)); err != nil {
		t.Fatal(err)
	}
	for i := range names {
		if i >= len(values) || values[i] != strconv.Itoa(i) {
			t.Fatalf("the values are %q", values)
		}
	}
	if a, b := len(servers[0].Keys()), len(servers[1].Keys()); a == 0 || b == 0 || a+b != keys {
		t.Errorf("the servers have %d and %d keys, want %d together, and some each", a, b, keys)
	}
}

// bootstrap returns the configuration of a proxy with a service and a Sidecar.
func bootstrap(t *testing.T, address string, service *networkingv1alpha3.ServiceEntry, sidecar *networkingv1alpha3.Sidecar) []byte {
	t.Helper()
	objects := map[model.Kind]proto.Message{model.ServiceEntry: service, model.Sidecar: sidecar}
	mesh := snapshot.Build(nil, snapshot.Input{Mesh: meshconfig.Default(), List: func(kind model.Kind) []*model.Config {
		if objects[kind] == nil {
			return nil
		}
		return []*model.Config{{Key: model.Key{Kind: kind, Namespace: "default", Name: "one"}, Spec: objects[kind]}}
	}}, model.Change{All: true})
	proxy := &model.Proxy{ID: "p.default", Role: "sidecar", IPs: []string{address}, Namespace: "default", Interception: model.InterceptionNone}
	g := generate.New(generate.Config{Protocols: envoyconf.Protocols{Redis: true}})
	b, err := xds.Static(func(typeURL string) *xds.Set { return g.Generate(mesh, proxy, typeURL) }, nil)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// runEnvoy runs Envoy until the test ends, and waits until it listens.
func runEnvoy(t *testing.T, address string, bootstrap []byte) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "envoy.json")
	if err := os.WriteFile(path, bootstrap, 0o600); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	cmd := exec.CommandContext(t.Context(), envoytest.Binary(t), "-c", path, "--concurrency", "1", "--disable-hot-restart", "--log-level", "warning")
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _ = cmd.Wait(); t.Failed() { // it was killed
			t.Errorf("envoy said:\n%s", log.String())
		}
	})
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(20 * time.Millisecond) {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			_ = conn.Close() // it was opened
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("envoy does not listen: %v", err)
		}
	}
}
