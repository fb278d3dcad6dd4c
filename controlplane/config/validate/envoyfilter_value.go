// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package validate

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"github.com/outrigger-mesh/outrigger/controlplane/config/field"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
)

// patchTypes are the messages of Envoy that a patch holds. It is never
// written to.
var patchTypes = map[networkingv1alpha3.EnvoyFilter_ApplyTo]proto.Message{
	networkingv1alpha3.EnvoyFilter_LISTENER:            (*listenerv3.Listener)(nil),
	networkingv1alpha3.EnvoyFilter_FILTER_CHAIN:        (*listenerv3.FilterChain)(nil),
	networkingv1alpha3.EnvoyFilter_LISTENER_FILTER:     (*listenerv3.ListenerFilter)(nil),
	networkingv1alpha3.EnvoyFilter_NETWORK_FILTER:      (*listenerv3.Filter)(nil),
	networkingv1alpha3.EnvoyFilter_HTTP_FILTER:         (*hcmv3.HttpFilter)(nil),
	networkingv1alpha3.EnvoyFilter_ROUTE_CONFIGURATION: (*routev3.RouteConfiguration)(nil),
	networkingv1alpha3.EnvoyFilter_VIRTUAL_HOST:        (*routev3.VirtualHost)(nil),
	networkingv1alpha3.EnvoyFilter_HTTP_ROUTE:          (*routev3.Route)(nil),
	networkingv1alpha3.EnvoyFilter_CLUSTER:             (*clusterv3.Cluster)(nil),
	networkingv1alpha3.EnvoyFilter_EXTENSION_CONFIG:    (*corev3.TypedExtensionConfig)(nil),
	networkingv1alpha3.EnvoyFilter_BOOTSTRAP:           (*bootstrapv3.Bootstrap)(nil),
}

// PatchMessage returns the message of Envoy that the value of a patch is: the
// type follows from what the patch applies to, and in it from each @type.
// Fields that the types do not have are left out.
func PatchMessage(applyTo networkingv1alpha3.EnvoyFilter_ApplyTo, value *structpb.Struct) (proto.Message, error) {
	return patchMessage(applyTo, value, protojson.UnmarshalOptions{DiscardUnknown: true})
}

func patchMessage(applyTo networkingv1alpha3.EnvoyFilter_ApplyTo, value *structpb.Struct, o protojson.UnmarshalOptions) (proto.Message, error) {
	kind, ok := patchTypes[applyTo]
	if !ok {
		return nil, fmt.Errorf("the value of applyTo is unknown: %s", applyTo)
	}
	m := kind.ProtoReflect().New().Interface()
	err := unmarshalValue(value, m, o)
	if err != nil && strings.Contains(err.Error(), durationName) {
		value = proto.CloneOf(value)
		canonicalDurations(value, m.ProtoReflect().Descriptor())
		err = unmarshalValue(value, m, o)
	}
	return m, err
}

func unmarshalValue(value *structpb.Struct, m proto.Message, o protojson.UnmarshalOptions) error {
	raw, err := protojson.Marshal(value)
	if err != nil {
		return err
	}
	return o.Unmarshal(raw, m)
}

const durationName = "google.protobuf.Duration"

// canonicalDurations writes the durations of a message as protobuf requires them: Istio also accepts
// those of Go, such as 500ms and 1m30s.
func canonicalDurations(value *structpb.Struct, d protoreflect.MessageDescriptor) {
	if d.FullName() == "google.protobuf.Any" {
		message, err := protoregistry.GlobalTypes.FindMessageByURL(value.GetFields()["@type"].GetStringValue())
		if err != nil {
			return
		}
		d = message.Descriptor()
	}
	for name, member := range value.GetFields() {
		fd := cmp.Or(d.Fields().ByJSONName(name), d.Fields().ByTextName(name))
		switch {
		case fd == nil:
			continue
		case fd.IsMap():
			fd = fd.MapValue()
			for _, entry := range member.GetStructValue().GetFields() {
				canonicalDuration(entry, fd.Message())
			}
		case fd.IsList():
			for _, entry := range member.GetListValue().GetValues() {
				canonicalDuration(entry, fd.Message())
			}
		default:
			canonicalDuration(member, fd.Message())
		}
	}
}

func canonicalDuration(v *structpb.Value, d protoreflect.MessageDescriptor) {
	switch text, isText := v.GetKind().(*structpb.Value_StringValue); {
	case d == nil:
	case isText && d.FullName() == durationName:
		if span, err := time.ParseDuration(text.StringValue); err == nil {
			text.StringValue = strconv.FormatFloat(span.Seconds(), 'f', -1, 64) + "s"
		}
	case v.GetStructValue() != nil:
		canonicalDurations(v.GetStructValue(), d)
	}
}

