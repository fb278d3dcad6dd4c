// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package wasm

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	udpav1 "github.com/cncf/xds/go/udpa/type/v1"
	xdsv3 "github.com/cncf/xds/go/xds/type/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	rbacconfigv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	wasmfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/wasm/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/outrigger-mesh/outrigger/xdsproxy/wire"
)

// hints are environment variables of which all but one are hints to the agent.
func hints() map[string]string {
	return map[string]string{
		hintPullPolicy: "IfNotPresent", hintVersion: "17", hintPullSecret: "{}", hintPrefix + "OTHER": "x", "GREETING": "hello",
	}
}

// want is the expected rewritten plugin.
func (s pluginSpec) want(filename string) *wasmfilterv3.Wasm {
	w := s.wasm()
	vm := w.GetConfig().GetVmConfig()
	vm.Code = &corev3.AsyncDataSource{Specifier: &corev3.AsyncDataSource_Local{Local: &corev3.DataSource{
		Specifier: &corev3.DataSource_Filename{Filename: filename},
	}}}
	for k := range vm.GetEnvironmentVariables().GetKeyValues() {
		if strings.HasPrefix(k, hintPrefix) {
			delete(vm.GetEnvironmentVariables().GetKeyValues(), k)
		}
	}
	if len(vm.GetEnvironmentVariables().GetKeyValues()) == 0 && len(vm.GetEnvironmentVariables().GetHostEnvKeys()) == 0 {
		vm.EnvironmentVariables = nil
	}
	return w
}

func TestRewrite(t *testing.T) {
	t.Parallel()
	module := testModule("x", "y")
	server := serveBytes(t, module)
	onlyHints := map[string]string{hintVersion: "3"}
	for name, env := range map[string]map[string]string{"none": nil, "only hints": onlyHints, "mixed": hints()} {
		s := pluginSpec{name: "ns.plugin", url: server.URL + "/m.wasm", sha256: sum(module), env: env}
		file := func(c *Cache) string {
			return filepath.Join(c.cfg.Dir, digest(s.url), sum(module)+".wasm")
		}
		t.Run("native/"+name, func(t *testing.T) {
			t.Parallel()
			c := newCache(t, Config{})
			o := c.Rewrite(t.Context(), [][]byte{s.resource(t)})[0]
			if o.Err != nil || o.Name != s.name {
				t.Fatalf("outcome %+v", o)
			}
			got := &wasmfilterv3.Wasm{}
			if n := unpack(t, o.Resource, got); n != s.name {
				t.Errorf("name %q", n)
			}
			if d := cmp.Diff(s.want(file(c)), got, protocmp.Transform()); d != "" {
				t.Error(d)
			}
			if string(readFile(t, file(c))) != string(module) {
				t.Error("the file is not the module")
			}
		})
		for _, udpa := range []bool{true, false} {
			t.Run("struct/"+name, func(t *testing.T) {
				t.Parallel()
				c := newCache(t, Config{})
				o := c.Rewrite(t.Context(), [][]byte{s.structured(t, udpa)})[0]
				if o.Err != nil {
					t.Fatal(o.Err)
				}
				if d := cmp.Diff(s.want(file(c)), openStruct(t, o.Resource, udpa), protocmp.Transform()); d != "" {
					t.Error(d)
				}
			})
		}
	}
}

// openStruct decodes the plugin in a TypedStruct strictly, like Envoy.
func openStruct(t *testing.T, resource []byte, udpa bool) *wasmfilterv3.Wasm {
	t.Helper()
	var url string
	var v *structpb.Struct
	if udpa {
		m := &udpav1.TypedStruct{}
		unpack(t, resource, m)
		url, v = m.GetTypeUrl(), m.GetValue()
	} else {
		m := &xdsv3.TypedStruct{}
		unpack(t, resource, m)
		url, v = m.GetTypeUrl(), m.GetValue()
	}
	if messageName(url) != wasmType {
		t.Errorf("type %q", url)
	}
	j, err := protojson.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	w := &wasmfilterv3.Wasm{}
	if err := protojson.Unmarshal(j, w); err != nil {
		t.Fatalf("%v in %s", err, j)
	}
	return w
}

