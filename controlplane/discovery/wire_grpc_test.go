// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"context"
	"encoding/json"
	"maps"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	grpchealth "google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	grpcpeer "google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/xds"
	"google.golang.org/protobuf/proto"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

const wireHost = "echo.default.svc.cluster.local"

// wireBackend serves gRPC on an address of its own until the test ends.
func wireBackend(t *testing.T, ip string) string {
	t.Helper()
	l, err := net.Listen("tcp", ip+":0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	healthpb.RegisterHealthServer(s, grpchealth.NewServer())
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return l.Addr().String()
}

// wireClient is an application that uses grpc-go's own xDS client.
type wireClient struct {
	t      *testing.T
	health healthpb.HealthClient
}

// dialXDS makes a client of a target; what it knows comes from the control plane.
func dialXDS(t *testing.T, w *wireMesh, target string) *wireClient {
	t.Helper()
	bootstrap, err := json.Marshal(map[string]any{
		"xds_servers": []any{map[string]any{
			"server_uri": w.address, "channel_creds": []any{map[string]any{"type": "insecure"}}, "server_features": []any{"xds_v3"},
		}},
		"node": map[string]any{
			"id":       "sidecar~127.77.171.40~client-1.default~default.svc.cluster.local",
			"metadata": map[string]any{"GENERATOR": "grpc", "NAMESPACE": "default", "INTERCEPTION_MODE": "REDIRECT", "LABELS": map[string]any{"app": "client"}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	resolver, err := xds.NewXDSResolverWithConfigForTesting(bootstrap)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient(target, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithResolvers(resolver))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	})
	return &wireClient{t: t, health: healthpb.NewHealthClient(conn)}
}

// call gives the address that answered.
func (c *wireClient) call(user string) (string, error) {
	ctx, cancel := context.WithTimeout(c.t.Context(), 2*time.Second)
	defer cancel()
	var from grpcpeer.Peer
	_, err := c.health.Check(metadata.AppendToOutgoingContext(ctx, "x-user", user), &healthpb.HealthCheckRequest{}, grpc.Peer(&from))
	if err != nil {
		return "", err
	}
	return from.Addr.String(), nil
}

// reaches waits until twenty calls in a row are answered by exactly these
// addresses.
func (c *wireClient) reaches(user string, want ...string) {
	c.t.Helper()
	until(c.t, "calls of "+user+" reach "+strings.Join(want, " and "), func() bool {
		got := map[string]bool{}
		for range 20 {
			from, err := c.call(user)
			if err != nil {
				return false
			}
			got[from] = true
		}
		slices.Sort(want)
		return slices.Equal(slices.Sorted(maps.Keys(got)), want)
	})
}

// TestGRPCClient has grpc-go's own xDS client read listeners, routes, clusters
// and endpoints of the proxyless generator:
//   - it reaches all endpoints, and by short names, too
//   - routes by header and subset hold, and a changed one takes effect
//   - an endpoint that moves is followed, calls meanwhile do not fail
//   - a service that comes later is served; one that goes is gone
//   - a control plane that comes back, with other state, is followed
func TestGRPCClient(t *testing.T) {
	t.Parallel()
	w := newWireMesh(t, "127.77.171.2")
	first, second, third := wireBackend(t, "127.77.171.11"), wireBackend(t, "127.77.171.12"), wireBackend(t, "127.77.171.13")
	w.put(model.ServiceEntry, map[string]proto.Message{
		"echo":  wireService(wireHost, "GRPC", 7070, first, second),
		"other": wireService("other.default.svc.cluster.local", "GRPC", 7070, third),
		"db":    wireService("db.default.svc.cluster.local", "TCP", 5432, third),
	})
	c := dialXDS(t, w, "xds:///"+wireHost+":7070")
	c.reaches("anybody", first, second)
	dialXDS(t, w, "xds:///echo.default:7070").reaches("anybody", first, second)

	w.putOne(model.DestinationRule, "echo", wireSubsets(wireHost))
	w.putOne(model.VirtualService, "echo", wireRoute(wireHost, "v2"))
	c.reaches("anybody", second)
	c.reaches("tester", first)
	w.putOne(model.VirtualService, "echo", wireRoute(wireHost, "v1"))
	c.reaches("anybody", first)

	w.putOne(model.ServiceEntry, "echo", wireService(wireHost, "GRPC", 7070, third, second))
	for deadline := time.Now().Add(10 * time.Second); ; {
		from, err := c.call("anybody")
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("while an endpoint moves, a call is answered by %q: %v", from, err)
		}
		if from == third {
			break
		}
	}

	late := dialXDS(t, w, "xds:///late.default.svc.cluster.local:7070")
	// grpc-go waits for a listener that it has never seen.
	if _, err := late.call("anybody"); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("a call to a service that is not there ends with %v", err)
	}
	w.putOne(model.ServiceEntry, "late", wireService("late.default.svc.cluster.local", "GRPC", 7070, second))
	late.reaches("anybody", second)
	c.reaches("anybody", third) // the new name took nothing from the others
	w.putOne(model.ServiceEntry, "late", nil)
	until(t, "the service that went is gone", func() bool {
		_, err := late.call("anybody")
		return status.Code(err) == codes.Unavailable
	})
	c.reaches("anybody", third)

	w.stop()
	c.reaches("anybody", third) // what it has stays
	w.start()
	w.putOne(model.ServiceEntry, "echo", wireService(wireHost, "GRPC", 7070, second, third))
	c.reaches("tester", second)
	if said := w.logged.String(); strings.Contains(said, "rejected") {
		t.Error("something was rejected")
	}
}
