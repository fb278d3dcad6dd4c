// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	wasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/wasm/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
)

// How a resource differs.
const (
	onlyGiven = "only given"
	onlyEnvoy = "only in Envoy"
	differs   = "differs"
)

// difference is a resource that differs between what was given and what Envoy has.
type difference struct {
	Type       string `json:"type"`
	Name       string `json:"name"`
	Difference string `json:"difference"`
}

// compare prints how two configurations differ.
func (f *proxyConfigFlags) compare(v view, given, has *configuration) error {
	list, compared := []difference{}, 0
	requested, filters := requestedEndpoints(has), map[string]bool{} // before filters
	for _, r := range has.resources["listeners"] {
		requestedFilters(r.message.ProtoReflect(), filters)
	}
	for _, p := range f.parts {
		given.keep(p, f.selection)
		has.keep(p, f.selection)
		ours, theirs := sent(given.resources[p.name]), sent(has.resources[p.name])
		if p.name == "endpoints" {
			for name := range theirs {
				if _, also := ours[name]; !also && !requested[name] {
					delete(theirs, name)
				}
			}
		}
		if p.name == extensions {
			maps.DeleteFunc(ours, func(name string, _ proto.Message) bool { return theirs[name] == nil && !filters[name] })
		}
		found := differences(p.name, ours, theirs)
		list, compared = append(list, found...), compared+len(ours)
	}
	var err error
	if !f.forReaders() {
		err = f.write(v.out, list)
		v.out = f.complaints
	} else {
		err = v.differences(list, given, has, compared)
	}
	if err != nil {
		return err
	}
	v.omissions(given)
	v.omissions(has)
	if len(list) > 0 {
		return f.cfg.Exit(exitFailed, nil)
	}
	return nil
}

// sent returns the resources that the control plane sends, by name.
func sent(list []resource) map[string]proto.Message {
	out := map[string]proto.Message{}
	for _, r := range list { // of two with a name, the last is the newest
		if !r.static && r.status != statusDraining {
			out[r.name] = r.message
		}
	}
	return out
}

// requestedEndpoints returns the names of the endpoints that an Envoy requests from the control
// plane. Its dump has those of all clusters.
func requestedEndpoints(c *configuration) map[string]bool {
	out := map[string]bool{}
	for _, r := range c.resources["clusters"] {
		if cluster := r.message.(*clusterv3.Cluster); cluster.GetType() == clusterv3.Cluster_EDS && !r.static {
			out[cmp.Or(cluster.GetEdsClusterConfig().GetServiceName(), r.name)] = true
		}
	}
	return out
}

// requestedFilters adds the names of the filters that a message requests from the control plane. A proxy may
// request more: a plugin that none of its listeners has.
func requestedFilters(m protoreflect.Message, names map[string]bool) {
	if packed, ok := m.Interface().(*anypb.Any); ok {
		if inner, err := packed.UnmarshalNew(); err == nil {
			requestedFilters(inner.ProtoReflect(), names)
		}
		return
	}
	fields := m.Descriptor().Fields()
	if name, source := fields.ByName("name"), fields.ByName("config_discovery"); name != nil && source != nil && m.Has(source) {
		names[m.Get(name).String()] = true
	}
	m.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		switch {
		case field.Message() == nil || field.IsMap():
		case field.IsList():
			for i := range value.List().Len() {
				requestedFilters(value.List().Get(i).Message(), names)
			}
		default:
			requestedFilters(value.Message(), names)
		}
		return true
	})
}