func TestRewriteLeavesAlone(t *testing.T) {
	t.Parallel()
	inline := pluginSpec{name: "p"}.wasm()
	inline.GetConfig().GetVmConfig().Code = &corev3.AsyncDataSource{Specifier: &corev3.AsyncDataSource_Local{
		Local: &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{InlineBytes: testModule("x", "y")}},
	}}
	cases := map[string][]byte{
		"another filter": pack(t, "router", &routerv3.Router{SuppressEnvoyHeaders: true}),
		"inline code":    pack(t, "p", inline),
		"struct of another filter": pack(t, "x", &xdsv3.TypedStruct{
			TypeUrl: "type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua",
		}),
		"no configuration": marshalAny(t, &corev3.TypedExtensionConfig{Name: "empty"}),
	}
	for name, b := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newCache(t, Config{}).Rewrite(t.Context(), [][]byte{b})[0]
			if o.Err != nil || !cmp.Equal(o.Resource, b) {
				t.Errorf("outcome %+v", o)
			}
		})
	}
}

func TestRewriteStripsHintsOfLocalCode(t *testing.T) {
	t.Parallel()
	s := pluginSpec{name: "p"}
	dir := t.TempDir()
	file := filepath.Join(dir, "m.wasm")
	if err := os.WriteFile(file, testModule("x", "y"), 0o600); err != nil {
		t.Fatal(err)
	}
	w := s.want(file)
	withHints := proto.CloneOf(w)
	withHints.GetConfig().GetVmConfig().EnvironmentVariables = pluginSpec{env: hints()}.wasm().GetConfig().GetVmConfig().GetEnvironmentVariables()
	o := newCache(t, Config{FileDir: dir}).Rewrite(t.Context(), [][]byte{pack(t, "p", withHints)})[0]
	if o.Err != nil {
		t.Fatal(o.Err)
	}
	got := &wasmfilterv3.Wasm{}
	unpack(t, o.Resource, got)
	env := got.GetConfig().GetVmConfig().GetEnvironmentVariables().GetKeyValues()
	if d := cmp.Diff(map[string]string{"GREETING": "hello"}, env); d != "" {
		t.Error(d)
	}
}

// TestRewriteKeepsUnknownFields adds an unknown field to each message that is rewritten.
func TestRewriteKeepsUnknownFields(t *testing.T) {
	t.Parallel()
	module := testModule("x", "y")
	s := pluginSpec{name: "p", url: serveBytes(t, module).URL, env: hints()}
	unknown := protowire.AppendVarint(protowire.AppendTag(nil, 1999, protowire.VarintType), 7)
	w := s.wasm()
	for _, m := range []proto.Message{w, w.GetConfig(), w.GetConfig().GetVmConfig(), w.GetConfig().GetVmConfig().GetEnvironmentVariables()} {
		m.ProtoReflect().SetUnknown(unknown)
	}
	o := newCache(t, Config{}).Rewrite(t.Context(), [][]byte{pack(t, "p", w)})[0]
	if o.Err != nil {
		t.Fatal(o.Err)
	}
	got := &wasmfilterv3.Wasm{}
	unpack(t, o.Resource, got)
	for _, m := range []proto.Message{got, got.GetConfig(), got.GetConfig().GetVmConfig(), got.GetConfig().GetVmConfig().GetEnvironmentVariables()} {
		if !cmp.Equal([]byte(m.ProtoReflect().GetUnknown()), unknown) {
			t.Errorf("%T lost a field", m)
		}
	}
}

