// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package telemetry

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	uuidv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/request_id/uuid/v3"
	tracingv3 "github.com/envoyproxy/go-control-plane/envoy/type/tracing/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	telemetryv1alpha1 "istio.io/api/telemetry/v1alpha1"

	"github.com/outrigger-mesh/outrigger/bootstrap/meshconfig"
	"github.com/outrigger-mesh/outrigger/bootstrap/node"
	"github.com/outrigger-mesh/outrigger/controlplane/generate/envoyconf"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
)

// defaultSampling is the percentage of requests that are traced unless something sets another.
const defaultSampling = 1

// defaultTracing is the tracing of a ProxyConfig that sets none. It is never written to.
var defaultTracing = meshconfig.DefaultProxyConfig().GetTracing()

// tracing is the tracing of requests of one direction.
type tracing struct {
	on bool
	// provider is that of the API. Without one the tracer of the proxy's bootstrap is used.
	provider selection
	snapshot.Recorder
	// service is the name of the workload, for tracers that need it.
	service  string
	sampling float64
	longest  uint32 // of the path in a tag; 0 means Envoy's default
	// tags are by name.
	tags map[string]*tracingv3.CustomTag
	// plain leaves out Istio's own tags, ids makes ids of requests without a decision of sampling, and
	// silent sends no headers with the context.
	plain, ids, silent bool
	// follows is true if Envoy's own decision, by the request id, overrules a sampled parent of an
	// OpenTelemetry span.
	follows bool
}

// tracingOf merges the objects of a workload for one direction, in the order of their levels. What
// later ones set takes precedence. The own tracing is that of the ProxyConfig.
func tracingOf(mesh *meshv1alpha1.MeshConfig, own *meshv1alpha1.Tracing, levels []*snapshot.Telemetry, server bool) tracing {
	bootstrap, names := own != nil && !proto.Equal(own, defaultTracing), mesh.GetDefaultProviders().GetTracing()
	on := bootstrap && mesh.GetEnableTracing() || len(names) > 0
	if !on && len(levels) == 0 {
		return tracing{}
	}
	t := tracing{on: on, sampling: own.GetSampling(), longest: own.GetMaxPathTagLength(), tags: ownTags(own), plain: disabled(own.GetEnableIstioTags())}
	if !(t.sampling > 0) { // also NaN
		t.sampling = defaultSampling
	}
	t.sampling = min(t.sampling, 100)
	if len(names) > 0 {
		t.provider = selection{name: names[0], at: "defaultProviders.tracing[0]"}
	}
	off := false
	for _, level := range levels {
		for i, entry := range level.Spec.GetTracing() {
			if ofClient, ofServer := modes(entry.GetMatch().GetMode()); server && !ofServer || !server && !ofClient {
				continue
			}
			if p := entry.GetProviders(); len(p) > 0 {
				t.on, t.provider = true, selection{name: p[0].GetName(), by: level, at: fmt.Sprintf("spec.tracing[%d].providers[0].name", i)}
			}
			t.on = t.on || bootstrap
			if v := entry.GetRandomSamplingPercentage(); v != nil {
				t.sampling = v.GetValue()
			}
			if v := entry.GetDisableSpanReporting(); v != nil {
				off = v.GetValue()
			}
			if v := entry.GetEnableIstioTags(); v != nil {
				t.plain = !v.GetValue()
			}
			if v := entry.GetUseRequestIdForTraceSampling(); v != nil {
				t.ids = !v.GetValue()
			}
			if v := entry.GetDisableContextPropagation(); v != nil {
				t.silent = v.GetValue()
			}
			if tags := entry.GetCustomTags(); len(tags) > 0 {
				t.tags = objectTags(tags)
			}
		}
	}
	if off || !t.on {
		return tracing{}
	}
	return t
}

func disabled(v *wrapperspb.BoolValue) bool { return v != nil && !v.GetValue() }

// normal completes tracing with what depends on the proxy.
func (t tracing) normal(proxy *model.Proxy) tracing {
	if !t.on {
		return tracing{}
	}
	switch t.Provider.GetProvider().(type) {
	case nil, *meshv1alpha1.MeshConfig_ExtensionProvider_Zipkin, *meshv1alpha1.MeshConfig_ExtensionProvider_Skywalking:
		return t // Envoy uses the name of its node
	}
	name, _, _ := strings.Cut(proxy.ID, ".")
	t.service = cmp.Or(proxy.OwnLabels()["app"], name) + "." + proxy.Namespace
	t.follows = atLeast(proxy.Envoy, 39) && !t.ids
	return t
}

