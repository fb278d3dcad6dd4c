// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	grpcpeer "google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/outrigger-mesh/outrigger/certs"
	"github.com/outrigger-mesh/outrigger/controlplane/authn"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// manyNames returns names of endpoints of services that may not exist.
func manyNames(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("outbound|%d|v1|service-%d.namespace-%d.svc.cluster.local", 8000+i%3, i, i%100)
	}
	return out
}

func versionsOf(names []string) map[string]string {
	out := make(map[string]string, len(names))
	for _, name := range names {
		out[name] = "0123456789abcdef"
	}
	return out
}

// TestRequestBounds reads requests that are larger than any real one, and the
// largest real ones.
func TestRequestBounds(t *testing.T) {
	t.Parallel()
	long := func(n int) string { return strings.Repeat("x", n) }
	labels := map[string]any{}
	for i := range 100_000 {
		labels[fmt.Sprintf("key-%d", i)] = ""
	}
	md, err := structpb.NewStruct(map[string]any{"LABELS": labels})
	if err != nil {
		t.Fatal(err)
	}
	names := manyNames(maxNames)
	for name, c := range map[string]struct {
		request proto.Message
		says    string
	}{
		"a large mesh, delta, again": {request: &discoveryv3.DeltaDiscoveryRequest{ResourceNamesSubscribe: names[:60_000], InitialResourceVersions: versionsOf(names[:60_000])}},
		"a large mesh":               {request: &discoveryv3.DiscoveryRequest{ResourceNames: names[:100_000]}},
		"an Envoy":                   {request: &discoveryv3.DiscoveryRequest{Node: &corev3.Node{Id: long(500), UserAgentName: long(350 << 10)}}},
		"many names":                 {request: &discoveryv3.DiscoveryRequest{ResourceNames: append(names, "x")}, says: "resource names 200001, at most 200000"},
		"many names, delta":          {request: &discoveryv3.DeltaDiscoveryRequest{ResourceNamesSubscribe: names, ResourceNamesUnsubscribe: []string{"x"}}, says: "resource names 200001"},
		"many versions":              {request: &discoveryv3.DeltaDiscoveryRequest{ResourceNamesSubscribe: names, InitialResourceVersions: versionsOf(names[:1])}, says: "resource names 200001"},
		"a long name":                {request: &discoveryv3.DiscoveryRequest{ResourceNames: []string{long(3000)}}, says: "bytes of a resource name 3000, at most 2048"},
		"a long name, delta":         {request: &discoveryv3.DeltaDiscoveryRequest{ResourceNamesSubscribe: []string{long(3000)}}, says: "bytes of a resource name 3000"},
		"a long name that is there":  {request: &discoveryv3.DeltaDiscoveryRequest{InitialResourceVersions: map[string]string{long(3000): "1"}}, says: "bytes of a resource name 3000"},
		"a long version":             {request: &discoveryv3.DeltaDiscoveryRequest{InitialResourceVersions: map[string]string{"a": long(3000)}}, says: "bytes of a version 3000"},
		"a long version_info":        {request: &discoveryv3.DiscoveryRequest{VersionInfo: long(3000)}, says: "bytes of version_info 3000"},
		"a long type":                {request: &discoveryv3.DiscoveryRequest{TypeUrl: long(3000)}, says: "bytes of type_url 3000"},
		"a long type, delta":         {request: &discoveryv3.DeltaDiscoveryRequest{TypeUrl: long(3000)}, says: "bytes of type_url 3000"},
		"a long nonce":               {request: &discoveryv3.DiscoveryRequest{ResponseNonce: long(3000)}, says: "bytes of response_nonce 3000"},
		"a long nonce, delta":        {request: &discoveryv3.DeltaDiscoveryRequest{ResponseNonce: long(3000)}, says: "bytes of response_nonce 3000"},
		"a large node":               {request: &discoveryv3.DiscoveryRequest{Node: &corev3.Node{Id: "a", Metadata: md}}, says: "bytes of the node"},
		"a long id":                  {request: &discoveryv3.DeltaDiscoveryRequest{Node: &corev3.Node{Id: long(2000)}}, says: "bytes of node.id 2000, at most 1024"},
	} {
		b, err := proto.Marshal(c.request)
		if err != nil {
			t.Fatal(err)
		}
		read := readSotW
		if _, ok := c.request.(*discoveryv3.DeltaDiscoveryRequest); ok {
			read = readDelta
		}
		q, err := read(b)
		if err == nil && q.node != nil {
			err = checkNode(q.node)
		}
		if c.says == "" && err != nil || c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%s: error %.300v, want one with %q", name, err, c.says)
		}
		if err != nil && (len(err.Error()) > 300 || !errors.Is(err, errTooLarge) && status.Code(err) != codes.InvalidArgument) {
			t.Errorf("%s: error of %d bytes: %.300v", name, len(err.Error()), err)
		}
	}
	for key := range labels { // a node of few bytes
		if len(labels) == maxLabels+1 {
			break
		}
		delete(labels, key)
	}
	if md, err = structpb.NewStruct(map[string]any{"LABELS": labels}); err != nil {
		t.Fatal(err)
	}
	if err := checkNode(&corev3.Node{Id: "a", Metadata: md}); err == nil || !strings.Contains(err.Error(), "labels of the node 1025, at most 1024") {
		t.Errorf("many labels: %v", err)
	}
}