// differences compares the resources of a part.
func differences(part string, given, has map[string]proto.Message) (out []difference) {
	names := map[string]bool{}
	for name := range given {
		names[name] = true
	}
	for name := range has {
		names[name] = true
	}
	for name := range names {
		ours, isGiven := given[name]
		theirs, isThere := has[name]
		text := ""
		switch {
		case part == "endpoints":
			text = endpointsDiffer(ours, theirs, isGiven, isThere)
		case !isThere:
			text = onlyGiven
		case !isGiven:
			text = onlyEnvoy
		case !alike(ours, theirs):
			text = differs
		}
		if text != "" {
			out = append(out, difference{part, name, text})
		}
	}
	slices.SortFunc(out, func(a, b difference) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// endpointsDiffer compares endpoints. Without endpoints, it makes no difference whether there is a
// list.
func endpointsDiffer(given, has proto.Message, isGiven, isThere bool) string {
	ours, theirs := endpointsOf(given), endpointsOf(has)
	switch {
	case slices.Equal(ours, theirs):
		return ""
	case !isThere:
		return onlyGiven
	case !isGiven:
		return onlyEnvoy
	}
	return differs
}

// endpointsOf returns texts that are the same for the same endpoints. The health is not a part of
// them, because Envoy's dump has the result of its own checks.
func endpointsOf(m proto.Message) (out []string) {
	assignment, ok := m.(*endpointv3.ClusterLoadAssignment)
	if !ok {
		return nil
	}
	for _, l := range assignment.GetEndpoints() {
		at := l.GetLocality()
		where := fmt.Sprintf("%d %q %q %q", l.GetPriority(), at.GetRegion(), at.GetZone(), at.GetSubZone())
		for _, e := range l.GetLbEndpoints() {
			weight := max(1, e.GetLoadBalancingWeight().GetValue())
			out = append(out, fmt.Sprintf("%s %q %d", where, joined(e.GetEndpoint().GetAddress()), weight))
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// alike reports whether two resources are the same. Both come from JSON, so that the bytes of packed
// messages are the same for the same content.
func alike(given, has proto.Message) bool {
	if same(given, has) {
		return true
	}
	given, has = proto.Clone(given), proto.Clone(has)
	withoutModule(given)
	withoutModule(has)
	redactMessage(given.ProtoReflect(), false)
	redactMessage(has.ProtoReflect(), false)
	return same(given, has)
}

// withoutModule removes from a Wasm filter what the agent changes: where its module is, and the variables that
// say how to fetch it.
func withoutModule(m proto.Message) {
	extension, _ := m.(*corev3.TypedExtensionConfig)
	plugin := &wasmv3.Wasm{}
	if !extension.GetTypedConfig().MessageIs(plugin) || extension.GetTypedConfig().UnmarshalTo(plugin) != nil {
		return
	}
	vm := plugin.GetConfig().GetVmConfig()
	if vm == nil {
		return
	}
	vm.Code = nil
	maps.DeleteFunc(vm.GetEnvironmentVariables().GetKeyValues(), func(name, _ string) bool { return strings.HasPrefix(name, wasmHint) })
	if len(vm.GetEnvironmentVariables().GetKeyValues())+len(vm.GetEnvironmentVariables().GetHostEnvKeys()) == 0 {
		vm.EnvironmentVariables = nil
	}
	if packed, err := anypb.New(plugin); err == nil {
		extension.TypedConfig = packed
	}
}

// wasmHint is the beginning of variables of a Wasm filter that are for agents.
const wasmHint = "ISTIO_META_"

// same reports whether two resources are the same as they are.
func same(given, has proto.Message) bool {
	ours, isRoute := given.(*routev3.RouteConfiguration)
	theirs, isRouteToo := has.(*routev3.RouteConfiguration)
	if !isRoute || !isRouteToo {
		return proto.Equal(given, has)
	}
	ours, theirs = proto.CloneOf(ours), proto.CloneOf(theirs)
	if ours.GetVhds() != nil {
		// Envoy requests a virtual host with the first request for it.
		requested := map[string]bool{}
		for _, h := range theirs.GetVirtualHosts() {
			requested[h.GetName()] = true
		}
		ours.VirtualHosts = slices.DeleteFunc(ours.VirtualHosts, func(h *routev3.VirtualHost) bool { return !requested[h.GetName()] })
	}
	for _, r := range []*routev3.RouteConfiguration{ours, theirs} {
		slices.SortStableFunc(r.VirtualHosts, func(a, b *routev3.VirtualHost) int { return strings.Compare(a.GetName(), b.GetName()) })
	}
	return proto.Equal(ours, theirs)
}

// differences prints differences.
func (v view) differences(list []difference, given, has *configuration, compared int) error {
	rows := [][]string{{"TYPE", "NAME", "DIFFERENCE"}}
	for _, d := range list {
		rows = append(rows, []string{d.Type, d.Name, d.Difference})
	}
	if len(list) > 0 {
		if _, err := v.columns(rows, "NAME"); err != nil {
			return err
		}
		v.say("\n")
	}
	found := "No differences"
	if len(list) > 0 {
		found = count(len(list), "difference", "differences")
	}
	v.say("%s in %s. Compared: %s with %s.\n", found, count(compared, "resource", "resources"), given.from, has.from)
	return nil
}
