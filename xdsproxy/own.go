// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package xdsproxy

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/outrigger-mesh/outrigger/bootstrap/node"
)

// outbox contains the agent's own messages to the control plane. Adding a message never
// blocks, in particular not the receiver of responses: that could deadlock with a
// control plane that does not read until its responses are read. The outbox has only the
// newest message of each key. There are few keys: types, reports, and a limited number
// of questions.
type outbox struct {
	wake chan struct{}

	mu    sync.Mutex // guards the fields below
	order []string   // of keys
	next  map[string][]byte
}

func newOutbox() *outbox {
	return &outbox{wake: make(chan struct{}, 1), next: map[string][]byte{}}
}

func (o *outbox) put(key string, message []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, waits := o.next[key]; !waits {
		o.order = append(o.order, key)
	}
	o.next[key] = message
	select {
	case o.wake <- struct{}{}:
	default: // it has been woken up already
	}
}

// take returns the oldest message, or nil if there is none.
func (o *outbox) take() []byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.order) == 0 {
		return nil
	}
	key := o.order[0]
	o.order = o.order[1:]
	message := o.next[key]
	delete(o.next, key)
	return message
}

// say sends the messages of the outbox until ctx ends.
func (s *stream) say(ctx context.Context) error {
	for {
		for message := s.outbox.take(); message != nil; message = s.outbox.take() {
			if err := s.send(ctx, frameOf(message)); err != nil {
				return err
			}
		}
		select {
		case <-s.outbox.wake:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// owns reports whether a type is for the agent itself.
func (s *stream) owns(typeURL string) bool {
	if typeURL == healthType {
		return true
	}
	return s.proxy.consumer(typeURL) != nil
}

func (p *Proxy) consumer(typeURL string) *Consumer {
	for i := range p.consumers {
		if p.consumers[i].TypeURL == typeURL {
			return &p.consumers[i]
		}
	}
	return nil
}

// subscribeOwn subscribes to the agent's own types, and reports the application's
// health, after Envoy's first request for listeners. By then the control plane has
// received the node.
func (s *stream) subscribeOwn() {
	p := s.proxy
	p.mu.Lock()
	defer p.mu.Unlock()
	if s.subscribed {
		return
	}
	s.subscribed = true
	for _, c := range p.consumers {
		if c.Subscribe {
			request := s.subscribe(c.TypeURL)
			s.record(func(to Recording) { to.Request(frameOf(request).data) })
			s.outbox.put(c.TypeURL, request)
		}
	}
	if p.health != nil {
		s.outbox.put(healthType, p.health.request(s.variant))
	}
}

// consume passes a response to its consumer, and answers it.
func (s *stream) consume(f *frame, r response) {
	p := s.proxy
	c := p.consumer(r.typeURL)
	if c == nil { // a health report has no response
		s.drop("unknown_type", r.typeURL)
		return
	}
	messages, removed, err := s.resources(f, r.typeURL)
	if err == nil {
		err = c.Handle(messages, removed)
	}
	result, reason := "accepted", ""
	if err != nil {
		result, reason = "rejected", err.Error()
		p.log.Warn("the agent rejected a response of the control plane", "type_url", r.typeURL, "version", r.version, "err", err)
	} else {
		s.accepted[r.typeURL] = r.version
	}
	p.metrics.own.WithLabelValues(r.typeURL, result).Inc()
	p.state.settled(r.typeURL, reason)
	answer := s.answer(r, s.accepted[r.typeURL], codes.Internal, reason)
	s.record(func(to Recording) {
		to.Response(f.data)
		to.Request(frameOf(answer).data)
	})
	s.outbox.put(r.typeURL, answer)
}

// betweenKeyReports is the shortest time between two reports of unknown keys.
const betweenKeyReports = 10 * time.Second

// reportUnknownKey asks the control plane to look for newer keys of the issuers of tokens.
func (p *Proxy) reportUnknownKey() {
	if !p.keyReports.Allow() {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.current {
		if s.subscribed {
			s.outbox.put(node.UnknownKeyType, s.subscribe(node.UnknownKeyType))
		}
	}
}

// health is a health report about the application of a machine.
type health struct {
	healthy bool
	message string
}

func (h health) request(w variant) []byte {
	b := w.subscribe(healthType)
	if h.healthy {
		return b
	}
	message := h.message
	if message == "" {
		message = "unhealthy"
	}
	return append(b, w.errorDetail(codes.Internal, message)...)
}

// ReportHealth reports the health of the application to the control plane, with the
// reason if it is unhealthy. It does not block. The report is sent once Envoy has
// subscribed to listeners, and the last one is repeated on each new stream.
func (p *Proxy) ReportHealth(healthy bool, message string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.health = &health{healthy: healthy, message: message}
	for _, s := range p.current {
		if s.subscribed {
			s.outbox.put(healthType, p.health.request(s.variant))
		}
	}
}
