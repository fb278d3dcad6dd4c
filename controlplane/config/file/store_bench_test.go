// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package file

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// service returns a VirtualService of common size.
func service(i int) string {
	return fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: VirtualService
metadata:
  name: service-%[1]d
  namespace: shop
  labels: {app: service-%[1]d}
spec:
  hosts: [service-%[1]d.shop.svc.cluster.local]
  http:
  - match:
    - uri: {prefix: /api}
    timeout: 5s
    retries: {attempts: 3, perTryTimeout: 1s}
    route:
    - destination: {host: service-%[1]d.shop.svc.cluster.local, subset: v1}
      weight: 90
    - destination: {host: service-%[1]d.shop.svc.cluster.local, subset: v2}
      weight: 10
  - route:
    - destination: {host: service-%[1]d.shop.svc.cluster.local}
`, i)
}

// BenchmarkFileStoreStart loads 10,000 objects.
func BenchmarkFileStoreStart(b *testing.B) {
	const objects = 10_000
	for _, each := range []int{1, 100} {
		b.Run(fmt.Sprintf("%d-per-file", each), func(b *testing.B) {
			dir := b.TempDir()
			for i := 0; i < objects; i += each {
				var text strings.Builder
				for j := range each {
					text.WriteString("---\n" + service(i+j))
				}
				if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%d.yaml", i)), []byte(text.String()), 0o600); err != nil {
					b.Fatal(err)
				}
			}
			var keep []*Store
			before := heap()
			for b.Loop() {
				s := startOnce(b, dir)
				if n := len(s.List(model.VirtualService, "")); n != objects {
					b.Fatalf("%d objects, problems: %v", n, s.Problems()[:1])
				}
				keep = append(keep, s)
			}
			b.ReportMetric(float64(heap()-before)/float64(len(keep))/(1<<20), "MiB-kept")
			runtime.KeepAlive(keep)
		})
	}
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// startOnce runs a store until it has synced.
func startOnce(b *testing.B, dir string) *Store {
	b.Helper()
	s, err := New(Config{Dir: dir})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	<-s.Synced()
	cancel()
	if err := <-done; err != nil {
		b.Fatal(err)
	}
	return s
}

// BenchmarkFileStoreWrite writes durably to a store of 10,000 objects.
func BenchmarkFileStoreWrite(b *testing.B) {
	dir := b.TempDir()
	for i := range 10_000 {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%d.yaml", i)), []byte(service(i)), 0o600); err != nil {
			b.Fatal(err)
		}
	}
	s := startOnce(b, dir)
	list, i := s.List(model.VirtualService, ""), 0
	for b.Loop() {
		c := list[i%len(list)].Clone()
		c.ResourceVersion, c.Labels["write"] = "", fmt.Sprint(i)
		if _, err := s.Update(b.Context(), c); err != nil {
			b.Fatal(err)
		}
		i++
	}
}
