// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package xdsproxy

import (
	"fmt"

	"google.golang.org/grpc/mem"
)

// frame is one gRPC message as gRPC's own reference-counted buffers. The
// holder of a frame owns one reference and frees it.
type frame struct {
	data mem.BufferSlice
}

// frameOf makes a frame of bytes that nobody changes any more.
func frameOf(b []byte) *frame { return &frame{data: mem.BufferSlice{mem.SliceBuffer(b)}} }

// free returns the buffers back.
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
