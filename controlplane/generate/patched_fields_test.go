// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
	"sigs.k8s.io/yaml"

	"github.com/outrigger-mesh/outrigger/controlplane/config/validate"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

const (
	ownHTTP   = `{name: own, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua}}`
	ownHeader = `{response_headers_to_add: [{header: {key: x-own, value: "yes"}}]}`
)

// patchesOfFields are patches that have an effect on each kind of configuration.
var patchesOfFields = map[string]string{
	"LISTENER":            `{operation: MERGE, value: {per_connection_buffer_limit_bytes: 1234}}`,
	"FILTER_CHAIN":        `{operation: MERGE, value: {transport_socket_connect_timeout: 7s}}`,
	"NETWORK_FILTER":      `{operation: INSERT_BEFORE, value: {name: own, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.network.connection_limit.v3.ConnectionLimit, stat_prefix: own, max_connections: 9}}}`,
	"HTTP_FILTER":         `{operation: INSERT_BEFORE, value: ` + ownHTTP + `}`,
	"ROUTE_CONFIGURATION": `{operation: MERGE, value: ` + ownHeader + `}`,
	"VIRTUAL_HOST":        `{operation: MERGE, value: ` + ownHeader + `}`,
	"HTTP_ROUTE":          `{operation: MERGE, value: ` + ownHeader + `}`,
	"CLUSTER":             `{operation: MERGE, value: {alt_stat_name: own}}`,
	"EXTENSION_CONFIG":    `{operation: ADD, value: ` + ownHTTP + `}`,
	"BOOTSTRAP":           `{operation: MERGE, value: {stats_flush_interval: 7s}}`,
	"LISTENER_FILTER":     `{operation: INSERT_BEFORE, value: {name: own, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.listener.http_inspector.v3.HttpInspector}}}`,
}

// patchWorld is a sidecar and a gateway that an EnvoyFilter applies to.
type patchWorld []testCase

func newPatchWorld(t *testing.T) (w patchWorld) {
	for _, dir := range []string{"testdata/patch-sidecar", "testdata/patch-gateway"} {
		c := loadCase(t, dir)
		c.objects = slices.DeleteFunc(c.objects, func(o *model.Config) bool { return o.Kind == model.EnvoyFilter })
		c.proxy.Agent = "1.18.2"
		c.objects = append(c.objects, decode(t, "kind: VirtualService\nmetadata: {name: moved, namespace: default}\nspec: {hosts: [frontend.default.svc.cluster.local], http: [{redirect: {uri: /moved}}]}\n")...)
		w = append(w, c)
	}
	return w
}

// effect returns what a spec makes of the configuration, and the paths and reasons of its problems.
func (w patchWorld) effect(spec *networkingv1alpha3.EnvoyFilter) (effect string, problems []string) {
	object := &model.Config{Key: model.Key{Kind: model.EnvoyFilter, Namespace: "istio-system", Name: "own"}, Spec: spec}
	errs, warnings := validate.Object(object)
	for _, e := range slices.Concat(errs, warnings) {
		problems = append(problems, e.Path+": "+e.Text)
	}
	if len(errs) > 0 {
		return "", problems // it is refused
	}
	for _, c := range w {
		mesh := snapshot.Build(nil, inputOf(append(slices.Clone(c.objects), object), c.mesh), model.Change{All: true})
		g := New(Config{})
		found := slices.Clone(mesh.Problems)
		for _, set := range append(generateAll(g, mesh, c.proxy), g.Generate(mesh, c.proxy, xds.TypeExtension), g.Generate(mesh, c.proxy, xds.TypeBootstrap)) {
			effect += set.Version + " "
			found = append(found, set.Problems...)
		}
		for _, p := range found {
			if p.Object == object.Key {
				problems = append(problems, p.Reason)
			}
		}
	}
	return effect, problems
}

// leaf sets one field of a message, and the messages that it is in.
type leaf struct {
	path   string
	enum   string // the value of an enumeration
	assign func(protoreflect.Message)
}

// leaves returns the fields below a message, each with values that nothing in the world has.
func leaves(md protoreflect.MessageDescriptor, path string, in func(protoreflect.Message) protoreflect.Message) (out []leaf) {
	for i := range md.Fields().Len() {
		fd := md.Fields().Get(i)
		at := path + "." + fd.JSONName()
		set := func(v protoreflect.Value) func(protoreflect.Message) {
			return func(m protoreflect.Message) { in(m).Set(fd, v) }
		}
		switch {
		case fd.IsMap():
			out = append(out, leaf{path: at, assign: func(m protoreflect.Message) {
				in(m).Mutable(fd).Map().Set(protoreflect.ValueOfString("nothing").MapKey(), protoreflect.ValueOfString("nothing"))
			}})
		case fd.Message() != nil:
			out = append(out, leaves(fd.Message(), at, func(m protoreflect.Message) protoreflect.Message { return in(m).Mutable(fd).Message() })...)
		case fd.Kind() == protoreflect.EnumKind:
			for j := 1; j < fd.Enum().Values().Len(); j++ {
				v := fd.Enum().Values().Get(j)
				out = append(out, leaf{path: at, enum: string(v.Name()), assign: set(protoreflect.ValueOfEnum(v.Number()))})
			}
		case fd.Kind() == protoreflect.StringKind:
			out = append(out, leaf{path: at, assign: set(protoreflect.ValueOfString("nothing"))})
		default:
			out = append(out, leaf{path: at, assign: set(protoreflect.ValueOfUint32(9))})
		}
	}
	return out
}

