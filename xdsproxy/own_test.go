// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package xdsproxy

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/service/accesslog/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/outrigger-mesh/outrigger/bootstrap/node"
)

const (
	tableType = "type.googleapis.com/example.Table"
	trustType = "type.googleapis.com/example.Trust"
)

// rig is a relay between a control plane and an Envoy that use one variant of the protocol.
type rig struct {
	*controlPlane
	proxy  *Proxy
	socket string
	delta  bool
}

func startRig(t *testing.T, cfg Config, delta bool) *rig {
	t.Helper()
	r := &rig{controlPlane: newControlPlane(), delta: delta, socket: filepath.Join(t.TempDir(), "XDS")}
	if cfg.Upstream.Address == "" {
		l := listen(t, "127.77.51.2:0")
		r.start(t, l)
		cfg.Upstream.Address = l.Addr().String()
	}
	l, err := net.Listen("unix", r.socket)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Listener = l
	if r.proxy, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	runUntilEnd(t, r.proxy.Run)
	return r
}

// runUntilEnd runs a component until the test ends.
func runUntilEnd(t *testing.T, run func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("run: %v", err)
		}
	})
}

// envoy is a stream of a simulated Envoy.
type envoy struct {
	t     *testing.T
	delta bool
	sotw  grpc.BidiStreamingClient[discoveryv3.DiscoveryRequest, discoveryv3.DiscoveryResponse]
	inc   grpc.BidiStreamingClient[discoveryv3.DeltaDiscoveryRequest, discoveryv3.DeltaDiscoveryResponse]
	conn  *grpc.ClientConn
}

// dial connects like Envoy does.
func (r *rig) dial(t *testing.T) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("unix://"+r.socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(1<<30), grpc.MaxCallSendMsgSize(1<<30)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func (r *rig) envoy(t *testing.T) *envoy {
	t.Helper()
	conn := r.dial(t)
	e := &envoy{t: t, delta: r.delta, conn: conn}
	var err error
	client := discoveryv3.NewAggregatedDiscoveryServiceClient(conn)
	if r.delta {
		e.inc, err = client.DeltaAggregatedResources(t.Context())
	} else {
		e.sotw, err = client.StreamAggregatedResources(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func (e *envoy) send(m proto.Message) {
	e.t.Helper()
	var err error
	if e.delta {
		err = e.inc.Send(m.(*discoveryv3.DeltaDiscoveryRequest))
	} else {
		err = e.sotw.Send(m.(*discoveryv3.DiscoveryRequest))
	}
	if err != nil {
		e.t.Fatal(err)
	}
}

func (e *envoy) recv() (proto.Message, error) {
	if e.delta {
		return e.inc.Recv()
	}
	return e.sotw.Recv()
}

// wants checks that the next response has the given type and nonce.
func (e *envoy) wants(typeURL, nonce string) proto.Message {
	e.t.Helper()
	m, err := e.recv()
	if err != nil {
		e.t.Fatalf("waiting for %s %s: %v", typeURL, nonce, err)
	}
	got := m.(interface {
		GetTypeUrl() string
		GetNonce() string
	})
	if got.GetTypeUrl() != typeURL || got.GetNonce() != nonce {
		e.t.Fatalf("envoy got %s %q, want %s %q", got.GetTypeUrl(), got.GetNonce(), typeURL, nonce)
	}
	return m
}

// ask requests a type like Envoy does.
func (e *envoy) ask(typeURL string, names ...string) {
	e.t.Helper()
	if e.delta {
		e.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: typeURL, ResourceNamesSubscribe: names})
	} else {
		e.send(&discoveryv3.DiscoveryRequest{TypeUrl: typeURL, ResourceNames: names})
	}
}

// take acknowledges a response.
func (e *envoy) take(typeURL, version, nonce string, names ...string) {
	e.t.Helper()
	if e.delta {
		e.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: typeURL, ResponseNonce: nonce})
	} else {
		e.send(&discoveryv3.DiscoveryRequest{TypeUrl: typeURL, VersionInfo: version, ResponseNonce: nonce, ResourceNames: names})
	}
}

// push sends a response of the control plane.
func (r *rig) push(typeURL, version, nonce string, values ...string) {
	if r.delta {
		m := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: typeURL, SystemVersionInfo: version, Nonce: nonce}
		for _, v := range values {
			m.Resources = append(m.Resources, &discoveryv3.Resource{Name: v, Version: version, Resource: &anypb.Any{TypeUrl: typeURL, Value: []byte(v)}})
		}
		r.answers <- m
		return
	}
	m := &discoveryv3.DiscoveryResponse{TypeUrl: typeURL, VersionInfo: version, Nonce: nonce}
	for _, v := range values {
		m.Resources = append(m.Resources, &anypb.Any{TypeUrl: typeURL, Value: []byte(v)})
	}
	r.answers <- m
}