// TestRejectionBound checks how much is kept of a reason for a rejection.
func TestRejectionBound(t *testing.T) {
	t.Parallel()
	b, err := proto.Marshal(&discoveryv3.DiscoveryRequest{ErrorDetail: &rpcstatus.Status{Code: 13, Message: "bad\x1b[2J" + strings.Repeat("x", 8<<20)}})
	if err != nil {
		t.Fatal(err)
	}
	q, err := readSotW(b)
	if err != nil {
		t.Fatal(err)
	}
	if len(q.rejected) > maxRejection+100 || len(q.message) > maxRejection+100 || !strings.HasPrefix(q.rejected, `code 13: bad\x1b[2Jxxx`) {
		t.Errorf("%d bytes of the reason are kept: %.50q", len(q.rejected), q.rejected)
	}
}

// from is the context of a call from an address.
func from(t *testing.T, ip string) context.Context {
	return grpcpeer.NewContext(t.Context(), &grpcpeer.Peer{Addr: &net.TCPAddr{IP: net.ParseIP(ip), Port: 1234}})
}

// TestCallers checks the limits of the streams of one workload, and that they do not affect others:
// other identities, and replicas of it on other machines.
func TestCallers(t *testing.T) {
	t.Parallel()
	c := newCallers(0)
	shop := &authn.Caller{ID: certs.ID{TrustDomain: "cluster.local", Namespace: "shop", ServiceAccount: "web"}}
	other := &authn.Caller{ID: certs.ID{TrustDomain: "cluster.local", Namespace: "shop", ServiceAccount: "pay"}}
	var streams []*quota
	for range maxCallerStreams {
		q, err := c.enter(from(t, "10.0.0.1"), shop)
		if err != nil {
			t.Fatal(err)
		}
		streams = append(streams, q)
	}
	if _, err := c.enter(from(t, "10.0.0.1"), shop); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("one stream more: %v", err)
	}
	for name, ctx := range map[string]context.Context{"another machine": from(t, "10.0.0.2"), "this machine": from(t, "127.0.0.1")} {
		q, err := c.enter(ctx, shop)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if err := q.resize(maxStreamNames); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		q.leave()
	}
	if q, err := c.enter(from(t, "10.0.0.1"), other); err != nil {
		t.Errorf("another identity: %v", err)
	} else {
		q.leave()
	}
	for i := 0; ; i++ {
		err := streams[i].resize(maxStreamNames)
		if held := (i + 1) * maxStreamNames; held <= maxCallerNames && err != nil || held > maxCallerNames && status.Code(err) != codes.ResourceExhausted {
			t.Errorf("with names of %d bytes: %v", held, err)
		}
		if err != nil {
			streams[i].leave()
			break
		}
	}
	if err := streams[0].resize(0); err != nil {
		t.Error(err)
	}
	if err := streams[0].resize(maxStreamNames); err != nil {
		t.Errorf("what was left is not free: %v", err)
	}
	if err := streams[0].resize(maxStreamNames + 1); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("one stream with too many names: %v", err)
	}
	for _, q := range streams {
		if q.use.streams > 0 {
			q.leave()
		}
	}
	if len(c.byID) > 1 {
		t.Errorf("%d callers are remembered without a stream", len(c.byID))
	}
}

