// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package xdsproxy

import (
	"context"
	"sync"

	"google.golang.org/grpc/codes"
)

// outbox holds what the agent itself has to say upstream. A caller that puts
// something in does not wait, least of all the receiver of responses: a
// control plane that reads no more before it was read from would stop both.
// It holds one message for each key, the newest; keys are few: types, reports,
// and questions, which are limited.
type outbox struct {
	wake chan struct{}

	mu    sync.Mutex // guards what follows
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
	default: // it will look anyhow
	}
}

// take returns the oldest message, nil if there is none.
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

// say sends what is in the outbox until ctx ends.
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

// owns tells whether a type is the agent's own.
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

// subscribeOwn asks for the agent's own types, and reports the application's
// health, after Envoy's first request for listeners. From there on the control
// plane knows who this is.
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

// consume hands a response to its consumer, and answers it.
func (s *stream) consume(f *frame, r response) {
	p := s.proxy
	c := p.consumer(r.typeURL)
	if c == nil { // a report of health has no response
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
		p.log.Warn("the agent rejected what the control plane sent for it", "type_url", r.typeURL, "version", r.version, "err", err)
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

// health is a report on the application of a machine.
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

// ReportHealth tells the control plane how the application is, with the reason
// if it is not healthy. It does not wait. A stream reports once Envoy has asked
// for listeners on it; the last report is repeated on each new one.
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
