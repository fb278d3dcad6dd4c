// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	securityv1alpha1 "istio.io/api/security/v1alpha1"
)

// hangUp sends SIGHUP to the agent, which requests a hot restart.
func (a *runningAgent) hangUp() {
	a.t.Helper()
	if err := a.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		a.t.Fatal(err)
	}
}

func (a *runningAgent) metric(line string) bool {
	_, body := a.get(15020, "/metrics")
	return strings.Contains(body, "\n"+line+"\n")
}

// probe sends requests over persistent and new connections until stop is called, which returns the
// failures.
func (a *runningAgent) probe() (stop func() []string) {
	ctx, cancel := context.WithCancel(context.Background())
	var clients sync.WaitGroup
	var mu sync.Mutex // guards failures
	var failures []string
	for i, url := range []string{
		"http://" + a.address + ":15021/healthz/ready", "http://" + a.address + ":15021/healthz/ready", "http://" + a.address + ":15020/healthz/ready",
	} {
		clients.Go(func() {
			client := &http.Client{Transport: &http.Transport{DisableKeepAlives: i == 0}, Timeout: 5 * time.Second}
			defer client.CloseIdleConnections()
			for ctx.Err() == nil {
				resp, err := client.Get(url)
				failure := ""
				if err != nil {
					failure = err.Error()
				} else {
					body, _ := io.ReadAll(resp.Body) // for the message
					if _ = resp.Body.Close(); resp.StatusCode != http.StatusOK {
						failure = url + ": " + resp.Status + " " + string(body)
					}
				}
				if failure != "" {
					mu.Lock()
					failures = append(failures, failure)
					mu.Unlock()
				}
				time.Sleep(5 * time.Millisecond) // limits the rate of requests
			}
		})
	}
	return func() []string {
		cancel()
		clients.Wait()
		return failures
	}
}

// TestProxyHotRestart checks that on a signal, a new Envoy takes over from the old one without a
// failed request.
func TestProxyHotRestart(t *testing.T) {
	t.Parallel()
	cp := newControlPlane(t)
	a := startAgent(t, "127.77.40.2", `,"drainDuration":"1s","terminationDrainDuration":"1s"`, cp, "--hot-restart")
	a.waitReady()
	eventually(t, "the agent is ready", func() bool { code, _ := a.get(15020, "/healthz/ready"); return code == http.StatusOK })
	stop := a.probe()
	first := a.envoyPID()
	for _, done := range []string{"1", "2", "3"} {
		a.hangUp()
		eventually(t, "hot restart "+done, func() bool { return a.metric(`outrigger_agent_hot_restarts_total{result="ok"} ` + done) })
	}
	for _, failure := range stop() {
		t.Errorf("during the hot restarts: %s", failure)
	}
	if err := syscall.Kill(first, 0); err == nil {
		t.Error("the first Envoy is still running")
	}
	if _, body := a.get(15000, "/stats?filter=server.hot_restart_epoch"); strings.TrimSpace(body) != "server.hot_restart_epoch: 3" {
		t.Errorf("hot restart epoch: got %q", body)
	}
	if out := a.out.String(); strings.Contains(out, "ended an older stream") {
		t.Error("the streams of two Envoys ended each other")
	}
	a.hangUp() // the agent stops during a hot restart
	if err := a.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	a.waitEnd(exitOK)
	if left, err := filepath.Glob(filepath.Join(a.dir, "etc/istio/proxy", "hr_*")); err != nil || len(left) > 0 {
		t.Errorf("files remain: %v, error %v", left, err)
	}
}

// place puts a copy of the program that is being tested in a directory, as a package does.
func place(t *testing.T, dir string) {
	t.Helper()
	program, err := os.ReadFile(os.Args[0])
	path := filepath.Join(dir, ownName)
	if err := errors.Join(err, os.WriteFile(path+".new", program, 0o755), os.Rename(path+".new", path)); err != nil {
		t.Fatal(err)
	}
}

