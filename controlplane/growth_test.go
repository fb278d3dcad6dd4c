// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package controlplane_test

import (
	"encoding/json"
	"flag"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/outrigger-mesh/outrigger/bootstrap/meshconfig"
	"github.com/outrigger-mesh/outrigger/controlplane/config/codec"
	"github.com/outrigger-mesh/outrigger/controlplane/config/schema"
	"github.com/outrigger-mesh/outrigger/controlplane/gatewayapi"
	"github.com/outrigger-mesh/outrigger/controlplane/generate"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// world are the other objects of the mesh.
const world = `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: web}
spec:
  hosts: [web.default.svc.cluster.local]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP}, {number: 443, name: tls, protocol: TLS}, {number: 9000, name: tcp, protocol: TCP}]
  endpoints: [{address: 10.0.0.1, labels: {app: web, version: v1}}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: edge}
spec:
  hosts: [edge.default.svc.cluster.local]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP}]
  endpoints: [{address: 10.0.0.9, labels: {app: edge}}]
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: public}
spec:
  selector: {app: edge}
  servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: ["*/*"]}, {port: {number: 443, name: tls, protocol: TLS}, hosts: ["*"], tls: {mode: PASSTHROUGH}}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: istio}
spec: {controllerName: istio.io/gateway-controller}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: front}
spec:
  gatewayClassName: istio
  addresses: [{type: Hostname, value: edge.default.svc.cluster.local}]
  listeners: [{name: http, port: 80, protocol: HTTP}, {name: tls, port: 443, protocol: TLS, tls: {mode: Passthrough}}, {name: tcp, port: 9000, protocol: TCP}]
`

// pipeline does everything that the control plane does with an object: it decodes and validates it,
// builds a snapshot, and generates the configuration of a sidecar, a gateway and a client without a
// proxy.
type pipeline struct {
	t       testing.TB
	mesh    *meshv1alpha1.MeshConfig
	others  []*model.Config
	proxies []*model.Proxy
}

func newPipeline(t testing.TB) *pipeline {
	t.Helper()
	others, problems := codec.Decode("world.yaml", []byte(world))
	for _, p := range problems {
		if !p.Warning {
			t.Fatal(p)
		}
	}
	labels := func(app string) map[string]string { return map[string]string{"app": app, "version": "v1"} }
	return &pipeline{t: t, mesh: meshconfig.Default(), others: others, proxies: []*model.Proxy{
		{ID: "web.default", Role: "sidecar", IPs: []string{"10.0.0.1"}, Namespace: "default", Domain: "default.svc.cluster.local", Labels: labels("web"), Interception: model.InterceptionRedirect, AutoAllocate: true},
		{ID: "web-2.default", Role: "sidecar", IPs: []string{"10.0.0.1"}, Namespace: "default", Domain: "default.svc.cluster.local", Labels: labels("web"), VHDS: true},
		{ID: "edge.default", Role: "router", IPs: []string{"10.0.0.9"}, Namespace: "default", Domain: "default.svc.cluster.local", Labels: labels("edge")},
		{ID: "bare.default", Role: "sidecar", IPs: []string{"10.0.0.3"}, Namespace: "default", Domain: "default.svc.cluster.local", Labels: labels("bare"), Proxyless: true, Listens: []string{"10.0.0.3:80"}},
	}}
}

// run processes an object and returns the processor time that it took.
func (p *pipeline) run(kind model.Kind, text []byte) time.Duration {
	start := processorTime(p.t)
	decoded, _ := codec.Decode("big.json", text)
	if len(decoded) == 0 && len(text) < 2*growthLarge {
		decoded = p.unchecked(kind, text)
	}
	objects := slices.Concat(p.others, decoded)
	list := func(kind model.Kind) (out []*model.Config) {
		for _, o := range objects {
			if o.Kind == kind {
				out = append(out, o)
			}
		}
		return out
	}
	converted := gatewayapi.Convert(gatewayapi.Input{List: list, Mesh: p.mesh, IngressNamespace: "default"})
	for _, of := range converted.Objects {
		objects = append(objects, of...)
	}
	mesh := snapshot.Build(nil, snapshot.Input{Mesh: p.mesh, List: list}, model.Change{All: true})
	g := generate.New(generate.Config{})
	for _, proxy := range p.proxies {
		for _, typeURL := range xds.Types {
			g.Generate(mesh, proxy, typeURL)
		}
		g.Generate(mesh, proxy, xds.TypeVirtualHost)
		g.Generate(mesh, proxy, xds.TypeNameTable)
	}
	return processorTime(p.t) - start
}

// unchecked decodes an object that violates a rule. A store may contain it if the rule was added
// later.
func (p *pipeline) unchecked(kind model.Kind, text []byte) []*model.Config {
	var doc struct {
		APIVersion string
		Metadata   struct {
			Name                string
			Labels, Annotations map[string]string
		}
		Spec json.RawMessage
	}
	sch, _ := schema.Of(kind)
	if json.Unmarshal(text, &doc) != nil {
		return nil
	}
	spec, err := sch.DecodeSpec(doc.Spec)
	if err != nil {
		return nil
	}
	key := model.Key{Kind: kind, Namespace: "default", Name: "big"}
	if sch.Cluster {
		key.Namespace = ""
	}
	return []*model.Config{{Key: key, APIVersion: doc.APIVersion, Labels: doc.Metadata.Labels, Annotations: doc.Metadata.Annotations, Spec: spec, ResourceVersion: "1", Source: "big.json:1"}}
}

// processorTime returns the processor time used by this thread, which does not depend on the load
// of the machine.
func processorTime(t testing.TB) time.Duration {
	t.Helper()
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &now); err != nil {
		t.Fatal(err)
	}
	return time.Duration(now.Nano())
}

