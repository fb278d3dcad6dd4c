// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"strconv"

	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers the codec for everything that is not a frame
	"google.golang.org/grpc/mem"

	"github.com/outrigger-mesh/outrigger/xdsproxy/wire"
)

// frame is an encoded message.
type frame struct {
	// data is a response; most of its buffers are shared between streams.
	data mem.BufferSlice
	// request is a request; its receiver must free it.
	request mem.Buffer
}

// Codec returns a codec that sends the server's responses without marshalling them
// again, delivers its requests undecoded, and leaves all other messages to gRPC's own
// codec. gRPC servers on which a [Server] is registered must force it.
func Codec() encoding.CodecV2 { return codec{encoding.GetCodecV2("proto")} }

type codec struct{ encoding.CodecV2 }

func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if f, ok := v.(*frame); ok {
		return f.data, nil
	}
	return c.CodecV2.Marshal(v)
}

func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	if f, ok := v.(*frame); ok {
		f.request = data.MaterializeToBuffer(mem.DefaultBufferPool())
		return nil
	}
	return c.CodecV2.Unmarshal(data, v)
}

// response is a discovery response, of a delta or a state-of-the-world stream.
type response struct {
	typeURL string
	version string
	nonce   string
	// body are the encoded resources.
	body    mem.BufferSlice
	removed []string // delta only
}

// frame returns the encoded response. It does not copy the bytes of the resources.
func (r *response) frame() *frame {
	size := len(r.version) + len(r.typeURL) + len(r.nonce) + 16
	for _, name := range r.removed {
		size += len(name) + 4
	}
	tail := make([]byte, 0, size)
	tail = wire.Append(tail, wire.ResponseVersion, r.version)
	tail = wire.Append(tail, wire.ResponseTypeURL, r.typeURL)
	tail = wire.Append(tail, wire.ResponseNonce, r.nonce)
	for _, name := range r.removed {
		tail = wire.Append(tail, wire.ResponseRemoved, name)
	}
	return &frame{data: append(r.body, mem.SliceBuffer(tail))}
}

// versionOf returns the version of a resource on the wire: its hash.
func versionOf(hash uint64) string { return strconv.FormatUint(hash, 16) }

// hashOf parses a version of versionOf. It returns 0 for any other text, so that the
// resource is sent: no resource has that hash, but for a chance of 1 in 2^64.
func hashOf(version string) uint64 {
	h, err := strconv.ParseUint(version, 16, 64)
	if err != nil {
		return 0
	}
	return h
}
