// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"context"
	"fmt"
	"hash/fnv"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/outrigger-mesh/outrigger/certs"
	"github.com/outrigger-mesh/outrigger/controlplane/authn"
	"github.com/outrigger-mesh/outrigger/controlplane/discovery/debug"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
	"github.com/outrigger-mesh/outrigger/e2e/ownnet"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(ownnet.Tests(m)) }

// table is a Generator whose resources a test sets: type -> name -> content.
// Those of a snapshot are what was set when it was pushed.
type table struct {
	mu     sync.Mutex // guards sets and pushed
	sets   map[string]*xds.Set
	pushed []map[string]*xds.Set // by the sequence of the snapshot, from 1
}

func (g *table) Generate(mesh *snapshot.Mesh, _ *model.Proxy, typeURL string) *xds.Set {
	g.mu.Lock()
	defer g.mu.Unlock()
	sets := g.sets
	if mesh != nil && mesh.Sequence > 0 && mesh.Sequence <= uint64(len(g.pushed)) {
		sets = g.pushed[mesh.Sequence-1]
	}
	if s := sets[typeURL]; s != nil {
		return s
	}
	return noResources
}

// freeze returns a snapshot of what is set.
func (g *table) freeze() *snapshot.Mesh {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.pushed = append(g.pushed, maps.Clone(g.sets))
	return &snapshot.Mesh{Sequence: uint64(len(g.pushed))}
}

// set replaces the resources of a type.
func (g *table) set(typeURL string, content map[string]string) {
	s := &xds.Set{}
	all := fnv.New64a()
	for _, name := range slices.Sorted(maps.Keys(content)) {
		b, err := proto.Marshal(messageOf(typeURL, content[name]))
		if err != nil {
			panic(err)
		}
		h := fnv.New64a()
		_, _ = h.Write(b)
		_, _ = fmt.Fprint(all, name, h.Sum64())
		s.Resources = append(s.Resources, &xds.Resource{Name: name, Hash: h.Sum64(), Any: b})
	}
	s.Version = versionOf(all.Sum64())
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.sets == nil {
		g.sets = map[string]*xds.Set{}
	}
	g.sets[typeURL] = s
}

// harness is a server on a loopback port.
type harness struct {
	*table
	server *Server
	// address is where it listens.
	address string
	client  discoveryv3.AggregatedDiscoveryServiceClient
	// identity is namespace/account of callers, for byHeader.
	identity string
	// wait is how long others wait for a canary, as a time.Duration; 0 means
	// 1 s.
	wait atomic.Int64
	reg  *prometheus.Registry
}

// byHeader authenticates a stream as the namespace/account in its header; empty means that of
// shopNode.
type byHeader struct{}

func (byHeader) Authenticate(ctx context.Context) (*authn.Caller, error) {
	if names := metadata.ValueFromIncomingContext(ctx, "identity"); len(names) == 1 {
		namespace, account, _ := strings.Cut(names[0], "/")
		return proven(namespace, account).caller, nil
	}
	return shopCaller.caller, nil
}

func start(t *testing.T, auth authn.Authenticator) *harness {
	t.Helper()
	h := &harness{table: &table{}}
	h.serve(t, Config{Generator: h.table, Workers: 2}, auth, insecure.NewCredentials(), insecure.NewCredentials())
	return h
}

// serve makes the server and a client with these credentials.
func (h *harness) serve(t *testing.T, cfg Config, auth authn.Authenticator, server, client credentials.TransportCredentials) {
	t.Helper()
	var err error
	cfg.Secrets.Retry, cfg.CanaryWait = 20*time.Millisecond, h.canaryWait
	if h.reg == nil && cfg.Registerer == nil {
		h.reg = prometheus.NewRegistry()
		cfg.Registerer = h.reg
	}
	if h.server, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer(grpc.ForceServerCodecV2(Codec()), grpc.Creds(server), grpc.MaxRecvMsgSize(16<<20))
	h.server.Register(g, auth)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h.address = l.Addr().String()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 2)
	go func() { done <- h.server.Run(ctx) }()
	go func() { done <- g.Serve(l) }()
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(client))
	if err != nil {
		t.Fatal(err)
	}
	h.client = discoveryv3.NewAggregatedDiscoveryServiceClient(conn)
	t.Cleanup(func() {
		_ = conn.Close()
		g.Stop()
		cancel()
		for range 2 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	})
}

// push publishes the content of the table.
func (h *harness) push() { h.server.Push(h.freeze(), model.Change{All: true}) }

// shopCaller proves the identity that shopNode has.
var shopCaller = proven("default", "shop")

func proven(namespace, account string) fixed {
	return fixed{caller: &authn.Caller{ID: certs.ID{TrustDomain: "cluster.local", Namespace: namespace, ServiceAccount: account}}}
}

