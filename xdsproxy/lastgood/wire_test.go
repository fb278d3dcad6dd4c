// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package lastgood

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
)

// FuzzFile reads arbitrary files: only sealed content is accepted.
func FuzzFile(f *testing.F) {
	cfg := config(f, func(c *Config) { c.Logger = nil })
	store := keep(f, cfg, func(s *stream) { generation(s, 1) })
	b, err := os.ReadFile(filepath.Join(cfg.Dir, snapshotFile))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add(b[:len(b)-1])
	f.Add([]byte(magic))
	f.Fuzz(func(t *testing.T, b []byte) {
		st, err := loadBytes(t, store, b)
		if err != nil {
			return
		}
		defer func() { _ = st.file.Close() }() // read-only: closing cannot lose data
		if got := generationOf(t, contentsOf(t, st)); got != "1" {
			t.Errorf("generation %s", got)
		}
	})
}

// FuzzRecord decodes arbitrary content of a sealed record and encodes it again.
func FuzzRecord(f *testing.F) {
	r := resource{typeURL: clusterType, name: "a", version: 2, flags: flagPrivate, body: []byte("body")}
	e := end{time: time.Unix(5, 6), count: 7, types: []string{clusterType, listenerType}}
	for _, b := range [][]byte{r.append(nil), e.append(nil), append(r.append(nil), e.append(nil)...), nil, {0x0a, 0x09}} {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		again := func(b []byte) []byte {
			switch r, e, err := readRecord(b); {
			case err != nil:
				return nil
			case e != nil:
				return e.append(nil)
			default:
				return r.append(nil)
			}
		}
		if twice := again(b); twice != nil && !bytes.Equal(again(twice), twice) {
			t.Errorf("%x becomes %x, and that %x", b, twice, again(twice))
		}
	})
}

// FuzzFrame decodes responses and requests, and compares the result with the generated types.
func FuzzFrame(f *testing.F) {
	response := &discoveryv3.DeltaDiscoveryResponse{
		TypeUrl: clusterType, Nonce: "1", RemovedResources: []string{"r"}, SystemVersionInfo: "v",
		Resources: []*discoveryv3.Resource{{Name: "a", Version: "2", Aliases: []string{"b"}, Ttl: durationpb.New(5), Resource: &anypb.Any{TypeUrl: clusterType, Value: []byte("\x0a\x01a")}}},
	}
	sotw := &discoveryv3.DiscoveryResponse{TypeUrl: clusterType, Nonce: "1", VersionInfo: "v", Resources: []*anypb.Any{response.GetResources()[0].GetResource()}}
	request := &discoveryv3.DeltaDiscoveryRequest{
		TypeUrl: clusterType, ResponseNonce: "1", InitialResourceVersions: map[string]string{"a": "1"},
		ResourceNamesSubscribe: []string{"a"}, ResourceNamesUnsubscribe: []string{"b"}, ErrorDetail: &status.Status{Code: 1, Message: "m"},
	}
	for _, m := range []proto.Message{response, sotw, request, &discoveryv3.DiscoveryRequest{TypeUrl: clusterType, ResourceNames: []string{"a"}}} {
		b, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var parts mem.BufferSlice
		for part := range slices.Chunk(b, 3) {
			parts = append(parts, mem.SliceBuffer(part))
		}
		for _, isDelta := range []bool{true, false} {
			compareRequest(t, b, parts, isDelta)
			compareResponse(t, b, parts, isDelta)
		}
	})
}

func compareRequest(t *testing.T, b []byte, parts mem.BufferSlice, isDelta bool) {
	q, err := readRequest(parts, isDelta)
	if isDelta {
		var want discoveryv3.DeltaDiscoveryRequest
		if proto.Unmarshal(b, &want) != nil || err != nil {
			return
		}
		if q.typeURL != want.GetTypeUrl() || q.nonce != want.GetResponseNonce() || !slices.Equal(q.names, want.GetResourceNamesSubscribe()) ||
			!slices.Equal(q.unsubscribe, want.GetResourceNamesUnsubscribe()) || len(q.claims) != len(want.GetInitialResourceVersions()) {
			t.Errorf("%+v, want %v", q, &want)
		}
		return
	}
	var want discoveryv3.DiscoveryRequest
	if proto.Unmarshal(b, &want) != nil || err != nil {
		return
	}
	if q.typeURL != want.GetTypeUrl() || q.nonce != want.GetResponseNonce() || q.version != want.GetVersionInfo() || !slices.Equal(q.names, want.GetResourceNames()) ||
		(q.rejected != "") != (want.GetErrorDetail() != nil) {
		t.Errorf("%+v, want %v", q, &want)
	}
}

func compareResponse(t *testing.T, b []byte, parts mem.BufferSlice, isDelta bool) {
	h, err := readHead(parts, isDelta)
	if err != nil {
		return
	}
	var bodies [][]byte
	err = eachResource(parts, isDelta, h, func(r *received) error {
		bodies = append(bodies, bytes.Clone(r.body))
		return nil
	})
	var want discoveryv3.DeltaDiscoveryResponse
	known := proto.UnmarshalOptions{DiscardUnknown: true} // unknown fields are not kept
	if err != nil || !isDelta || known.Unmarshal(b, &want) != nil {
		return
	}
	if h.typeURL != want.GetTypeUrl() || h.nonce != want.GetNonce() || !slices.Equal(h.removed, want.GetRemovedResources()) {
		t.Errorf("%+v, want %v", h, &want)
	}
	n := 0
	for _, r := range want.GetResources() {
		if r.GetResource() == nil {
			continue
		}
		var got discoveryv3.Resource
		if err := known.Unmarshal(bodies[n], &got); err != nil {
			t.Fatal(err)
		}
		r.Name, r.Version, r.Ttl = "", "", nil
		if !proto.Equal(&got, r) {
			t.Errorf("%v, want %v", &got, r)
		}
		n++
	}
}

// TestWrappedResource checks wrapped resources in state-of-the-world responses. The time to live is
// dropped, and a resource without content is a heartbeat.
func TestWrappedResource(t *testing.T) {
	t.Parallel()
	wrapped := toAny(t, &discoveryv3.Resource{Name: "a", Version: "2", Ttl: durationpb.New(5), Resource: toAny(t, cluster("ignored", "1"))})
	alive := toAny(t, &discoveryv3.Resource{Name: "b", Ttl: durationpb.New(5)})
	plain := toAny(t, cluster("c", "1"))
	f := frame(t, &discoveryv3.DiscoveryResponse{TypeUrl: clusterType, Nonce: "1", VersionInfo: "v", Resources: []*anypb.Any{wrapped, alive, plain}})
	h, err := readHead(f, false)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	err = eachResource(f, false, h, func(r *received) error {
		var m discoveryv3.Resource
		err := proto.Unmarshal(r.body, &m)
		got = append(got, r.name+" "+r.version+" "+nameOf(t, m.GetResource()))
		if m.GetTtl() != nil {
			t.Errorf("%s has a time to live", r.name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"a 2 ignored", "c v c"}, got); diff != "" {
		t.Error(diff)
	}
}
