// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"slices"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// The types that a sidecar subscribes.
const (
	typeCluster  = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
	typeEndpoint = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
	typeListener = "type.googleapis.com/envoy.config.listener.v3.Listener"
	typeRoute    = "type.googleapis.com/envoy.config.route.v3.RouteConfiguration"
	// typeVirtualHost is for delta only.
	typeVirtualHost = "type.googleapis.com/envoy.config.route.v3.VirtualHost"
)

// The ADS methods.
const (
	adsService  = "envoy.service.discovery.v3.AggregatedDiscoveryService"
	methodSotW  = "StreamAggregatedResources"
	methodDelta = "DeltaAggregatedResources"
)

// message is a gRPC message that is not decoded: a thousand proxies on the
// machine of the control plane must not take its CPU time away.
type message struct {
	data mem.BufferSlice
}

// codec hands the buffers of messages through. It answers to the name that
// peers send as content subtype.
type codec struct{}

func (codec) Name() string { return "proto" }

func (codec) Marshal(v any) (mem.BufferSlice, error) {
	m, ok := v.(*message)
	if !ok {
		return nil, fmt.Errorf("bench codec got a %T", v)
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

// Field numbers of requests and responses. Those of responses are the same
// for both protocols, but that delta has no version_info for acknowledging.
const (
	responseVersion = 1
	responseType    = 4
	responseNonce   = 5
	requestVersion  = 1 // state of the world only
	requestNames    = 3 // delta: resource_names_subscribe
)

// layout holds the field numbers that differ between the requests of state of
// the world and delta.
type layout struct {
	node, typeURL, nonce protowire.Number
}

func layoutOf(delta bool) layout {
	if delta {
		return layout{node: 1, typeURL: 2, nonce: 6}
	}
	return layout{node: 2, typeURL: 4, nonce: 5}
}

func appendText(b []byte, field protowire.Number, text string) []byte {
	if text == "" {
		return b
	}
	b = protowire.AppendTag(b, field, protowire.BytesType)
	return protowire.AppendString(b, text)
}

// encodeNames encodes a subscription, once for all proxies.
func encodeNames(names []string) []byte {
	var b []byte
	for _, n := range names {
		b = appendText(b, requestNames, n)
	}
	return b
}

// head reads the texts with the given field numbers; the last of two counts.
// Everything else is skipped, not read.
func head(data mem.BufferSlice, wanted ...protowire.Number) (map[protowire.Number]string, error) {
	fields := map[protowire.Number]string{}
	r := data.Reader()
	for {
		tag, err := binary.ReadUvarint(r)
		if err == io.EOF {
			return fields, r.Close()
		}
		if err != nil {
			return nil, fmt.Errorf("read a message: %w", err)
		}
		number, kind := protowire.DecodeTag(tag)
		if kind != protowire.BytesType && kind != protowire.VarintType {
			return nil, fmt.Errorf("read a message: unexpected wire type %d", kind)
		}
		value, err := binary.ReadUvarint(r)
		if err != nil {
			return nil, fmt.Errorf("read a message: %w", err)
		}
		if kind == protowire.VarintType {
			continue
		}
		if slices.Contains(wanted, number) {
			text := make([]byte, value)
			_, err = io.ReadFull(r, text)
			fields[number] = string(text)
		} else {
			_, err = r.Discard(int(value))
		}
		if err != nil {
			return nil, fmt.Errorf("read a message: %w", err)
		}
	}
}

// contains reports whether the buffers hold a text, also across their ends.
func contains(data mem.BufferSlice, text []byte) bool {
	var tail []byte // the end of what came before, shorter than the text
	for _, buf := range data {
		b := buf.ReadOnlyData()
		if bytes.Contains(b, text) {
			return true
		}
		tail = append(tail, b[:min(len(b), len(text)-1)]...)
		if bytes.Contains(tail, text) {
			return true
		}
		if len(b) >= len(text)-1 {
			tail = append(tail[:0], b[len(b)-len(text)+1:]...)
		} else if over := len(tail) - len(text) + 1; over > 0 {
			tail = tail[over:]
		}
	}
	return false
}
