// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package xdsproxy

import (
	"bytes"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/outrigger-mesh/outrigger/xdsproxy/wire"
)

// pieces splits bytes into buffers of the given size, as gRPC may deliver them.
func pieces(b []byte, size int) mem.BufferSlice {
	out := mem.BufferSlice{mem.SliceBuffer(nil)} // include an empty buffer
	for size > 0 && len(b) > size {
		out = append(out, mem.SliceBuffer(b[:size]))
		b = b[size:]
	}
	return append(out, mem.SliceBuffer(b))
}

func encode(tb testing.TB, m proto.Message) []byte {
	tb.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

func seeds(tb testing.TB) [][]byte {
	group := protowire.AppendTag(nil, 99, protowire.StartGroupType)
	group = protowire.AppendGroup(group, 99, protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), "x"))
	fixed := protowire.AppendFixed64(protowire.AppendTag(nil, 77, protowire.Fixed64Type), 1)
	fixed = protowire.AppendFixed32(protowire.AppendTag(fixed, 78, protowire.Fixed32Type), 1)
	sotw := encode(tb, &discoveryv3.DiscoveryRequest{
		VersionInfo: "v1", Node: &corev3.Node{Id: "id"}, ResourceNames: []string{"a", "b"}, TypeUrl: clusterType, ResponseNonce: "n",
		ErrorDetail: &status.Status{Code: 13, Message: "m"},
	})
	return [][]byte{
		sotw, append(group, sotw...), append(fixed, sotw...), sotw[:len(sotw)-1],
		{0xff},
		{0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f},
		encode(tb, &discoveryv3.DeltaDiscoveryRequest{
			TypeUrl: clusterType, ResponseNonce: "n", ResourceNamesSubscribe: []string{"*"}, InitialResourceVersions: map[string]string{"a": "1"},
			ErrorDetail: &status.Status{Message: "m"},
		}),
		encode(tb, &discoveryv3.DiscoveryResponse{
			VersionInfo: "v2", Nonce: "n", TypeUrl: clusterType, Canary: true, ControlPlane: &corev3.ControlPlane{Identifier: "x"},
			Resources: []*anypb.Any{{TypeUrl: clusterType, Value: bytes.Repeat([]byte{1}, 300)}},
		}),
		encode(tb, &discoveryv3.DeltaDiscoveryResponse{
			SystemVersionInfo: "v3", Nonce: "n", TypeUrl: clusterType, RemovedResources: []string{"gone"},
			Resources: []*discoveryv3.Resource{{Name: "r", Version: "7", Resource: &anypb.Any{TypeUrl: clusterType, Value: []byte("x")}}},
		}),
	}
}

// FuzzReadRequest checks that the shallow reader reads the same fields as protobuf, however the
// bytes are split into buffers.
func FuzzReadRequest(f *testing.F) {
	for _, seed := range seeds(f) {
		f.Add(seed, false, 0)
		f.Add(seed, true, 3)
	}
	f.Fuzz(func(t *testing.T, b []byte, delta bool, size int) {
		got := readRequest(pieces(b, size), delta)
		var want proto.Message = &discoveryv3.DiscoveryRequest{}
		if delta {
			want = &discoveryv3.DeltaDiscoveryRequest{}
		}
		if proto.Unmarshal(b, want) != nil || len(b) > maxReason {
			return // must not panic
		}
		w := want.(interface {
			GetTypeUrl() string
			GetResponseNonce() string
			GetErrorDetail() *status.Status
		})
		if got.typeURL != w.GetTypeUrl() || got.nonce != w.GetResponseNonce() || (got.rejected != "") != (w.GetErrorDetail() != nil) {
			t.Errorf("read %+v from %v", got, want)
		}
	})
}

func FuzzReadResponse(f *testing.F) {
	for _, seed := range seeds(f) {
		f.Add(seed, false, 0)
		f.Add(seed, true, 1)
	}
	f.Fuzz(func(t *testing.T, b []byte, delta bool, size int) {
		w := variant{delta: delta}
		fr := &frame{data: pieces(b, size)}
		got, ok := readResponse(fr.data)
		values, removed, err := w.resources(fr, got.typeURL)
		_ = readable(b)
		sotw := stateOfTheWorld(fr)
		if delta {
			var want discoveryv3.DeltaDiscoveryResponse
			if proto.Unmarshal(b, &want) != nil || len(b) > maxText {
				return // must not panic
			}
			check(t, got, &want, ok)
			if err == nil && (len(values) != len(want.Resources) || len(removed) != len(want.RemovedResources)) {
				t.Errorf("took %d resources and %q from %v", len(values), removed, &want)
			}
			var turned discoveryv3.DiscoveryResponse
			if err := proto.Unmarshal(sotw, &turned); err != nil || turned.Nonce != want.Nonce || turned.VersionInfo != want.SystemVersionInfo {
				t.Errorf("turned %v into %v, %v", &want, &turned, err)
			}
			return
		}
		var want discoveryv3.DiscoveryResponse
		if proto.Unmarshal(b, &want) != nil || len(b) > maxText {
			return
		}
		check(t, got, &want, ok)
		if err == nil && len(values) != len(want.Resources) {
			t.Errorf("took %d resources from %v", len(values), &want)
		}
		for i, v := range values {
			if err == nil && !bytes.Equal(v, want.Resources[i].Value) {
				t.Errorf("resource %d is %q, want %q", i, v, want.Resources[i].Value)
			}
		}
	})
}

