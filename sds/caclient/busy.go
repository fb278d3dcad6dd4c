// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package caclient

import (
	"errors"
	"strconv"
	"time"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/outrigger-mesh/outrigger/xdsproxy/wire"
)

// busyError is an error from an authority that said when to retry.
type busyError struct {
	error
	after time.Duration
}

// RetryAfter returns the delay that the authority requested.
func (e *busyError) RetryAfter() time.Duration { return e.after }

// Unwrap returns the wrapped error.
func (e *busyError) Unwrap() error { return e.error }

// retryAfter returns the retry delay that an authority requested in a google.rpc.RetryInfo, or in
// seconds in the header retry-after. It returns zero if there is none.
func retryAfter(err error, header, trailer metadata.MD) time.Duration {
	for _, detail := range status.Convert(err).Proto().GetDetails() {
		if detail.GetTypeUrl() == "type.googleapis.com/google.rpc.RetryInfo" {
			if d := retryDelay(detail.GetValue()); d > 0 {
				return d
			}
		}
	}
	for _, md := range []metadata.MD{trailer, header} {
		if seconds, err := strconv.ParseUint(first(md, "retry-after"), 10, 31); err == nil {
			return time.Duration(seconds) * time.Second
		}
	}
	return 0
}

func first(md metadata.MD, key string) string {
	if values := md.Get(key); len(values) > 0 {
		return values[0]
	}
	return ""
}

// retryDelay decodes field 1 of a RetryInfo, a google.protobuf.Duration. It does not use the
// generated type, because its package would add a dozen dependencies to the agent.
func retryDelay(info []byte) time.Duration {
	var seconds, nanos uint64
	err := wire.EachBytes(info, errMalformed, func(n protowire.Number, duration []byte) error {
		if n != 1 {
			return nil
		}
		return wire.Each(duration, errMalformed, func(f wire.Field) error {
			switch {
			case f.Type != protowire.VarintType:
			case f.Number == 1:
				seconds = f.Bits
			case f.Number == 2:
				nanos = f.Bits
			}
			return nil
		})
	})
	if err != nil || seconds > 1<<31 || nanos >= uint64(time.Second) {
		return 0 // negative or zero
	}
	return time.Duration(seconds)*time.Second + time.Duration(nanos)
}

var errMalformed = errors.New("the detail is not a protobuf message")
