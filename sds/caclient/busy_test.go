// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package caclient

import (
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"
)

func TestRetryAfter(t *testing.T) {
	t.Parallel()
	busy := func(details ...protoadapt.MessageV1) error {
		s, err := status.New(codes.ResourceExhausted, "busy").WithDetails(details...)
		if err != nil {
			t.Fatal(err)
		}
		return s.Err()
	}
	info := func(d time.Duration) *errdetails.RetryInfo {
		return &errdetails.RetryInfo{RetryDelay: durationpb.New(d)}
	}
	for name, tc := range map[string]struct {
		err             error
		header, trailer metadata.MD
		want            time.Duration
	}{
		"nothing":                     {err: busy()},
		"info":                        {err: busy(info(90*time.Second + time.Millisecond)), want: 90*time.Second + time.Millisecond},
		"among others":                {err: busy(&errdetails.DebugInfo{}, info(time.Second)), want: time.Second},
		"negative":                    {err: busy(info(-time.Second))},
		"retry info takes precedence": {err: busy(info(time.Second)), trailer: metadata.Pairs("retry-after", "7"), want: time.Second},
		"trailer":                     {err: busy(), trailer: metadata.Pairs("retry-after", "7"), want: 7 * time.Second},
		"header":                      {err: busy(), header: metadata.Pairs("retry-after", "8"), want: 8 * time.Second},
		"not a number":                {err: busy(), header: metadata.Pairs("retry-after", "Wed, 21 Oct 2026 07:28:00 GMT")},
		"wrapped":                     {err: &busyError{error: status.Error(codes.Canceled, "x")}},
	} {
		if got := retryAfter(tc.err, tc.header, tc.trailer); got != tc.want {
			t.Errorf("%s: got %s, want %s", name, got, tc.want)
		}
	}
}

// FuzzRetryDelay compares the decoder with the generated type.
func FuzzRetryDelay(f *testing.F) {
	for _, d := range []time.Duration{0, time.Nanosecond, time.Hour, -time.Second} {
		b, err := proto.Marshal(&errdetails.RetryInfo{RetryDelay: durationpb.New(d)})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		got := retryDelay(b)
		if got < 0 {
			t.Fatalf("got %s", got)
		}
		var want errdetails.RetryInfo
		if proto.Unmarshal(b, &want) != nil {
			return
		}
		// Duplicate delays, which protobuf would merge, do not occur in practice.
		again, err := proto.Marshal(&want)
		if err != nil || len(again) != len(b) {
			return
		}
		d := want.GetRetryDelay()
		if d.IsValid() && d.GetSeconds() >= 0 && d.GetNanos() >= 0 && d.GetSeconds() <= 1<<31 && got != d.AsDuration() {
			t.Errorf("got %s, want %s", got, d.AsDuration())
		}
	})
}