// patchValue checks that a value is configuration of Envoy.
func (c *checker) patchValue(p *networkingv1alpha3.EnvoyFilter_EnvoyConfigObjectPatch, path string) {
	kind, ok := patchTypes[p.GetApplyTo()]
	if !ok {
		return // a missing applyTo, which has its own fault
	}
	m, err := PatchMessage(p.GetApplyTo(), p.GetPatch().GetValue())
	types := &typeWalk{checker: c, report: c.errorf}
	if err == nil {
		types.report = c.warnf // unknown types are inside unknown fields only
	}
	root := &structpb.Value{Kind: &structpb.Value_StructValue{StructValue: p.GetPatch().GetValue()}}
	types.visit(root, path)
	name := kind.ProtoReflect().Descriptor().FullName()
	switch {
	case err != nil && types.unknown:
		return // what cannot be found cannot be decoded
	case err != nil:
		c.errorf(path, "is not a %s, which applyTo: %s requires: %s", name, p.GetApplyTo(), JSONReason(err))
		return
	}
	if _, err := patchMessage(p.GetApplyTo(), p.GetPatch().GetValue(), protojson.UnmarshalOptions{}); err != nil && (strings.Contains(err.Error(), "invalid value for enum") || strings.Contains(err.Error(), `missing "@type" field`)) {
		c.errorf(path, "is not a %s, which applyTo: %s requires: %s", name, p.GetApplyTo(), JSONReason(err))
	} else {
		if err != nil {
			c.warnf(path, "has fields that %s does not have; they are ignored: %s", name, JSONReason(err))
		}
		c.untyped(m.ProtoReflect(), path)
	}
	if adds(p.GetPatch().GetOperation()) {
		c.filtersWithoutType(m.ProtoReflect(), path)
	}
}

// untyped refuses an Any without @type.
func (c *checker) untyped(m protoreflect.Message, path string) {
	if packed, ok := m.Interface().(*anypb.Any); ok {
		inner, err := packed.UnmarshalNew()
		if packed.GetTypeUrl() == "" {
			c.errorf(path, "has no @type: write the type of the configuration")
		} else if err == nil {
			c.untyped(inner.ProtoReflect(), path)
		}
		return
	}
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		at := path + "." + fd.TextName()
		switch {
		case fd.IsMap():
			if fd.MapValue().Message() != nil {
				v.Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
					c.untyped(v.Message(), field.Key(at, k.String()))
					return true
				})
			}
		case fd.Message() == nil:
		case fd.IsList():
			for i := range v.List().Len() {
				c.untyped(v.List().Get(i).Message(), field.Index(at, i))
			}
		default:
			c.untyped(v.Message(), at)
		}
		return true
	})
}

// adds reports whether a value stands for itself, not for a part of what is
// there.
func adds(o networkingv1alpha3.EnvoyFilter_Patch_Operation) bool {
	return o != networkingv1alpha3.EnvoyFilter_Patch_MERGE && o != networkingv1alpha3.EnvoyFilter_Patch_REMOVE
}

// JSONReason returns an error of protojson without what it says of itself. Its
// position is one in JSON that nobody sees.
func JSONReason(err error) string {
	text := strings.ReplaceAll(err.Error(), "\u00a0", " ")
	text = strings.TrimPrefix(strings.TrimPrefix(text, "proto: "), "syntax error ")
	if rest, ok := strings.CutPrefix(text, "("); ok && strings.HasPrefix(rest, "line ") {
		_, text, _ = strings.Cut(rest, "): ")
	}
	return text
}

// typeWalk looks up the @type of each object in a value.
type typeWalk struct {
	*checker
	// report takes the types that are unknown.
	report  func(path, format string, args ...any)
	unknown bool
}

func (w *typeWalk) visit(v *structpb.Value, path string) {
	switch k := v.GetKind().(type) {
	case *structpb.Value_StructValue:
		fields := k.StructValue.GetFields()
		if url, ok := fields["@type"].GetKind().(*structpb.Value_StringValue); ok {
			w.typeURL(url.StringValue, path+".@type")
		}
		for name, member := range field.Sorted(fields) {
			if name == "envoy_grpc" || name == "envoyGrpc" {
				w.authority(member.GetStructValue().GetFields(), path+"."+name)
			}
			w.visit(member, path+"."+field.Clip(name, field.MaxKeyText))
		}
	case *structpb.Value_ListValue:
		for i, item := range k.ListValue.GetValues() {
			w.visit(item, field.Index(path, i))
		}
	}
}

