// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package xdsproxy

import (
	"fmt"

	"google.golang.org/grpc/mem"
)

// frame is a gRPC message in gRPC's reference-counted buffers. The owner of a frame owns
// one reference and must free it.
type frame struct {
	data mem.BufferSlice
}

// frameOf returns a frame of bytes, which must not be modified any more.
func frameOf(b []byte) *frame { return &frame{data: mem.BufferSlice{mem.SliceBuffer(b)}} }

// free releases the buffers.
func (f *frame) free() {
	f.data.Free()
	f.data = nil
}

// codec passes gRPC's buffers through without decoding them. Its name is "proto", the
// content subtype that peers send.
type codec struct{}

func (codec) Name() string { return "proto" }

// Marshal returns the frame's buffers to gRPC, which frees its reference when
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
