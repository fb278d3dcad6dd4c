// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package wasm

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/outrigger-mesh/outrigger/xdsproxy/wire"
)

// incomplete is appended to the version of a response with a fallback. When Envoy reconnects, the
// version shows that it lacks what the control plane sent, so it is sent again.
const incomplete = "+incomplete"

// Response is a rewritten ECDS response.
type Response struct {
	// Frame is the message for Envoy. It is nil if it would contain nothing that Envoy can use.
	// Then only the control plane receives a response, a NACK.
	Frame []byte
	// Failures are the resources that could not be converted. Those with a non-nil Resource are
	// replaced by it in Frame.
	Failures []Outcome
}

// maxReasons is the maximum number of failures whose reason is sent to the control plane.
const maxReasons = 8

// Reason returns the description of the failures for the control plane, in one line. It is empty if
// there are none.
func (r Response) Reason() string {
	var reasons []string
	for i, f := range r.Failures {
		if i == maxReasons {
			reasons = append(reasons, fmt.Sprintf("and %d more", len(r.Failures)-i))
			break
		}
		reasons = append(reasons, fmt.Sprintf("%s (%s)", f.Err, f.Fallback))
	}
	return strings.Join(reasons, "; ")
}

// RewriteResponse rewrites the resources of a serialized DiscoveryResponse or
// DeltaDiscoveryResponse and preserves everything else.
func (c *Cache) RewriteResponse(ctx context.Context, frame []byte, delta bool) Response {
	var items, anys [][]byte
	err := eachField(frame, func(f wire.Field) error {
		if f.Number != wire.ResponseResources || f.Type != protowire.BytesType {
			return nil
		}
		b := f.Data
		if delta {
			var err error
			if b, _, err = message(f.Data, wire.ResourceAny); err != nil {
				return err
			}
		}
		items, anys = append(items, f.Data), append(anys, b)
		return nil
	})
	if err != nil {
		return Response{Failures: []Outcome{{Fallback: Withheld, Err: fmt.Errorf("extension configurations: %w", err)}}}
	}
	outcomes := c.Rewrite(ctx, anys)
	out, left, err := assemble(frame, items, outcomes, delta)
	if err != nil {
		return Response{Failures: []Outcome{{Fallback: Withheld, Err: fmt.Errorf("extension configurations: %w", err)}}}
	}
	var r Response
	for _, o := range outcomes {
		if o.Err != nil {
			r.Failures = append(r.Failures, o)
		}
	}
	if left > 0 || len(r.Failures) == 0 {
		r.Frame = out
	}
	return r
}

// assemble encodes the new response. left is the number of changes that it contains for Envoy.
func assemble(frame []byte, items [][]byte, outcomes []Outcome, delta bool) (out []byte, left int, err error) {
	if !delta && slices.ContainsFunc(outcomes, func(o Outcome) bool { return o.Err != nil }) {
		if frame, err = markIncomplete(frame); err != nil {
			return nil, 0, err
		}
	}
	out = make([]byte, 0, len(frame))
	next := 0
	err = eachField(frame, func(f wire.Field) error {
		if f.Number != wire.ResponseResources || f.Type != protowire.BytesType {
			if delta && (f.Number == wire.ResponseRemoved || f.Number == wire.ResponseRemovedNames) {
				left++
			}
			out = append(out, f.Raw...)
			return nil
		}
		o, item := outcomes[next], items[next]
		next++
		if o.Resource == nil {
			return nil
		}
		left++
		if !delta {
			out = wire.Append(out, wire.ResponseResources, o.Resource)
			return nil
		}
		item, err := replace(item, wire.ResourceAny, o.Resource)
		if err == nil && o.Err != nil {
			item, err = markIncomplete(item)
		}
		out = wire.Append(out, wire.ResponseResources, item)
		return err
	})
	return out, left, err
}

// markIncomplete marks the version of a response, or of a delta's Resource.
func markIncomplete(b []byte) ([]byte, error) {
	v, err := text(b, wire.ResponseVersion)
	if err != nil {
		return nil, err
	}
	return replace(b, wire.ResponseVersion, []byte(v+incomplete))
}