// TestProxyHandover checks that on a signal, an agent whose program was replaced is replaced too, in its
// process and without a failed request, and that the new one replaces Envoy.
func TestProxyHandover(t *testing.T) {
	t.Parallel()
	cp, dir := newControlPlane(t), t.TempDir()
	place(t, dir)
	writeIn(t, dir, "var/run/secrets/istio/root-cert.pem", cp.rootPEM())
	writeIn(t, dir, "var/run/secrets/tokens/istio-token", []byte("the-token\n"))
	a := startAgentIn(t, dir, "127.77.40.5", `,"drainDuration":"1s","terminationDrainDuration":"1s"`, cp, "--hot-restart")
	a.waitReady()
	eventually(t, "the agent is ready", func() bool { code, _ := a.get(15020, "/healthz/ready"); return code == http.StatusOK })
	stop := a.probe()
	for round := range 2 {
		place(t, dir)
		a.hangUp()
		eventually(t, "the new agent has replaced Envoy", func() bool { // its metrics begin again
			return strings.Count(a.out.String(), "envoy of the agent before this one found") == round+1 && a.metric(`outrigger_agent_hot_restarts_total{result="ok"} 1`)
		})
	}
	for _, failure := range stop() {
		t.Errorf("during the handovers: %s", failure)
	}
	// Each is that of an Envoy whose agent is gone.
	if out := a.out.String(); strings.Count(out, "shutting down admin due to child startup") != 2 {
		t.Error("what Envoy prints after a handover is lost")
	}
	if _, body := a.get(15000, "/stats?filter=server.hot_restart_epoch"); strings.TrimSpace(body) != "server.hot_restart_epoch: 2" {
		t.Errorf("hot restart epoch: got %q", body)
	}
	// A program that does not work changes nothing but Envoy.
	writeIn(t, dir, "broken", []byte("#!/bin/sh\necho it is broken\nexit 3\n"))
	if err := errors.Join(os.Chmod(filepath.Join(dir, "broken"), 0o755), os.Rename(filepath.Join(dir, "broken"), filepath.Join(dir, ownName))); err != nil {
		t.Fatal(err)
	}
	a.hangUp()
	eventually(t, "the agent has replaced Envoy", func() bool { return a.metric(`outrigger_agent_hot_restarts_total{result="ok"} 2`) })
	if out := a.out.String(); !strings.Contains(out, "it is broken") || strings.Count(out, "another agent replaces this one") != 2 {
		t.Error("the log does not report what the new program printed")
	}
	if err := a.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	a.waitEnd(exitOK)
	if left, err := filepath.Glob(filepath.Join(a.dir, "etc/istio/proxy", "hr_*")); err != nil || len(left) > 0 {
		t.Errorf("files remain: %v, error %v", left, err)
	}
}

// pickyPlane sends only a listener and its route to the first stream. While picky, it also sends a
// resource that Envoy rejects to later streams.
type pickyPlane struct {
	*controlPlane
	typeURL   string
	resources map[string]*discoveryv3.Resource // by type

	mu      sync.Mutex // guards the fields below
	streams int
	picky   bool
}

