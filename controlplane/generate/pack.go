// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
)

// pack puts a message into an Any, in deterministic bytes.
func pack(msg proto.Message) *anypb.Any {
	a := &anypb.Any{}
	if err := anypb.MarshalFrom(a, msg, proto.MarshalOptions{Deterministic: true}); err != nil {
		// Only text that is not UTF-8 gets here. The same flaw in the type
		// makes marshalling the resource fail, which is where it is handled.
		return &anypb.Any{TypeUrl: "\xff"}
	}
	return a
}

// socketAddress is a TCP address.
func socketAddress(address string, port uint32) *corev3.Address {
	return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address: address, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: port},
	}}}
}

// pipeAddress is the path of a Unix domain socket.
func pipeAddress(path string) *corev3.Address {
	return &corev3.Address{Address: &corev3.Address_Pipe{Pipe: &corev3.Pipe{Path: path}}}
}

// overADS says that a resource comes over the stream that brought the one
// which names it, and is waited for without a limit.
func overADS() *corev3.ConfigSource {
	return &corev3.ConfigSource{
		ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}},
		ResourceApiVersion:    corev3.ApiVersion_V3,
		InitialFetchTimeout:   durationpb.New(0),
	}
}

// positive gives a duration when it is set and above zero.
func positive(d *durationpb.Duration) (*durationpb.Duration, bool) {
	return d, d.AsDuration() > time.Duration(0)
}
