// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package file

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
	"golang.org/x/sync/errgroup"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// service returns a VirtualService of typical size.
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

// BenchmarkFileStoreStart loads 10,000 objects. It alternates that with parsing the YAML of the
// same files on all processors and discarding the result: parse-s is the median of that.
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
			var parsed []float64
			before := heap()
			for b.Loop() {
				b.StopTimer()
				parsed = append(parsed, parseAll(b, dir).Seconds())
				b.StartTimer()
				s := startOnce(b, dir)
				if n := len(s.List(model.VirtualService, "")); n != objects {
					b.Fatalf("%d objects, problems: %v", n, s.Problems()[:1])
				}
				keep = append(keep, s)
			}
			b.ReportMetric(float64(heap()-before)/float64(len(keep))/(1<<20), "MiB-kept")
			slices.Sort(parsed)
			b.ReportMetric(parsed[len(parsed)/2], "parse-s")
			runtime.KeepAlive(keep)
		})
	}
}

// parseAll reads and parses all files of a directory.
func parseAll(b *testing.B, dir string) time.Duration {
	b.Helper()
	start := time.Now()
	files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil {
		b.Fatal(err)
	}
	var g errgroup.Group
	g.SetLimit(runtime.GOMAXPROCS(0))
	for some := range slices.Chunk(files, 100) {
		g.Go(func() error {
			for _, path := range some {
				data, err := os.ReadFile(path)
				for decoder := yaml.NewDecoder(bytes.NewReader(data)); err == nil; {
					var object map[string]any
					err = decoder.Decode(&object)
				}
				if !errors.Is(err, io.EOF) {
					return err
				}
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		b.Fatal(err)
	}
	return time.Since(start)
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
