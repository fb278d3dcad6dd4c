// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"strconv"

	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers the codec for everything that is no frame
	"google.golang.org/grpc/mem"

	"github.com/outrigger-mesh/outrigger/xdsproxy/wire"
)

// frame is a message as bytes.
type frame struct {
	// data is a response; most of its buffers are shared between streams.
	data mem.BufferSlice
	// request is a request; who received it frees it.
	request mem.Buffer
}

// Codec sends the server's responses without marshalling them again, hands
// over its requests undecoded, and leaves all other messages to gRPC's own
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

// response is what both kinds of discovery response have in common.
type response struct {
	typeURL string
	version string
	nonce   string
	// body are the encoded resources.
	body    mem.BufferSlice
	removed []string // delta only
}

// frame encodes the response. The bytes of the resources are not copied.
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

// versionOf gives the version of a resource on the wire: its hash.
func versionOf(hash uint64) string { return strconv.FormatUint(hash, 16) }

// hashOf reads a version that versionOf made. Anything else gives 0, which
// no resource has but by a chance of 1 to 2^64: the resource is sent then.
func hashOf(version string) uint64 {
	h, err := strconv.ParseUint(version, 16, 64)
	if err != nil {
		return 0
	}
	return h
}
