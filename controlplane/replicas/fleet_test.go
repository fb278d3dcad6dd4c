// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package replicas

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/outrigger-mesh/outrigger/controlplane/discovery"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// numbered generates one cluster and one listener with the number of the snapshot.
type numbered struct{ sets sync.Map }

func (g *numbered) Generate(mesh *snapshot.Mesh, _ *model.Proxy, typeURL string) *xds.Set {
	if typeURL != xds.TypeCluster && typeURL != xds.TypeListener {
		typeURL = ""
	}
	key := fmt.Sprint(mesh.Sequence, typeURL)
	if typeURL == "" {
		key = ""
	}
	set := &xds.Set{}
	if typeURL != "" {
		text := fmt.Sprint(mesh.Sequence)
		b, _ := proto.Marshal(&anypb.Any{TypeUrl: typeURL, Value: []byte(text)})
		set = &xds.Set{Version: text, Resources: []*xds.Resource{{Name: "one", Hash: mesh.Sequence, Any: b}}}
	}
	got, _ := g.sets.LoadOrStore(key, set)
	return got.(*xds.Set)
}

// replica is a complete server: ADS and the handler of its balancer.
type replica struct {
	discovery *discovery.Server
	balancer  *Balancer
	ads       net.Listener
	web       *httptest.Server
}

// mesh contains the replicas and the load balancer in front of them.
type mesh struct {
	t        *testing.T
	pushed   atomic.Uint64
	front    net.Listener
	cut      atomic.Int64 // streams that ended during a push
	ends     atomic.Int64
	rounds   atomic.Int64 // of all balancers
	mu       sync.Mutex   // guards the fields below
	replicas []*replica
	open     map[*replica]int
	next     int
	least    bool
}

func (m *mesh) list() []*replica {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.replicas)
}

// add starts a replica; stop stops it.
func (m *mesh) add(ctx context.Context, all *sync.WaitGroup) {
	m.t.Helper()
	r := &replica{}
	var err error
	must := func() {
		if err != nil {
			m.t.Fatal(err)
		}
	}
	r.discovery, err = discovery.New(discovery.Config{Generator: &numbered{}, Workers: 2})
	must()
	r.balancer, err = New(Config{
		Peers: func(context.Context) (out []string, _ error) {
			m.rounds.Add(1)
			for _, r := range m.list() {
				out = append(out, strings.TrimPrefix(r.web.URL, "http://"))
			}
			return out, nil
		},
		Load: r.discovery.Load, Shed: r.discovery.Shed, Ready: r.discovery.Ready, Every: 100 * time.Millisecond,
	})
	must()
	mux := http.NewServeMux()
	mux.Handle("GET "+Path, r.balancer)
	r.web = httptest.NewServer(mux)
	r.ads, err = net.Listen("tcp", "127.0.0.1:0")
	must()
	g := grpc.NewServer(grpc.ForceServerCodecV2(discovery.Codec()))
	r.discovery.Register(g, nil)
	r.discovery.Push(&snapshot.Mesh{Sequence: m.pushed.Load()}, model.Change{All: true})
	m.mu.Lock()
	m.replicas = append(m.replicas, r)
	m.mu.Unlock()
	all.Go(func() { _ = r.discovery.Run(ctx) })
	all.Go(func() { _ = r.balancer.Run(ctx) })
	all.Go(func() { _ = g.Serve(r.ads) })
	all.Go(func() {
		<-ctx.Done()
		g.Stop()
		r.web.Close()
	})
}

// balance is the load balancer. It forwards connections to the replicas in turn, or to the one with
// the fewest.
func (m *mesh) balance(all *sync.WaitGroup) {
	for {
		c, err := m.front.Accept()
		if err != nil {
			return
		}
		m.mu.Lock()
		r := m.replicas[m.next%len(m.replicas)]
		m.next++
		if m.least {
			r = slices.MinFunc(m.replicas, func(a, b *replica) int { return m.open[a] - m.open[b] })
		}
		m.open[r]++
		m.mu.Unlock()
		all.Go(func() {
			defer func() {
				_ = c.Close()
				m.mu.Lock()
				m.open[r]--
				m.mu.Unlock()
			}()
			up, err := net.Dial("tcp", r.ads.Addr().String())
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(up, c)
				_ = up.Close()
			}()
			_, _ = io.Copy(c, up)
			_ = up.Close()
		})
	}
}

// proxy is a client that, like agents, opens a connection for each stream.
func (m *mesh) proxy(ctx context.Context, number int) {
	md, err := structpb.NewStruct(map[string]any{"NAMESPACE": "default", "INTERCEPTION_MODE": "NONE"})
	if err != nil {
		m.t.Error(err)
		return
	}
	node := &corev3.Node{Id: fmt.Sprintf("sidecar~127.77.53.9~p-%d.default~default.svc.cluster.local", number), Metadata: md}
	for ctx.Err() == nil {
		m.stream(ctx, node)
		_ = sleep(ctx, rand.N(50*time.Millisecond))
	}
}

