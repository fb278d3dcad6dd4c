// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
	securityv1beta1 "istio.io/api/security/v1beta1"

	"github.com/outrigger-mesh/outrigger/controlplane/discovery/debug"
	"github.com/outrigger-mesh/outrigger/controlplane/generate"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// The services of the property test. Only the first propertyRuled of them have
// rules, so that a Sidecar that hides the others leaves no rule without its
// host.
const (
	propertyServices = 8
	propertyRuled    = 5
)

func propertyHost(i int) string { return fmt.Sprintf("svc-%d.default.svc.cluster.local", i) }

// propertyTargets are the names that a gRPC client dials.
func propertyTargets() (names []string) {
	for i := range propertyServices {
		names = append(names, propertyHost(i)+":80", propertyHost(i)+":8080", fmt.Sprintf("svc-%d:80", i))
	}
	return names
}

// propertyRun is one sequence.
type propertyRun struct {
	t   *testing.T
	rnd *rand.Rand
	w   *wireMesh
	v   *viewer
	// present and ruled contain the services that exist and have rules.
	present, ruled [propertyServices]bool
	changes        []string // what was done, for the report of a failure
	// at is the address of the proxy, if it is not that of shopNode. plain excludes resources that
	// a proxy without an agent, on a machine without DNS, cannot have.
	at    string
	plain bool
}

// TestViewsAgree makes random changes while a proxy connects, disconnects and acknowledges late,
// and its control plane restarts. In the end the proxy has, byte for byte, the resources that a new
// control plane would send, and at no time does a route refer to a cluster that it lacks.
func TestViewsAgree(t *testing.T) {
	t.Parallel()
	seeds := 20
	if testing.Short() {
		seeds = 3
	}
	for k, kind := range viewerKinds {
		t.Run(kind.name, func(t *testing.T) {
			t.Parallel()
			for seed := range seeds {
				sequence(t, kind, fmt.Sprintf("127.77.171.%d", 50+k), uint64(seed))
				if t.Failed() {
					return
				}
			}
		})
	}
}

// FuzzViews is TestViewsAgree with any seed.
func FuzzViews(f *testing.F) {
	f.Add(uint64(1), uint8(0))
	f.Fuzz(func(t *testing.T, seed uint64, k uint8) {
		kind := int(k) % len(viewerKinds)
		sequence(t, viewerKinds[kind], fmt.Sprintf("127.77.171.%d", 60+kind), seed)
	})
}

func sequence(t *testing.T, kind viewerKind, ip string, seed uint64) {
	t.Helper()
	r := &propertyRun{t: t, rnd: rand.New(rand.NewPCG(seed, 0)), w: newWireMesh(t, ip)}
	defer r.w.stop()
	r.putSidecar()
	r.v = newViewer(t, kind, r.w.address)
	r.v.connect()
	defer func() { r.v.leave() }()
	for range 150 {
		switch p := r.rnd.IntN(100); {
		case p < 55:
			r.receive(time.Millisecond)
		case p < 90:
			r.change()
		case p < 98:
			r.did("reconnect")
			r.v.leave()
			r.v.connect()
		default:
			r.did("restart")
			r.v.leave()
			r.w.restart()
			r.v.connect()
		}
	}
	r.agrees()
	if t.Failed() {
		t.Logf("seed %d: %s", seed, strings.Join(r.changes, ", "))
	}
}

func (r *propertyRun) did(format string, args ...any) {
	r.changes = append(r.changes, fmt.Sprintf(format, args...))
}

// receive applies the next response, if one arrives within the limit.
func (r *propertyRun) receive(limit time.Duration) bool {
	timeout := time.NewTimer(limit)
	defer timeout.Stop()
	select {
	case m, ok := <-r.v.got:
		if !ok {
			r.t.Fatal("the stream has ended")
		}
		r.v.apply(m)
		return true
	case <-timeout.C:
		return false
	}
}

// agrees waits until no response is pending, and compares the view with that of a new proxy.
func (r *propertyRun) agrees() {
	r.t.Helper()
	want := r.fromNothing()
	for deadline := time.Now().Add(2 * time.Minute); r.v.String() != want || !r.quiet(); {
		if !r.receive(100*time.Millisecond) && time.Now().After(deadline) {
			r.t.Errorf("the view of the proxy differs from one that is built from nothing; clusters that wait for endpoints: %v (-have +want):\n%s", slices.Sorted(maps.Keys(r.v.warming)), cmp.Diff(lines(r.v.String()), lines(want)))
			return
		}
	}
	r.v.exact = true
	r.v.checkRoutes()
}

