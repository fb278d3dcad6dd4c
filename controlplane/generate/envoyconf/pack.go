// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package envoyconf

import (
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
)

// Pack serializes a message deterministically into an Any.
func Pack(msg proto.Message) *anypb.Any {
	a := &anypb.Any{}
	if err := anypb.MarshalFrom(a, msg, proto.MarshalOptions{Deterministic: true}); err != nil {
		// This happens only for invalid UTF-8. The invalid type URL makes marshalling of the
		// resource fail, where the error is handled.
		return &anypb.Any{TypeUrl: "\xff"}
	}
	return a
}

// SocketAddress returns a TCP address.
func SocketAddress(address string, port uint32) *corev3.Address {
	return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address: address, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: port},
	}}}
}

// PipeAddress returns the address of a Unix domain socket.
func PipeAddress(path string) *corev3.Address {
	return &corev3.Address{Address: &corev3.Address_Pipe{Pipe: &corev3.Pipe{Path: path}}}
}

// OverADS returns the source of resources that arrive on the same stream as the resource that
// names them. Envoy waits for them without a timeout.
func OverADS() *corev3.ConfigSource {
	return &corev3.ConfigSource{
		ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}},
		ResourceApiVersion:    corev3.ApiVersion_V3,
		InitialFetchTimeout:   durationpb.New(0),
	}
}

// longest is longer than any practical duration and within the range of Envoy's timers. Envoy
// rejects a whole resource because of a longer one.
const longest = 100 * 365 * 24 * time.Hour

// Positive returns a duration that Envoy accepts. It returns false if the duration is nil or not
// positive.
func Positive(d *durationpb.Duration) (*durationpb.Duration, bool) {
	if !d.IsValid() || d.AsDuration() <= 0 {
		return nil, false
	}
	if d.AsDuration() > longest {
		return durationpb.New(longest), true
	}
	return d, true
}

// Bounded returns a duration that Envoy accepts. The argument may be nil.
func Bounded(d *durationpb.Duration) *durationpb.Duration {
	if d.AsDuration() > longest {
		return durationpb.New(longest)
	}
	return d
}
