// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package caclient

import (
	"strconv"
	"time"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
)

// busyError is an error of an authority that said when to come back.
type busyError struct {
	error
	after time.Duration
}

// RetryAfter returns how long the authority does not want to be asked again.
func (e *busyError) RetryAfter() time.Duration { return e.after }

// Unwrap returns the error itself.
func (e *busyError) Unwrap() error { return e.error }

// retryAfter reads when an authority wants to be asked again: from a
// google.rpc.RetryInfo, or from seconds in the header retry-after. Zero means
// that it did not say.
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

// retryDelay reads field 1 of a RetryInfo, a google.protobuf.Duration, by hand:
// the package of its generated type would bring a dozen others into the agent.
func retryDelay(info []byte) time.Duration {
	duration, ok := fieldOf(info, 1, protowire.BytesType)
	if !ok {
		return 0
	}
	seconds, _ := fieldOf(duration, 1, protowire.VarintType)
	nanos, _ := fieldOf(duration, 2, protowire.VarintType)
	s, _ := protowire.ConsumeVarint(seconds)
	n, _ := protowire.ConsumeVarint(nanos)
	if s > 1<<31 || n >= uint64(time.Second) {
		return 0 // negative, or of no use
	}
	return time.Duration(s)*time.Second + time.Duration(n)
}

// fieldOf returns the value of the last field of a number and type: of a
// length-delimited one its content.
func fieldOf(b []byte, want protowire.Number, kind protowire.Type) (value []byte, ok bool) {
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return nil, false
		}
		b = b[n:]
		size := protowire.ConsumeFieldValue(num, typ, b)
		if size < 0 {
			return nil, false
		}
		if num == want && typ == kind {
			value, ok = b[:size], true
			if typ == protowire.BytesType {
				value, _ = protowire.ConsumeBytes(value)
			}
		}
		b = b[size:]
	}
	return value, ok
}