// quiet reports whether the next response is that to a debug query that is sent after all other
// requests.
func (r *propertyRun) quiet() bool {
	r.t.Helper()
	delete(r.v.nonce, debug.Type)
	for _, typeURL := range []string{"type.googleapis.com/none.of.this.exists", debug.Type} { // the first has it look for what there is to send
		if r.v.kind.delta {
			_ = r.v.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: typeURL})
		} else {
			_ = r.v.send(&discoveryv3.DiscoveryRequest{TypeUrl: typeURL})
		}
	}
	for n := 0; ; n++ {
		if !r.receive(2 * time.Minute) {
			r.t.Fatal("the server does not answer")
		}
		if r.v.nonce[debug.Type] != "" {
			return n == 0
		}
	}
}

// lines truncates long content.
func lines(view string) []string {
	out := strings.Split(view, "\n")
	for i, line := range out {
		out[i] = line[:min(len(line), 200)]
	}
	return out
}

func (r *propertyRun) fromNothing() string { return r.fresh().String() }

// fresh returns the view of a proxy to which a control plane that has just begun
// sends everything.
func (r *propertyRun) fresh() *viewer {
	r.w.mu.Lock()
	mesh := snapshot.Build(nil, r.w.input(), model.Change{All: true})
	r.w.mu.Unlock()
	fresh := newViewer(r.t, r.v.kind, "")
	proxy, err := proxyOf(fresh.node())
	if err != nil {
		r.t.Fatal(err)
	}
	proxy.VHDS = fresh.kind.vhds
	if r.at != "" {
		proxy.IPs = []string{r.at}
	}
	gen := generate.New(generate.Config{})
	take := func(typeURL string, wanted func(name string) bool) {
		fresh.have[typeURL] = map[string]*anypb.Any{}
		for _, res := range gen.Generate(mesh, proxy, typeURL).Resources {
			if wanted(res.Name) {
				a := &anypb.Any{}
				if err := proto.Unmarshal(res.Any, a); err != nil {
					r.t.Fatal(err)
				}
				fresh.have[typeURL][res.Name] = a
			}
		}
	}
	among := func(names []string) func(string) bool {
		set := map[string]bool{}
		for _, n := range names {
			set[n] = true
		}
		return func(name string) bool { return set[name] }
	}
	all := func(string) bool { return true }
	take(xds.TypeListener, all)
	if fresh.kind.grpc {
		take(xds.TypeListener, among(propertyTargets()))
	}
	take(xds.TypeRoute, among(fresh.namedRoutes()))
	take(xds.TypeVirtualHost, func(name string) bool { return fresh.have[xds.TypeRoute][routeOf(name)] != nil })
	take(xds.TypeCluster, all)
	if fresh.kind.grpc {
		take(xds.TypeCluster, among(fresh.namedClusters()))
	}
	take(xds.TypeEndpoint, among(fresh.namedEndpoints()))
	return fresh
}

// change makes one random change.
func (r *propertyRun) change() {
	i := r.rnd.IntN(propertyServices)
	switch p := r.rnd.IntN(100); {
	case p < 45:
		r.putService(i)
	case p < 55:
		r.did("delete %d", i)
		r.present[i], r.ruled[i] = false, false
		r.w.putAll(map[model.Key]proto.Message{
			serviceKey(i): nil, wireKey(model.DestinationRule, propertyHost(i)): nil, wireKey(model.VirtualService, propertyHost(i)): nil,
		})
	case p < 75:
		r.putRules(i % propertyRuled)
	case p < 82:
		r.putSidecar()
	case p < 88:
		mode := securityv1beta1.PeerAuthentication_MutualTLS_Mode(r.rnd.IntN(4))
		r.did("peers %s", mode)
		r.w.putOne(model.PeerAuthentication, "all", &securityv1beta1.PeerAuthentication{Mtls: &securityv1beta1.PeerAuthentication_MutualTLS{Mode: mode}})
	case p < 93:
		ports := []int32{0, 15080}
		if r.plain {
			ports[0] = 15081 // a removed listener drains in Envoy, and has its routes until then
		}
		port := ports[r.rnd.IntN(2)]
		r.did("proxy port %d", port)
		r.w.setPort(port)
	default:
		r.putBad()
	}
}

func serviceKey(i int) model.Key { return wireKey(model.ServiceEntry, propertyHost(i)) }