// stream receives responses until the stream ends. It checks that the stream does not end during a
// push: clusters and listeners must be of the same snapshot.
func (m *mesh) stream(ctx context.Context, node *corev3.Node) {
	conn, err := grpc.NewClient("passthrough:///"+m.front.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		m.t.Error(err)
		return
	}
	defer func() { _ = conn.Close() }() // closing cannot lose data
	s, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(ctx)
	if err != nil {
		return
	}
	for _, typeURL := range []string{xds.TypeCluster, xds.TypeListener} {
		if s.Send(&discoveryv3.DiscoveryRequest{Node: node, TypeUrl: typeURL}) != nil {
			return
		}
	}
	has := map[string]string{}
	for {
		r, err := s.Recv()
		if err == nil {
			has[r.GetTypeUrl()] = string(r.GetResources()[0].GetValue())
			_ = s.Send(&discoveryv3.DiscoveryRequest{TypeUrl: r.GetTypeUrl(), ResponseNonce: r.GetNonce(), VersionInfo: r.GetVersionInfo()})
			continue
		}
		if ctx.Err() == nil {
			m.ends.Add(1)
			if status.Code(err) != codes.Unavailable || has[xds.TypeCluster] != has[xds.TypeListener] {
				m.cut.Add(1)
				m.t.Errorf("a stream ended during a push: error %v, clusters of snapshot %s, listeners of snapshot %s", err, has[xds.TypeCluster], has[xds.TypeListener])
			}
		}
		return
	}
}

// TestReplicaJoins adds a third replica to two with 300 proxies while the configuration changes
// continuously. Each replica must soon have a third of the proxies, no stream may end during a
// push, and afterwards no proxy may move.
func TestReplicaJoins(t *testing.T) {
	t.Parallel()
	for name, least := range map[string]bool{"in turn": false, "least connections": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const proxies = 300
			ctx, cancel := context.WithCancel(t.Context())
			var all sync.WaitGroup
			m := &mesh{t: t, open: map[*replica]int{}, least: least}
			m.pushed.Store(1)
			var err error
			if m.front, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
				t.Fatal(err)
			}
			defer all.Wait()
			defer func() { _ = m.front.Close() }()
			defer cancel()
			m.add(ctx, &all)
			m.add(ctx, &all)
			all.Go(func() { m.balance(&all) })
			for i := range proxies {
				all.Go(func() { m.proxy(ctx, i) })
			}
			loads := func() (out []int) {
				for _, r := range m.list() {
					out = append(out, r.discovery.Load())
				}
				return out
			}
			wait := func(what string, until func(loads []int) bool) {
				t.Helper()
				const limit = 3 * time.Minute
				for deadline := time.Now().Add(limit); !until(loads()); {
					if time.Now().After(deadline) {
						t.Fatalf("timeout after %s waiting for: %s; the loads are %v", limit, what, loads())
					}
					_ = sleep(ctx, 10*time.Millisecond)
				}
			}
			sum := func(loads []int) (n int) {
				for _, l := range loads {
					n += l
				}
				return n
			}
			wait("all are connected", func(l []int) bool { return sum(l) == proxies })
			all.Go(func() {
				for sleep(ctx, 50*time.Millisecond) == nil {
					n := m.pushed.Add(1)
					for _, r := range m.list() {
						r.discovery.Push(&snapshot.Mesh{Sequence: n}, model.Change{All: true})
					}
				}
			})
			m.add(ctx, &all)
			began := time.Now()
			even := func(l []int) bool { // some proxies may be reconnecting
				return sum(l) >= proxies*95/100 && slices.Min(l) >= proxies*30/100 && slices.Max(l) <= proxies*36/100
			}
			wait("the load is even", even)
			t.Logf("even after %s: %v, %d streams moved", time.Since(began), loads(), m.ends.Load())
			// Wait for the rounds in progress. Afterwards nothing may move, however many rounds
			// follow.
			moved, since := m.ends.Load(), m.rounds.Load()
			wait("no proxy moves any more", func(l []int) bool {
				if now := m.ends.Load(); now != moved {
					moved, since = now, m.rounds.Load()
				}
				return sum(l) == proxies && m.rounds.Load()-since >= 30
			})
			if !even(loads()) {
				t.Errorf("the even loads changed to %v", loads())
			}
			if m.ends.Load() > 2*proxies {
				t.Errorf("%d streams ended to move 100 proxies", m.ends.Load())
			}
		})
	}
}