// TestCallersBehindOneAddress checks that a higher limit of streams lets more
// replicas of a workload share an address, each with its part of names and requests.
func TestCallersBehindOneAddress(t *testing.T) {
	t.Parallel()
	const streams = 10 * maxCallerStreams
	c := newCallers(streams)
	shop := &authn.Caller{ID: certs.ID{TrustDomain: "cluster.local", Namespace: "shop", ServiceAccount: "web"}}
	for i := range streams {
		q, err := c.enter(from(t, "10.0.0.1"), shop)
		if err == nil {
			err = q.resize(maxCallerNames / maxCallerStreams)
		}
		if err != nil {
			t.Fatalf("stream %d: %v", i+1, err)
		}
		if got, want := q.budget.Burst(), 10*requestBurst; got != want {
			t.Fatalf("a burst of %d requests, want %d", got, want)
		}
	}
	if _, err := c.enter(from(t, "10.0.0.1"), shop); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("one stream more: %v", err)
	}
}

// TestSlowed checks how many requests, of which size, a caller may send, also over
// streams that it opens one after the other.
func TestSlowed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, began := newCallers(0), time.Now()
		for range 10 {
			q, err := c.enter(from(t, "10.0.0.1"), nil)
			if err != nil {
				t.Fatal(err)
			}
			recv := q.slowed(t.Context(), func() (*request, error) { return &request{size: requestBytes * (requestBurst/10 - 1)}, nil })
			if _, err := recv(); err != nil {
				t.Fatal(err)
			}
			q.leave()
		}
		if took := time.Since(began); took > 0 {
			t.Errorf("the burst took %s", took)
		}
		q, err := c.enter(from(t, "10.0.0.1"), nil)
		if err != nil {
			t.Fatal(err)
		}
		recv := q.slowed(t.Context(), func() (*request, error) { return &request{}, nil })
		for range 10 * requestsPerSecond {
			if _, err := recv(); err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(began); took < 9*time.Second || took > 11*time.Second {
			t.Errorf("the requests of 10 s took %s", took)
		}
	})
}

// TestTooManyNames requests too many names on real streams, in one request and over several, and as
// many as a large mesh has.
func TestTooManyNames(t *testing.T) {
	each(t, func(t *testing.T, h *harness, p *peer) {
		h.set(xds.TypeEndpoint, map[string]string{"a": "a=1"})
		h.push()
		p.subscribe(xds.TypeEndpoint, append(manyNames(20_000), "a")...)
		p.any()
		if !p.delta {
			_ = p.send(&discoveryv3.DiscoveryRequest{TypeUrl: xds.TypeEndpoint, ResourceNames: manyNames(maxNames + 1), ResponseNonce: "1"}) // its end is checked
		}
		for i := range 10 {
			more := manyNames(40_000)
			for j := range more {
				more[j] = fmt.Sprintf("%d-%s", i, more[j])
			}
			if !p.delta || p.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: xds.TypeEndpoint, ResourceNamesSubscribe: more}) != nil {
				break
			}
		}
		for range p.got { // until the stream ends
		}
		err, _ := p.err.Load().(error)
		if want := map[bool]string{true: "requests names of", false: "resource names 200001"}[p.delta]; err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the stream ends with %v, want %q", err, want)
		}
	})
}

// TestUnservedTypesAreForgotten checks that a stream stores a bounded number of unserved types, and
// little of each, however many a proxy requests.
func TestUnservedTypesAreForgotten(t *testing.T) {
	t.Parallel()
	s, err := New(Config{Generator: &table{}, Workers: 1})
	if err != nil {
		t.Fatal(err)
	}
	st := &stream{server: s, log: slog.New(slog.DiscardHandler)}
	for i := range 100_000 {
		st.refuse(fmt.Sprint(i, strings.Repeat("x", maxShortText)))
	}
	if len(st.refused) != maxRefused {
		t.Errorf("%d types are remembered, want %d", len(st.refused), maxRefused)
	}
	for typeURL := range st.refused {
		if len(typeURL) > maxShortText {
			t.Errorf("%d bytes of a type are remembered", len(typeURL))
		}
	}
}
