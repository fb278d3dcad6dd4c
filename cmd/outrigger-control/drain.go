// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"google.golang.org/grpc"
)

// drainTime is how long the streams of a control plane that stops take to end,
// one after the other: those that have to go elsewhere do not come there all at
// once. Calls that are under way have as long, and a little more, to end.
const drainTime = time.Second

// drain knows the open streams of a server, and ends them.
type drain struct {
	mu      sync.Mutex // guards what follows
	streams map[*drained]struct{}
	over    bool // no stream lives any more
}

// drained is a stream that ends before its client does.
type drained struct {
	grpc.ServerStream
	ctx    context.Context //nolint:containedctx // what grpc.ServerStream gives
	cancel context.CancelFunc
}

// Context implements grpc.ServerStream.
func (s *drained) Context() context.Context { return s.ctx }

// intercept is a grpc.StreamServerInterceptor.
func (d *drain) intercept(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	s := &drained{ServerStream: ss}
	s.ctx, s.cancel = context.WithCancel(ss.Context())
	defer s.cancel()
	d.mu.Lock()
	if d.streams == nil {
		d.streams = map[*drained]struct{}{}
	}
	d.streams[s] = struct{}{}
	if d.over {
		s.cancel()
	}
	d.mu.Unlock()
	defer func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.streams, s)
	}()
	return handle(srv, s)
}

// end ends all streams within a time, in no order.
func (d *drain) end(within time.Duration) {
	d.mu.Lock()
	var open []*drained
	for s := range d.streams {
		open = append(open, s)
	}
	d.mu.Unlock()
	rand.Shuffle(len(open), func(i, j int) { open[i], open[j] = open[j], open[i] })
	began := time.Now()
	for i, s := range open {
		time.Sleep(time.Until(began.Add(within * time.Duration(i) / time.Duration(len(open)))))
		s.cancel()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.over = true
	for s := range d.streams {
		s.cancel()
	}
}

// stop ends a server: it takes no more connections and streams, lets its calls
// end, and ends its streams one after the other.
func (d *drain) stop(server *grpc.Server, within time.Duration) {
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		server.GracefulStop()
	}()
	d.end(within)
	late := time.NewTimer(within)
	defer late.Stop()
	select {
	case <-stopped:
	case <-late.C:
		server.Stop()
		<-stopped
	}
}