func (r *propertyRun) putService(i int) {
	protocol, port := []string{"HTTP", "GRPC"}[r.rnd.IntN(2)], []uint32{80, 8080}[r.rnd.IntN(2)]
	var endpoints []string
	for range r.rnd.IntN(4) {
		endpoints = append(endpoints, fmt.Sprintf("10.0.%d.%d", i, 1+r.rnd.IntN(6)))
	}
	se := wireService(propertyHost(i), protocol, port, endpoints...)
	if !r.plain && r.rnd.IntN(8) == 0 {
		se.Resolution = networkingv1alpha3.ServiceEntry_DNS
		se.Endpoints = []*networkingv1alpha3.WorkloadEntry{{Address: fmt.Sprintf("db-%d.example.com", r.rnd.IntN(3))}}
	}
	if r.rnd.IntN(4) == 0 {
		se.Ports = append(se.Ports, &networkingv1alpha3.ServicePort{Number: 9000, Name: "more", Protocol: "HTTP"})
	}
	r.did("service %d port %d %s %v", i, port, se.GetResolution(), endpoints)
	r.present[i] = true
	r.w.putAll(map[model.Key]proto.Message{serviceKey(i): se})
}

// putRules writes or deletes the subsets and routes of a service: always both, so that no route
// names a missing subset.
func (r *propertyRun) putRules(i int) {
	rule, routes := wireKey(model.DestinationRule, propertyHost(i)), wireKey(model.VirtualService, propertyHost(i))
	if !r.present[i] || r.ruled[i] && r.rnd.IntN(3) == 0 {
		r.did("no rules %d", i)
		r.ruled[i] = false
		r.w.putAll(map[model.Key]proto.Message{rule: nil, routes: nil})
		return
	}
	r.did("rules %d", i)
	r.ruled[i] = true
	vs := wireRoute(propertyHost(i), []string{"v1", "v2"}[r.rnd.IntN(2)])
	vs.Http[1].Name = fmt.Sprint("version-", r.rnd.IntN(5))
	dr := wireSubsets(propertyHost(i))
	if !r.plain && r.rnd.IntN(2) == 0 {
		dr.TrafficPolicy = &networkingv1alpha3.TrafficPolicy{Tls: &networkingv1alpha3.ClientTLSSettings{Mode: networkingv1alpha3.ClientTLSSettings_ISTIO_MUTUAL}}
	}
	r.w.putAll(map[model.Key]proto.Message{rule: dr, routes: vs})
}

// putSidecar restricts what proxies see, and sets their ports: at least one, because a proxy that
// reconnects to a mesh without any listener loses its clusters before it receives the removal of
// its listeners.
func (r *propertyRun) putSidecar() {
	n := r.rnd.IntN(4)
	r.did("sidecar %d", n)
	spec := &networkingv1alpha3.Sidecar{}
	if n > 0 {
		spec.Egress = []*networkingv1alpha3.IstioEgressListener{{}}
		for i := range propertyServices {
			if i < propertyRuled || r.rnd.IntN(2) == 0 {
				spec.Egress[0].Hosts = append(spec.Egress[0].Hosts, "./"+propertyHost(i))
			}
		}
	}
	if r.plain {
		n = 0
	} else {
		n = max(n, 1)
	}
	for i := range n {
		spec.Ingress = append(spec.Ingress, &networkingv1alpha3.IstioIngressListener{
			Port:            &networkingv1alpha3.SidecarPort{Number: uint32(7000 + i + r.rnd.IntN(2)*10), Name: fmt.Sprint("http-", i), Protocol: "HTTP"},
			DefaultEndpoint: fmt.Sprint("127.0.0.1:", 9000+r.rnd.IntN(3)),
		})
	}
	r.w.putOne(model.Sidecar, "default", spec)
}

// putBad writes or deletes an object that cannot be converted.
func (r *propertyRun) putBad() {
	n := r.rnd.IntN(3)
	r.did("bad object %d", n)
	r.w.putAll(map[model.Key]proto.Message{
		wireKey(model.ServiceEntry, "bad"):   wireService("b\xffd.example.com", "HTTP", 80, "10.0.99.1", "not an address"),
		wireKey(model.VirtualService, "bad"): nil,
	})
	if n == 0 {
		r.w.putOne(model.ServiceEntry, "bad", nil)
		return
	}
	vs := wireRoute(propertyHost(7), "")
	vs.Http[0].Match[0].Headers["x-user"] = &networkingv1alpha3.StringMatch{MatchType: &networkingv1alpha3.StringMatch_Regex{Regex: "("}}
	vs.Http[1] = &networkingv1alpha3.HTTPRoute{DirectResponse: &networkingv1alpha3.HTTPDirectResponse{Status: 418}}
	r.w.putOne(model.VirtualService, "bad", vs)
}
