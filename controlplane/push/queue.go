// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package push

import (
	"context"
	"sync"

	"golang.org/x/sync/errgroup"
)

// Queue is a queue of connections that wait for a push. A connection is in the queue
// at most once, so the number of connections limits its length. It contains no
// changes: a worker reads the newest snapshot.
type Queue[C comparable] struct {
	// ready holds one token, which means that order may not be empty.
	ready chan struct{}

	mu sync.Mutex // guards what follows
	// order are the waiting connections, oldest first.
	order []C
	// waiting are the connections in order that have not been removed.
	waiting map[C]struct{}
	// busy are the connections that a worker serves; true means that the
	// connection was enqueued again meanwhile.
	busy map[C]bool
}

// NewQueue returns an empty queue.
func NewQueue[C comparable]() *Queue[C] {
	return &Queue[C]{ready: make(chan struct{}, 1), waiting: map[C]struct{}{}, busy: map[C]bool{}}
}

// Enqueue requests a push to a connection. It never blocks.
func (q *Queue[C]) Enqueue(conn C) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if _, ok := q.busy[conn]; ok {
		q.busy[conn] = true
		return
	}
	q.add(conn)
}

// add appends a connection unless it is waiting already. The caller must hold mu.
func (q *Queue[C]) add(conn C) {
	if _, ok := q.waiting[conn]; ok {
		return
	}
	q.waiting[conn] = struct{}{}
	q.order = append(q.order, conn)
	q.signal()
}

// Remove removes a connection that has ended.
func (q *Queue[C]) Remove(conn C) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.waiting, conn) // next skips it in order
	if _, ok := q.busy[conn]; ok {
		q.busy[conn] = false
	}
}

// Len returns the number of waiting connections.
func (q *Queue[C]) Len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.waiting)
}

// Run serves the queue with a number of workers until ctx ends. serve must not wait
// for the proxy: a slow one would block the worker.
func (q *Queue[C]) Run(ctx context.Context, workers int, serve func(C)) error {
	g, ctx := errgroup.WithContext(ctx)
	for range workers {
		g.Go(func() error {
			for {
				conn, ok := q.next(ctx)
				if !ok {
					return nil
				}
				serve(conn)
				q.done(conn)
			}
		})
	}
	return g.Wait()
}

// next waits for the next connection; ok is false if ctx is done.
func (q *Queue[C]) next(ctx context.Context) (conn C, ok bool) {
	for {
		select {
		case <-ctx.Done():
			return conn, false
		case <-q.ready:
		}
		q.mu.Lock()
		for len(q.order) > 0 {
			conn = q.order[0]
			q.order = q.order[1:]
			if _, ok = q.waiting[conn]; !ok {
				continue // removed
			}
			delete(q.waiting, conn)
			q.busy[conn] = false
			if len(q.order) > 0 {
				q.signal() // wake another worker
			}
			q.mu.Unlock()
			return conn, true
		}
		q.mu.Unlock()
	}
}

// done ends the service of a connection, and adds it again if it was enqueued
// meanwhile.
func (q *Queue[C]) done(conn C) {
	q.mu.Lock()
	defer q.mu.Unlock()
	again := q.busy[conn]
	delete(q.busy, conn)
	if again {
		q.add(conn)
	}
}

func (q *Queue[C]) signal() {
	select {
	case q.ready <- struct{}{}:
	default: // a token is there already
	}
}