func newPickyPlane(t *testing.T, address, typeURL string) (*pickyPlane, *controlPlane) {
	t.Helper()
	p := &pickyPlane{controlPlane: newControlPlane(t), typeURL: typeURL, picky: true, resources: map[string]*discoveryv3.Resource{}}
	manager := pack(t, &hcmv3.HttpConnectionManager{
		StatPrefix: "good", HttpFilters: []*hcmv3.HttpFilter{{Name: "router", ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: pack(t, &routerv3.Router{})}}},
		RouteSpecifier: &hcmv3.HttpConnectionManager_Rds{Rds: &hcmv3.Rds{RouteConfigName: "good", ConfigSource: &corev3.ConfigSource{
			ResourceApiVersion: corev3.ApiVersion_V3, ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}},
		}}},
	})
	for _, m := range []proto.Message{
		&routev3.RouteConfiguration{Name: "good"},
		&listenerv3.Listener{
			Name: "good", Address: &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
				Address: address, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: 8080},
			}}},
			FilterChains: []*listenerv3.FilterChain{{Filters: []*listenerv3.Filter{{Name: "http", ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: manager}}}}},
		},
	} {
		packed := pack(t, m)
		p.resources[packed.GetTypeUrl()] = &discoveryv3.Resource{Name: "good", Version: "1", Resource: packed}
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	leaf := p.certify(t, &x509.Certificate{DNSNames: []string{"istiod.istio-system.svc"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}, p.root, key)
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(&tls.Config{
		MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{{Certificate: [][]byte{leaf.Raw}, PrivateKey: key}},
	})))
	securityv1alpha1.RegisterIstioCertificateServiceServer(server, p.controlPlane)
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(server, p)
	l, err := net.Listen("tcp", "127.77.40.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = server.Serve(l) }() // returns when the server is stopped
	t.Cleanup(server.Stop)
	// startAgent needs only the address and the root.
	return p, &controlPlane{root: p.root, address: l.Addr().String()}
}

func pack(t *testing.T, m proto.Message) *anypb.Any {
	t.Helper()
	packed, err := anypb.New(m)
	if err != nil {
		t.Fatal(err)
	}
	return packed
}

func (p *pickyPlane) DeltaAggregatedResources(s discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	p.mu.Lock()
	p.streams++
	bad := p.streams > 1 && p.picky
	p.mu.Unlock()
	for {
		req, err := s.Recv()
		if err != nil {
			return err
		}
		if req.GetResponseNonce() != "" {
			continue
		}
		resp := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: req.GetTypeUrl(), Nonce: "1", SystemVersionInfo: "1"}
		if good := p.resources[req.GetTypeUrl()]; good != nil {
			resp.Resources = append(resp.Resources, good)
		}
		if bad && req.GetTypeUrl() == p.typeURL {
			resp.Resources = append(resp.Resources, &discoveryv3.Resource{Name: "bad", Version: "1", Resource: &anypb.Any{TypeUrl: p.typeURL}})
		}
		if err := s.Send(resp); err != nil {
			return err
		}
	}
}

// TestProxyHotRestartRejected checks that a new Envoy does not take over if it rejects a resource
// that the old one had accepted.
func TestProxyHotRestartRejected(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ address, typeURL string }{
		"clusters":  {"127.77.40.3", "type.googleapis.com/envoy.config.cluster.v3.Cluster"},
		"listeners": {"127.77.40.4", "type.googleapis.com/envoy.config.listener.v3.Listener"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			picky, cp := newPickyPlane(t, c.address, c.typeURL)
			a := startAgent(t, c.address, `,"drainDuration":"1s","terminationDrainDuration":"0.1s"`, cp, "--hot-restart")
			a.waitReady()
			stop := a.probe()
			a.hangUp()
			eventually(t, "the hot restart fails", func() bool { return a.metric(`outrigger_agent_hot_restarts_total{result="failed"} 1`) })
			if out := a.out.String(); !strings.Contains(out, "it rejected "+c.typeURL+", which the old one had accepted") || strings.Count(out, "the hot restart failed") != 1 {
				t.Error("the log does not report exactly once what was rejected")
			}
			picky.mu.Lock()
			picky.picky = false
			picky.mu.Unlock()
			a.hangUp()
			eventually(t, "the next hot restart succeeds", func() bool { return a.metric(`outrigger_agent_hot_restarts_total{result="ok"} 1`) })
			for _, failure := range stop() {
				t.Errorf("during the failed hot restart: %s", failure)
			}
			if err := a.cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			a.waitEnd(exitOK)
		})
	}
}
