// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package debug

import (
	"fmt"
	"slices"
	"strings"
	"time"

	adminv3 "github.com/envoyproxy/go-control-plane/envoy/admin/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/outrigger-mesh/outrigger/controlplane/discovery/quarantine"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/report"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// givenTo returns the sets of a proxy in its last round; before the first one, what
// is made for it.
func (d debugger) givenTo(st *Stream) *quarantine.Sets {
	if st.Given != nil {
		return st.Given
	}
	made := &quarantine.Sets{}
	for i, typeURL := range xds.Types {
		made[i] = d.source.Generate(d.mesh, st.Proxy, typeURL)
	}
	return made
}

// heldBack is a resource that is held back from a proxy.
type heldBack struct {
	report.Held
	item
	// made is what was made, and refused.
	made *xds.Resource
}

// heldFrom lists what is withheld from a proxy, and reports whether it waits for
// another one to try something first.
func (d debugger) heldFrom(st *Stream) (list []heldBack, waits bool) {
	all, waits := st.Withheld()
	for _, w := range all {
		list = append(list, heldBack{
			item: item{w.Type, w.Name}, made: w.Made,
			Held: report.Held{Type: st.nameOf(xds.Types[w.Type]), Name: w.Name, By: w.By, Reason: w.Reason, Since: w.Since, LastGood: w.LastGood, Objects: d.causes(w)},
		})
	}
	return list, waits
}

// maxCauses is how many objects are named for a rejected resource.
const maxCauses = 5

// causes returns the objects of which a rejected resource is made: those that changed with it, or
// if none did, such as for a new proxy, all.
func (d debugger) causes(w quarantine.Withheld) (out []report.Cause) {
	if w.Made == nil {
		return nil
	}
	keys := w.Made.Sources.Keys()
	if d.cfg.Changed != nil {
		changed := slices.DeleteFunc(slices.Clone(keys), func(key model.Key) bool {
			sequence, _, first := d.cfg.Changed(key)
			return first || sequence <= w.After || sequence > w.UpTo
		})
		if len(changed) > 0 {
			keys = changed
		}
	}
	for _, key := range keys[:min(len(keys), maxCauses)] {
		cause := report.Cause{Ref: refOf(key)}
		if c := d.cfg.object(key); c != nil {
			cause.Source = c.Source
		}
		out = append(out, cause)
	}
	return out
}

// item is a resource: its type, as an index of explained, and its name.
type item struct {
	typ  int
	name string
}

// configDump is what a proxy is given, in the form in which Envoy's admin port
// shows what it has. What is held back from it stands there as Envoy shows what
// it refused: as an error_state with what was made and Envoy's words. Keys are
// no part of it.
func (d debugger) configDump() (answerOf, error) {
	st, err := d.subject()
	if err != nil {
		return answerOf{}, err
	}
	dump := newDump()
	given := d.givenTo(st)
	for i, typeURL := range xds.Types {
		if typeURL == xds.TypeVirtualHost {
			if err := addHosts(dump.routes, given[i]); err != nil {
				return answerOf{}, err
			}
			continue
		}
		for _, r := range given[i].Resources {
			a, err := anyOf(typeURL, r)
			if err != nil {
				return answerOf{}, err
			}
			dump.add(typeURL, r.Name, a)
		}
	}
	for _, r := range d.source.Generate(d.mesh, st.Proxy, xds.TypeExtension).Resources { // without Secrets
		a, err := anyOf(xds.TypeExtension, r)
		if err != nil {
			return answerOf{}, err
		}
		dump.add(xds.TypeExtension, r.Name, a)
	}
	dump.clusters.VersionInfo, dump.listeners.VersionInfo = given[slices.Index(xds.Types, xds.TypeCluster)].Version, given[slices.Index(xds.Types, xds.TypeListener)].Version
	refused, _ := d.heldFrom(st)
	for _, h := range refused {
		failure := &adminv3.UpdateFailureState{
			Details:           fmt.Sprintf("refused by %s: %s", h.By, h.Reason),
			LastUpdateAttempt: timestamppb.New(h.Since.Truncate(time.Millisecond)),
		}
		if h.made != nil {
			if failure.FailedConfiguration, err = anyOf(xds.Types[h.typ], h.made); err != nil {
				return answerOf{}, err
			}
		}
		dump.refuse(xds.Types[h.typ], h.Name, failure)
	}
	return answerOf{
		messages: []proto.Message{dump.clusters, dump.listeners, dump.routes, dump.endpoints, dump.extensions},
		names:    []string{"clusters", "listeners", "routes", "endpoints", "extensions"},
	}, nil
}

// anyOf reads a resource.
func anyOf(typeURL string, r *xds.Resource) (*anypb.Any, error) {
	a := &anypb.Any{}
	if err := proto.Unmarshal(r.Any, a); err != nil {
		return nil, fmt.Errorf("read %s %s: %w", typeURL, r.Name, err)
	}
	return a, nil
}

// dump are the parts of a dump of Envoy's configuration.
type dump struct {
	clusters  *adminv3.ClustersConfigDump
	listeners *adminv3.ListenersConfigDump
	routes    *adminv3.RoutesConfigDump
	endpoints *adminv3.EndpointsConfigDump
	// extensions are those that the proxy may request.
	extensions *adminv3.EcdsConfigDump
}

func newDump() *dump {
	return &dump{&adminv3.ClustersConfigDump{}, &adminv3.ListenersConfigDump{}, &adminv3.RoutesConfigDump{}, &adminv3.EndpointsConfigDump{}, &adminv3.EcdsConfigDump{}}
}

func (d *dump) add(typeURL, name string, a *anypb.Any) {
	switch typeURL {
	case xds.TypeCluster:
		d.clusters.DynamicActiveClusters = append(d.clusters.DynamicActiveClusters, &adminv3.ClustersConfigDump_DynamicCluster{Cluster: a})
	case xds.TypeListener:
		d.listeners.DynamicListeners = append(d.listeners.DynamicListeners, &adminv3.ListenersConfigDump_DynamicListener{
			Name: name, ActiveState: &adminv3.ListenersConfigDump_DynamicListenerState{Listener: a},
		})
	case xds.TypeRoute:
		d.routes.DynamicRouteConfigs = append(d.routes.DynamicRouteConfigs, &adminv3.RoutesConfigDump_DynamicRouteConfig{RouteConfig: a})
	case xds.TypeEndpoint:
		d.endpoints.DynamicEndpointConfigs = append(d.endpoints.DynamicEndpointConfigs, &adminv3.EndpointsConfigDump_DynamicEndpointConfig{EndpointConfig: a})
	case xds.TypeExtension:
		d.extensions.EcdsFilters = append(d.extensions.EcdsFilters, &adminv3.EcdsConfigDump_EcdsFilterConfig{EcdsFilter: a})
	}
}

// refuse adds what was refused: to the listener of the name, and for the other
// types as an entry of its own, as Envoy has it.
func (d *dump) refuse(typeURL, name string, failure *adminv3.UpdateFailureState) {
	switch typeURL {
	case xds.TypeCluster:
		d.clusters.DynamicWarmingClusters = append(d.clusters.DynamicWarmingClusters, &adminv3.ClustersConfigDump_DynamicCluster{
			Cluster: failure.GetFailedConfiguration(), ErrorState: failure, ClientStatus: adminv3.ClientResourceStatus_NACKED,
		})
	case xds.TypeListener:
		i := slices.IndexFunc(d.listeners.DynamicListeners, func(l *adminv3.ListenersConfigDump_DynamicListener) bool { return l.GetName() == name })
		if i < 0 {
			i = len(d.listeners.DynamicListeners)
			d.listeners.DynamicListeners = append(d.listeners.DynamicListeners, &adminv3.ListenersConfigDump_DynamicListener{Name: name})
		}
		d.listeners.DynamicListeners[i].ErrorState, d.listeners.DynamicListeners[i].ClientStatus = failure, adminv3.ClientResourceStatus_NACKED
	case xds.TypeRoute, xds.TypeVirtualHost:
		d.routes.DynamicRouteConfigs = append(d.routes.DynamicRouteConfigs, &adminv3.RoutesConfigDump_DynamicRouteConfig{
			ErrorState: failure, ClientStatus: adminv3.ClientResourceStatus_NACKED,
		})
	}
}

// addHosts puts virtual hosts into the routes that they belong to.
func addHosts(routes *adminv3.RoutesConfigDump, set *xds.Set) error {
	hosts := map[string][]*routev3.VirtualHost{}
	for _, r := range set.Resources {
		host := &routev3.VirtualHost{}
		if err := r.UnmarshalTo(host); err != nil {
			return err
		}
		hosts[r.Name[:max(0, strings.LastIndexByte(r.Name, '/'))]] = append(hosts[r.Name[:max(0, strings.LastIndexByte(r.Name, '/'))]], host)
	}
	for _, d := range routes.GetDynamicRouteConfigs() {
		config := &routev3.RouteConfiguration{}
		if err := d.GetRouteConfig().UnmarshalTo(config); err != nil {
			return fmt.Errorf("read routes: %w", err)
		}
		config.VirtualHosts = append(config.VirtualHosts, hosts[config.GetName()]...)
		if err := d.GetRouteConfig().MarshalFrom(config); err != nil {
			return fmt.Errorf("write routes %s: %w", config.GetName(), err)
		}
	}
	return nil
}
