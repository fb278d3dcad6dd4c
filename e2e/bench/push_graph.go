// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// graph is one curve over a logarithmic axis; its own axis is logarithmic, too,
// so that a straight line of 45 degrees is cost that grows with the size.
type graph struct {
	title, axis string
	points      []point
	x, y        func(point) float64
}

// draw writes the graph, 380 by 280, with its corner at a place.
func (g graph) draw(out *strings.Builder, left, top float64) {
	const width, height = 290.0, 190.0
	left, top = left+60, top+40
	fmt.Fprintf(out, `<text x="%.0f" y="%.0f" font-weight="bold">%s</text>`+"\n", left, top-14, g.title)
	fmt.Fprintf(out, `<path d="M%.0f %.0fv%.0fh%.0f" fill="none" stroke="#444"/>`+"\n", left, top, height, width)
	fmt.Fprintf(out, `<text x="%.0f" y="%.0f" text-anchor="end">%s</text>`+"\n", left+width, top+height+32, g.axis)
	if len(g.points) == 0 {
		return
	}
	xs, ys := scale(g.points, g.x), scale(g.points, g.y)
	var path []string
	for _, p := range g.points {
		x, y := left+width*xs(g.x(p)), top+height-height*ys(g.y(p))
		path = append(path, fmt.Sprintf("%.1f,%.1f", x, y))
		fmt.Fprintf(out, `<circle cx="%.1f" cy="%.1f" r="3" fill="#1f5fa8"/><text x="%.1f" y="%.1f" text-anchor="middle">%.3g</text>`+
			`<text x="%.1f" y="%.1f" text-anchor="middle">%.0f</text>`+"\n", x, y, x, y-8, g.y(p), x, top+height+16, g.x(p))
	}
	fmt.Fprintf(out, `<polyline points="%s" fill="none" stroke="#1f5fa8" stroke-width="2"/>`+"\n", strings.Join(path, " "))
}

// scale maps values to 0.06 to 0.9 of an axis, by their logarithm; both axes
// show the same number of decades, or more if the values need them.
func scale(points []point, value func(point) float64) func(float64) float64 {
	low, high := math.Inf(1), math.Inf(-1)
	for _, p := range points {
		v := math.Log10(math.Max(value(p), 1e-6))
		low, high = math.Min(low, v), math.Max(high, v)
	}
	decades := math.Max(2, high-low)
	return func(v float64) float64 { return 0.06 + 0.84*(math.Log10(math.Max(v, 1e-6))-low)/decades }
}

// encodeReturn returns what a proxy that has responses asks for when it comes
// back, by type: the names that it asked for, and the versions that it has.
func (s *subscriptions) encodeReturn() (map[string][]byte, error) {
	const field, key, value = 5, 1, 2 // DeltaDiscoveryRequest.initial_resource_versions, a map
	out := map[string][]byte{}
	for typeURL, data := range s.learnt {
		var r discoveryv3.DeltaDiscoveryResponse
		if err := proto.Unmarshal(data, &r); err != nil {
			return nil, fmt.Errorf("decode a response: %w", err)
		}
		all := slices.Clone(s.names[typeURL])
		for _, res := range r.GetResources() {
			entry := appendText(appendText(nil, key, res.GetName()), value, res.GetVersion())
			all = protowire.AppendTag(all, field, protowire.BytesType)
			all = protowire.AppendBytes(all, entry)
		}
		out[typeURL] = all
	}
	return out, nil
}

// comeBack opens another stream, with what the proxy has.
func (p *proxies) comeBack(ctx context.Context, conn *grpc.ClientConn, node []byte) (*ads, error) {
	for {
		if err := sleep(ctx, time.Duration(50+rand.IntN(100))*time.Millisecond); err != nil {
			return nil, err
		}
		s, err := openADS(ctx, conn, p.subs.delta)
		if err != nil {
			continue // the control plane is not there yet
		}
		for i, typeURL := range types(p.subs.delta) {
			with := node
			if i > 0 {
				with = nil
			}
			if err = s.subscribe(typeURL, with, p.subs.back); err != nil {
				break
			}
		}
		if err == nil {
			return s, nil
		}
	}
}
