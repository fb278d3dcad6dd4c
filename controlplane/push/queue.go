// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package push

import (
	"context"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// Queue holds the connections that wait for a push. Each stands in it at most
// once, so its length is bounded by the number of connections; changes for a
// connection that waits, or is being served, merge.
type Queue[C comparable] struct {
	// ready has room for one token: a token means that order may be not
	// empty.
	ready chan struct{}

	mu sync.Mutex // guards what follows
	// order is first come, first served.
	order []C
	// pending is what each connection in order waits for.
	pending map[C]model.Change
	// busy are the connections that a worker serves, with what came for
	// them since.
	busy map[C]model.Change
}

// NewQueue gives an empty queue.
func NewQueue[C comparable]() *Queue[C] {
	return &Queue[C]{
		ready:   make(chan struct{}, 1),
		pending: map[C]model.Change{},
		busy:    map[C]model.Change{},
	}
}

// Enqueue asks for a push to a connection. It never blocks.
func (q *Queue[C]) Enqueue(conn C, c model.Change) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if later, ok := q.busy[conn]; ok {
		q.busy[conn] = union(later, c)
		return
	}
	q.add(conn, c)
}

// add puts a connection at the end, or merges. The caller holds mu.
func (q *Queue[C]) add(conn C, c model.Change) {
	before, waits := q.pending[conn]
	q.pending[conn] = union(before, c)
	if !waits {
		q.order = append(q.order, conn)
		q.signal()
	}
}

// union is Merge that shares a change which is alone: one change goes to every
// connection, and most of them wait for nothing else.
func union(a, b model.Change) model.Change {
	if a.Empty() {
		return b
	}
	return a.Merge(b)
}

// Remove forgets a connection that has ended.
func (q *Queue[C]) Remove(conn C) {
	q.mu.Lock()
	defer q.mu.Unlock()
	// Its place in order stays; next skips it.
	delete(q.pending, conn)
	if _, ok := q.busy[conn]; ok {
		q.busy[conn] = model.Change{}
	}
}

// Len gives how many connections wait.
func (q *Queue[C]) Len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.pending)
}

// Run serves the queue with a number of workers until ctx ends. Serve must
// not wait for the proxy at the other end: a slow one would hold the worker.
func (q *Queue[C]) Run(ctx context.Context, workers int, serve func(C, model.Change)) error {
	g, ctx := errgroup.WithContext(ctx)
	for range workers {
		g.Go(func() error {
			for {
				conn, c, ok := q.next(ctx)
				if !ok {
					return nil
				}
				serve(conn, c)
				q.done(conn)
			}
		})
	}
	return g.Wait()
}

// next waits for the connection whose turn it is.
func (q *Queue[C]) next(ctx context.Context) (conn C, c model.Change, ok bool) {
	for {
		select {
		case <-ctx.Done():
			return conn, c, false
		case <-q.ready:
		}
		q.mu.Lock()
		for len(q.order) > 0 {
			conn = q.order[0]
			q.order = q.order[1:]
			if c, ok = q.pending[conn]; !ok {
				continue // removed
			}
			delete(q.pending, conn)
			q.busy[conn] = model.Change{}
			if len(q.order) > 0 {
				q.signal() // wake another worker
			}
			q.mu.Unlock()
			return conn, c, true
		}
		q.mu.Unlock()
	}
}

// done puts a connection for which something came meanwhile in line again.
func (q *Queue[C]) done(conn C) {
	q.mu.Lock()
	defer q.mu.Unlock()
	later := q.busy[conn]
	delete(q.busy, conn)
	if !later.Empty() {
		q.add(conn, later)
	}
}

func (q *Queue[C]) signal() {
	select {
	case q.ready <- struct{}{}:
	default: // a token is there already
	}
}