// TestPatchFieldsHaveEffect sets each field of a match, by the definition of the message, on a patch of
// each kind of configuration: what the patch changes differs, or a problem names the field. So it is
// with each operation and filterClass.
func TestPatchFieldsHaveEffect(t *testing.T) {
	t.Parallel()
	w := newPatchWorld(t)
	none, _ := w.effect(&networkingv1alpha3.EnvoyFilter{})
	match := (&networkingv1alpha3.EnvoyFilter_EnvoyConfigObjectMatch{}).ProtoReflect().Descriptor()
	fields := leaves(match, "match", func(m protoreflect.Message) protoreflect.Message { return m })
	if len(fields) < 25 {
		t.Fatalf("a match has %d fields", len(fields))
	}
	kinds := networkingv1alpha3.EnvoyFilter_INVALID.Descriptor().Values()
	for i := range kinds.Len() {
		kind := string(kinds.Get(i).Name())
		if kind == "INVALID" {
			continue
		}
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			patch, ok := patchesOfFields[kind]
			if !ok {
				t.Fatal("this kind has no patch here")
			}
			spec := &networkingv1alpha3.EnvoyFilter{}
			text, err := yaml.YAMLToJSON([]byte("configPatches: [{applyTo: " + kind + ", patch: " + patch + "}]"))
			if err == nil {
				err = protojson.Unmarshal(text, spec)
			}
			if err != nil {
				t.Fatal(err)
			}
			base, problems := w.effect(spec)
			if base == none || len(problems) > 0 {
				t.Fatalf("the patch has an effect: %t; problems: %q", base != none, problems)
			}
			unmatched := proto.CloneOf(spec)
			unmatched.ConfigPatches[0].Patch.Operation = networkingv1alpha3.EnvoyFilter_Patch_INSERT_FIRST
			first, _ := w.effect(unmatched)
			for _, f := range fields {
				changed := proto.CloneOf(spec)
				changed.ConfigPatches[0].Match = &networkingv1alpha3.EnvoyFilter_EnvoyConfigObjectMatch{}
				m := changed.ConfigPatches[0].GetMatch()
				f.assign(m.ProtoReflect())
				if c := m.GetListener().GetFilterChain().GetFilter(); c.GetSubFilter() != nil {
					c.Name = "envoy.filters.network.http_connection_manager" // else it is refused for its lack
				}
				if m.GetContext() == networkingv1alpha3.EnvoyFilter_WAYPOINT {
					m.ObjectTypes = &networkingv1alpha3.EnvoyFilter_EnvoyConfigObjectMatch_Waypoint{Waypoint: &networkingv1alpha3.EnvoyFilter_WaypointMatch{}}
				}
				w.expect(t, changed, base, f.path, f.enum)
				if strings.HasPrefix(patch, "{operation: INSERT_BEFORE") {
					changed.ConfigPatches[0].Patch.Operation = networkingv1alpha3.EnvoyFilter_Patch_INSERT_FIRST
					w.expect(t, changed, first, f.path, f.enum)
				}
			}
			for name, v := range networkingv1alpha3.EnvoyFilter_Patch_Operation_value {
				changed := proto.CloneOf(spec)
				changed.ConfigPatches[0].Patch.Operation = networkingv1alpha3.EnvoyFilter_Patch_Operation(v)
				w.expect(t, changed, none, "spec.configPatches[0]", name)
			}
			for name, v := range networkingv1alpha3.EnvoyFilter_Patch_FilterClass_value {
				changed := proto.CloneOf(spec)
				changed.ConfigPatches[0].Patch.Operation = networkingv1alpha3.EnvoyFilter_Patch_ADD
				changed.ConfigPatches[0].Patch.FilterClass = networkingv1alpha3.EnvoyFilter_Patch_FilterClass(v)
				w.expect(t, changed, none, "spec.configPatches[0]", name)
			}
		})
	}
}

// expect checks that a spec has another effect than before, or a problem that names the field.
func (w patchWorld) expect(t *testing.T, spec *networkingv1alpha3.EnvoyFilter, before, path, value string) {
	t.Helper()
	effect, problems := w.effect(spec)
	if effect != "" && effect != before {
		return
	}
	parts := strings.Split(path, ".")
	for n := len(parts); n > 0 && (n > 1 || n == len(parts)); n-- { // a problem of a message is one of its fields, too
		if at := strings.Join(parts[:n], "."); slices.ContainsFunc(problems, func(p string) bool { return strings.Contains(p, at) }) {
			return
		}
	}
	t.Errorf("%s %s: no effect, and no problem names it: %q", path, value, problems)
}
