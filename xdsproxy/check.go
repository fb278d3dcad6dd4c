// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package xdsproxy

import (
	"bytes"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"

	"github.com/outrigger-mesh/outrigger/xdsproxy/wire"
)

// Check decides whether a response may reach Envoy.
type Check struct {
	// Marker occurs in every response that Func must check. Others are forwarded
	// unchecked.
	Marker string
	// Func returns an error if Envoy must not receive a response.
	Func func(response []byte) error
}

// of returns the error of the check of a response. c may be nil.
func (c *Check) of(data mem.BufferSlice) error {
	if c == nil || !contains(data, []byte(c.Marker)) {
		return nil
	}
	return c.Func(data.Materialize())
}

// contains reports whether a message contains some bytes, which may span several of its
// buffers.
func contains(data mem.BufferSlice, marker []byte) bool {
	var tail []byte // end of the previous buffers, shorter than the marker
	for _, buffer := range data {
		b := buffer.ReadOnlyData()
		seam := append(tail, b[:min(len(b), len(marker)-1)]...)
		if bytes.Contains(b, marker) || bytes.Contains(seam, marker) {
			return true
		}
		if len(b) >= len(marker) {
			seam = b
		}
		tail = bytes.Clone(seam[max(0, len(seam)-len(marker)+1):])
	}
	return false
}

// refuse rejects a response that Envoy does not receive. Without delta it sends no
// rejection to the control plane, which would have to repeat Envoy's names.
func (s *stream) refuse(r response, err error) {
	reason := "refused by the agent: " + err.Error()
	s.proxy.log.Warn("response of the control plane refused; envoy keeps its configuration", "type_url", r.typeURL, "reason", reason)
	s.proxy.state.settled(r.typeURL, reason)
	s.proxy.metrics.rejected.WithLabelValues(s.proxy.state.label(r.typeURL)).Inc()
	if s.delta {
		rejection := (variant{delta: true}).settle(appendText(nil, wire.DeltaRequestTypeURL, r.typeURL), r.nonce, codes.Internal, reason)
		s.record(func(to Recording) { to.Request(frameOf(rejection).data) })
		s.outbox.put(r.typeURL, rejection)
	}
}
