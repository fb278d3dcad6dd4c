// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package telemetry

import (
	"cmp"
	"fmt"
	"slices"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/outrigger-mesh/outrigger/controlplane/config/field"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
)

// recording are the access logs and the tracing of a workload.
type recording struct {
	mesh                         *meshv1alpha1.MeshConfig
	root                         string // the root namespace
	clientLogs, serverLogs       logs
	clientTracing, serverTracing tracing
}

// Receiver is a service that logs or spans are sent to, and the object because of which; By is empty
// for the mesh config.
type Receiver struct {
	snapshot.Reached
	By model.Key
}

// Receivers returns the services that logs and spans are sent to.
func (r *recording) Receivers() (out []Receiver) {
	add := func(by *snapshot.Telemetry, list ...snapshot.Reached) {
		for _, to := range list {
			if to.Service != nil {
				out = append(out, Receiver{to, keyOf(by)})
			}
		}
	}
	for _, list := range [][]log{r.clientLogs.list, r.serverLogs.list} {
		for _, l := range list {
			add(l.by, l.Reached)
		}
	}
	for _, t := range []tracing{r.clientTracing, r.serverTracing} {
		add(t.provider.by, t.Reached, t.Sampler)
	}
	return out
}

// Sends reports whether logs or spans are sent to a cluster.
func (r *recording) Sends(cluster string) bool {
	return slices.ContainsFunc(r.Receivers(), func(to Receiver) bool { return clusterOf(to.Reached) == cluster })
}

func keyOf(by *snapshot.Telemetry) model.Key {
	if by == nil {
		return model.Key{}
	}
	return by.Config.Key
}

func (r *recording) key() string {
	return r.clientLogs.key() + r.serverLogs.key() + r.clientTracing.key() + r.serverTracing.key()
}

// record sets the access logs and the tracing of a workload.
func (e *Effective) record(mesh *snapshot.Mesh, proxy *model.Proxy, sidecar *snapshot.Sidecar) {
	e.mesh, e.root = mesh.Config, cmp.Or(mesh.Config.GetRootNamespace(), "istio-system")
	own := mesh.Config.GetDefaultConfig().GetTracing()
	if proxy.Settings != nil && proxy.Settings.Configured {
		own = proxy.Settings.Tracing
	}
	direction := func(server bool) (logs, tracing) {
		list, chosen := selected(mesh.Config, e.levels, server)
		l := logs{chosen: chosen}
		for _, s := range list {
			if r, ok := e.reach(mesh.Logger, s, proxy, sidecar); ok {
				l.list = append(l.list, log{s, r})
			}
		}
		t := tracingOf(mesh.Config, own, e.levels, server)
		if t.provider.name != "" {
			var ok bool
			if t.Recorder, ok = e.reach(mesh.Tracer, t.provider, proxy, sidecar); !ok {
				t = tracing{}
			}
		}
		return l, t.normal(proxy)
	}
	e.clientLogs, e.clientTracing = direction(false)
	e.serverLogs, e.serverTracing = direction(true)
	e.tooNew(proxy.Envoy)
	for i, level := range e.levels {
		rest := slices.Delete(slices.Clone(e.levels), i, i+1)
		for server, to := range map[bool]interface{ AddConfigs(...*model.Config) }{false: &e.ClientSources, true: &e.ServerSources} {
			if e.decides(mesh.Config, own, rest, server) {
				to.AddConfigs(level.Config)
			}
		}
	}
	for _, r := range e.Receivers() {
		e.ClientSources.Add(r.Service.Source)
		e.ServerSources.Add(r.Service.Source)
	}
}

// tooNew adds a problem for each object that says something about spans that the proxy's Envoy cannot do.
func (e *Effective) tooNew(version string) {
	for _, level := range e.levels {
		for i, t := range level.Spec.GetTracing() {
			warn := func(at, effect string) {
				e.Problems = append(e.Problems, model.Problem{
					Object: level.Config.Key, Source: level.Config.Source, Warning: true,
					Reason: fmt.Sprintf("spec.tracing[%d].%s, because it cannot: update Envoy", i, at+effect),
				})
			}
			if t.GetDisableContextPropagation().GetValue() && !atLeast(version, 38) {
				warn("disableContextPropagation", ": proxies with an Envoy before 1.38 send headers with the context")
			}
			for name, tag := range field.Sorted(t.GetCustomTags()) {
				if tag.GetFormatter() != nil && e.envoy == none {
					warn("customTags["+name+"].formatter", ": proxies with an Envoy before 1.37 leave out the tag")
				}
			}
		}
	}
}

// records reports whether an object says something about access logs or tracing.
func records(level *snapshot.Telemetry) bool {
	return len(level.Spec.GetAccessLogging()) > 0 || len(level.Spec.GetTracing()) > 0
}

// decides reports whether something else would be recorded with other objects.
func (e *Effective) decides(mesh *meshv1alpha1.MeshConfig, own *meshv1alpha1.Tracing, others []*snapshot.Telemetry, server bool) bool {
	text := func(levels []*snapshot.Telemetry) (out string) {
		list, chosen := selected(mesh, levels, server)
		l := logs{chosen: chosen}
		for _, s := range list {
			l.list = append(l.list, log{selection: s})
		}
		return l.key() + tracingOf(mesh, own, levels, server).key()
	}
	return text(others) != text(e.levels)
}

// reach returns the provider that is selected. If the workload cannot use it, reach adds a problem,
// unless the snapshot has reported it.
func (e *Effective) reach(find func(name, namespace string, sidecar *snapshot.Sidecar) (snapshot.Recorder, error), s selection, proxy *model.Proxy, sidecar *snapshot.Sidecar) (snapshot.Recorder, bool) {
	r, err := find(s.name, proxy.Namespace, sidecar)
	if err == nil {
		return r, true
	}
	var obj *model.Config
	namespace := e.root
	if s.by != nil {
		obj, namespace = s.by.Config, s.by.Config.Namespace
	}
	if _, known := find(s.name, namespace, nil); known == nil {
		if p := snapshot.NotRecorded(obj, s.at, err); !slices.Contains(e.Problems, p) {
			e.Problems = append(e.Problems, p)
		}
	}
	return r, false
}