// key returns a text that differs between different tracing, apart from the mesh config.
func (t tracing) key() string {
	if !t.on {
		return "-"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%q%s%s%q%v/%d/%t%t%t", t.provider.name, reachedKey(t.Reached), reachedKey(t.Sampler), t.service, t.sampling, t.longest, t.plain, t.ids, t.silent)
	for _, name := range slices.Sorted(maps.Keys(t.tags)) {
		text, _ := proto.MarshalOptions{Deterministic: true}.Marshal(t.tags[name]) // fails only for invalid UTF-8, which the decoder rejects
		fmt.Fprintf(&b, "%q", text)
	}
	return b.String()
}

// messages returns the settings of connection managers.
func (t tracing) messages(e Effective) (*hcmv3.HttpConnectionManager_Tracing, *hcmv3.RequestIDExtension) {
	if !t.on {
		return nil, nil
	}
	all := &typev3.Percent{Value: 100}
	out := &hcmv3.HttpConnectionManager_Tracing{
		ClientSampling: all, OverallSampling: all, RandomSampling: &typev3.Percent{Value: t.sampling},
		CustomTags: t.customTags(e.mesh, e.envoy), NoContextPropagation: t.silent,
	}
	if t.longest > 0 {
		out.MaxPathTagLength = wrapperspb.UInt32(t.longest)
	}
	if samples := t.Provider != nil && t.configure(out); !samples && !t.ids {
		return out, nil
	}
	return out, &hcmv3.RequestIDExtension{TypedConfig: envoyconf.Pack(&uuidv3.UuidRequestIdConfig{UseRequestIdForTraceSampling: wrapperspb.Bool(false)})}
}

// customTags returns the tags of spans, sorted by name.
func (t tracing) customTags(mesh *meshv1alpha1.MeshConfig, envoy support) (out []*tracingv3.CustomTag) {
	tags := map[string]*tracingv3.CustomTag{}
	if !t.plain {
		for name, variable := range map[string]string{
			"istio.canonical_service": node.SelfService, "istio.canonical_revision": node.SelfRevision,
			"istio.namespace": node.SelfNamespace, "istio.cluster_id": node.SelfCluster,
		} {
			tags[name] = environmentTag(name, variable, node.Unknown)
		}
		id := cmp.Or(mesh.GetDefaultConfig().GetMeshId(), mesh.GetTrustDomain(), node.Unknown)
		tags["istio.mesh_id"] = literalTag("istio.mesh_id", id)
	}
	maps.Copy(tags, t.tags)
	for _, name := range slices.Sorted(maps.Keys(tags)) {
		if _, formatted := tags[name].GetType().(*tracingv3.CustomTag_Value); !formatted || envoy != none { // 1.36 would refuse it
			out = append(out, tags[name])
		}
	}
	return out
}

func literalTag(name, value string) *tracingv3.CustomTag {
	return &tracingv3.CustomTag{Tag: name, Type: &tracingv3.CustomTag_Literal_{Literal: &tracingv3.CustomTag_Literal{Value: value}}}
}

func environmentTag(name, variable, otherwise string) *tracingv3.CustomTag {
	return &tracingv3.CustomTag{Tag: name, Type: &tracingv3.CustomTag_Environment_{Environment: &tracingv3.CustomTag_Environment{Name: variable, DefaultValue: otherwise}}}
}

func headerTag(name, header, otherwise string) *tracingv3.CustomTag {
	return &tracingv3.CustomTag{Tag: name, Type: &tracingv3.CustomTag_RequestHeader{RequestHeader: &tracingv3.CustomTag_Header{Name: header, DefaultValue: otherwise}}}
}

// ownTags returns the tags of the ProxyConfig.
func ownTags(own *meshv1alpha1.Tracing) map[string]*tracingv3.CustomTag {
	out := map[string]*tracingv3.CustomTag{}
	for name, tag := range own.GetCustomTags() {
		switch v := tag.GetType().(type) {
		case *meshv1alpha1.Tracing_CustomTag_Literal:
			out[name] = literalTag(name, v.Literal.GetValue())
		case *meshv1alpha1.Tracing_CustomTag_Environment:
			out[name] = environmentTag(name, v.Environment.GetName(), v.Environment.GetDefaultValue())
		case *meshv1alpha1.Tracing_CustomTag_Header:
			out[name] = headerTag(name, v.Header.GetName(), v.Header.GetDefaultValue())
		}
	}
	return usable(out)
}

// objectTags returns the tags of an object.
func objectTags(tags map[string]*telemetryv1alpha1.Tracing_CustomTag) map[string]*tracingv3.CustomTag {
	out := make(map[string]*tracingv3.CustomTag, len(tags))
	for name, tag := range tags {
		switch v := tag.GetType().(type) {
		case *telemetryv1alpha1.Tracing_CustomTag_Literal:
			out[name] = literalTag(name, v.Literal.GetValue())
		case *telemetryv1alpha1.Tracing_CustomTag_Environment:
			out[name] = environmentTag(name, v.Environment.GetName(), v.Environment.GetDefaultValue())
		case *telemetryv1alpha1.Tracing_CustomTag_Header:
			out[name] = headerTag(name, v.Header.GetName(), v.Header.GetDefaultValue())
		case *telemetryv1alpha1.Tracing_CustomTag_Formatter:
			out[name] = &tracingv3.CustomTag{Tag: name, Type: &tracingv3.CustomTag_Value{Value: v.Formatter.GetValue()}}
		}
	}
	return usable(out)
}

// usable leaves out the tags that Envoy would refuse.
func usable(tags map[string]*tracingv3.CustomTag) map[string]*tracingv3.CustomTag {
	maps.DeleteFunc(tags, func(_ string, tag *tracingv3.CustomTag) bool { return tag.ValidateAll() != nil })
	return tags
}
