// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/outrigger-mesh/outrigger/e2e/child"
	"github.com/outrigger-mesh/outrigger/e2e/netlab"
)

// Sizes for envoySize: the services of the mesh, and a Sidecar that imports a few of them.
const (
	envoyServices = 1000
	envoyImports  = 10
)

// envoySize measures the cost of a mesh for each Envoy with intercepted traffic: with all services,
// and with a Sidecar that imports ten of them. Such an Envoy listens on all addresses of its
// machine; therefore Envoy, its agent and the control plane run in a network namespace.
func (b *bench) envoySize(ctx context.Context) {
	sub := *b
	sub.dir, sub.redirect, sub.services = b.path("envoy"), true, envoyServices
	machines := must(netlab.New("envoy"))
	defer netlab.Close(machines)
	sub.start = &starter{at: machines[0]}
	defer sub.start.stop()
	writeMesh(sub.path("config"), sub.services)
	a := agentSpec{address: agentNet + "1", control: sub.startControl(ctx, "control"), redirect: true}
	all := sub.envoyOnce(ctx, fmt.Sprintf("%d services", envoyServices), a)
	var sidecar strings.Builder
	sidecar.WriteString("apiVersion: networking.istio.io/v1\nkind: Sidecar\nmetadata: {name: default, namespace: default}\nspec:\n  egress:\n  - hosts:\n")
	for i := range envoyImports {
		fmt.Fprintf(&sidecar, "    - ./svc-%d.mesh.local\n", i)
	}
	writeFile(sub.path("config", "sidecar.yaml"), sidecar.String())
	if few := sub.envoyOnce(ctx, fmt.Sprintf("%d of %d services", envoyImports, envoyServices), a); few >= all {
		fail("the Sidecar imports %d of %d services, but Envoy has %d clusters instead of %d", envoyImports, envoyServices, few, all)
	}
}

// envoyOnce starts an agent and Envoy, measures Envoy two seconds after it is ready, and returns
// its number of clusters.
func (b *bench) envoyOnce(ctx context.Context, what string, a agentSpec) (clusters int) {
	p := b.startAgent(strings.ReplaceAll(what, " ", "-"), a)
	defer p.stop()
	ready := p.wait(ctx, statusURL(a.address, "/healthz/ready"), "")
	sleep(ctx, 2*time.Second)
	pid, _ := p.child(ctx, b.envoy)
	u := inFigures(must(child.UsageOf(pid)))
	admin := "http://" + a.address + ":15000/"
	dump := must(get(ctx, p.client, admin+"config_dump?include_eds", io.Discard))
	var list strings.Builder
	must(get(ctx, p.client, admin+"clusters?format=json", &list))
	clusters = strings.Count(list.String(), `"observability_name"`)
	title := "redirected Envoy, " + what + ": "
	b.add(
		figure{Name: title + "resident memory", Unit: megabytes, Ours: u.resident},
		figure{Name: title + "anonymous memory", Unit: megabytes, Ours: u.anonymous},
		figure{Name: title + "config dump", Unit: megabytes, Ours: float64(dump)},
		figure{Name: title + "start until ready, agent included", Unit: seconds, Ours: ready})
	b.say("envoy: %s: %d clusters", what, clusters)
	return clusters
}
