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

// Pack puts a message into an Any, in deterministic bytes.
func Pack(msg proto.Message) *anypb.Any {
	a := &anypb.Any{}
	if err := anypb.MarshalFrom(a, msg, proto.MarshalOptions{Deterministic: true}); err != nil {
		// Only text that is not UTF-8 gets here. The same flaw in the type
		// makes marshalling the resource fail, which is where it is handled.
		return &anypb.Any{TypeUrl: "\xff"}
	}
	return a
}

// SocketAddress is a TCP address.
func SocketAddress(address string, port uint32) *corev3.Address {
	return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address: address, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: port},
	}}}
}

// PipeAddress is the path of a Unix domain socket.
func PipeAddress(path string) *corev3.Address {
	return &corev3.Address{Address: &corev3.Address_Pipe{Pipe: &corev3.Pipe{Path: path}}}
}

// OverADS says that a resource comes over the stream that brought the one
// which names it, and is waited for without a limit.
func OverADS() *corev3.ConfigSource {
	return &corev3.ConfigSource{
		ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}},
		ResourceApiVersion:    corev3.ApiVersion_V3,
		InitialFetchTimeout:   durationpb.New(0),
	}
}

// longest is more than anybody waits, and less than what Envoy's clocks hold: it
// would refuse a whole resource because of a longer one.
const longest = 100 * 365 * 24 * time.Hour

// Positive returns a duration that is set and above zero as one that Envoy takes.
func Positive(d *durationpb.Duration) (*durationpb.Duration, bool) {
	if !d.IsValid() || d.AsDuration() <= 0 {
		return nil, false
	}
	if d.AsDuration() > longest {
		return durationpb.New(longest), true
	}
	return d, true
}

// Bounded returns a duration, which may be nil, as one that Envoy takes.
func Bounded(d *durationpb.Duration) *durationpb.Duration {
	if d.AsDuration() > longest {
		return durationpb.New(longest)
	}
	return d
}
