// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package lastgood

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	secretv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
)

// syncBuffer is a log that is safe for concurrent use.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// config returns a configuration with its own directories.
func config(t testing.TB, changes ...func(*Config)) Config {
	t.Helper()
	dir := t.TempDir()
	c := Config{
		Dir: filepath.Join(dir, "data"), KeyDir: filepath.Join(dir, "key"),
		Identity: "sidecar~10.0.0.1~web.default", Version: "1", MaxAge: time.Hour,
		Logger: slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn})),
	}
	for _, change := range changes {
		change(&c)
	}
	return c
}

func open(t testing.TB, c Config) *Store {
	t.Helper()
	s, err := Open(c)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// run runs a store until the returned function is called, or until the end of the test.
func run(t testing.TB, s *Store) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within two minutes: %s", what)
		}
	}
}

// frame encodes a message in buffers of a few bytes.
func frame(t testing.TB, m proto.Message) mem.BufferSlice {
	t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	var f mem.BufferSlice
	for part := range slices.Chunk(b, 1000) {
		f = append(f, mem.SliceBuffer(part))
	}
	return f
}

func toAny(t testing.TB, m proto.Message) *anypb.Any {
	t.Helper()
	a, err := anypb.New(m)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// Resources for tests. The detail distinguishes versions.
func cluster(name, detail string) proto.Message {
	return &clusterv3.Cluster{Name: name, AltStatName: detail}
}

func listener(name, detail string) proto.Message {
	return &listenerv3.Listener{Name: name, StatPrefix: detail}
}

func route(name, detail string) proto.Message {
	return &routev3.RouteConfiguration{Name: name, InternalOnlyHeaders: []string{detail}}
}

func endpoints(name, detail string) proto.Message {
	return &endpointv3.ClusterLoadAssignment{ClusterName: name, Endpoints: []*endpointv3.LocalityLbEndpoints{{Locality: &corev3.Locality{Zone: detail}}}}
}

func virtualHost(name, detail string) proto.Message {
	return &routev3.VirtualHost{Name: name, Domains: []string{detail}}
}

func secret(name, detail string) proto.Message {
	return &secretv3.Secret{Name: name, Type: &secretv3.Secret_GenericSecret{GenericSecret: &secretv3.GenericSecret{
		Secret: &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: detail}},
	}}}
}

// nameOf returns the name of a test resource.
func nameOf(t testing.TB, a *anypb.Any) string {
	t.Helper()
	m, err := a.UnmarshalNew()
	if err != nil {
		t.Fatal(err)
	}
	switch m := m.(type) {
	case *endpointv3.ClusterLoadAssignment:
		return m.GetClusterName()
	case interface{ GetName() string }:
		return m.GetName()
	}
	t.Fatalf("a resource of type %s", a.GetTypeUrl())
	return ""
}

// stream simulates an Envoy and a control plane with a recording.
type stream struct {
	t     testing.TB
	rec   *Recording
	delta bool
	n     int
	asked map[string]bool
}

func newStream(t testing.TB, s *Store, delta bool) *stream {
	return &stream{t: t, rec: s.Record(delta), delta: delta, asked: map[string]bool{}}
}

// ask sends a subscription to names.
func (s *stream) ask(typeURL string, names ...string) {
	s.t.Helper()
	s.asked[typeURL] = true
	if s.delta {
		s.rec.Request(frame(s.t, &discoveryv3.DeltaDiscoveryRequest{Node: &corev3.Node{Id: "n"}, TypeUrl: typeURL, ResourceNamesSubscribe: names}))
		return
	}
	s.rec.Request(frame(s.t, &discoveryv3.DiscoveryRequest{Node: &corev3.Node{Id: "n"}, TypeUrl: typeURL, ResourceNames: names}))
}

