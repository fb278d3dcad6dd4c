// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package mcp

import (
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	serverv3 "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	mcpv1alpha1 "istio.io/api/mcp/v1alpha1"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/config"
	"github.com/outrigger-mesh/outrigger/controlplane/config/schema"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/e2e/ownnet"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(ownnet.Tests(m)) }

const (
	testHost     = "127.77.111.1"
	resourceType = "type.googleapis.com/istio.mcp.v1alpha1.Resource"
	workloadType = "networking.istio.io/v1alpha3/WorkloadEntry"
)

// plane is go-control-plane's server with a cache for each type. It can be stopped, and started
// again on the same port.
type plane struct {
	t       *testing.T
	caches  map[string]*cachev3.LinearCache // by type URL
	address string
	opts    []grpc.ServerOption
	server  *grpc.Server
	ended   chan error
	// nacks are the error details that clients sent.
	mu    sync.Mutex // guards nacks
	nacks []string
	acks  atomic.Int64
}

func newPlane(t *testing.T, delta bool, opts ...grpc.ServerOption) *plane {
	t.Helper()
	p := &plane{t: t, caches: map[string]*cachev3.LinearCache{}, address: testHost + ":0", opts: opts}
	add := func(typeURL string) {
		if delta {
			p.caches[typeURL] = cachev3.NewLinearCache(typeURL)
		} else {
			// Without delta, the cache keeps full states only for a type like this one.
			p.caches[typeURL] = cachev3.NewLinearCache(resourcev3.ClusterType)
		}
	}
	add(MeshConfigType)
	for _, s := range schema.All() {
		add(typeURL(s, false))
	}
	return p
}

func (p *plane) start() {
	p.t.Helper()
	l, err := ownnet.Listen(p.address)
	if err != nil {
		p.t.Fatal(err)
	}
	p.address = l.Addr().String()
	note := func(detail interface{ GetMessage() string }, nonce string, bad bool) {
		p.mu.Lock()
		defer p.mu.Unlock()
		if bad {
			p.nacks = append(p.nacks, detail.GetMessage())
		} else if nonce != "" {
			p.acks.Add(1)
		}
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(p.t.Context()))
	server := serverv3.NewServer(ctx, p, serverv3.CallbackFuncs{
		StreamRequestFunc: func(_ int64, q *discoveryv3.DiscoveryRequest) error {
			note(q.GetErrorDetail(), q.GetResponseNonce(), q.GetErrorDetail() != nil)
			return nil
		},
		StreamDeltaRequestFunc: func(_ int64, q *discoveryv3.DeltaDiscoveryRequest) error {
			note(q.GetErrorDetail(), q.GetResponseNonce(), q.GetErrorDetail() != nil)
			return nil
		},
	})
	p.server, p.ended = grpc.NewServer(p.opts...), make(chan error, 1)
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(p.server, server)
	g, ended := p.server, p.ended
	go func() {
		defer cancel()
		ended <- g.Serve(l)
	}()
}

func (p *plane) stop() {
	if p.server != nil {
		p.server.Stop()
		if err := <-p.ended; err != nil {
			p.t.Error(err)
		}
		p.server = nil
	}
}

func (p *plane) rejected() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string(nil), p.nacks...)
}

// CreateWatch returns full states. It asks the cache as if for clusters.
func (p *plane) CreateWatch(q *discoveryv3.DiscoveryRequest, sub cachev3.Subscription, out chan cachev3.Response) (func(), error) {
	cache := p.caches[q.GetTypeUrl()]
	if cache == nil {
		return nil, nil // there is no such cache
	}
	asked := proto.Clone(q).(*discoveryv3.DiscoveryRequest)
	asked.TypeUrl = resourcev3.ClusterType
	in, done := make(chan cachev3.Response, 1), make(chan struct{})
	cancel, err := cache.CreateWatch(asked, sub, in)
	go func() {
		select {
		case r := <-in:
			out <- objectsOf{r, q} // has room for one
		case <-done:
		}
	}()
	var once sync.Once
	return func() {
		if cancel != nil {
			cancel()
		}
		once.Do(func() { close(done) })
	}, err
}

