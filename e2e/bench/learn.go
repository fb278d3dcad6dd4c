// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	cachetypes "github.com/envoyproxy/go-control-plane/pkg/cache/types"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/outrigger-mesh/outrigger/xdsproxy/wire"
)

// kind describes the proxies and their protocol.
type kind struct {
	delta bool
	// redirect is true for sidecars with intercepted traffic; the others are HTTP proxies.
	redirect bool
}

// subscriptions are the subscriptions of all proxies, learned from the first one.
type subscriptions struct {
	kind
	// names are the encoded names for the types without wildcard.
	names map[string][]byte
	// learnt are the responses to the first proxy, by type.
	learnt map[string][]byte
	// back are the requests of proxies that reconnect after the end of their stream; nil if
	// reconnecting is an error.
	back map[string][]byte
}

// learn simulates a proxy that decodes its responses like Envoy, to determine the names to which a
// sidecar subscribes and the size of the responses.
func learn(ctx context.Context, address string, k kind) subscriptions {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	subs := subscriptions{kind: k, names: map[string][]byte{}, learnt: map[string][]byte{}}
	conn := must(dialADS(address))
	defer func() { _ = conn.Close() }() // its stream has ended
	s := must(openADS(ctx, conn, k.delta))
	s.subscribe(typeCluster, encodeNode(0, k.redirect), nil)
	for len(subs.learnt) < len(types(k.delta)) {
		r := must(s.receive())
		data := r.data.Materialize()
		r.data.Free()
		s.acknowledge(r, subs.names[r.typeURL])
		if subs.learnt[r.typeURL] != nil {
			continue
		}
		subs.learnt[r.typeURL] = data
		for of, names := range cachev3.GetResourceReferences(decode(data, k.delta)) {
			subs.names[of] = encodeNames(slices.Sorted(maps.Keys(names)))
		}
		s.follow(r.typeURL, subs.names)
	}
	if subs.names[typeEndpoint] == nil || subs.names[typeRoute] == nil {
		fail("the mesh is empty: a sidecar gets no endpoints or no routes")
	}
	return subs
}

// errMalformed means that a response is not a valid protobuf message.
var errMalformed = errors.New("a response is malformed")

// decode returns the resources of a response under arbitrary keys.
func decode(data []byte, delta bool) map[string]cachetypes.ResourceWithTTL {
	all := map[string]cachetypes.ResourceWithTTL{}
	check(wire.EachBytes(data, errMalformed, func(field protowire.Number, data []byte) error {
		if field != wire.ResponseResources {
			return nil
		}
		resource, outer := &anypb.Any{}, discoveryv3.Resource{}
		if !delta {
			check(proto.Unmarshal(data, resource))
		} else {
			check(proto.Unmarshal(data, &outer))
			resource = outer.GetResource()
		}
		all[strconv.Itoa(len(all))] = cachetypes.ResourceWithTTL{Resource: must(resource.UnmarshalNew())}
		return nil
	}))
	return all
}

// shorten returns a response with only the first resource.
func shorten(data []byte) (short []byte) {
	first := true
	check(wire.Each(data, errMalformed, func(f wire.Field) error {
		if f.Number != wire.ResponseResources || first {
			short = append(short, f.Raw...)
		}
		first = first && f.Number != wire.ResponseResources
		return nil
	}))
	return short
}

// encodeReturn returns the requests of a reconnecting proxy by type: the names that it requested,
// and the versions that it has.
func (s *subscriptions) encodeReturn() map[string][]byte {
	out := map[string][]byte{}
	for typeURL, data := range s.learnt {
		all := slices.Clone(s.names[typeURL])
		var response discoveryv3.DeltaDiscoveryResponse
		check(proto.Unmarshal(data, &response))
		for _, r := range response.GetResources() {
			entry := appendText(appendText(nil, wire.EntryKey, r.GetName()), wire.EntryValue, r.GetVersion())
			all = appendText(all, wire.DeltaRequestVersions, string(entry))
		}
		out[typeURL] = all
	}
	return out
}
