// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package wasm

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	xdsv3 "github.com/cncf/xds/go/xds/type/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	wasmlogv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/wasm/v3"
	matchingv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/matching/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	wasmnetworkv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/wasm/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
)

func anyOf(t *testing.T, m proto.Message) *anypb.Any {
	t.Helper()
	a, err := anypb.New(m)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// jsonOf returns a message in JSON form, as in a TypedStruct.
func jsonOf(t *testing.T, m proto.Message) *anypb.Any {
	t.Helper()
	j, err := protojson.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	v := &structpb.Struct{}
	if err := protojson.Unmarshal(j, v); err != nil {
		t.Fatal(err)
	}
	return anyOf(t, &xdsv3.TypedStruct{TypeUrl: "type.googleapis.com/" + string(m.ProtoReflect().Descriptor().FullName()), Value: v})
}

// checkLocalCode checks that a module in this file is rejected with an error that contains want, or
// accepted if want is empty, wherever the configuration refers to it.
func checkLocalCode(t *testing.T, c *Cache, file, want string) {
	t.Helper()
	filter := pluginSpec{name: "p"}.want(file)
	manager := func(filter *anypb.Any) *hcmv3.HttpConnectionManager {
		return &hcmv3.HttpConnectionManager{HttpFilters: []*hcmv3.HttpFilter{{Name: "p", ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: filter}}}}
	}
	listener := func(config *anypb.Any) *anypb.Any {
		return anyOf(t, &listenerv3.Listener{FilterChains: []*listenerv3.FilterChain{{Filters: []*listenerv3.Filter{{
			ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: config},
		}}}}})
	}
	upstream := &httpv3.HttpProtocolOptions{HttpFilters: manager(anyOf(t, filter)).GetHttpFilters()}
	for place, resource := range map[string]*anypb.Any{
		"filter of a listener":            listener(anyOf(t, manager(anyOf(t, filter)))),
		"struct in a listener":            listener(anyOf(t, manager(jsonOf(t, filter)))),
		"connection manager as a struct":  listener(jsonOf(t, manager(anyOf(t, filter)))),
		"network filter":                  listener(anyOf(t, &wasmnetworkv3.Wasm{Config: filter.GetConfig()})),
		"access log":                      listener(anyOf(t, &wasmlogv3.WasmAccessLog{Config: filter.GetConfig()})),
		"upstream filter":                 anyOf(t, &clusterv3.Cluster{TypedExtensionProtocolOptions: map[string]*anypb.Any{"x": anyOf(t, upstream)}}),
		"network filter, as an extension": anyOf(t, &corev3.TypedExtensionConfig{Name: "p", TypedConfig: anyOf(t, &wasmnetworkv3.Wasm{Config: filter.GetConfig()})}),
		"filter with a matcher": anyOf(t, &corev3.TypedExtensionConfig{Name: "p", TypedConfig: anyOf(t, &matchingv3.ExtensionWithMatcher{
			ExtensionConfig: &corev3.TypedExtensionConfig{Name: "p", TypedConfig: anyOf(t, filter)},
		})}),
	} {
		response, err := proto.Marshal(&discoveryv3.DeltaDiscoveryResponse{Resources: []*discoveryv3.Resource{{Resource: resource}}})
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Check(response); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", place, err, want)
		}
	}
	for place, resource := range map[string][]byte{
		"extension":                 pack(t, "p", filter),
		"struct":                    marshalAny(t, &corev3.TypedExtensionConfig{Name: "p", TypedConfig: jsonOf(t, filter)}),
		"extension with a matcher":  pack(t, "p", &matchingv3.ExtensionWithMatcher{ExtensionConfig: &corev3.TypedExtensionConfig{Name: "p", TypedConfig: anyOf(t, filter)}}),
		"extension of a connection": pack(t, "p", &wasmnetworkv3.Wasm{Config: filter.GetConfig()}),
	} {
		o := c.Rewrite(t.Context(), [][]byte{resource})[0]
		if (o.Err == nil) != (want == "") || o.Err != nil && !strings.Contains(o.Err.Error(), want) {
			t.Errorf("%s: %v, want %q", place, o.Err, want)
		}
		if want != "" && strings.Contains(string(o.Resource), file) {
			t.Errorf("%s: Envoy receives the file", place)
		}
	}
}

// TestCheckPasses checks that text that names a Wasm extension without a local file is accepted.
func TestCheckPasses(t *testing.T) {
	t.Parallel()
	c := newCache(t, Config{})
	for name, m := range map[string]proto.Message{
		"discovered": &hcmv3.HttpFilter{Name: "p", ConfigType: &hcmv3.HttpFilter_ConfigDiscovery{ConfigDiscovery: &corev3.ExtensionConfigSource{
			TypeUrls: []string{"type.googleapis.com/" + wasmType},
		}}},
		"remote": anyOf(t, pluginSpec{name: "p", url: "https://example.com/m.wasm"}.wasm()),
	} {
		b, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Check(b); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestCheckOwnModule checks that a cached module, which is a local file of the last good
// configuration, is accepted.
func TestCheckOwnModule(t *testing.T) {
	t.Parallel()
	c := newCache(t, Config{})
	for name, want := range map[string]bool{filepath.Join(c.cfg.Dir, "m.wasm"): true, filepath.Join(t.TempDir(), "m.wasm"): false} {
		if err := os.WriteFile(name, []byte("module"), 0o600); err != nil {
			t.Fatal(err)
		}
		filter := pluginSpec{name: "p", url: "https://example.com/m.wasm"}.wasm()
		filter.Config.GetVmConfig().Code = &corev3.AsyncDataSource{Specifier: &corev3.AsyncDataSource_Local{Local: &corev3.DataSource{
			Specifier: &corev3.DataSource_Filename{Filename: name},
		}}}
		if err := c.Check(marshalAny(t, anyOf(t, filter))); (err == nil) != want {
			t.Errorf("%s: %v", name, err)
		}
	}
}