// told is the content of a request of either variant.
type told struct {
	typeURL, version, nonce, reason string
	code                            int32
	names                           []string
}

func (r *rig) next(t *testing.T, what string) told {
	t.Helper()
	return says(receive(t, r.got, what))
}

func says(m proto.Message) told {
	switch m := m.(type) {
	case *discoveryv3.DiscoveryRequest:
		return told{m.TypeUrl, m.VersionInfo, m.ResponseNonce, m.GetErrorDetail().GetMessage(), m.GetErrorDetail().GetCode(), m.ResourceNames}
	case *discoveryv3.DeltaDiscoveryRequest:
		return told{m.TypeUrl, "", m.ResponseNonce, m.GetErrorDetail().GetMessage(), m.GetErrorDetail().GetCode(), m.ResourceNamesSubscribe}
	}
	panic("unreachable")
}

func (r *rig) nextOf(t *testing.T, typeURL string) told {
	t.Helper()
	got := r.next(t, "request for "+typeURL)
	if got.typeURL != typeURL {
		t.Fatalf("the control plane was asked for %s, want %s", got.typeURL, typeURL)
	}
	return got
}

func bothVariants(t *testing.T, run func(t *testing.T, delta bool)) {
	t.Parallel()
	for name, delta := range map[string]bool{"sotw": false, "delta": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run(t, delta)
		})
	}
}

// TestOwnTypes checks that the agent's own types are requested in their order once Envoy has
// requested listeners. The agent acknowledges the responses, which never reach Envoy.
func TestOwnTypes(t *testing.T) {
	bothVariants(t, func(t *testing.T, delta bool) {
		handled := make(chan []string, 10)
		var fail error
		reg := prometheus.NewRegistry()
		r := startRig(t, Config{Registerer: reg, Consumers: []Consumer{
			{TypeURL: tableType, Subscribe: true, Handle: func(messages [][]byte, removed []string) error {
				var got []string
				for _, m := range messages {
					got = append(got, string(m))
				}
				handled <- append(got, removed...)
				return fail
			}},
			{TypeURL: trustType, Subscribe: true, Handle: func([][]byte, []string) error { return nil }},
			{TypeURL: "type.googleapis.com/example.Unasked", Handle: func([][]byte, []string) error { return nil }},
		}}, delta)
		r.proxy.ReportHealth(true, "") // before the first stream: the relay stores it
		r.proxy.ReportHealth(false, "connection refused")
		e := r.envoy(t)
		e.ask(clusterType)
		r.nextOf(t, clusterType)
		e.ask(tableType) // a type of the agent, so Envoy's request is dropped
		e.ask(listenerType)
		r.nextOf(t, listenerType)
		r.nextOf(t, tableType)
		r.nextOf(t, trustType)
		if got := r.nextOf(t, healthType); got.code != 13 || got.reason != "connection refused" {
			t.Errorf("health report %+v, want code 13 and the reason", got)
		}
		e.ask(listenerType, "again") // must not request the agent's types again
		r.nextOf(t, listenerType)
		r.proxy.ReportHealth(true, "")
		if got := r.nextOf(t, healthType); got.code != 0 {
			t.Errorf("health report %+v, want one without an error", got)
		}

		r.push(tableType, "v1", "1", "one")
		if got := receive(t, handled, "messages"); !slices.Equal(got, []string{"one"}) {
			t.Errorf("handled %q", got)
		}
		if got := r.nextOf(t, tableType); got.nonce != "1" || got.reason != "" || !delta && got.version != "v1" {
			t.Errorf("answer %+v, want an acknowledgement of v1", got)
		}
		r.push(tableType, "v2", "2")
		receive(t, handled, "nothing at all")
		if got := r.nextOf(t, tableType); got.nonce != "2" || got.reason != "" {
			t.Errorf("answer %+v, want an acknowledgement although there is no resource", got)
		}
		fail = errors.New("cannot use it")
		r.push(tableType, "v3", "3", "two")
		receive(t, handled, "messages")
		if got := r.nextOf(t, tableType); got.nonce != "3" || got.reason != "cannot use it" || got.code != 13 || !delta && got.version != "v2" {
			t.Errorf("answer %+v, want a rejection that stays with v2", got)
		}
		r.push(clusterType, "v1", "4", "c") // the first response for Envoy
		e.wants(clusterType, "4")
		if n := counter(t, reg, "outrigger_agent_xds_own_responses_total"); n != 3 {
			t.Errorf("%v own responses were counted, want 3", n)
		}
		if n := counter(t, reg, "outrigger_agent_xds_dropped_total"); n != 1 {
			t.Errorf("%v messages were dropped, want Envoy's request for the agent's type", n)
		}
	})
}