func TestRewriteFailures(t *testing.T) {
	t.Parallel()
	missing := "http://127.0.0.1:1/m.wasm"
	server := serve(t, http.NotFoundHandler())
	open := pluginSpec{name: "open", url: server.URL, failOpen: true}
	noCode := open.wasm()
	noCode.GetConfig().GetVmConfig().Code = nil
	policy := pluginSpec{name: "open", url: server.URL}.wasm()
	policy.GetConfig().FailurePolicy = 3 // FAIL_OPEN
	cases := map[string]struct {
		resource []byte
		fallback Fallback
		err      string
	}{
		"closed":         {pluginSpec{name: "p", url: server.URL}.resource(t), Denied, "404"},
		"open":           {open.resource(t), Opened, "404"},
		"open by policy": {pack(t, "open", policy), Opened, "404"},
		"open, struct":   {open.structured(t, true), Opened, "404"},
		"no code":        {pack(t, "open", noCode), Opened, "neither remote nor local"},
		"empty secret": {
			pluginSpec{name: "p", url: "oci://r.example/x", env: map[string]string{hintPullSecret: ""}}.resource(t), Denied,
			"pull secret is empty",
		},
		"no secret": {
			pluginSpec{name: "p", url: "oci://r.example/x", env: map[string]string{hintPullSecret: "null"}}.resource(t), Denied,
			"pull secret does not exist",
		},
		"scheme":       {pluginSpec{name: "p", url: "ftp://r.example/x"}.resource(t), Denied, `scheme "ftp"`},
		"no host":      {pluginSpec{name: "p", url: "http:///x"}.resource(t), Denied, "names no host"},
		"sha256":       {pluginSpec{name: "p", url: server.URL, sha256: "12"}.resource(t), Denied, "64 hexadecimal digits"},
		"loopback":     {pluginSpec{name: "p", url: missing}.resource(t), Denied, "refused"},
		"another type": {marshalAny(t, &routerv3.Router{}), Withheld, "is a envoy.extensions.filters.http.router.v3.Router"},
		"garbage":      {[]byte("\xff\xff\xff"), Withheld, "not such a protobuf message"},
		"bad plugin": {marshalAny(t, &corev3.TypedExtensionConfig{Name: "p", TypedConfig: &anypb.Any{
			TypeUrl: "type.googleapis.com/" + wasmType, Value: []byte("\x0a\xff"),
		}}), Withheld, "not such a protobuf message"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			good := testModule("x", "y")
			beside := pluginSpec{name: "good", url: serveBytes(t, good).URL}
			c := newCache(t, Config{})
			os := c.Rewrite(t.Context(), [][]byte{tc.resource, beside.resource(t)})
			if os[1].Err != nil || os[1].Resource == nil {
				t.Errorf("the valid plugin is affected: %+v", os[1])
			}
			o := os[0]
			if o.Fallback != tc.fallback || (tc.err == "") != (o.Err == nil) || o.Err != nil && !strings.Contains(o.Err.Error(), tc.err) {
				t.Fatalf("fallback %q, error %v", o.Fallback, o.Err)
			}
			switch tc.fallback {
			case Opened:
				rbac := &rbacv3.RBAC{}
				if n := unpack(t, o.Resource, rbac); n != "open" || !proto.Equal(rbac, &rbacv3.RBAC{}) {
					t.Errorf("name %q, filter %v", n, rbac)
				}
			case Denied:
				rbac := &rbacv3.RBAC{}
				if n := unpack(t, o.Resource, rbac); n != "p" || !proto.Equal(rbac, &rbacv3.RBAC{Rules: &rbacconfigv3.RBAC{}}) {
					t.Errorf("name %q, filter %v", n, rbac)
				}
			case Withheld:
				if o.Resource != nil {
					t.Error("something is sent")
				}
			}
		})
	}
}

// TestRepeatedMessages uses a plugin that is split into hundreds of thousands of occurrences.
// Merging them must not take quadratic time.
func TestRepeatedMessages(t *testing.T) {
	t.Parallel()
	const pieces = 300_000
	body := wire.Append(nil, wire.ExtensionName, "p")
	var config []byte
	for range pieces {
		config = wire.Append(config, 1, wire.Append(nil, 1, "x")) // Wasm.config
	}
	for range pieces {
		body = wire.Append(body, wire.ExtensionConfig, wire.Append(nil, wire.AnyTypeURL, "type.googleapis.com/"+wasmType))
	}
	body = wire.Append(body, wire.ExtensionConfig, wire.Append(nil, wire.AnyValue, config))
	o := newCache(t, Config{}).Rewrite(t.Context(), [][]byte{newAny(extensionType, body)})[0]
	if !errors.Is(o.Err, errNoCode) {
		t.Errorf("error %v", o.Err)
	}
}

// TestKept uses a plugin that works, followed by one with the same name that does not.
func TestKept(t *testing.T) {
	t.Parallel()
	module := testModule("x", "y")
	c := newCache(t, Config{})
	first := c.Rewrite(t.Context(), [][]byte{pluginSpec{name: "p", url: serveBytes(t, module).URL}.resource(t)})[0]
	broken := [][]byte{pluginSpec{name: "p", url: serveBytes(t, []byte("no module")).URL}.resource(t)}
	o := c.Rewrite(t.Context(), broken)[0]
	if o.Fallback != Kept || !cmp.Equal(o.Resource, first.Resource) || o.Err == nil {
		t.Errorf("outcome %+v", o)
	}
	w := &wasmfilterv3.Wasm{}
	unpack(t, first.Resource, w)
	if err := os.Remove(w.GetConfig().GetVmConfig().GetCode().GetLocal().GetFilename()); err != nil {
		t.Fatal(err)
	}
	if o := c.Rewrite(t.Context(), broken)[0]; o.Fallback != Denied {
		t.Errorf("without the file: %+v", o)
	}
}

