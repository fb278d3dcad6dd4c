// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package xdsproxy

import (
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/outrigger-mesh/outrigger/xdsproxy/wire"
)

// The agent's own messages are encoded and decoded field by field, so that the agent does
// not need Envoy's types.

// variant encodes and decodes messages of one variant of the protocol.
type variant struct{ delta bool }

// subscribe returns a request for all resources of a type.
func (w variant) subscribe(typeURL string) []byte { return w.ask(typeURL, nil) }

// ask returns a request for resources of a type by name.
func (w variant) ask(typeURL string, names []string) []byte {
	number, namesNumber := wire.RequestTypeURL, wire.RequestNames
	if w.delta {
		number, namesNumber = wire.DeltaRequestTypeURL, wire.DeltaRequestSubscribe
	}
	b := appendText(nil, number, typeURL)
	for _, name := range names {
		b = appendText(b, namesNumber, name)
	}
	return b
}

// answer returns the acknowledgement of a response, or its rejection if there is a
// reason. accepted is the version of the last accepted response.
func (w variant) answer(r response, accepted string, code codes.Code, reason string) []byte {
	var b []byte
	if !w.delta {
		b = appendText(b, wire.RequestVersion, accepted)
	}
	return w.settle(append(b, w.subscribe(r.typeURL)...), r.nonce, code, reason)
}

// settle appends nonce and reason to a request; an empty reason means acceptance.
func (w variant) settle(b []byte, nonce string, code codes.Code, reason string) []byte {
	number := wire.RequestNonce
	if w.delta {
		number = wire.DeltaRequestNonce
	}
	return append(appendText(b, number, nonce), w.errorDetail(code, reason)...)
}

// codeRewritten is the code of the rejection of a response that could not be rewritten,
// the same as that of Istio's agent. It tells a control plane that Envoy did not receive
// the rejected resources, and that the agent retries.
const codeRewritten = codes.OK

// errorDetail returns the field that makes a request a rejection, or a health report an
// unhealthy one. It can be appended to a request, because the order of fields is
// arbitrary.
func (w variant) errorDetail(code codes.Code, reason string) []byte {
	if reason == "" {
		return nil
	}
	number := wire.RequestError
	if w.delta {
		number = wire.DeltaRequestError
	}
	var status []byte
	if code != codes.OK {
		status = wire.AppendVarint(nil, wire.StatusCode, uint64(code))
	}
	status = appendText(status, wire.StatusMessage, strings.ToValidUTF8(reason, "?"))
	return wire.Append(nil, number, status)
}

func appendText(b []byte, num protowire.Number, s string) []byte {
	if s == "" {
		return b
	}
	return wire.Append(b, num, s)
}

// resources returns the messages in a response, and the names of removed resources.
func (w variant) resources(f *frame, typeURL string) (values [][]byte, removed []string, err error) {
	wire.NewCursor(f.data).Each(func(n protowire.Number, v wire.Cursor) {
		switch {
		case n == wire.ResponseResources:
			var found string
			var value []byte
			if found, value, err = w.resource(v, err); err == nil && found != typeURL {
				err = fmt.Errorf("resource %d is of type %q; it must be of %s", len(values), found, typeURL)
			}
			values = append(values, value)
		case n == wire.ResponseRemoved && w.delta:
			name, _ := text(v)
			removed = append(removed, name)
		}
	})
	return values, removed, err
}

// resource decodes an Any, which delta wraps in a Resource. It keeps an earlier error.
func (w variant) resource(v wire.Cursor, earlier error) (typeURL string, value []byte, err error) {
	if earlier != nil {
		return "", nil, earlier
	}
	ok := true
	open := func(n protowire.Number, v wire.Cursor) {
		switch n {
		case wire.AnyTypeURL:
			typeURL, _ = text(v)
		case wire.AnyValue:
			value = v.Bytes(v.Len())
		}
	}
	if !w.delta {
		ok = v.Each(open)
	} else {
		all := v.Each(func(n protowire.Number, v wire.Cursor) {
			if n == wire.ResourceAny && !v.Each(open) {
				ok = false
			}
		})
		ok = all && ok
	}
	if !ok {
		err = fmt.Errorf("a resource of the response is not a message")
	}
	return typeURL, value, err
}

// stateOfTheWorld converts a delta response to one of the state of the world.
func stateOfTheWorld(f *frame) []byte {
	var b []byte
	wire.NewCursor(f.data).Each(func(n protowire.Number, v wire.Cursor) {
		switch n {
		case wire.ResponseVersion, wire.ResponseTypeURL, wire.ResponseNonce:
			text, _ := text(v)
			b = appendText(b, n, text)
		case wire.ResponseResources:
			v.Each(func(n protowire.Number, v wire.Cursor) {
				if n == wire.ResourceAny {
					b = wire.Append(b, wire.ResponseResources, v.Bytes(v.Len()))
				}
			})
		}
	})
	return b
}
