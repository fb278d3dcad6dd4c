// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"slices"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/outrigger-mesh/outrigger/xdsproxy/wire"
)

// Types to which a sidecar subscribes.
const (
	typeCluster  = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
	typeEndpoint = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
	typeListener = "type.googleapis.com/envoy.config.listener.v3.Listener"
	typeRoute    = "type.googleapis.com/envoy.config.route.v3.RouteConfiguration"
	// typeVirtualHost is used with delta only.
	typeVirtualHost = "type.googleapis.com/envoy.config.route.v3.VirtualHost"
)

func types(delta bool) []string {
	all := []string{typeCluster, typeEndpoint, typeListener, typeRoute}
	if delta {
		return append(all, typeVirtualHost)
	}
	return all
}

// lastType returns the type that completes a new service.
func lastType(delta bool) string { return types(delta)[len(types(delta))-1] }

// ADS methods.
const (
	adsService  = "envoy.service.discovery.v3.AggregatedDiscoveryService"
	methodSotW  = "StreamAggregatedResources"
	methodDelta = "DeltaAggregatedResources"
)

// message is an encoded gRPC message. Decoding the messages of a thousand proxies would take CPU
// time from the control plane on the same machine.
type message struct {
	data mem.BufferSlice
}

// codec passes encoded messages unchanged and encodes others. It has the name that peers send as
// content subtype.
type codec struct{}

func (codec) Name() string { return "proto" }

func (codec) Marshal(v any) (mem.BufferSlice, error) {
	m, ok := v.(*message)
	if !ok {
		return encoding.GetCodecV2("proto").Marshal(v)
	}
	m.data.Ref()
	return m.data, nil
}

func (codec) Unmarshal(data mem.BufferSlice, v any) error {
	m, ok := v.(*message)
	if !ok {
		return fmt.Errorf("bench codec got a %T", v)
	}
	data.Ref()
	m.data = data
	return nil
}

// layout contains the field numbers that differ between state-of-the-world and delta requests.
// Those of responses are the same.
type layout struct {
	node, typeURL, nonce protowire.Number
}

func layoutOf(delta bool) layout {
	if delta {
		return layout{wire.DeltaRequestNode, wire.DeltaRequestTypeURL, wire.DeltaRequestNonce}
	}
	return layout{wire.RequestNode, wire.RequestTypeURL, wire.RequestNonce}
}

func appendText(b []byte, field protowire.Number, text string) []byte {
	if text == "" {
		return b
	}
	return protowire.AppendString(protowire.AppendTag(b, field, protowire.BytesType), text)
}

// encodeNames encodes the names of a subscription, once for all proxies. Their field number is the
// same in state-of-the-world and delta requests.
func encodeNames(names []string) []byte {
	var b []byte
	for _, n := range names {
		b = appendText(b, wire.RequestNames, n)
	}
	return b
}

// head reads the string fields with the given numbers; the last of duplicates wins. It skips
// everything else without copying.
func head(data mem.BufferSlice, wanted ...protowire.Number) (map[protowire.Number]string, error) {
	fields := map[protowire.Number]string{}
	r := data.Reader()
	for {
		tag, err := binary.ReadUvarint(r)
		if err == io.EOF {
			return fields, r.Close()
		}
		number, kind := protowire.DecodeTag(tag)
		if err == nil && kind != protowire.BytesType && kind != protowire.VarintType {
			err = fmt.Errorf("unexpected wire type %d", kind)
		}
		var value uint64
		if err == nil {
			value, err = binary.ReadUvarint(r)
		}
		switch {
		case err != nil || kind == protowire.VarintType:
		case slices.Contains(wanted, number):
			text := make([]byte, value)
			_, err = io.ReadFull(r, text)
			fields[number] = string(text)
		default:
			_, err = r.Discard(int(value))
		}
		if err != nil {
			return nil, fmt.Errorf("read a message: %w", err)
		}
	}
}

// contains reports whether the buffers contain a text, which may span several buffers.
func contains(data mem.BufferSlice, text []byte) bool {
	var tail []byte // end of the preceding data, shorter than the text
	for _, buf := range data {
		b := buf.ReadOnlyData()
		if bytes.Contains(b, text) || bytes.Contains(append(tail, b[:min(len(b), len(text)-1)]...), text) {
			return true
		}
		tail = append(tail, b[max(0, len(b)-len(text)+1):]...)
		tail = tail[max(0, len(tail)-len(text)+1):]
	}
	return false
}
