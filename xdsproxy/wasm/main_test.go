// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package wasm

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
	"time"

	udpav1 "github.com/cncf/xds/go/udpa/type/v1"
	xdsv3 "github.com/cncf/xds/go/xds/type/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	wasmfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/wasm/v3"
	wasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/wasm/v3"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/outrigger-mesh/outrigger/e2e/ownnet"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(ownnet.Tests(m)) }

// Addresses of the test servers.
const (
	testHost    = "127.77.49.1"
	testNetwork = "127.77.49.0/24"
)

// newCache creates and runs a cache that may reach the test servers.
func newCache(t *testing.T, cfg Config) *Cache {
	t.Helper()
	if cfg.Dir == "" {
		cfg.Dir = t.TempDir()
	}
	if cfg.AllowedHosts == nil {
		cfg.AllowedHosts = []string{testNetwork}
	}
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	c.pause = time.Millisecond
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return c
}

func listen(t *testing.T, host string) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", host+":0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func serve(t *testing.T, h http.Handler) *httptest.Server {
	t.Helper()
	s := &httptest.Server{Listener: listen(t, testHost), Config: &http.Server{Handler: h}}
	s.Start()
	t.Cleanup(s.Close)
	return s
}

// serveBytes sends the same response to every request.
func serveBytes(t *testing.T, body []byte) *httptest.Server {
	t.Helper()
	return serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(body) }))
}

func sum(b []byte) string {
	s := sha256.Sum256(b)
	return hex.EncodeToString(s[:])
}

// pluginSpec describes a plugin for a test, without the common fields.
type pluginSpec struct {
	name     string
	url      string
	sha256   string
	failOpen bool
	env      map[string]string
	timeout  time.Duration
}

func (s pluginSpec) wasm() *wasmfilterv3.Wasm {
	if s.timeout == 0 {
		s.timeout = 20 * time.Second
	}
	vm := &wasmv3.VmConfig{
		Runtime: "envoy.wasm.runtime.v8",
		Code: &corev3.AsyncDataSource{Specifier: &corev3.AsyncDataSource_Remote{Remote: &corev3.RemoteDataSource{
			HttpUri: &corev3.HttpUri{
				Uri: s.url, Timeout: durationpb.New(s.timeout), HttpUpstreamType: &corev3.HttpUri_Cluster{Cluster: "none"},
			},
			Sha256: s.sha256,
		}}},
	}
	if s.env != nil {
		vm.EnvironmentVariables = &wasmv3.EnvironmentVariables{KeyValues: maps.Clone(s.env)}
	}
	config := &wasmv3.PluginConfig{Name: s.name, RootId: "root", Vm: &wasmv3.PluginConfig_VmConfig{VmConfig: vm}}
	if s.failOpen {
		// Use reflection: the field is deprecated, but control planes send it.
		m := config.ProtoReflect()
		m.Set(m.Descriptor().Fields().ByName("fail_open"), protoreflect.ValueOfBool(true))
	}
	return &wasmfilterv3.Wasm{Config: config}
}

// resource returns the plugin as a serialized Any with a TypedExtensionConfig.
func (s pluginSpec) resource(t testing.TB) []byte { return pack(t, s.name, s.wasm()) }

// structured returns the plugin as an Any with a TypedStruct.
func (s pluginSpec) structured(t testing.TB, udpa bool) []byte {
	t.Helper()
	j, err := protojson.Marshal(s.wasm())
	if err != nil {
		t.Fatal(err)
	}
	v := &structpb.Struct{}
	if err := protojson.Unmarshal(j, v); err != nil {
		t.Fatal(err)
	}
	if udpa {
		return pack(t, s.name, &udpav1.TypedStruct{TypeUrl: "type.googleapis.com/" + wasmType, Value: v})
	}
	return pack(t, s.name, &xdsv3.TypedStruct{TypeUrl: "type.googleapis.com/" + wasmType, Value: v})
}

func pack(t testing.TB, name string, m proto.Message) []byte {
	t.Helper()
	config, err := anypb.New(m)
	if err != nil {
		t.Fatal(err)
	}
	return marshalAny(t, &corev3.TypedExtensionConfig{Name: name, TypedConfig: config})
}

func marshalAny(t testing.TB, m proto.Message) []byte {
	t.Helper()
	a, err := anypb.New(m)
	if err != nil {
		t.Fatal(err)
	}
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(a)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// unpack decodes a resource as a filter's configuration.
func unpack(t testing.TB, resource []byte, into proto.Message) (name string) {
	t.Helper()
	a, e := &anypb.Any{}, &corev3.TypedExtensionConfig{}
	if err := proto.Unmarshal(resource, a); err != nil {
		t.Fatal(err)
	}
	if err := a.UnmarshalTo(e); err != nil {
		t.Fatal(err)
	}
	if err := e.GetTypedConfig().UnmarshalTo(into); err != nil {
		t.Fatal(err)
	}
	return e.GetName()
}

// rewriteOne rewrites one plugin and returns the path of its module.
func rewriteOne(t *testing.T, c *Cache, s pluginSpec) (string, error) {
	t.Helper()
	o := c.Rewrite(t.Context(), [][]byte{s.resource(t)})[0]
	if o.Err != nil {
		return "", o.Err
	}
	w := &wasmfilterv3.Wasm{}
	unpack(t, o.Resource, w)
	path := w.GetConfig().GetVmConfig().GetCode().GetLocal().GetFilename()
	if path == "" {
		t.Fatal("the rewritten plugin has no local file")
	}
	return path, nil
}

func readFile(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