// TestOwnTypeChecks checks that a resource whose type differs from that of its response is rejected
// before it reaches the consumer, and that a removal reaches the consumer.
func TestOwnTypeChecks(t *testing.T) {
	t.Parallel()
	removed := make(chan []string, 1)
	r := startRig(t, Config{Consumers: []Consumer{{TypeURL: tableType, Handle: func(messages [][]byte, gone []string) error {
		if len(messages) > 0 {
			t.Errorf("handled %q", messages)
		}
		removed <- gone
		return nil
	}}}}, true)
	e := r.envoy(t)
	e.ask(listenerType)
	r.nextOf(t, listenerType)
	r.answers <- &discoveryv3.DeltaDiscoveryResponse{TypeUrl: tableType, Nonce: "1", Resources: []*discoveryv3.Resource{
		{Name: "x", Resource: &anypb.Any{TypeUrl: trustType}},
	}}
	if got := r.nextOf(t, tableType); !strings.Contains(got.reason, trustType) {
		t.Errorf("answer %+v, want a rejection that names the type", got)
	}
	r.answers <- &discoveryv3.DeltaDiscoveryResponse{TypeUrl: tableType, Nonce: "2", RemovedResources: []string{"gone"}}
	if got := receive(t, removed, "removal"); !slices.Equal(got, []string{"gone"}) {
		t.Errorf("removed %q", got)
	}
	if got := r.nextOf(t, tableType); got.reason != "" || got.nonce != "2" {
		t.Errorf("answer %+v, want an acknowledgement", got)
	}
}

// TestHealthIsRepeated checks that the last health report is sent again on each stream, after the
// request for listeners.
func TestHealthIsRepeated(t *testing.T) {
	bothVariants(t, func(t *testing.T, delta bool) {
		r := startRig(t, Config{}, delta)
		r.proxy.ReportHealth(false, "down")
		for range 2 {
			e := r.envoy(t)
			e.ask(listenerType)
			r.nextOf(t, listenerType)
			if got := r.nextOf(t, healthType); got.reason != "down" {
				t.Errorf("health report %+v, want the last one", got)
			}
			_ = e.conn.Close()
		}
	})
}

// TestUnknownKeys checks that requests with unknown keys cause one report.
func TestUnknownKeys(t *testing.T) {
	bothVariants(t, func(t *testing.T, delta bool) {
		r := startRig(t, Config{}, delta)
		e := r.envoy(t)
		e.ask(listenerType)
		r.nextOf(t, listenerType)
		logs, err := accesslogv3.NewAccessLogServiceClient(r.dial(t)).StreamAccessLogs(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if err := logs.Send(&accesslogv3.StreamAccessLogsMessage{Identifier: &accesslogv3.StreamAccessLogsMessage_Identifier{LogName: node.UnknownKeyLog}}); err != nil {
				t.Fatal(err)
			}
		}
		if got := r.nextOf(t, node.UnknownKeyType); got.code != 0 {
			t.Errorf("report %+v, want one without an error", got)
		}
		e.ask(listenerType, "again")
		r.nextOf(t, listenerType)
		if r.proxy.keyReports.Allow() {
			t.Error("the next report is not limited")
		}
	})
}

func TestNewRefusesContradictions(t *testing.T) {
	t.Parallel()
	handle := func([][]byte, []string) error { return nil }
	rewrite := func(context.Context, []byte, bool) ([]byte, string) { return nil, "" }
	for name, cfg := range map[string]Config{
		"no function":  {Consumers: []Consumer{{TypeURL: tableType}}},
		"no type":      {Consumers: []Consumer{{Handle: handle}}},
		"twice":        {Consumers: []Consumer{{TypeURL: tableType, Handle: handle}, {TypeURL: tableType, Handle: handle}}},
		"health":       {Consumers: []Consumer{{TypeURL: healthType, Handle: handle}}},
		"both":         {Consumers: []Consumer{{TypeURL: tableType, Handle: handle}}, Rewriters: map[string]Rewriter{tableType: rewrite}},
		"nil rewriter": {Rewriters: map[string]Rewriter{tableType: nil}},
	} {
		l := listen(t, "127.77.51.2:0")
		cfg.Listener, cfg.Upstream.Address = l, "127.77.51.2:1"
		if _, err := New(cfg); err == nil {
			t.Errorf("%s: no error", name)
		}
		_ = l.Close()
	}
}