func TestRewriteResponse(t *testing.T) {
	t.Parallel()
	module := testModule("x", "y")
	good := pluginSpec{name: "good", url: serveBytes(t, module).URL}
	bad := pluginSpec{name: "bad", url: serveBytes(t, nil).URL}
	any1, any2 := &anypb.Any{}, &anypb.Any{}
	for b, a := range map[*anypb.Any][]byte{any1: bad.resource(t), any2: good.resource(t)} {
		if err := proto.Unmarshal(a, b); err != nil {
			t.Fatal(err)
		}
	}
	wrapped, err := anypb.New(&discoveryv3.Resource{Name: "good", Version: "7", Resource: any2})
	if err != nil {
		t.Fatal(err)
	}
	sotw := &discoveryv3.DiscoveryResponse{VersionInfo: "1", Nonce: "n", TypeUrl: "t", Resources: []*anypb.Any{any1, any2, wrapped}}
	b, err := proto.Marshal(sotw)
	if err != nil {
		t.Fatal(err)
	}
	reg := prometheus.NewRegistry()
	c := newCache(t, Config{Registerer: reg})
	r := c.RewriteResponse(t.Context(), b, false)
	got := &discoveryv3.DiscoveryResponse{}
	if err := proto.Unmarshal(r.Frame, got); err != nil {
		t.Fatal(err)
	}
	if len(r.Failures) != 1 || r.Failures[0].Name != "bad" || !strings.Contains(r.Reason(), "denied") {
		t.Errorf("failures %+v", r.Failures)
	}
	if len(got.GetResources()) != 3 || got.GetNonce() != "n" || got.GetVersionInfo() != "1"+incomplete || got.GetTypeUrl() != "t" {
		t.Fatalf("response %v", got)
	}
	inner := &discoveryv3.Resource{}
	if err := got.GetResources()[2].UnmarshalTo(inner); err != nil || inner.GetVersion() != "7" || !proto.Equal(inner.GetResource(), got.GetResources()[1]) {
		t.Errorf("wrapped resource %v, error %v", inner, err)
	}
	delta := &discoveryv3.DeltaDiscoveryResponse{Nonce: "n", Resources: []*discoveryv3.Resource{
		{Name: "bad", Version: "1", Resource: any1}, {Name: "good", Version: "2", Resource: any2},
	}}
	if b, err = proto.Marshal(delta); err != nil {
		t.Fatal(err)
	}
	gotDelta := &discoveryv3.DeltaDiscoveryResponse{}
	r = c.RewriteResponse(t.Context(), b, true)
	if err := proto.Unmarshal(r.Frame, gotDelta); err != nil {
		t.Fatal(err)
	}
	all := gotDelta.GetResources()
	if len(all) != 2 || all[0].GetVersion() != "1"+incomplete || all[1].GetVersion() != "2" || len(r.Failures) != 1 {
		t.Errorf("response %v, failures %v", gotDelta, r.Failures)
	}
	wantCount(t, reg, "istio_agent_wasm_config_conversion_count", "success", 3)
	wantCount(t, reg, "istio_agent_wasm_config_conversion_count", "fetch_failure", 2)
	wantCount(t, reg, "outrigger_agent_wasm_fallback_total", "denied", 2)
	wantCount(t, reg, "istio_agent_wasm_cache_entries", "", 1)
}

func TestRewriteResponseWithNothingLeft(t *testing.T) {
	t.Parallel()
	c := newCache(t, Config{})
	bad := marshalAny(t, &routerv3.Router{})
	frame := wire.Append(wire.Append(nil, 1, "v"), wire.ResponseResources, bad)
	if r := c.RewriteResponse(t.Context(), frame, false); r.Frame != nil || len(r.Failures) != 1 {
		t.Errorf("response %+v", r)
	}
	var many []byte
	for range maxReasons + 2 {
		many = wire.Append(many, wire.ResponseResources, bad)
	}
	if s := c.RewriteResponse(t.Context(), many, false).Reason(); !strings.HasSuffix(s, "; and 2 more") || strings.Count(s, "not a envoy") != maxReasons {
		t.Errorf("reason %s", s)
	}
	if r := c.RewriteResponse(t.Context(), []byte("\xff"), false); r.Frame != nil || len(r.Failures) != 1 {
		t.Errorf("garbage: response %+v", r)
	}
	if r := c.RewriteResponse(t.Context(), frame[:3], false); string(r.Frame) != string(frame[:3]) || len(r.Failures) != 0 {
		t.Errorf("no resources: response %+v", r)
	}
}

// wantCount compares one metric, selected by the value of its only label.
func wantCount(t *testing.T, reg *prometheus.Registry, name, label string, want float64) {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() != name || label != "" && m.GetLabel()[0].GetValue() != label {
				continue
			}
			if got := m.GetCounter().GetValue() + m.GetGauge().GetValue(); got != want {
				t.Errorf("%s %s: got %v, want %v", name, label, got, want)
			}
			return
		}
	}
	t.Errorf("%s %s is not there", name, label)
}
