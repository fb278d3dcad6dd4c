// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package server

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/go-jose/go-jose/v4"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/outrigger-mesh/outrigger/certs"
)

// run runs a server until stop is called.
func run(t *testing.T, s *Server) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// listenersOf returns a function that returns the next listeners of a workload as text.
func listenersOf(t *testing.T, s *Server) (next func() string) {
	t.Helper()
	conn, err := grpc.NewClient(s.ports.listeners.plaintext.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() }) // nothing is left to read
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	const kind = "type.googleapis.com/envoy.config.listener.v3.Listener"
	node := &corev3.Node{Id: "sidecar~127.77.53.31~web.shop~shop.svc.cluster.local", Metadata: &structpb.Struct{Fields: map[string]*structpb.Value{
		"NAMESPACE": structpb.NewStringValue("shop"), "INTERCEPTION_MODE": structpb.NewStringValue("REDIRECT"),
	}}}
	request := &discoveryv3.DiscoveryRequest{Node: node, TypeUrl: kind}
	var stream discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesClient
	open := func() (*discoveryv3.DiscoveryResponse, error) {
		if stream, err = discoveryv3.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(ctx, grpc.WaitForReady(true)); err != nil {
			return nil, err
		}
		_ = stream.Send(request) // Recv returns the reason if it fails
		return stream.Recv()
	}
	return func() string {
		t.Helper()
		var answer *discoveryv3.DiscoveryResponse
		var err error
		if stream == nil {
			for answer, err = open(); status.Code(err) == codes.Unavailable; answer, err = open() {
				time.Sleep(10 * time.Millisecond) // the objects are still loading
			}
		} else {
			_ = stream.Send(request) // as above
			answer, err = stream.Recv()
		}
		if err != nil {
			t.Fatal(err)
		}
		request = &discoveryv3.DiscoveryRequest{TypeUrl: kind, VersionInfo: answer.GetVersionInfo(), ResponseNonce: answer.GetNonce()}
		return answer.String()
	}
}

// TestKeySets starts a control plane whose issuer fails at first, and restarts it while the issuer
// fails again. It looks for the ID of the key in the listeners of a workload.
func TestKeySets(t *testing.T) {
	t.Parallel()
	key, err := certs.NewKey(certs.ECDSAP256)
	if err != nil {
		t.Fatal(err)
	}
	set, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: key.Public(), KeyID: "first-key"}}})
	if err != nil {
		t.Fatal(err)
	}
	var good atomic.Bool
	web := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if !good.Load() {
			w.WriteHeader(http.StatusInternalServerError)
		}
		_, _ = w.Write(set) // a client that disconnected needs no response
	}))
	t.Cleanup(web.Close)
	dir := t.TempDir()
	roots, objects := filepath.Join(dir, "roots.pem"), filepath.Join(dir, "config", "all.yaml")
	if err := os.Mkdir(filepath.Dir(objects), 0o700); err != nil {
		t.Fatal(err)
	}
	for path, text := range map[string][]byte{
		roots:   pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: web.Certificate().Raw}),
		objects: []byte(strings.ReplaceAll(keySetObjects, "URL", web.URL)),
	} {
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	start := func() (next func() string, problems func() string, stop func()) {
		t.Helper()
		s, err := makeServer(t, func(c *Config) {
			c.ConfigDir, c.StateDir, c.Listen.Plaintext = filepath.Dir(objects), filepath.Join(dir, "ca"), testHost+":0"
			c.KeySets = KeySetsConfig{AllowedHosts: []string{"127.0.0.1"}, RootFile: roots}
		})
		if err != nil {
			t.Fatal(err)
		}
		stop = run(t, s)
		problems = func() string { return fmt.Sprint(s.history.problems(nil)) }
		return listenersOf(t, s), problems, stop
	}
	next, problems, stop := start()
	deadline := time.Now().Add(2 * time.Minute)
	if text := next(); !strings.Contains(text, "JwtAuthentication") || strings.Contains(text, "first-key") {
		t.Errorf("listeners without keys of the issuer: %s", text)
	}
	for text := problems(); !strings.Contains(text, web.URL) || !strings.Contains(text, "status 500"); text = problems() {
		if t.Context().Err() != nil || time.Now().After(deadline) {
			t.Fatalf("timeout waiting for a problem without keys of the issuer: %s", text)
		}
		time.Sleep(10 * time.Millisecond) // the first attempt may have timed out
	}
	good.Store(true)
	for !strings.Contains(next(), "first-key") {
		t.Log("the listeners do not have the key yet")
	}
	if text := problems(); strings.Contains(text, web.URL) {
		t.Errorf("problems with keys of the issuer: %s", text)
	}
	stop()
	good.Store(false)
	next, problems, stop = start()
	if text := next(); !strings.Contains(text, "first-key") {
		t.Errorf("listeners after a restart: %s", text)
	}
	if text := problems(); strings.Contains(text, web.URL) {
		t.Errorf("problems after a restart: %s", text)
	}
	stop()
}

// keySetObjects are a service and a RequestAuthentication whose keys are at URL.
const keySetObjects = `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: web, namespace: shop}
spec:
  hosts: [web.shop]
  ports: [{number: 8080, name: http, protocol: HTTP}]
  resolution: STATIC
  location: MESH_INTERNAL
  endpoints: [{address: 127.77.53.31}]
---
apiVersion: security.istio.io/v1
kind: RequestAuthentication
metadata: {name: users, namespace: shop}
spec:
  jwtRules: [{issuer: tests, jwksUri: "URL/keys"}]
`