func check(t *testing.T, got response, want interface {
	GetTypeUrl() string
	GetNonce() string
}, ok bool,
) {
	t.Helper()
	if !ok || got.typeURL != want.GetTypeUrl() || got.nonce != want.GetNonce() {
		t.Errorf("read %+v, %t from %v", got, ok, want)
	}
}

// TestOwnMessages checks that protobuf decodes the messages that the agent encodes.
func TestOwnMessages(t *testing.T) {
	t.Parallel()
	const typeURL = "type.googleapis.com/example.Table"
	r := response{typeURL: typeURL, version: "v2", nonce: "n"}
	unhealthy := health{message: "no answer"}
	for _, w := range []variant{{delta: false}, {delta: true}} {
		for _, tc := range []struct {
			name  string
			bytes []byte
			sotw  *discoveryv3.DiscoveryRequest
			delta *discoveryv3.DeltaDiscoveryRequest
		}{
			{
				"subscribe", w.subscribe(typeURL),
				&discoveryv3.DiscoveryRequest{TypeUrl: typeURL}, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: typeURL},
			},
			{
				"ask", w.ask(typeURL, []string{"a", "b"}),
				&discoveryv3.DiscoveryRequest{TypeUrl: typeURL, ResourceNames: []string{"a", "b"}},
				&discoveryv3.DeltaDiscoveryRequest{TypeUrl: typeURL, ResourceNamesSubscribe: []string{"a", "b"}},
			},
			{
				"accept", w.answer(r, "v2", codes.OK, ""),
				&discoveryv3.DiscoveryRequest{TypeUrl: typeURL, VersionInfo: "v2", ResponseNonce: "n"},
				&discoveryv3.DeltaDiscoveryRequest{TypeUrl: typeURL, ResponseNonce: "n"},
			},
			{
				"reject", w.answer(r, "v1", codes.Internal, "bad\xff"),
				&discoveryv3.DiscoveryRequest{TypeUrl: typeURL, VersionInfo: "v1", ResponseNonce: "n", ErrorDetail: &status.Status{Code: 13, Message: "bad?"}},
				&discoveryv3.DeltaDiscoveryRequest{TypeUrl: typeURL, ResponseNonce: "n", ErrorDetail: &status.Status{Code: 13, Message: "bad?"}},
			},
			{
				"unhealthy", unhealthy.request(w),
				&discoveryv3.DiscoveryRequest{TypeUrl: healthType, ErrorDetail: &status.Status{Code: 13, Message: "no answer"}},
				&discoveryv3.DeltaDiscoveryRequest{TypeUrl: healthType, ErrorDetail: &status.Status{Code: 13, Message: "no answer"}},
			},
		} {
			var got, want proto.Message = &discoveryv3.DiscoveryRequest{}, tc.sotw
			if w.delta {
				got, want = &discoveryv3.DeltaDiscoveryRequest{}, tc.delta
			}
			if err := proto.Unmarshal(tc.bytes, got); err != nil || !proto.Equal(got, want) {
				t.Errorf("%s, delta %t: wrote %v, %v, want %v", tc.name, w.delta, got, err, want)
			}
		}
	}
}

// TestLongFields checks that a response with a type, nonce or version that is too long is not
// accepted, and that long error messages of Envoy are truncated.
func TestLongFields(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 1<<20)
	for _, m := range []*discoveryv3.DiscoveryResponse{{TypeUrl: long}, {Nonce: long}, {VersionInfo: long}} {
		if _, ok := readResponse(frameOf(encode(t, m)).data); ok {
			t.Errorf("a field of %d bytes was accepted", len(long))
		}
	}
	r := readRequest(frameOf(encode(t, &discoveryv3.DiscoveryRequest{ErrorDetail: &status.Status{Message: long}})).data, false)
	if len(r.rejected) != maxReason {
		t.Errorf("kept %d bytes of Envoy's error message, want %d", len(r.rejected), maxReason)
	}
}

// TestTypeURLBecomesALabel checks that a type URL that is not valid UTF-8 does not end the agent,
// although labels of metrics must be valid.
func TestTypeURLBecomesALabel(t *testing.T) {
	t.Parallel()
	b := protowire.AppendTag(nil, wire.RequestTypeURL, protowire.BytesType)
	b = protowire.AppendBytes(b, []byte("type\xff"))
	r := readRequest(frameOf(b).data, false)
	newMetrics(nil).rejected.WithLabelValues(r.typeURL).Inc()
	if r.typeURL != "type?" {
		t.Errorf("type URL %q", r.typeURL)
	}
}
