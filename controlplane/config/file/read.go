// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package file

import (
	"context"
	"crypto/sha256"
	"io/fs"
	"path/filepath"
	"runtime"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/outrigger-mesh/outrigger/controlplane/config/codec"
	"github.com/outrigger-mesh/outrigger/internal/filetree"
)

// readBatch is how many files one goroutine reads at once.
const readBatch = 16

// request is a file that is to be read, with what is known of it. It shares
// nothing with the tree, so that any goroutine can work on it.
type request struct {
	path   string
	size   int64 // in bytes, as Stat said
	charge int64 // what it counts for now
	// read means that sum is that of what was read last.
	read bool
	sum  [sha256.Size]byte
	// known is what this process wrote last, so that it need not be decoded.
	known content
}

func (t *tree) request(path string, size int64) request {
	q := request{path: path, size: size}
	if f := t.files[path]; f != nil {
		q.read, q.sum, q.charge = f.read, f.sum, f.charge
	}
	if t.known.path == path {
		q.known = t.known
	}
	return q
}

func (t *tree) requests(order []pathSize) []request {
	all := make([]request, len(order))
	for i, f := range order {
		all[i] = t.request(f.path, f.size)
	}
	return all
}

// read returns what a file holds, decoded unless it is what it was. It may be
// called by any goroutine.
func (t *tree) read(ctx context.Context, q request) content {
	if t.used.Load()+sizeCharge(q.size)-q.charge > MaxStoreSize {
		return content{err: errStoreFull}
	}
	data, info, err := t.boundary.ReadFile(q.path, codec.MaxFileSize+1)
	if err != nil {
		return content{err: err}
	}
	c := content{sum: sha256.Sum256(data), empty: len(data) == 0}
	switch {
	case q.read && q.sum == c.sum:
		c.charge = q.charge
	case q.known.path == q.path && q.known.sum == c.sum:
		c = q.known
	default:
		c = decodeContent(ctx, q.path, data)
	}
	if more := c.charge - q.charge; t.used.Add(more) > MaxStoreSize && more > 0 {
		t.used.Add(-more)
		return content{err: errStoreFull}
	}
	c.info = info
	return c
}

// count adds up what all files count for. What was read and then not taken so
// leaves no trace.
func (t *tree) count() {
	used := int64(0)
	for _, f := range t.files {
		used += f.charge
	}
	t.used.Store(used)
}

// readSome reads files, and those that would take long later and aside, unless
// this is the first load. It returns false if ctx ended it.
func (t *tree) readSome(ctx context.Context, files map[string]fs.FileInfo) bool {
	order := fairOrder(files)
	if t.loaded && !t.whole {
		now := fitting(order, readNow)
		for _, f := range order[now:] {
			t.backlog[f.path], t.queue = files[f.path], nil
		}
		order = order[:now]
	}
	contents := t.readAll(ctx, t.requests(order), runtime.GOMAXPROCS(0))
	if ctx.Err() != nil {
		return false
	}
	for path, c := range contents {
		t.take(ctx, path, c)
	}
	return true
}

// readAll reads files with some goroutines.
func (t *tree) readAll(ctx context.Context, all []request, workers int) map[string]content {
	var (
		mu    sync.Mutex
		group errgroup.Group
	)
	contents := make(map[string]content, len(all))
	group.SetLimit(workers)
	for batch := range slices.Chunk(all, readBatch) {
		group.Go(func() error {
			for _, q := range batch {
				if ctx.Err() != nil {
					return nil
				}
				c := t.read(ctx, q)
				mu.Lock()
				contents[q.path] = c
				mu.Unlock()
			}
			return nil
		})
	}
	_ = group.Wait() // its functions do not fail
	return contents
}

// readAside returns a function that reads the next files of the backlog without
// the lock of the store; nil if there are none, or some are being read. What it
// returns is for takeAside.
func (t *tree) readAside() func(context.Context) map[string]content {
	if len(t.backlog) == 0 || t.aside {
		return nil
	}
	if t.queue = slices.DeleteFunc(t.queue, func(f pathSize) bool { return t.backlog[f.path] == nil }); len(t.queue) == 0 {
		t.queue = fairOrder(t.backlog)
	}
	n := max(1, fitting(t.queue, readAside))
	order := t.queue[:n]
	t.queue = t.queue[n:]
	all := t.requests(order)
	for _, f := range order {
		delete(t.backlog, f.path)
		t.reading[f.path] = true
	}
	t.aside = true
	return func(ctx context.Context) map[string]content { return t.readAll(ctx, all, 1) }
}

// takeAside brings files up to date that were read aside.
func (t *tree) takeAside(ctx context.Context, contents map[string]content) {
	for path, c := range contents {
		if t.reading[path] {
			newer := t.backlog[path]
			if t.take(ctx, path, c); newer != nil {
				t.backlog[path] = newer
			}
		}
	}
	clear(t.reading)
	t.aside = false
}

// readFile reads a file where it is, and follows no link to another directory.
func readFile(path string) ([]byte, error) {
	data, _, err := filetree.Boundary{Root: filepath.Dir(path)}.ReadFile(path, codec.MaxFileSize+1)
	return data, err
}
