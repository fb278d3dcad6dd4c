// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"go.yaml.in/yaml/v3"
	"golang.org/x/sync/errgroup"

	"github.com/outrigger-mesh/outrigger/controlplane/config"
	"github.com/outrigger-mesh/outrigger/controlplane/config/file"
)

const (
	// storeObjects are in the store, half of them routes, half services; each
	// has a file of its own.
	storeObjects = 10_000
	// filesAtOnce is what one goroutine of the straight way reads.
	filesAtOnce = 100
)

// stores measures how long a store of files takes until all of it was read,
// checked and told to a handler. The straight way reads the same files and
// parses the YAML, with all processors too, and does nothing with it.
func (b *bench) stores(ctx context.Context) ([]figure, error) {
	dir := b.path("stores")
	files, err := writeObjects(dir)
	if err != nil {
		return nil, err
	}
	var ours, straight []float64
	var kept float64
	for round := range b.rounds {
		b.say("stores: round %d of %d", round+1, b.rounds)
		took, err := parseAll(files)
		if err != nil {
			return nil, err
		}
		straight = append(straight, took.Seconds())
		before := heap()
		store, took, err := loadAll(ctx, dir)
		if err != nil {
			return nil, err
		}
		ours = append(ours, took.Seconds())
		kept = float64(heap() - before)
		runtime.KeepAlive(store)
	}
	load, failed := median(ours)
	parse, err := median(straight)
	if err := errors.Join(failed, err); err != nil {
		return nil, err
	}
	return []figure{
		{Name: "10,000 objects loaded from fs://", Unit: seconds, Ours: load, Straight: parse, Target: 2},
		{Name: "memory of 10,000 objects from fs://", Unit: megabytes, Ours: kept},
	}, nil
}

// writeObjects writes the files and gives their paths.
func writeObjects(dir string) ([]string, error) {
	const service = `apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: s%[1]d, namespace: shop, labels: {team: web}}
spec:
  hosts: [s%[1]d.shop.svc.cluster.local]
  resolution: STATIC
  ports: [{number: 8080, name: http, protocol: HTTP}]
  endpoints:
  - {address: 10.0.0.1, labels: {version: v1}}
  - {address: 10.0.0.2, labels: {version: v2}}
`
	const route = `apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: s%[1]d, namespace: shop, labels: {team: web}}
spec:
  hosts: [s%[1]d.shop.svc.cluster.local]
  http:
  - match:
    - uri: {prefix: /api}
      headers: {x-user: {exact: tester}}
    timeout: 3s
    route:
    - {destination: {host: s%[1]d.shop.svc.cluster.local, subset: v1}, weight: 90}
    - {destination: {host: s%[1]d.shop.svc.cluster.local, subset: v2}, weight: 10}
  - route:
    - destination: {host: s%[1]d.shop.svc.cluster.local}
`
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	files := make([]string, storeObjects)
	for i := range files {
		text, kind := service, "service"
		if i%2 == 0 {
			text, kind = route, "route"
		}
		files[i] = filepath.Join(dir, fmt.Sprintf("%s-%d.yaml", kind, i/2))
		if err := os.WriteFile(files[i], fmt.Appendf(nil, text, i/2), 0o600); err != nil {
			return nil, err
		}
	}
	return files, nil
}

// loadAll starts a store and waits until a handler has heard of every object.
func loadAll(ctx context.Context, dir string) (config.Store, time.Duration, error) {
	ctx, cancel := context.WithCancel(ctx)
	start := time.Now()
	store, err := file.New(file.Config{Dir: dir})
	if err != nil {
		cancel()
		return nil, 0, err
	}
	told := 0 // by one goroutine, which has ended when it is read
	store.RegisterEventHandler(func(events []config.Event) { told += len(events) })
	done := make(chan error, 1)
	go func() { done <- store.Run(ctx) }()
	var took time.Duration
	select {
	case <-store.Synced():
		took = time.Since(start)
	case <-ctx.Done():
	}
	cancel()
	if err := <-done; err != nil {
		return nil, 0, err
	}
	if told != storeObjects || took == 0 {
		return nil, 0, fmt.Errorf("the store told of %d objects of %d, and has problems with %d", told, storeObjects, len(store.Problems()))
	}
	return store, took, nil
}

// parseAll reads and parses the files.
func parseAll(files []string) (time.Duration, error) {
	start := time.Now()
	var g errgroup.Group
	g.SetLimit(runtime.GOMAXPROCS(0))
	for from := 0; from < len(files); from += filesAtOnce {
		g.Go(func() error {
			for _, path := range files[from:min(from+filesAtOnce, len(files))] {
				data, err := os.ReadFile(path)
				var object map[string]any
				if err := errors.Join(err, yaml.Unmarshal(data, &object)); err != nil {
					return err
				}
			}
			return nil
		})
	}
	err := g.Wait()
	return time.Since(start), err
}

// heap is what is in use.
func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
