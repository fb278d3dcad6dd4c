// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package telemetry

import (
	"slices"
	"strconv"
	"strings"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	telemetryv1alpha1 "istio.io/api/telemetry/v1alpha1"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// Effective is what is recorded about the requests and connections of a workload.
type Effective struct {
	// Key differs between two results that lead to different listeners. It cannot be forged.
	Key string
	// Labelled is true if clusters and endpoints have the service and the workload that a request is
	// sent to as metadata, and the proxy tells others about its workload: metrics of it are selected.
	Labelled bool
	// LabelledBy is the object that causes this, or empty if the mesh config does.
	LabelledBy model.Key
	// Problems are those of objects that do not apply as written.
	Problems []model.Problem
	// ClientSources and ServerSources are the objects that decide about requests that the workload
	// sends, and receives.
	ClientSources, ServerSources xds.Sources

	// levels are the objects that apply: the one of the mesh, of the namespace, of the workload.
	levels []*snapshot.Telemetry
	envoy  support
	// client and server are the metrics of requests that the workload sends and receives.
	client, server metrics
	recording
}

// Of returns what is in force for a proxy. Its Sidecar may be nil.
func Of(mesh *snapshot.Mesh, proxy *model.Proxy, sidecar *snapshot.Sidecar) Effective {
	e := Effective{}
	var hidden []*snapshot.Telemetry
	e.levels, hidden = mesh.Telemetries.For(proxy.Namespace, proxy.OwnLabels())
	for _, loser := range hidden {
		e.Problems = append(e.Problems, e.levels[len(e.levels)-1].Hides(loser))
	}
	e.LabelledBy, e.Labelled = labelled(mesh, e.levels)
	e.envoy = supportOf(proxy.Envoy)
	e.client, e.server = metricsOf(mesh.Config, e.levels, e.envoy)
	if (e.client.on || e.server.on) && e.envoy == none {
		e.client, e.server = metrics{}, metrics{}
		for _, level := range e.levels {
			if len(level.Spec.GetMetrics()) > 0 {
				e.Problems = append(e.Problems, model.Problem{
					Object: level.Config.Key, Source: level.Config.Source, Warning: true,
					Reason: "spec.metrics: proxies with an Envoy before 1.37 count no requests, because it does not support that: update Envoy",
				})
			}
		}
	}
	if (e.client.on || e.server.on) && e.envoy == unbounded {
		for _, level := range e.levels {
			e.Problems = append(e.Problems, unlimited(level)...)
		}
	}
	for _, level := range e.levels {
		e.Problems = append(e.Problems, e.clashes(level)...)
	}
	var key strings.Builder
	counts := e.client.on || e.server.on
	if counts {
		key.WriteString(e.client.key() + e.server.key())
	}
	key.WriteString(strconv.Itoa(int(e.envoy)))
	if counts || slices.ContainsFunc(e.levels, records) {
		for _, level := range e.levels {
			key.WriteString("," + strconv.Quote(level.Config.Key.String()))
		}
	}
	if e.Labelled {
		key.WriteString("@" + strconv.Quote(e.LabelledBy.String()))
	}
	e.record(mesh, proxy, sidecar)
	key.WriteString(e.recording.key())
	e.name(mesh)
	for _, p := range e.Problems {
		key.WriteString("!" + strconv.Quote(p.String()))
	}
	e.Key = key.String()
	return e
}

// Counts reports whether requests that the workload receives are counted.
func (e Effective) Counts() bool { return e.server.on }

// name sets the objects that decide, those without which something else would be recorded.
func (e *Effective) name(mesh *snapshot.Mesh) {
	e.ClientSources.Add(e.LabelledBy)
	e.ServerSources.Add(e.LabelledBy)
	if e.envoy == none {
		return
	}
	for i, level := range e.levels {
		client, server := metricsOf(mesh.Config, slices.Delete(slices.Clone(e.levels), i, i+1), e.envoy)
		if client.key() != e.client.key() {
			e.ClientSources.AddConfigs(level.Config)
		}
		if server.key() != e.server.key() {
			e.ServerSources.AddConfigs(level.Config)
		}
	}
}

// labelled reports whether metrics of a workload are selected, and by which object. The key is empty if
// the mesh config does it. Other workloads do not matter: an object for one namespace changes no proxy
// of another.
func labelled(mesh *snapshot.Mesh, levels []*snapshot.Telemetry) (by model.Key, ok bool) {
	ok = slices.ContainsFunc(mesh.Config.GetDefaultProviders().GetMetrics(), func(name string) bool { return countsRequests(mesh.Config, name) })
	for _, level := range levels {
		for _, m := range level.Spec.GetMetrics() {
			if len(m.GetProviders()) == 0 {
				continue
			}
			by = level.Config.Key
			ok = slices.ContainsFunc(m.GetProviders(), func(p *telemetryv1alpha1.ProviderRef) bool { return countsRequests(mesh.Config, p.GetName()) })
		}
	}
	if !ok {
		by = model.Key{}
	}
	return by, ok
}

// support is what the stats access logger of an Envoy can do.
type support int

const (
	none      support = iota // before 1.37 there is none
	unbounded                // it cannot limit the number of series
	bounded                  // since 1.39
)

// supportOf returns what an Envoy supports by its version.
func supportOf(version string) support {
	switch {
	case atLeast(version, 39):
		return bounded
	case atLeast(version, 37):
		return unbounded
	}
	return none
}

// atLeast reports whether an Envoy is of 1.minor or later. An unknown version counts as new.
func atLeast(version string, minor int) bool {
	major, rest, _ := strings.Cut(version, ".")
	text, _, _ := strings.Cut(rest, ".")
	n, err := strconv.Atoi(text)
	return major != "1" || err != nil || n >= minor
}

// provider returns the extension provider with a name, or nil.
func provider(mesh *meshv1alpha1.MeshConfig, name string) *meshv1alpha1.MeshConfig_ExtensionProvider {
	for _, p := range mesh.GetExtensionProviders() {
		if p.GetName() == name {
			return p
		}
	}
	return nil
}

func countsRequests(mesh *meshv1alpha1.MeshConfig, name string) bool {
	return provider(mesh, name).GetPrometheus() != nil
}

// modes returns whether a mode is for the requests that a workload sends, or receives.
func modes(mode telemetryv1alpha1.WorkloadMode) (client, server bool) {
	return mode != telemetryv1alpha1.WorkloadMode_SERVER, mode != telemetryv1alpha1.WorkloadMode_CLIENT
}