func shopNode(t *testing.T, meta map[string]any) *corev3.Node {
	t.Helper()
	all := map[string]any{"NAMESPACE": "default", "SERVICE_ACCOUNT": "shop", "INTERCEPTION_MODE": "NONE"}
	maps.Copy(all, meta)
	md, err := structpb.NewStruct(all)
	if err != nil {
		t.Fatal(err)
	}
	return &corev3.Node{Id: "sidecar~127.1.0.2~shop-1.default~default.svc.cluster.local", Metadata: md}
}

// peer is a simulated proxy on a stream of either variant.
type peer struct {
	t     *testing.T
	delta bool
	send  func(proto.Message) error
	end   func() error
	got   chan proto.Message
	err   atomic.Value // why the stream ended
	node  *corev3.Node
	nonce map[string]string
	names map[string][]string
	vers  map[string]string
	// describer describes a resource; nil for those of table.
	describer func(*testing.T, *anypb.Any) string
}

func (h *harness) connect(t *testing.T, delta bool) *peer {
	t.Helper()
	p := &peer{
		t: t, delta: delta, got: make(chan proto.Message, 100), node: shopNode(t, nil),
		nonce: map[string]string{}, names: map[string][]string{}, vers: map[string]string{},
	}
	var recv func() (proto.Message, error)
	ctx := t.Context()
	if h.identity != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "identity", h.identity)
	}
	if delta {
		s, err := h.client.DeltaAggregatedResources(ctx)
		if err != nil {
			t.Fatal(err)
		}
		recv = func() (proto.Message, error) { return s.Recv() }
		p.send = func(m proto.Message) error { return s.Send(m.(*discoveryv3.DeltaDiscoveryRequest)) }
		p.end = s.CloseSend
	} else {
		s, err := h.client.StreamAggregatedResources(ctx)
		if err != nil {
			t.Fatal(err)
		}
		recv = func() (proto.Message, error) { return s.Recv() }
		p.send = func(m proto.Message) error { return s.Send(m.(*discoveryv3.DiscoveryRequest)) }
		p.end = s.CloseSend
	}
	go func() {
		defer close(p.got)
		for {
			m, err := recv()
			if err != nil {
				p.err.Store(err)
				return
			}
			p.got <- m
		}
	}()
	return p
}

// must sends a request.
func (p *peer) must(m proto.Message) {
	p.t.Helper()
	if err := p.send(m); err != nil {
		p.t.Fatal(err)
	}
}

// subscribe sends the first request for a type; no names means everything.
func (p *peer) subscribe(typeURL string, names ...string) {
	p.t.Helper()
	p.names[typeURL] = names
	if p.delta {
		p.must(&discoveryv3.DeltaDiscoveryRequest{Node: p.node, TypeUrl: typeURL, ResourceNamesSubscribe: names})
		return
	}
	p.must(&discoveryv3.DiscoveryRequest{Node: p.node, TypeUrl: typeURL, ResourceNames: names, VersionInfo: p.vers[typeURL]})
}

// more subscribes to another name.
func (p *peer) more(typeURL, name string) {
	p.t.Helper()
	p.names[typeURL] = append(p.names[typeURL], name)
	if p.delta {
		p.must(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: typeURL, ResourceNamesSubscribe: []string{name}})
		return
	}
	p.must(&discoveryv3.DiscoveryRequest{TypeUrl: typeURL, ResourceNames: p.names[typeURL], ResponseNonce: p.nonce[typeURL], VersionInfo: p.vers[typeURL]})
}

// ack answers the last response of a type.
func (p *peer) ack(typeURL string) {
	p.t.Helper()
	if p.delta {
		p.must(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: typeURL, ResponseNonce: p.nonce[typeURL]})
		return
	}
	p.must(&discoveryv3.DiscoveryRequest{TypeUrl: typeURL, ResourceNames: p.names[typeURL], ResponseNonce: p.nonce[typeURL], VersionInfo: p.vers[typeURL]})
}

// nack rejects the last response of a type.
func (p *peer) nack(typeURL, message string) {
	p.t.Helper()
	why := &rpcstatus.Status{Code: 13, Message: message}
	if p.delta {
		p.must(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: typeURL, ResponseNonce: p.nonce[typeURL], ErrorDetail: why})
		return
	}
	p.must(&discoveryv3.DiscoveryRequest{TypeUrl: typeURL, ResourceNames: p.names[typeURL], ResponseNonce: p.nonce[typeURL], ErrorDetail: why})
}

// want receives one response and compares its type, its content and (delta)
// what it removes: "cds a=1 b=2 -c".
func (p *peer) want(line string) string {
	p.t.Helper()
	select {
	case m, ok := <-p.got:
		if !ok {
			p.t.Fatalf("stream ended with %v, want %q", p.err.Load(), line)
		}
		typeURL, got := p.describe(m)
		if got != line {
			p.t.Fatalf("got response %q, want %q", got, line)
		}
		return typeURL
	case <-time.After(2 * time.Minute):
		p.t.Fatalf("no response within 2 minutes, want %q", line)
	}
	return ""
}

