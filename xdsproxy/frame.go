// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package xdsproxy

import (
	"fmt"
	"strings"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// frame is one gRPC message as gRPC's own reference-counted buffers. The
// holder of a frame owns one reference and frees it.
type frame struct {
	data mem.BufferSlice
}

// free gives the buffers back.
func (f *frame) free() {
	f.data.Free()
	f.data = nil
}

// codec hands gRPC's buffers through without decoding them. It answers to
// the name "proto", which is what peers send as content subtype.
type codec struct{}

func (codec) Name() string { return "proto" }

// Marshal lends the frame's buffers to gRPC, which frees its reference when
// the bytes are written.
func (codec) Marshal(v any) (mem.BufferSlice, error) {
	f, ok := v.(*frame)
	if !ok {
		return nil, fmt.Errorf("relay codec got a %T", v)
	}
	f.data.Ref()
	return f.data, nil
}

// Unmarshal keeps a reference to the buffers, which gRPC frees on return.
func (codec) Unmarshal(data mem.BufferSlice, v any) error {
	f, ok := v.(*frame)
	if !ok {
		return fmt.Errorf("relay codec got a %T", v)
	}
	data.Ref()
	f.data = data
	return nil
}

// request is what the shallow reader takes from a DiscoveryRequest or a
// DeltaDiscoveryRequest.
type request struct {
	typeURL string
	// rejected is the message of error_detail: Envoy's words about the
	// response that it refused. Empty in an acknowledgement.
	rejected string
}

// Field numbers of envoy.service.discovery.v3; those of type_url differ
// between the two requests.
const (
	sotwTypeURL      = 4
	sotwErrorDetail  = 6
	deltaTypeURL     = 2
	deltaErrorDetail = 7
	statusMessage    = 2 // google.rpc.Status
)

// readRequest reads the top level fields of a request, without the node, the
// names and whatever else it holds. Bytes that are no protobuf message give
// what was read before them: the control plane judges, not the relay.
func readRequest(b []byte, delta bool) request {
	typeURL, errorDetail := protowire.Number(sotwTypeURL), protowire.Number(sotwErrorDetail)
	if delta {
		typeURL, errorDetail = deltaTypeURL, deltaErrorDetail
	}
	var r request
	eachField(b, func(n protowire.Number, v []byte) {
		switch n {
		case typeURL:
			r.typeURL = strings.ToValidUTF8(string(v), "?") // it becomes a metric's label, which must be
		case errorDetail:
			r.rejected = "no reason given"
			eachField(v, func(n protowire.Number, v []byte) {
				if n == statusMessage {
					r.rejected = string(v)
				}
			})
		}
	})
	return r
}

// eachField calls fn for every length-delimited field of a message, and stops
// at the first malformed byte.
func eachField(b []byte, fn func(protowire.Number, []byte)) {
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return
		}
		b = b[n:]
		if typ != protowire.BytesType {
			if n = protowire.ConsumeFieldValue(num, typ, b); n < 0 {
				return
			}
			b = b[n:]
			continue
		}
		v, n := protowire.ConsumeBytes(b)
		if n < 0 {
			return
		}
		fn(num, v)
		b = b[n:]
	}
}
