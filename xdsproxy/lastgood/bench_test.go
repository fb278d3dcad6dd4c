// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package lastgood

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
)

// mesh returns a configuration of services, with a cluster, endpoints, a route configuration and a
// listener each, 475 bytes on average.
func mesh(services int) map[string][]proto.Message {
	m := map[string][]proto.Message{}
	detail := strings.Repeat("d", 370)
	for n := range services {
		name := fmt.Sprintf("outbound|8080||service-%04d.namespace.svc.cluster.local", n)
		m[clusterType] = append(m[clusterType], cluster(name, detail))
		m[endpointType] = append(m[endpointType], endpoints(name, detail))
		m[listenerType] = append(m[listenerType], listener(name, detail))
		m[routeType] = append(m[routeType], route(name, detail))
	}
	return m
}

func keepMesh(s *stream, m map[string][]proto.Message) {
	for _, typeURL := range []string{clusterType, endpointType, listenerType, routeType} {
		s.give(typeURL, m[typeURL]...)
	}
}

// heap returns the size of the heap after a collection.
func heap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// TestMemory checks that 2000 resources of 0.95 MB require less than 0.5 MB of memory.
func TestMemory(t *testing.T) { // not parallel: it measures the heap
	m := mesh(500)
	size := 0
	for _, messages := range m {
		for _, message := range messages {
			size += proto.Size(message)
		}
	}
	cfg := config(t)
	before := heap()
	store := open(t, cfg)
	stop := run(t, store)
	s := newStream(t, store, true)
	keepMesh(s, m)
	eventually(t, "a snapshot", func() bool { return store.Usable() == nil })
	s.asked = nil
	recording := heap() - before
	t.Logf("%d bytes of resources: %d bytes of heap while they are recorded", size, recording)
	if recording > 512<<10 {
		t.Errorf("%d bytes of heap, want at most half a megabyte", recording)
	}
	stop()
	runtime.KeepAlive(s)
	store = nil
	before = heap()
	store = open(t, cfg)
	opened := heap() - before
	t.Logf("%d bytes of heap after it was opened", opened)
	if opened > 512<<10 {
		t.Errorf("%d bytes of heap, want at most half a megabyte", opened)
	}
	runtime.KeepAlive(store)
	runtime.KeepAlive(m)
}

// framesOf returns the frames of a stream that receives a mesh.
func framesOf(b *testing.B, m map[string][]proto.Message, detail string) (all []mem.BufferSlice, size int) {
	b.Helper()
	for _, typeURL := range []string{clusterType, endpointType, listenerType, routeType} {
		r := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: typeURL, Nonce: "n" + detail}
		for _, message := range m[typeURL] {
			a := toAny(b, message)
			r.Resources = append(r.Resources, &discoveryv3.Resource{Name: nameOf(b, a), Version: detail, Resource: a})
		}
		all = append(all, frame(b, r))
		size += proto.Size(r)
	}
	return all, size
}

// BenchmarkRecord records and saves 2000 changed resources. "call" is the cost on the relay's path.
func BenchmarkRecord(b *testing.B) {
	store := open(b, config(b, func(c *Config) { c.Logger = nil }))
	w := newWorker(store)
	defer w.end()
	s := newStream(b, store, true)
	m := mesh(500)
	for _, typeURL := range []string{clusterType, endpointType, listenerType, routeType} {
		var names []string
		if answered(typeURL) {
			for _, message := range m[typeURL] {
				names = append(names, messageName(message))
			}
		}
		s.ask(typeURL, names...)
	}
	var call time.Duration
	n := 0
	for b.Loop() {
		b.StopTimer()
		n++
		detail := strconv.Itoa(n)
		frames, size := framesOf(b, m, detail)
		b.SetBytes(int64(size))
		b.StartTimer()
		began := time.Now()
		for _, f := range frames {
			s.rec.Response(f)
		}
		call += time.Since(began)
		for _, typeURL := range []string{clusterType, endpointType, listenerType, routeType} {
			s.ack(typeURL, "n"+detail, "")
		}
		if _, err := w.work(time.Now()); err != nil {
			b.Fatal(err)
		}
		if err := w.save(s.rec, time.Now()); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(call.Nanoseconds())/float64(n), "call-ns/op")
}

// BenchmarkServe loads 2000 resources and serves all of them.
func BenchmarkServe(b *testing.B) {
	for _, isDelta := range []bool{true, false} {
		b.Run(fmt.Sprintf("delta=%t", isDelta), func(b *testing.B) {
			cfg := config(b, func(c *Config) { c.Logger = nil })
			m := mesh(500)
			keep(b, cfg, func(s *stream) { keepMesh(s, m) })
			var requests [][]byte
			for _, typeURL := range []string{clusterType, endpointType, listenerType, routeType} {
				var names []string
				if answered(typeURL) {
					for _, message := range m[typeURL] {
						names = append(names, messageName(message))
					}
				}
				var q proto.Message = &discoveryv3.DiscoveryRequest{TypeUrl: typeURL, ResourceNames: names}
				if isDelta {
					q = delta(typeURL, "", names, nil)
				}
				r, err := proto.Marshal(q)
				if err != nil {
					b.Fatal(err)
				}
				requests = append(requests, r)
			}
			for b.Loop() {
				store, sent, at := open(b, cfg), 0, 0
				err := store.Serve(context.Background(), isDelta, func() ([]byte, error) {
					if at++; at > len(requests) {
						return nil, errors.New("over")
					}
					return requests[at-1], nil
				}, func(r []byte) error {
					sent += len(r)
					return nil
				})
				if err != nil || sent < 900_000 {
					b.Fatal(sent, err)
				}
				b.SetBytes(int64(sent))
				_ = store.found.file.Close() // read-only: closing cannot lose data
			}
		})
	}
}
