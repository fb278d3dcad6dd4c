// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/bootstrap/meshconfig"
	"github.com/outrigger-mesh/outrigger/controlplane/denylist"
	"github.com/outrigger-mesh/outrigger/controlplane/generate"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/e2e/ownnet"
)

// wireMesh is a mesh whose objects a test changes, served from an address
// where the server can be restarted.
type wireMesh struct {
	t       *testing.T
	address string
	logged  *journal

	mu      sync.Mutex // guards the fields below
	objects map[model.Key]*model.Config
	mesh    *snapshot.Mesh
	// port is that of the HTTP proxy of sidecars, 0 for none.
	port int32
	// noTLS disables mutual TLS, which requires an agent.
	noTLS bool
	// http10 makes proxies accept HTTP/1.0, from the next restart.
	http10 bool
	// detection is how long listeners wait for the first bytes of a client; nil is the default of Envoy.
	detection *durationpb.Duration
	denied    *denylist.List
	server    *Server
	stop      func()
}

// newWireMesh serves an empty mesh on a free port of an IP address.
func newWireMesh(t *testing.T, ip string) *wireMesh {
	t.Helper()
	w := &wireMesh{t: t, address: net.JoinHostPort(ip, freePort(t, ip)), logged: &journal{}, objects: map[model.Key]*model.Config{}, port: 15080}
	w.start()
	t.Cleanup(func() {
		w.stop()
		if t.Failed() {
			t.Logf("the control plane said:\n%.4000s", w.logged)
		}
	})
	return w
}

// start runs a server that knows nothing of an earlier one.
func (w *wireMesh) start() {
	w.t.Helper()
	server, err := New(Config{Generator: generate.New(generate.Config{HTTP10: w.http10}), Workers: 2, Logger: slog.New(slog.NewTextHandler(w.logged, nil))})
	if err != nil {
		w.t.Fatal(err)
	}
	g := grpc.NewServer(grpc.ForceServerCodecV2(Codec()))
	server.Register(g, nil)
	l, err := ownnet.Listen(w.address)
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 2)
	w.mu.Lock()
	w.server = server
	w.mesh = nil
	w.build(model.Change{All: true})
	w.mu.Unlock()
	go func() { done <- server.Run(ctx) }()
	go func() { done <- g.Serve(l) }()
	w.stop = sync.OnceFunc(func() {
		g.Stop()
		cancel()
		if err := errors.Join(<-done, <-done); err != nil {
			w.t.Error(err)
		}
	})
}

func (w *wireMesh) restart() {
	w.t.Helper()
	w.stop()
	w.start()
}

// build publishes the snapshot after a change. The caller holds mu.
func (w *wireMesh) build(change model.Change) {
	w.mesh = snapshot.Build(w.mesh, w.input(), change)
	w.server.Push(w.mesh, change)
}

// input returns the input of snapshots. The caller holds mu.
func (w *wireMesh) input() snapshot.Input {
	settings := meshconfig.Default()
	settings.ProxyHttpPort, settings.ProtocolDetectionTimeout = w.port, w.detection
	if w.noTLS {
		settings.EnableAutoMtls = wrapperspb.Bool(false)
	}
	return snapshot.Input{Mesh: settings, Denied: w.denied, List: func(kind model.Kind) (out []*model.Config) {
		for key, object := range w.objects {
			if key.Kind == kind {
				out = append(out, object)
			}
		}
		return out
	}}
}

func wireKey(kind model.Kind, name string) model.Key {
	return model.Key{Kind: kind, Namespace: "default", Name: name}
}

// put writes objects of one kind, all in one change; a nil spec deletes.
func (w *wireMesh) put(kind model.Kind, specs map[string]proto.Message) {
	all := map[model.Key]proto.Message{}
	for name, spec := range specs {
		all[wireKey(kind, name)] = spec
	}
	w.putAll(all)
}

// putAll is put for objects of several kinds.
func (w *wireMesh) putAll(specs map[model.Key]proto.Message) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var keys []model.Key
	for key, spec := range specs {
		keys = append(keys, key)
		if spec == nil {
			delete(w.objects, key)
			continue
		}
		w.objects[key] = &model.Config{Key: key, Spec: spec, Created: time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC)}
	}
	w.build(model.NewChange(keys...))
}

// setPort changes where sidecars have their HTTP proxy.
func (w *wireMesh) setPort(port int32) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.port = port
	w.build(model.Change{All: true})
}

// deny changes the deny list.
func (w *wireMesh) deny(text string) {
	w.t.Helper()
	list, err := denylist.Parse([]byte(text))
	if err != nil {
		w.t.Fatal(err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.denied = list
	w.build(model.NewChange(model.Key{Kind: model.MeshConfigKind, Name: "deny-list"}))
}

func (w *wireMesh) putOne(kind model.Kind, name string, spec proto.Message) {
	w.put(kind, map[string]proto.Message{name: spec})
}

// wireService is a service of one port whose endpoints, "address:port", have
// the versions v1, v2 and so on.
func wireService(host, protocol string, port uint32, endpoints ...string) *networkingv1alpha3.ServiceEntry {
	se := &networkingv1alpha3.ServiceEntry{
		Hosts: []string{host}, Location: networkingv1alpha3.ServiceEntry_MESH_INTERNAL, Resolution: networkingv1alpha3.ServiceEntry_STATIC,
		Ports: []*networkingv1alpha3.ServicePort{{Number: port, Name: strings.ToLower(protocol), Protocol: protocol}},
	}
	for i, at := range endpoints {
		address, number, _ := strings.Cut(at, ":")
		ep := &networkingv1alpha3.WorkloadEntry{Address: address, Labels: map[string]string{"version": "v" + string(rune('1'+i))}}
		if number != "" {
			ep.Ports = map[string]uint32{se.Ports[0].Name: parsePort(number)}
		}
		se.Endpoints = append(se.Endpoints, ep)
	}
	return se
}

func parsePort(text string) (n uint32) {
	for _, c := range text {
		n = 10*n + uint32(c-'0')
	}
	return n
}

// wireSubsets are the subsets v1 and v2 of a host.
func wireSubsets(host string) *networkingv1alpha3.DestinationRule {
	return &networkingv1alpha3.DestinationRule{Host: host, Subsets: []*networkingv1alpha3.Subset{
		{Name: "v1", Labels: map[string]string{"version": "v1"}}, {Name: "v2", Labels: map[string]string{"version": "v2"}},
	}}
}

// wireRoute leads requests with the header x-user: tester to v1 and all others
// to a subset.
func wireRoute(host, subset string) *networkingv1alpha3.VirtualService {
	to := func(subset string) []*networkingv1alpha3.HTTPRouteDestination {
		return []*networkingv1alpha3.HTTPRouteDestination{{Destination: &networkingv1alpha3.Destination{Host: host, Subset: subset}}}
	}
	return &networkingv1alpha3.VirtualService{Hosts: []string{host}, Http: []*networkingv1alpha3.HTTPRoute{
		{
			Match: []*networkingv1alpha3.HTTPMatchRequest{{Headers: map[string]*networkingv1alpha3.StringMatch{
				"x-user": {MatchType: &networkingv1alpha3.StringMatch_Exact{Exact: "tester"}},
			}}},
			Route: to("v1"),
		},
		{Route: to(subset)},
	}}
}
