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

// What the agent says and takes itself is written and read here field by
// field, as the rest of it is small enough to do without Envoy's types.

// variant writes messages of one variant of the protocol.
type variant struct{ delta bool }

// subscribe asks for all resources of a type.
func (w variant) subscribe(typeURL string) []byte { return w.ask(typeURL, nil) }

// ask asks for resources of a type by name.
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

// answer acknowledges a response, or rejects it for a reason. accepted is the
// version that counts then.
func (w variant) answer(r response, accepted string, code codes.Code, reason string) []byte {
	var b []byte
	if !w.delta {
		b = appendText(b, wire.RequestVersion, accepted)
	}
	return w.settle(append(b, w.subscribe(r.typeURL)...), r.nonce, code, reason)
}

// settle appends nonce and reason to a request; an empty reason is an acceptance.
func (w variant) settle(b []byte, nonce string, code codes.Code, reason string) []byte {
	number := wire.RequestNonce
	if w.delta {
		number = wire.DeltaRequestNonce
	}
	return append(appendText(b, number, nonce), w.errorDetail(code, reason)...)
}

// codeRewritten is the code of the rejection of a response that could not be
// rewritten, as Istio's agent sends it. A control plane knows by it that Envoy did
// not see what is rejected, and that the agent retries.
const codeRewritten = codes.OK

// errorDetail is the field that makes a request a rejection, or a health report
// that says unhealthy. Fields may follow one another in any order: it can be
// appended to a request.
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

// resources takes the messages from a response, of either variant, and the
// names of those that are gone.
func (w variant) resources(f *frame, typeURL string) (values [][]byte, removed []string, err error) {
	wire.NewCursor(f.data).Each(func(n protowire.Number, v wire.Cursor) {
		switch {
		case n == wire.ResponseResources:
			var found string
			var value []byte
			if found, value, err = w.resource(v, err); err == nil && found != typeURL {
				err = fmt.Errorf("resource %d is of type %q, it must be of %s", len(values), found, typeURL)
			}
			values = append(values, value)
		case n == wire.ResponseRemoved && w.delta:
			name, _ := text(v)
			removed = append(removed, name)
		}
	})
	return values, removed, err
}

// resource opens an Any, which in delta lies in a Resource. An earlier error stays.
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
		err = fmt.Errorf("a resource of the response is no message")
	}
	return typeURL, value, err
}

// stateOfTheWorld writes a delta response as one of the state of the world.
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
