// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package xdsproxy

import (
	"encoding/json"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/outrigger-mesh/outrigger/xdsproxy/wire"
)

// readableResponse is a DiscoveryResponse as JSON for users, with the names of protobuf's
// JSON.
type readableResponse struct {
	VersionInfo string `json:"versionInfo,omitempty"`
	Resources   []any  `json:"resources,omitempty"`
	TypeURL     string `json:"typeUrl,omitempty"`
	Nonce       string `json:"nonce,omitempty"`
}

// readableAny is a resource. A control plane's text for users is JSON; messages of
// unknown types are shown in base64.
type readableAny struct {
	Type  string `json:"@type"`
	Value any    `json:"value"`
}

func readable(b []byte) readableResponse {
	var out readableResponse
	wire.CursorOf(b).Each(func(n protowire.Number, v wire.Cursor) {
		switch n {
		case wire.ResponseVersion:
			out.VersionInfo, _ = text(v)
		case wire.ResponseTypeURL:
			out.TypeURL, _ = text(v)
		case wire.ResponseNonce:
			out.Nonce, _ = text(v)
		case wire.ResponseResources:
			var r readableAny
			var value []byte
			v.Each(func(n protowire.Number, v wire.Cursor) {
				switch n {
				case wire.AnyTypeURL:
					r.Type, _ = text(v)
				case wire.AnyValue:
					value = v.Bytes(v.Len())
				}
			})
			if r.Type == clientConfigType {
				if c, err := readClientConfig(value); err == nil {
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

// eachName calls fn for the resource names of a request of the state of the world.
func eachName(request wire.Cursor, fn func(string)) {
	request.Each(func(n protowire.Number, v wire.Cursor) {
		if n == wire.RequestNames {
			name, _ := text(v)
			fn(name)
		}
	})
}
