// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package xdsproxy

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/outrigger-mesh/outrigger/xdsproxy/wire"
)

// Node describes the proxy to the control plane, with the names of JSON in a bootstrap.
type Node struct {
	ID       string         `json:"id"`
	Cluster  string         `json:"cluster"`
	Metadata map[string]any `json:"metadata"`
	Locality struct {
		Region  string `json:"region"`
		Zone    string `json:"zone"`
		SubZone string `json:"sub_zone"`
	} `json:"locality"`
}

func (n Node) marshal() ([]byte, error) {
	of, err := structpb.NewStruct(n.Metadata)
	if err != nil {
		return nil, err
	}
	metadata, err := proto.Marshal(of)
	locality := appendText(appendText(appendText(nil, wire.LocalityRegion, n.Locality.Region), wire.LocalityZone, n.Locality.Zone), wire.LocalitySubZone, n.Locality.SubZone)
	b := appendText(appendText(nil, wire.NodeID, n.ID), wire.NodeCluster, n.Cluster)
	return wire.Append(wire.Append(b, wire.NodeMetadata, metadata), wire.NodeLocality, locality), err
}

var errUnreadable = errors.New("the response is malformed")

// Fetched is a resource for the agent itself.
type Fetched struct {
	// TypeURL is the type of Value, an encoded message.
	TypeURL string
	Value   []byte
}

// Fetch asks the control plane for the only resource of a type, on a stream of its own. It retries
// until the control plane answers or ctx ends.
func (p *Proxy) Fetch(ctx context.Context, node Node, typeURL, name string) (*Fetched, error) {
	of, err := node.marshal()
	if err != nil {
		return nil, fmt.Errorf("encode the metadata of the node: %w", err)
	}
	ask := append(wire.Append(nil, wire.RequestNode, of), variant{}.ask(typeURL, []string{name})...)
	for {
		found, err := p.fetch(ctx, ask, typeURL)
		if err == nil || ctx.Err() != nil {
			return found, err
		}
		p.upstream.failed(err)
	}
}

func (p *Proxy) fetch(ctx context.Context, ask []byte, typeURL string) (*Fetched, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the stream
	stream, conn, err := p.upstream.open(ctx, methodSotW)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }() // the stream's error is more useful
	if err := stream.SendMsg(frameOf(ask)); err != nil {
		return nil, fmt.Errorf("ask for %s: %w", typeURL, err)
	}
	for {
		var f frame
		if err := stream.RecvMsg(&f); err != nil {
			return nil, fmt.Errorf("ask for %s: %w", typeURL, err)
		}
		response := f.data.Materialize()
		f.free()
		p.upstream.succeeded()
		of, resources := "", [][]byte(nil)
		if err := wire.EachBytes(response, errUnreadable, func(n protowire.Number, part []byte) error {
			switch n {
			case wire.ResponseTypeURL:
				of = string(part)
			case wire.ResponseResources:
				resources = append(resources, part)
			}
			return nil
		}); err != nil {
			return nil, err
		}
		if of != typeURL {
			continue
		}
		if len(resources) != 1 {
			return nil, fmt.Errorf("ask for %s: the control plane sends %d resources, not one", typeURL, len(resources))
		}
		found := &Fetched{}
		return found, wire.EachBytes(resources[0], errUnreadable, func(n protowire.Number, part []byte) error {
			switch n {
			case wire.AnyTypeURL:
				found.TypeURL = string(part)
			case wire.AnyValue:
				found.Value = part
			}
			return nil
		})
	}
}
