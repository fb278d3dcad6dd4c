// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	extensionsv1alpha1 "istio.io/api/extensions/v1alpha1"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
	securityv1beta1 "istio.io/api/security/v1beta1"

	"github.com/outrigger-mesh/outrigger/controlplane/config/field"
	"github.com/outrigger-mesh/outrigger/controlplane/config/validate"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// fieldName returns the message and JSON name of a field.
func fieldName(fd protoreflect.FieldDescriptor) string {
	return string(fd.ContainingMessage().FullName()) + "." + fd.JSONName()
}

// TestFieldsHaveEffect compares the warnings of validation with the generated resources. Removing
// a field without a warning must change a resource of some case. Removing a field with the warning
// that it has no effect must change none.
func TestFieldsHaveEffect(t *testing.T) {
	t.Parallel()
	effect := map[string]string{} // by field: the case that shows it
	for _, c := range append(testCases(t), effectCases(t)...) {
		for i := range c.objects {
			showEffects(t, &c, i, effect)
		}
	}
	claimed := map[string]bool{}
	for kind, spec := range map[model.Kind]proto.Message{
		model.VirtualService: &networkingv1alpha3.VirtualService{}, model.DestinationRule: &networkingv1alpha3.DestinationRule{},
		model.ServiceEntry: &networkingv1alpha3.ServiceEntry{}, model.WorkloadEntry: &networkingv1alpha3.WorkloadEntry{},
		model.Sidecar: &networkingv1alpha3.Sidecar{}, model.Gateway: &networkingv1alpha3.Gateway{},
		model.PeerAuthentication: &securityv1beta1.PeerAuthentication{}, model.WasmPlugin: &extensionsv1alpha1.WasmPlugin{}, model.TrafficExtension: &extensionsv1alpha1.TrafficExtension{},
	} {
		claims(kind, spec, claimed)
	}
	for _, name := range slices.Sorted(maps.Keys(claimed)) {
		where, shown := effect[name]
		reason, excused := shownElsewhere[name]
		switch {
		case !claimed[name] && shown:
			t.Errorf("%s is said to have no effect, and has one in the case %s", name, where)
		case claimed[name] && !shown && !excused:
			t.Errorf("%s is not said to be without effect, and no case of testdata shows one", name)
		case shown && excused:
			t.Errorf("%s is shown by the case %s, so that this is no reason any more: %s", name, where, reason)
		}
	}
}

// showEffects removes each field of an object that has no known effect, and records whether a
// resource or name changes.
func showEffects(t *testing.T, c *testCase, object int, effect map[string]string) {
	t.Helper()
	whole, ok := c.objects[object].Spec.(proto.Message)
	if !ok {
		return
	}
	versions := func(spec proto.Message) (out []string) {
		objects := slices.Clone(c.objects)
		with := *objects[object]
		with.Spec = spec
		objects[object] = &with
		g, mesh := New(Config{}), snapshot.Build(nil, inputOf(objects, c.mesh), model.Change{All: true})
		for _, set := range append(generateAll(g, mesh, c.proxy), g.Generate(mesh, c.proxy, xds.TypeExtension)) {
			out = append(out, set.Version)
		}
		return out
	}
	var before []string
	eachField(whole.ProtoReflect(), nil, func(path []step, fd protoreflect.FieldDescriptor) {
		if effect[fieldName(fd)] != "" {
			return
		}
		if before == nil {
			before = versions(whole)
		}
		without := proto.Clone(whole)
		m := without.ProtoReflect()
		for _, s := range path {
			m = s.in(m)
		}
		m.Clear(fd)
		if !slices.Equal(before, versions(without)) {
			effect[fieldName(fd)] = c.name
		}
	})
}

// step leads from a message to a nested one.
type step struct {
	field protoreflect.FieldDescriptor
	at    int
	key   protoreflect.MapKey
}

func (s step) in(m protoreflect.Message) protoreflect.Message {
	switch v := m.Get(s.field); {
	case s.field.IsMap():
		return v.Map().Get(s.key).Message()
	case s.field.IsList():
		return v.List().Get(s.at).Message()
	default:
		return v.Message()
	}
}

