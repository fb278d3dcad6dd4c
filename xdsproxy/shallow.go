// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package xdsproxy

import (
	"encoding/binary"
	"strings"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/outrigger-mesh/outrigger/xdsproxy/wire"
)

// The shallow reader takes a few top level fields from a message and steps
// over all others, where they lie in gRPC's buffers: nothing is decoded, and
// nothing is copied but these fields.

// Limits of what is taken from a message, in bytes. Type URLs, nonces and
// versions are short; a longer one is not one.
const (
	maxText   = 16 << 10
	maxReason = 4 << 10 // of Envoy's words, which are cut there
)

// maxGroups is how deep groups are nested at most, as with Envoy.
const maxGroups = 100

// cursor reads a part of a message that lies in several buffers. A copy of it
// reads on independently.
type cursor struct {
	buffers mem.BufferSlice // after current
	current []byte
	left    int // bytes to the part's end
}

func newCursor(data mem.BufferSlice) cursor { return cursor{buffers: data, left: data.Len()} }

// chunk is what can be read at once; it is not empty while something is left.
func (c *cursor) chunk() []byte {
	for len(c.current) == 0 && len(c.buffers) > 0 {
		c.current, c.buffers = c.buffers[0].ReadOnlyData(), c.buffers[1:]
	}
	return c.current[:min(len(c.current), c.left)]
}

func (c *cursor) skip(n int) bool {
	if n < 0 || n > c.left {
		return false
	}
	for n > 0 {
		step := min(n, len(c.chunk()))
		c.current = c.current[step:]
		c.left -= step
		n -= step
	}
	return true
}

// read copies up to limit bytes of what is left.
func (c cursor) read(limit int) []byte {
	b := make([]byte, 0, min(c.left, limit))
	for len(b) < cap(b) {
		chunk := c.chunk()
		chunk = chunk[:min(len(chunk), cap(b)-len(b))]
		b = append(b, chunk...)
		c.skip(len(chunk))
	}
	return b
}

func (c *cursor) varint() (uint64, bool) {
	v, n := protowire.ConsumeVarint(c.chunk())
	if n < 0 { // it may end in the next buffer
		if v, n = protowire.ConsumeVarint(c.read(binary.MaxVarintLen64)); n < 0 {
			return 0, false
		}
	}
	return v, c.skip(n)
}

// each calls fn for every length-delimited field until the end, and tells
// whether the bytes are a message. fn is called for the fields before the
// first malformed byte. What is in a group, which none of these messages has,
// is passed over.
func (c cursor) each(fn func(protowire.Number, cursor)) bool {
	var groups []protowire.Number // that are open
	for c.left > 0 {
		tag, ok := c.varint()
		num, typ := protowire.DecodeTag(tag)
		if !ok || num < protowire.MinValidNumber {
			return false
		}
		switch typ {
		case protowire.VarintType:
			_, ok = c.varint()
		case protowire.Fixed32Type:
			ok = c.skip(4)
		case protowire.Fixed64Type:
			ok = c.skip(8)
		case protowire.BytesType:
			var n uint64
			if n, ok = c.varint(); !ok || n > uint64(c.left) {
				return false
			}
			field := c
			field.left = int(n)
			if len(groups) == 0 {
				fn(num, field)
			}
			c.skip(int(n))
		case protowire.StartGroupType:
			groups = append(groups, num)
			ok = len(groups) <= maxGroups
		case protowire.EndGroupType:
			last := len(groups) - 1
			if ok = last >= 0 && groups[last] == num; ok {
				groups = groups[:last]
			}
		default:
			ok = false
		}
		if !ok {
			return false
		}
	}
	return len(groups) == 0
}

// text is a short field; false when it is too long to be one.
func (c cursor) text() (string, bool) {
	if chunk := c.chunk(); len(chunk) == c.left {
		return string(chunk[:min(c.left, maxText)]), c.left <= maxText
	}
	return string(c.read(maxText)), c.left <= maxText
}

// request is what is taken from a DiscoveryRequest or a DeltaDiscoveryRequest.
type request struct {
	typeURL string
	version string // of the state of the world
	nonce   string
	// rejected is the message of error_detail: Envoy's words about the
	// response that it refused. Empty in an acknowledgement.
	rejected string
}

// readRequest reads a request. Bytes that are no message give what was read
// before them: the control plane judges, not the relay.
func readRequest(data mem.BufferSlice, delta bool) request {
	version, typeURL, nonce, errorDetail := wire.RequestVersion, wire.RequestTypeURL, wire.RequestNonce, wire.RequestError
	if delta {
		version, typeURL, nonce, errorDetail = 0, wire.DeltaRequestTypeURL, wire.DeltaRequestNonce, wire.DeltaRequestError
	}
	var r request
	newCursor(data).each(func(n protowire.Number, v cursor) {
		switch n {
		case version:
			r.version, _ = v.text()
		case typeURL:
			r.typeURL = label(v)
		case nonce:
			r.nonce, _ = v.text()
		case errorDetail:
			r.rejected = reason(v)
		}
	})
	return r
}

// reason reads the message of a Status.
func reason(v cursor) string {
	words := ""
	v.each(func(n protowire.Number, v cursor) {
		if n == wire.StatusMessage {
			words = strings.ToValidUTF8(string(v.read(maxReason)), "?")
		}
	})
	if words == "" {
		return "no reason given"
	}
	return words
}

// label reads a type URL, which becomes the label of metrics and must be text
// for that.
func label(v cursor) string {
	text, _ := v.text()
	return strings.ToValidUTF8(text, "?")
}

// response is what is taken from a DiscoveryResponse or a
// DeltaDiscoveryResponse.
type response struct {
	typeURL, version, nonce string
}

// readResponse reads a response; false when the bytes are none.
func readResponse(data mem.BufferSlice) (r response, ok bool) {
	fits := true
	ok = newCursor(data).each(func(n protowire.Number, v cursor) {
		var is *string
		switch n {
		case wire.ResponseVersion:
			is = &r.version
		case wire.ResponseTypeURL:
			is = &r.typeURL
		case wire.ResponseNonce:
			is = &r.nonce
		default:
			return
		}
		text, short := v.text()
		*is, fits = text, fits && short
	})
	return r, ok && fits
}