// objectsOf presents a response about clusters as a response about objects.
type objectsOf struct {
	cachev3.Response
	request *discoveryv3.DiscoveryRequest
}

func (o objectsOf) GetRequest() *discoveryv3.DiscoveryRequest { return o.request }

func (o objectsOf) GetDiscoveryResponse() (*discoveryv3.DiscoveryResponse, error) {
	r, err := o.Response.GetDiscoveryResponse()
	if err != nil {
		return nil, err
	}
	r = proto.Clone(r).(*discoveryv3.DiscoveryResponse)
	r.TypeUrl = o.request.GetTypeUrl()
	for _, res := range r.GetResources() {
		res.TypeUrl = resourceType
		if r.TypeUrl == MeshConfigType {
			res.TypeUrl = "type.googleapis.com/istio.mesh.v1alpha1.MeshConfig"
		}
	}
	return r, nil
}

func (p *plane) CreateDeltaWatch(q *discoveryv3.DeltaDiscoveryRequest, sub cachev3.Subscription, out chan cachev3.DeltaResponse) (func(), error) {
	cache := p.caches[q.GetTypeUrl()]
	if cache == nil {
		return nil, nil // there is no such cache
	}
	return cache.CreateDeltaWatch(q, sub, out)
}

func (p *plane) Fetch(context.Context, *discoveryv3.DiscoveryRequest) (cachev3.Response, error) {
	return nil, fmt.Errorf("Fetch is not supported")
}

// fill makes the given objects the entire content.
func (p *plane) fill(objects ...*model.Config) {
	p.t.Helper()
	all := map[string]map[string]types.Resource{}
	for _, s := range schema.All() {
		all[typeURL(s, false)] = map[string]types.Resource{}
	}
	for _, c := range objects {
		sch, _ := schema.Of(c.Kind)
		m, err := Encode(c)
		if err != nil {
			p.t.Fatal(err)
		}
		all[typeURL(sch, false)][m.GetMetadata().GetName()] = m
	}
	for typeURL, resources := range all {
		p.caches[typeURL].SetResources(resources)
	}
}

// set writes a single resource unmodified.
func (p *plane) set(typeURL, name string, m *mcpv1alpha1.Resource) {
	p.t.Helper()
	if err := p.caches[typeURL].UpdateResource(name, m); err != nil {
		p.t.Fatal(err)
	}
}

func (p *plane) setMesh(mesh *meshv1alpha1.MeshConfig) {
	p.t.Helper()
	if err := p.caches[MeshConfigType].UpdateResource("MeshConfig", mesh); err != nil {
		p.t.Fatal(err)
	}
}

// openStore opens the store at an address.
func openStore(t *testing.T, address string, cfg Config, log *slog.Logger) *Store {
	t.Helper()
	u, err := url.Parse("xds://" + address)
	if err != nil {
		t.Fatal(err)
	}
	s, err := Driver(cfg)(u, config.OpenConfig{Logger: log})
	if err != nil {
		t.Fatal(err)
	}
	return s.(*Store)
}

// run runs a store until the test ends or end is called.
func run(t *testing.T, s *Store) (end func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	end = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(end)
	return end
}

func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("condition not met in time: " + what)
		}
	}
}

func entryKey(name string) model.Key {
	return model.Key{Kind: model.WorkloadEntry, Namespace: "shop", Name: name}
}

func workload(name, address string) *model.Config {
	return &model.Config{Key: entryKey(name), Spec: &networkingv1alpha3.WorkloadEntry{Address: address}}
}

func address(c *model.Config) string {
	if c == nil {
		return ""
	}
	return c.Spec.(*networkingv1alpha3.WorkloadEntry).GetAddress()
}

func encoded(t *testing.T, c *model.Config) *mcpv1alpha1.Resource {
	t.Helper()
	m, err := Encode(c)
	if err != nil {
		t.Fatal(err)
	}
	return m
}