// eachField calls f for each field that is set, inner ones first.
func eachField(m protoreflect.Message, path []step, f func([]step, protoreflect.FieldDescriptor)) {
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		within := func(s step, inner protoreflect.Message) { eachField(inner, append(slices.Clip(path), s), f) }
		switch {
		case fd.IsMap() && fd.MapValue().Message() != nil:
			v.Map().Range(func(k protoreflect.MapKey, inner protoreflect.Value) bool {
				within(step{field: fd, key: k}, inner.Message())
				return true
			})
		case fd.IsMap() || fd.Message() == nil || outside(fd.Message()):
		case fd.IsList():
			for i := range v.List().Len() {
				within(step{field: fd, at: i}, v.List().Get(i).Message())
			}
		default:
			within(step{field: fd}, v.Message())
		}
		f(path, fd)
		return true
	})
}

// outside reports whether a message is not one of Istio's.
func outside(md protoreflect.MessageDescriptor) bool {
	return strings.HasPrefix(string(md.FullName()), "google.protobuf.")
}

// claims records for each field of a spec whether validation omits the warning that it has no
// effect.
func claims(kind model.Kind, spec proto.Message, claimed map[string]bool) {
	var walk func(at protoreflect.Message, path string, depth int)
	walk = func(at protoreflect.Message, path string, depth int) {
		fields := at.Descriptor().Fields()
		for i := range fields.Len() {
			fd := fields.Get(i)
			where := path + "." + fd.JSONName()
			var inner protoreflect.Message
			switch {
			case fd.IsMap() && fd.MapValue().Message() != nil:
				v := at.Mutable(fd).Map().NewValue()
				at.Mutable(fd).Map().Set(anyScalar(fd.MapKey()).MapKey(), v)
				inner = at.Get(fd).Map().Get(anyScalar(fd.MapKey()).MapKey()).Message()
			case fd.IsMap():
				at.Mutable(fd).Map().Set(anyScalar(fd.MapKey()).MapKey(), anyScalar(fd.MapValue()))
			case fd.IsList() && fd.Message() != nil:
				inner = at.Mutable(fd).List().AppendMutable().Message()
			case fd.IsList():
				at.Mutable(fd).List().Append(anyScalar(fd))
			case fd.Message() != nil:
				inner = at.Mutable(fd).Message()
			default:
				at.Set(fd, anyScalar(fd))
			}
			_, warnings := validate.Object(&model.Config{Key: model.Key{Kind: kind, Namespace: "default", Name: "x"}, Spec: spec})
			effective := !slices.ContainsFunc(warnings, func(w field.Error) bool {
				return plain(w.Path) == where && slices.Contains(withoutEffect, w.Text)
			})
			claimed[fieldName(fd)] = effective || claimed[fieldName(fd)]
			if inner != nil && effective && depth < 8 && !outside(inner.Descriptor()) {
				walk(inner, where, depth+1)
			}
			at.Clear(fd)
		}
	}
	walk(spec.ProtoReflect(), "spec", 0)
}

// withoutEffect are the warnings that a field has no effect at all; other warnings concern related
// fields.
var withoutEffect = []string{
	"has no effect in this version",
	"is the form of older versions and has no effect: write consecutive5xxErrors or consecutiveGatewayErrors",
}

// plain returns the path of a field without indexes and keys.
func plain(path string) string {
	var out strings.Builder
	depth := 0
	for _, r := range path {
		switch {
		case r == '[':
			depth++
		case r == ']':
			depth--
		case depth == 0:
			out.WriteRune(r)
		}
	}
	return out.String()
}

// anyScalar returns a value other than the default.
func anyScalar(fd protoreflect.FieldDescriptor) protoreflect.Value {
	switch fd.Kind() {
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(true)
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(fd.Enum().Values().Get(fd.Enum().Values().Len() - 1).Number())
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(1)
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(1)
	case protoreflect.Uint32Kind:
		return protoreflect.ValueOfUint32(1)
	case protoreflect.Uint64Kind:
		return protoreflect.ValueOfUint64(1)
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64(1)
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes([]byte("x"))
	case protoreflect.StringKind:
		return protoreflect.ValueOfString("x")
	}
	panic(fmt.Sprint("no value of the kind ", fd.Kind()))
}