// any receives one response and returns its type.
func (p *peer) any() string {
	p.t.Helper()
	select {
	case m, ok := <-p.got:
		if ok {
			typeURL, _ := p.describe(m)
			return typeURL
		}
		p.t.Fatalf("stream ended with %v", p.err.Load())
	case <-time.After(2 * time.Minute):
		p.t.Fatal("no response within 2 minutes")
	}
	return ""
}

// wantAck is want and ack.
func (p *peer) wantAck(line string) {
	p.t.Helper()
	p.ack(p.want(line))
}

func (p *peer) describe(m proto.Message) (typeURL, line string) {
	words := []string{}
	switch r := m.(type) {
	case *discoveryv3.DiscoveryResponse:
		typeURL = r.TypeUrl
		p.nonce[typeURL], p.vers[typeURL] = r.Nonce, r.VersionInfo
		for _, res := range r.Resources {
			words = append(words, p.word(res))
		}
	case *discoveryv3.DeltaDiscoveryResponse:
		typeURL = r.TypeUrl
		p.nonce[typeURL] = r.Nonce
		for _, res := range r.Resources {
			words = append(words, p.word(res.Resource))
		}
		for _, n := range r.RemovedResources {
			words = append(words, "-"+n)
		}
	}
	return typeURL, strings.Join(append([]string{shortType(typeURL)}, words...), " ")
}

// word describes a resource.
func (p *peer) word(res *anypb.Any) string {
	if p.describer != nil {
		return p.describer(p.t, res)
	}
	return textOf(res)
}

// messageOf returns the content of a resource of table. It is a list, which protects
// nothing, of a text and of its words: those are the names to which the resource refers.
func messageOf(typeURL, text string) *anypb.Any {
	if !slices.Contains(xds.Types, typeURL) {
		return &anypb.Any{TypeUrl: typeURL, Value: []byte(text)}
	}
	list := &structpb.ListValue{Values: []*structpb.Value{structpb.NewStringValue(text)}}
	for _, word := range strings.Fields(text) {
		list.Values = append(list.Values, structpb.NewStringValue(strings.TrimPrefix(word, "->")))
	}
	a, err := anypb.New(list)
	if err != nil {
		panic(err)
	}
	return a
}

// textOf returns the text of which messageOf made a resource.
func textOf(res *anypb.Any) string {
	var list structpb.ListValue
	if res.UnmarshalTo(&list) != nil {
		return string(res.Value)
	}
	return list.Values[0].GetStringValue()
}

// quiet asserts that no response is pending: the next one is that to a debug query, which is always
// answered. Before it the stream sends pending responses, as it does for each request.
func (p *peer) quiet() {
	p.t.Helper()
	probe := fmt.Sprintf("type.googleapis.com/none.of.this.exists.%d", time.Now().UnixNano())
	p.subscribe(probe)
	p.subscribe(debug.Type, "list")
	for {
		select {
		case m, ok := <-p.got:
			if !ok {
				p.t.Fatalf("stream ended with %v", p.err.Load())
			}
			switch m.(interface{ GetTypeUrl() string }).GetTypeUrl() {
			case debug.Type:
				return
			case probe: // other control planes receive an empty response
			default:
				_, got := p.describe(m)
				p.t.Fatalf("got response %q, want none", got)
			}
		case <-time.After(2 * time.Minute):
			p.t.Fatal("no response within 2 minutes")
		}
	}
}

// each runs a test for both kinds of stream.
func each(t *testing.T, test func(t *testing.T, h *harness, p *peer)) {
	t.Helper()
	t.Parallel()
	for name, delta := range map[string]bool{"sotw": false, "delta": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := start(t, nil)
			h.set(xds.TypeCluster, map[string]string{"a": "a=1", "b": "b=1"})
			h.set(xds.TypeEndpoint, map[string]string{"a": "ea=1", "b": "eb=1"})
			h.set(xds.TypeListener, map[string]string{"l": "l=1"})
			h.set(xds.TypeRoute, map[string]string{"r": "r=1"})
			h.push()
			test(t, h, h.connect(t, delta))
		})
	}
}

func (h *harness) canaryWait() time.Duration {
	if d := h.wait.Load(); d > 0 {
		return time.Duration(d)
	}
	return time.Second
}

// counter returns a counter with one label.
func counter(reg *prometheus.Registry, name, label string) float64 {
	families, err := reg.Gather()
	if err != nil {
		panic(err) // the metrics contradict each other
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name && m.GetLabel()[0].GetValue() == label {
				return m.GetCounter().GetValue()
			}
		}
	}
	return 0
}
