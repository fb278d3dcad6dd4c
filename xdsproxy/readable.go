// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package xdsproxy

import (
	"encoding/json"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/outrigger-mesh/outrigger/xdsproxy/wire"
)

// readableResponse is a DiscoveryResponse as JSON for users, with the names
// that protobuf's JSON has.
type readableResponse struct {
	VersionInfo string `json:"versionInfo,omitempty"`
	Resources   []any  `json:"resources,omitempty"`
	TypeURL     string `json:"typeUrl,omitempty"`
	Nonce       string `json:"nonce,omitempty"`
}

// readableAny is a resource. What a control plane has to say to users is JSON
// already; a message of a type that is not known here stays bytes, in base64.
type readableAny struct {
	Type  string `json:"@type"`
	Value any    `json:"value"`
}

func readable(b []byte) readableResponse {
	var out readableResponse
	newCursor(mem.BufferSlice{mem.SliceBuffer(b)}).each(func(n protowire.Number, v cursor) {
		switch n {
		case wire.ResponseVersion:
			out.VersionInfo, _ = v.text()
		case wire.ResponseTypeURL:
			out.TypeURL, _ = v.text()
		case wire.ResponseNonce:
			out.Nonce, _ = v.text()
		case wire.ResponseResources:
			var r readableAny
			var value []byte
			v.each(func(n protowire.Number, v cursor) {
				switch n {
				case wire.AnyTypeURL:
					r.Type, _ = v.text()
				case wire.AnyValue:
					value = v.read(v.left)
				}
			})
			if r.Type == clientConfigType {
				if c, ok := readClientConfig(value); ok {
					out.Resources = append(out.Resources, c)
					return
				}
			}
			if r.Value = value; json.Valid(value) {
				r.Value = json.RawMessage(value)
			}
			out.Resources = append(out.Resources, r)
		}
	})
	return out
}

// names calls fn for the resource names of a request of the state of the world.
func (c cursor) names(fn func(string)) {
	c.each(func(n protowire.Number, v cursor) {
		if n == wire.RequestNames {
			name, _ := v.text()
			fn(name)
		}
	})
}