// resume sends the first request of an Envoy that has resources.
func (s *stream) resume(typeURL string, has map[string]string, names ...string) {
	s.t.Helper()
	s.asked[typeURL] = true
	s.rec.Request(frame(s.t, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: typeURL, ResourceNamesSubscribe: names, InitialResourceVersions: has}))
}

// respond sends resources to Envoy and returns the nonce. In a delta response, the version of a
// resource is its detail.
func (s *stream) respond(typeURL string, removed []string, resources ...proto.Message) string {
	s.t.Helper()
	s.n++
	nonce := "n" + strconv.Itoa(s.n)
	if s.delta {
		r := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: typeURL, Nonce: nonce, RemovedResources: removed, SystemVersionInfo: "v"}
		for _, m := range resources {
			a := toAny(s.t, m)
			r.Resources = append(r.Resources, &discoveryv3.Resource{Name: nameOf(s.t, a), Version: versionOf(a), Resource: a})
		}
		s.rec.Response(frame(s.t, r))
		return nonce
	}
	r := &discoveryv3.DiscoveryResponse{TypeUrl: typeURL, Nonce: nonce, VersionInfo: "v" + nonce}
	for _, m := range resources {
		r.Resources = append(r.Resources, toAny(s.t, m))
	}
	s.rec.Response(frame(s.t, r))
	return nonce
}

func versionOf(a *anypb.Any) string { return fmt.Sprintf("%x", digest(string(a.GetValue()))) }

// ack acknowledges a response, or rejects it if there is a reason. names are those of a
// state-of-the-world request.
func (s *stream) ack(typeURL, nonce, reason string, names ...string) {
	s.t.Helper()
	var detail *status.Status
	if reason != "" {
		detail = &status.Status{Code: 13, Message: reason}
	}
	if s.delta {
		s.rec.Request(frame(s.t, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: typeURL, ResponseNonce: nonce, ErrorDetail: detail}))
		return
	}
	s.rec.Request(frame(s.t, &discoveryv3.DiscoveryRequest{TypeUrl: typeURL, ResponseNonce: nonce, ErrorDetail: detail, ResourceNames: names}))
}

// give subscribes to resources, sends them and acknowledges them.
func (s *stream) give(typeURL string, resources ...proto.Message) {
	s.t.Helper()
	var names []string
	if !whole(typeURL) {
		for _, m := range resources {
			names = append(names, nameOf(s.t, toAny(s.t, m)))
		}
	}
	if !s.asked[typeURL] {
		s.ask(typeURL, names...)
	}
	s.ack(typeURL, s.respond(typeURL, nil, resources...), "", names...)
}

// contents is the content of a state: the details of resources by type and name.
type contents map[string]map[string]string

// stored reads the stored state.
func stored(t testing.TB, s *Store) contents {
	t.Helper()
	st, err := s.load(false)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = st.file.Close() }() // read-only: closing cannot lose data
	return contentsOf(t, st)
}

