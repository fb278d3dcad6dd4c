// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"maps"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	xdscreds "google.golang.org/grpc/credentials/xds"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	grpcpeer "google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	grpcxds "google.golang.org/grpc/xds"
	"google.golang.org/protobuf/proto"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

const wireHost = "echo.default.svc.cluster.local"

// wireBackend serves gRPC on an address of its own until the test ends.
func wireBackend(t *testing.T, ip string) string {
	t.Helper()
	address, _ := wireStoppable(t, ip)
	return address
}

// wireStoppable is wireBackend with a server that can be stopped before.
func wireStoppable(t *testing.T, ip string) (string, *grpc.Server) {
	t.Helper()
	l, err := net.Listen("tcp", ip+":0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	healthpb.RegisterHealthServer(s, wireEcho{})
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return l.Addr().String(), s
}

// wireEcho implements the headers of a call: "x-fail: 2" fails the first two attempts, "x-delay"
// waits, and "x-bad: address" fails at that address. The header "x-caller" is the identity of the
// caller.
type wireEcho struct {
	healthpb.UnimplementedHealthServer
}

func (wireEcho) Check(ctx context.Context, _ *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	in, _ := metadata.FromIncomingContext(ctx)
	first := func(name string) string { return strings.Join(in.Get(name), ",") }
	if fail := first("x-fail"); fail != "" && parsePort(first("grpc-previous-rpc-attempts")) < parsePort(fail) {
		return nil, status.Error(codes.Unavailable, "as the caller wants")
	}
	from, _ := grpcpeer.FromContext(ctx)
	caller := "nobody"
	if info, ok := from.AuthInfo.(interface {
		GetSecurityValue() credentials.ChannelzSecurityValue
	}); ok {
		caller = callerOf(info.GetSecurityValue())
	}
	if err := grpc.SetHeader(ctx, metadata.Pairs("x-caller", caller)); err != nil {
		return nil, err
	}
	if bad := first("x-bad"); bad != "" && bad == from.LocalAddr.String() {
		return nil, status.Error(codes.Internal, "as the caller wants")
	}
	if delay, err := time.ParseDuration(first("x-delay")); err == nil {
		select {
		case <-time.After(delay):
		case <-ctx.Done():
			return nil, status.FromContextError(ctx.Err()).Err()
		}
	}
	return &healthpb.HealthCheckResponse{Status: healthpb.HealthCheckResponse_SERVING}, nil
}

// callerOf returns the identity in the certificate of a connection.
func callerOf(v credentials.ChannelzSecurityValue) string {
	tls, ok := v.(*credentials.TLSChannelzSecurityValue)
	if !ok || len(tls.RemoteCertificate) == 0 {
		return "nobody"
	}
	cert, err := x509.ParseCertificate(tls.RemoteCertificate)
	if err != nil || len(cert.URIs) != 1 {
		return "somebody"
	}
	return cert.URIs[0].String()
}

// wireApp is an application that reads xDS through grpc-go.
type wireApp struct {
	ip, name string
	labels   map[string]any
	region   string
	// certificates is a directory with files as the agent writes them; empty is
	// none.
	certificates string
}

// bootstrap is what the agent writes for the application.
func (a wireApp) bootstrap(t *testing.T, w *wireMesh) []byte {
	t.Helper()
	type object = map[string]any
	labels := a.labels
	if labels == nil {
		labels = object{"app": a.name}
	}
	node := object{
		"id":       "sidecar~" + a.ip + "~" + a.name + "-1.default~default.svc.cluster.local",
		"metadata": object{"GENERATOR": "grpc", "NAMESPACE": "default", "INTERCEPTION_MODE": "REDIRECT", "LABELS": labels},
	}
	if a.region != "" {
		node["locality"] = object{"region": a.region}
	}
	out := object{
		"xds_servers": []any{object{
			"server_uri": w.address, "channel_creds": []any{object{"type": "insecure"}}, "server_features": []any{"xds_v3"},
		}},
		"node":                                   node,
		"server_listener_resource_name_template": "xds.istio.io/grpc/lds/inbound/%s",
	}
	if a.certificates != "" {
		out["certificate_providers"] = object{"default": object{"plugin_name": "file_watcher", "config": object{
			"certificate_file":    filepath.Join(a.certificates, "cert-chain.pem"),
			"private_key_file":    filepath.Join(a.certificates, "key.pem"),
			"ca_certificate_file": filepath.Join(a.certificates, "root-cert.pem"),
			"refresh_interval":    "900s",
		}}}
	}
	b, err := json.Marshal(out)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// wireClient is an application that uses grpc-go's own xDS client.
type wireClient struct {
	t      *testing.T
	health healthpb.HealthClient
}

// dialXDS returns a client of a target that is configured by the control plane.
func dialXDS(t *testing.T, w *wireMesh, target string) *wireClient {
	t.Helper()
	return wireApp{ip: "127.77.171.40", name: "client"}.dial(t, w, target)
}

// dial returns a client that secures its connections as the control plane configures, by default
// not at all.
func (a wireApp) dial(t *testing.T, w *wireMesh, target string) *wireClient {
	t.Helper()
	resolver, err := grpcxds.NewXDSResolverWithConfigForTesting(a.bootstrap(t, w))
	if err != nil {
		t.Fatal(err)
	}
	creds, err := xdscreds.NewClientCredentials(xdscreds.ClientOptions{FallbackCreds: insecure.NewCredentials()})
	if err != nil {
		t.Fatal(err)
	}
	return dialAt(t, target, grpc.WithTransportCredentials(creds), grpc.WithResolvers(resolver))
}

func dialAt(t *testing.T, target string, opts ...grpc.DialOption) *wireClient {
	t.Helper()
	conn, err := grpc.NewClient(target, opts...)
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

// ask sends a call with headers, and returns the address of the server and the caller that it saw.
func (c *wireClient) ask(headers ...string) (from, caller string, err error) {
	ctx, cancel := context.WithTimeout(c.t.Context(), 15*time.Second)
	defer cancel()
	var peer grpcpeer.Peer
	var header metadata.MD
	_, err = c.health.Check(metadata.AppendToOutgoingContext(ctx, headers...), &healthpb.HealthCheckRequest{}, grpc.Peer(&peer), grpc.Header(&header))
	if err != nil {
		return "", "", err
	}
	return peer.Addr.String(), strings.Join(header.Get("x-caller"), ","), nil
}

// call returns the address that answered.
func (c *wireClient) call(user string) (string, error) {
	from, _, err := c.ask("x-user", user)
	return from, err
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
//   - it reaches all endpoints, also by short names
//   - routes by header and subset are applied, and so is a changed one
//   - an endpoint moves without failed calls
//   - a new service is served; a deleted one is removed
//   - a restarted control plane with other state is followed
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
	for deadline := time.Now().Add(2 * time.Minute); ; {
		from, err := c.call("anybody")
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("while an endpoint moves, a call is answered by %q: %v", from, err)
		}
		if from == third {
			break
		}
	}

	late := dialXDS(t, w, "xds:///late.default.svc.cluster.local:7070")
	// grpc-go waits 15 s for a listener that it has never seen. It can lose one that arrives at the end
	// of that time.
	until(t, "the service that is not there is known to be absent", func() bool {
		_, err := late.call("anybody")
		return status.Code(err) == codes.Unavailable
	})
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