// Sizes to which fields grow, in bytes.
const (
	growthSmall = 8 << 10
	growthLarge = 4 * growthSmall
	growthFull  = 1 << 20
)

// mostGrowth is the maximum ratio of the work on an object of four times the size. The ratio is 4
// for linear work and 16 for quadratic work.
const mostGrowth = 9

// TestWorkIsLinear grows each list, map and text of each kind, and checks that the work
// is about linear in the size. It ignores times below floor: even quadratic work would then be
// acceptable at 1 MiB.
func TestWorkIsLinear(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	const floor = 2 * time.Millisecond
	p := newPipeline(t)
	cases := growthCases(t)
	if len(cases) < 1000 {
		t.Fatalf("%d cases, want at least 1000: not all types were visited", len(cases))
	}
	var hardest growthCase
	var most, total time.Duration
	for _, c := range cases {
		large := p.run(c.kind, c.grow(growthLarge))
		if total += large; large > most {
			hardest, most = c, large
		}
		if large < floor || large < mostGrowth*p.run(c.kind, c.grow(growthSmall)) {
			continue
		}
		// The garbage collector may have run during the measurement, so take the minimum of some
		// runs.
		small, large := p.least(c, growthSmall), p.least(c, growthLarge)
		if large > floor && large > mostGrowth*small {
			t.Errorf("%s: %v for %d bytes and %v for %d bytes, want about linear growth", c.name, small, growthSmall, large, growthLarge)
		}
	}
	t.Logf("%d cases of %d bytes took %v; the slowest took %v: %s", len(cases), growthLarge, total, most, hardest.name)
}

// ordinary is how many times all objects of world are decoded for the work that one object of 1 MiB
// may take. A typical processor needs a second for that.
const ordinary = 3000

// budget returns the processor time of that work, which is the limit for one object on this machine
// at its current speed.
func (p *pipeline) budget() time.Duration {
	const parts = 5
	least := time.Duration(1 << 62)
	for range parts {
		runtime.GC()
		start := processorTime(p.t)
		for range ordinary / parts {
			codec.Decode("world.yaml", []byte(world))
		}
		least = min(least, processorTime(p.t)-start)
	}
	return parts * least
}

// everyField makes TestWorkOnOneMebibyte grow every field of every kind, which takes minutes.
var everyField = flag.Bool("every-field", false, "grow every field to 1 MiB, not only those that are the most work")

// TestWorkOnOneMebibyte grows the most expensive fields to 1 MiB, and to smaller sizes, because a
// limit may reject the object of 1 MiB. It compares the time with that of ordinary objects, so that
// the speed of the machine makes no difference.
func TestWorkOnOneMebibyte(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	p := newPipeline(t)
	full := map[string]bool{
		"VirtualService spec.hosts: equal texts": true, "VirtualService spec.hosts: hosts": true, "VirtualService spec.http: different items": true, "VirtualService spec.gateways: hosts": true,
		"VirtualService spec.http.match: different items": true, "ServiceEntry spec.hosts: hosts": true, "ServiceEntry spec.ports: different items": true,
		"ServiceEntry spec.endpoints: different items": true, "Sidecar spec.egress.hosts: hosts": true, "DestinationRule spec.subsets: different items": true,
		"HTTPRoute spec.rules: empty items": true, "EnvoyFilter spec.configPatches: different items": true,
	}
	found := 0
	budget := p.budget()
	t.Logf("the limit for an object is %v on this machine", budget)
	for _, c := range growthCases(t) {
		least := 2 * growthLarge
		switch {
		case full[c.name]:
			found++
		case *everyField:
			least = growthFull - 1
		default:
			continue
		}
		for size := growthFull; size > least; size = size * 5 / 8 {
			took := p.run(c.kind, c.grow(size))
			if took > budget {
				took = p.least(c, size) // the garbage collector may have run
			}
			t.Logf("%s: %v for %d bytes", c.name, took, size)
			if took > budget {
				t.Errorf("%s: %v of processor time for %d bytes, want at most %v", c.name, took, size, budget)
			}
		}
	}
	if found != len(full) {
		t.Errorf("%d of the %d most expensive cases were found", found, len(full))
	}
}

// least returns the minimum processor time of some runs.
func (p *pipeline) least(c growthCase, size int) time.Duration {
	text, least := c.grow(size), time.Duration(1<<62)
	for range 3 {
		runtime.GC()
		least = min(least, p.run(c.kind, text))
	}
	return least
}