func contentsOf(t testing.TB, st *snapshot) contents {
	t.Helper()
	out := contents{}
	for typeURL := range st.types {
		if !agents(typeURL) {
			out[typeURL] = map[string]string{}
		}
	}
	_, err := st.scan(func(p *resource) error {
		if agents(p.typeURL) {
			return nil
		}
		if p.flags&flagWithheld != 0 {
			out[p.typeURL][p.name] = "withheld"
			return nil
		}
		r := &discoveryv3.Resource{}
		if err := proto.Unmarshal(p.body, r); err != nil {
			return err
		}
		out[p.typeURL][p.name] = detailOf(t, r.GetResource())
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func detailOf(t testing.TB, a *anypb.Any) string {
	t.Helper()
	m, err := a.UnmarshalNew()
	if err != nil {
		t.Fatal(err)
	}
	switch m := m.(type) {
	case *discoveryv3.Resource:
		return detailOf(t, m.GetResource())
	case *clusterv3.Cluster:
		return m.GetAltStatName()
	case *listenerv3.Listener:
		return m.GetStatPrefix()
	case *routev3.RouteConfiguration:
		if len(m.GetInternalOnlyHeaders()) == 0 {
			return ""
		}
		return m.GetInternalOnlyHeaders()[0]
	case *endpointv3.ClusterLoadAssignment:
		if len(m.GetEndpoints()) == 0 {
			return ""
		}
		return m.GetEndpoints()[0].GetLocality().GetZone()
	case *routev3.VirtualHost:
		return m.GetDomains()[0]
	case *corev3.TypedExtensionConfig:
		return m.GetName()
	case *secretv3.Secret:
		if m.GetName() == unknown {
			return unknown
		}
		return m.GetGenericSecret().GetSecret().GetInlineString()
	}
	return "?"
}

// saved waits until the snapshot is newer than the given time.
func saved(t testing.TB, s *Store, since time.Time) {
	t.Helper()
	eventually(t, "a snapshot", func() bool { return s.From().After(since) })
}

// dialog simulates an Envoy that is connected to Serve.
type dialog struct {
	t        testing.TB
	delta    bool
	requests chan []byte
	answers  chan []byte
	end      chan error
	cancel   context.CancelFunc
}

func serve(t testing.TB, s *Store, delta bool) *dialog {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	d := &dialog{t: t, delta: delta, requests: make(chan []byte), answers: make(chan []byte, 100), end: make(chan error, 1), cancel: cancel}
	go func() {
		d.end <- s.Serve(ctx, delta, func() ([]byte, error) {
			select {
			case b, ok := <-d.requests:
				if ok {
					return b, nil
				}
			case <-ctx.Done():
			}
			return nil, io.EOF
		}, func(b []byte) error {
			d.answers <- b
			return nil
		})
	}()
	t.Cleanup(cancel)
	return d
}

func (d *dialog) send(m proto.Message) {
	d.t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		d.t.Fatal(err)
	}
	select {
	case d.requests <- b:
	case err := <-d.end:
		d.t.Fatalf("Serve ended: %v", err)
	}
}

// sotw waits for a state-of-the-world response.
func (d *dialog) sotw() (*discoveryv3.DiscoveryResponse, map[string]string) {
	d.t.Helper()
	r := &discoveryv3.DiscoveryResponse{}
	if err := proto.Unmarshal(d.answer(), r); err != nil {
		d.t.Fatal(err)
	}
	got := map[string]string{}
	for _, a := range r.GetResources() {
		got[nameOf(d.t, a)] = detailOf(d.t, a)
	}
	return r, got
}

// incremental waits for a delta response.
func (d *dialog) incremental() (*discoveryv3.DeltaDiscoveryResponse, map[string]string) {
	d.t.Helper()
	r := &discoveryv3.DeltaDiscoveryResponse{}
	if err := proto.Unmarshal(d.answer(), r); err != nil {
		d.t.Fatal(err)
	}
	got := map[string]string{}
	for _, res := range r.GetResources() {
		if res.GetResource() == nil {
			got[res.GetName()] = "nothing"
			continue
		}
		got[res.GetName()] = detailOf(d.t, res.GetResource())
	}
	return r, got
}

func (d *dialog) answer() []byte {
	d.t.Helper()
	select {
	case b := <-d.answers:
		return b
	case err := <-d.end:
		d.t.Fatalf("Serve ended: %v", err)
	case <-time.After(2 * time.Minute):
		d.t.Fatal("no answer within two minutes")
	}
	return nil
}

// silent checks that there is no response to the requests so far: another request is accepted, and
// there is still no response.
func (d *dialog) silent() {
	d.t.Helper()
	for range 2 {
		if d.delta {
			d.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: "type.googleapis.com/none"})
		} else {
			d.send(&discoveryv3.DiscoveryRequest{TypeUrl: "type.googleapis.com/none"})
		}
	}
	select {
	case b := <-d.answers:
		d.t.Fatalf("an answer of %d bytes, want none", len(b))
	default:
	}
}
