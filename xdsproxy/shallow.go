// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package xdsproxy

import (
	"strings"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/outrigger-mesh/outrigger/xdsproxy/wire"
)

// A few top-level fields of a message are read directly from gRPC's buffers. Nothing
// else is decoded or copied.

// Limits of fields in bytes. Type URLs, nonces and versions are short; longer ones are
// invalid.
const (
	maxText   = 16 << 10
	maxReason = 4 << 10 // of Envoy's message, which is truncated
)

// text returns a short field; false if it is too long.
func text(v wire.Cursor) (string, bool) { return v.Text(maxText) }

// request has the relevant fields of a DiscoveryRequest or a DeltaDiscoveryRequest.
type request struct {
	typeURL string
	version string // of the state of the world
	nonce   string
	// rejected is the message of error_detail: why Envoy rejected the response.
	// Empty in an acknowledgement.
	rejected string
}

// readRequest reads a request. Of an invalid message it returns the fields before the
// fault: the control plane validates requests, not the relay.
func readRequest(data mem.BufferSlice, delta bool) request {
	version, typeURL, nonce, errorDetail := wire.RequestVersion, wire.RequestTypeURL, wire.RequestNonce, wire.RequestError
	if delta {
		version, typeURL, nonce, errorDetail = 0, wire.DeltaRequestTypeURL, wire.DeltaRequestNonce, wire.DeltaRequestError
	}
	var r request
	wire.NewCursor(data).Each(func(n protowire.Number, v wire.Cursor) {
		switch n {
		case version:
			r.version, _ = text(v)
		case typeURL:
			r.typeURL = label(v)
		case nonce:
			r.nonce, _ = text(v)
		case errorDetail:
			r.rejected = reason(v)
		}
	})
	return r
}

// reason returns the message of a Status.
func reason(v wire.Cursor) string {
	words := ""
	v.Each(func(n protowire.Number, v wire.Cursor) {
		if n == wire.StatusMessage {
			words = strings.ToValidUTF8(string(v.Bytes(maxReason)), "?")
		}
	})
	if words == "" {
		return "no reason given"
	}
	return words
}

// label returns a type URL as valid UTF-8, for labels of metrics.
func label(v wire.Cursor) string {
	text, _ := text(v)
	return strings.ToValidUTF8(text, "?")
}

// response has the relevant fields of a DiscoveryResponse or a DeltaDiscoveryResponse.
type response struct {
	typeURL, version, nonce string
}

// readResponse reads a response; it returns false if the message is invalid.
func readResponse(data mem.BufferSlice) (r response, ok bool) {
	fits := true
	ok = wire.NewCursor(data).Each(func(n protowire.Number, v wire.Cursor) {
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
		text, short := text(v)
		*is, fits = text, fits && short
	})
	return r, ok && fits
}
