// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package xds_test

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	tcpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

func pack(t *testing.T, m proto.Message) *anypb.Any {
	t.Helper()
	a := &anypb.Any{}
	if err := anypb.MarshalFrom(a, m, proto.MarshalOptions{Deterministic: true}); err != nil {
		t.Fatal(err)
	}
	return a
}

func packed(t *testing.T, m proto.Message) []byte {
	t.Helper()
	r, err := xds.New("type.googleapis.com/"+string(m.ProtoReflect().Descriptor().FullName()), "", m)
	if err != nil {
		t.Fatal(err)
	}
	return r.Any
}

// listenerOf returns a listener that contains a word in a field, a list, a map, a nested Any and an
// Any in that Any.
func listenerOf(t *testing.T, word string, more ...*anypb.Any) *listenerv3.Listener {
	t.Helper()
	filters := []*listenerv3.Filter{{Name: "tcp", ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: pack(t, &tcpv3.TcpProxy{
		StatPrefix: "x", ClusterSpecifier: &tcpv3.TcpProxy_Cluster{Cluster: word},
	})}}}
	for _, a := range more {
		filters = append(filters, &listenerv3.Filter{Name: "other", ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: a}})
	}
	fields, err := structpb.NewStruct(map[string]any{"a": word, "b": []any{"c", word}})
	if err != nil {
		t.Fatal(err)
	}
	return &listenerv3.Listener{
		Name: word, Metadata: &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{"m": fields}},
		FilterChains: []*listenerv3.FilterChain{{FilterChainMatch: &listenerv3.FilterChainMatch{ServerNames: []string{"s", word}}, Filters: filters}},
	}
}

// TestMapText checks that replacing a word with a longer one has the same result as building the
// message with the longer word.
func TestMapText(t *testing.T) {
	t.Parallel()
	from, to := packed(t, listenerOf(t, "short")), packed(t, listenerOf(t, strings.Repeat("long", 50)))
	if out, complete := xds.MapText(from, func(s string) string { return strings.ReplaceAll(s, "short", strings.Repeat("long", 50)) }); !complete || !bytes.Equal(out, to) {
		t.Errorf("MapText() = %q, complete %t; want %q", out, complete, to)
	}
	var all []string
	out, complete := xds.MapText(from, func(s string) string {
		all = append(all, s)
		return s
	})
	if !complete || !bytes.Equal(out, from) {
		t.Errorf("MapText() without a change = %q, complete %t", out, complete)
	}
	slices.Sort(all)
	if want := []string{"c", "s", "short", "short", "short", "short", "short", "tcp", "x"}; !slices.Equal(all, want) {
		t.Errorf("strings: got %q, want %q", all, want)
	}
}

// TestMapTextIncomplete checks that MapText does not change parts that it cannot decode.
func TestMapTextIncomplete(t *testing.T) {
	t.Parallel()
	upper := func(s string) string { return strings.ReplaceAll(s, "short", "SHORT") }
	for name, a := range map[string]*anypb.Any{
		"unknown type": {TypeUrl: "type.googleapis.com/nobody.knows.It", Value: []byte("short")},
		"malformed":    {TypeUrl: xds.TypeCluster, Value: []byte("short")},
	} {
		out, complete := xds.MapText(packed(t, listenerOf(t, "short", a)), upper)
		if want := packed(t, listenerOf(t, "SHORT", a)); complete || !bytes.Equal(out, want) {
			t.Errorf("%s: MapText() = %q, complete %t; want %q, false", name, out, complete, want)
		}
		b, err := proto.Marshal(a)
		if err != nil {
			t.Fatal(err)
		}
		if out, complete := xds.MapText(b, upper); complete || !bytes.Equal(out, b) {
			t.Errorf("%s alone: MapText() = %q, complete %t; want no change", name, out, complete)
		}
	}
	if out, complete := xds.MapText([]byte("short"), upper); complete || string(out) != "short" {
		t.Errorf("not an Any: MapText() = %q, complete %t; want no change", out, complete)
	}
}