// authority warns of a gRPC service that gets the name of a cluster as the host of its requests.
func (w *typeWalk) authority(service map[string]*structpb.Value, path string) {
	cluster := cmp.Or(service["cluster_name"].GetStringValue(), service["clusterName"].GetStringValue())
	if service["authority"].GetStringValue() == "" && strings.Contains(cluster, "|") {
		w.warnf(path+".authority", "is missing: the host of its requests is then %s, which servers refuse because of the |; write the host", field.Quote(cluster))
	}
}

func (w *typeWalk) typeURL(url, path string) {
	message, err := protoregistry.GlobalTypes.FindMessageByURL(url)
	if err != nil || !strings.Contains(url, "/") {
		w.unknown = true
		report := w.report
		if err == nil {
			report = w.errorf // JSON takes the name alone, Envoy does not
		}
		if oldAPI(url) {
			report(path, "is %s, of Envoy's API v2, which no supported Envoy reads: write the type of API v3", field.Quote(url))
			return
		}
		hint := ""
		if use := ServedBy(url); use != "" {
			hint = ": " + use
		} else if !w.full() {
			hint = nearestType(url)
		}
		report(path, "is %s, which is not a type of Envoy's API%s", field.Quote(url), hint)
		return
	}
	options, ok := message.Descriptor().Options().(*descriptorpb.MessageOptions)
	if ok && options.GetDeprecated() || oldAPI(url) {
		w.warnf(path, "is %s, which is deprecated: write its successor", field.Quote(url))
	}
}

// oldAPI reports whether a type is of Envoy's API v2.
func oldAPI(url string) bool {
	_, name, _ := strings.Cut(url, "/")
	parts := strings.Split(name, ".")
	return len(parts) > 2 && parts[0] == "envoy" && slices.ContainsFunc(parts, func(p string) bool {
		return p == "v2" || p == "v1" || strings.HasPrefix(p, "v2alpha")
	})
}

// nearestType offers the type that may be meant: one of the same last name,
// or one whose name is a few letters away.
func nearestType(url string) string {
	_, name, ok := strings.Cut(url, "/")
	if !ok {
		return ": write type.googleapis.com/ before the name"
	}
	last := name[strings.LastIndexByte(name, '.')+1:]
	best, most := "", field.MostEdits+1
	protoregistry.GlobalTypes.RangeMessages(func(m protoreflect.MessageType) bool {
		full := string(m.Descriptor().FullName())
		if !strings.HasPrefix(full, "envoy.") {
			return true
		}
		d := field.Edits(name, full)
		if d >= most && string(m.Descriptor().Name()) == last {
			d = field.MostEdits
		}
		if d < most || d == most && best != "" && full < best {
			best, most = full, d
		}
		return true
	})
	if best == "" {
		return ": look it up in the documentation of the extension"
	}
	return ": did you mean \"type.googleapis.com/" + best + "\"?"
}

// filtersWithoutType warns of filters that are named and not configured:
// Envoy finds a filter by the type of its configuration, no longer by name.
func (c *checker) filtersWithoutType(m protoreflect.Message, path string) {
	switch f := m.Interface().(type) {
	case *listenerv3.Filter:
		c.filterName(f.GetName(), path+".name")
		c.filterType(f.GetConfigType() != nil, f.GetName(), path)
	case *listenerv3.ListenerFilter:
		c.filterName(f.GetName(), path+".name")
		c.filterType(f.GetConfigType() != nil, f.GetName(), path)
	case *hcmv3.HttpFilter:
		c.filterName(f.GetName(), path+".name")
		c.filterType(f.GetConfigType() != nil, f.GetName(), path)
	}
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case fd.Message() == nil || fd.IsMap():
		case fd.IsList():
			for i := range v.List().Len() {
				c.filtersInside(v.List().Get(i).Message(), field.Index(path+"."+fd.TextName(), i))
			}
		default:
			c.filtersInside(v.Message(), path+"."+fd.TextName())
		}
		return true
	})
}

// filtersInside looks into an Any as well.
func (c *checker) filtersInside(m protoreflect.Message, path string) {
	if any, ok := m.Interface().(interface{ UnmarshalNew() (proto.Message, error) }); ok {
		if inner, err := any.UnmarshalNew(); err == nil {
			m = inner.ProtoReflect()
		}
	}
	c.filtersWithoutType(m, path)
}

func (c *checker) filterType(typed bool, name, path string) {
	if !typed {
		c.warnf(path, "is the filter %s without typed_config: Envoy identifies it by the type of its configuration; write typed_config with @type", field.Quote(name))
	}
}
