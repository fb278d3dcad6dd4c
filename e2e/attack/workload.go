// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
)

// workloadAttacks try to exhaust the control plane with the identity of a workload.
func workloadAttacks() []attack {
	const area, promise = "flood by a workload", "other workloads get certificates and configuration; memory grows by less than 250 MB, the log by less than 200 lines"
	return []attack{
		{area, "a node id of many MB", promise, workload(giantID)},
		{area, "a node with hundreds of thousands of labels", promise, workload(giantLabels)},
		{area, "subscriptions to a million names", promise, workload(giantNames)},
		{area, "rejections of many MB", promise, workload(giantRejections)},
		{area, "a storm of rejections", promise, workload(rejectionStorm)},
		{area, "thousands of streams of one identity", promise, workload(streamStorm)},
		{area, "a storm of reconnections, each with a first request", promise, workload(reconnectStorm)},
		{area, "a storm of certificate requests, some of them broken", promise, workload(signingStorm)},
	}
}

// intruder is an attacking workload.
type intruder struct {
	*suite
	*plane
	node *corev3.Node
	open func(context.Context, *corev3.Node) (*stream, error)
}

// workload wraps an attack by shop/web.
func workload(attack func(context.Context, *intruder) error) func(context.Context, *suite) (outcome, error) {
	return func(ctx context.Context, s *suite) (outcome, error) {
		return s.flood(ctx, func(ctx context.Context, p *plane) error {
			web, err := p.member(ctx, "shop", "web")
			if err != nil {
				return err
			}
			node, err := nodeOf("web", "shop", "10.0.0.2", map[string]any{"SERVICE_ACCOUNT": "web", "LABELS": map[string]any{"app": "web"}})
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(ctx, patience)
			defer cancel()
			return attack(ctx, &intruder{suite: s, plane: p, node: node, open: func(ctx context.Context, node *corev3.Node) (*stream, error) {
				return p.open(ctx, web, node)
			}})
		})
	}
}

// ask opens a stream and subscribes. The response does not matter.
func (w *intruder) ask(ctx context.Context, node *corev3.Node, names ...string) {
	st, err := w.open(ctx, node)
	if err != nil {
		return
	}
	defer st.close()
	typeURL := resourcev3.ListenerType
	if len(names) > 0 {
		typeURL = resourcev3.EndpointType
	}
	if st.ask(typeURL, names...) == nil {
		_, _ = st.Recv() // accepted or rejected
	}
}

func giantID(ctx context.Context, w *intruder) error {
	size := w.some(30, 3) << 20
	for _, id := range []string{
		"sidecar~10.0.0.2~" + strings.Repeat("x", size) + ".shop~shop.svc.cluster.local",
		strings.Repeat("~", size), "sidecar~10.0.0.2~web.shop~" + strings.Repeat("x", size), "sidecar~" + strings.Repeat("1", size) + "~web.shop~shop",
	} {
		node := &corev3.Node{Id: id, Metadata: w.node.Metadata, Cluster: id[:size/8]}
		w.ask(ctx, node)
	}
	return nil
}

func giantLabels(ctx context.Context, w *intruder) error {
	labels := map[string]any{}
	for i := range w.some(500_000, 50_000) {
		labels[fmt.Sprintf("label-%d", i)] = "x"
	}
	node, err := nodeOf("web", "shop", "10.0.0.2", map[string]any{"LABELS": labels})
	if err != nil {
		return err
	}
	w.ask(ctx, node)
	node, err = nodeOf("web", "shop", "10.0.0.2", map[string]any{"LABELS": map[string]any{"app": strings.Repeat("x", w.some(8, 2)<<20)}})
	if err != nil {
		return err
	}
	w.ask(ctx, node)
	return nil
}

func giantNames(ctx context.Context, w *intruder) error {
	names := make([]string, w.some(1_000_000, 100_000))
	for i := range names {
		names[i] = fmt.Sprintf("outbound|%d||name-%d.shop.svc.cluster.local", i%65536, i)
	}
	w.ask(ctx, w.node, names...)
	w.ask(ctx, w.node, strings.Repeat("x", w.some(20, 2)<<20))
	return nil
}

func giantRejections(ctx context.Context, w *intruder) error {
	for range 3 {
		st, err := w.open(ctx, w.node)
		if err != nil {
			return nil // rejected
		}
		for _, typeURL := range []string{resourcev3.ListenerType, resourcev3.ClusterType} {
			if err := st.ask(typeURL); err != nil {
				break
			}
		}
		go st.reject("", strings.Repeat("rejected\n", w.some(3<<20, 200<<10)))
		linger(ctx)
		st.close()
	}
	return nil
}

// rejectionStorm rejects responses and subscribes again, as fast as possible, for a while.
func rejectionStorm(ctx context.Context, w *intruder) error {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(w.some(10, 3))*time.Second)
	defer cancel()
	many(4, func(int) {
		for ctx.Err() == nil {
			st, err := w.open(ctx, w.node)
			if err != nil {
				return
			}
			for err == nil {
				if err = st.ask(resourcev3.ListenerType, "*"); err != nil {
					break
				}
				r, failed := st.Recv()
				if err = failed; err == nil {
					err = st.refuse(r, "", "rejected\nand\nagain")
				}
			}
			st.close()
		}
	})
	return nil
}

func streamStorm(ctx context.Context, w *intruder) error {
	all := make([]*stream, w.some(2000, 200))
	many(len(all), func(i int) {
		st, err := w.open(ctx, w.node)
		if err == nil && st.ask(resourcev3.ListenerType) == nil {
			_, _ = st.Recv() // accepted or rejected
		}
		all[i] = st
	})
	linger(ctx)
	for _, st := range all {
		if st != nil {
			st.close()
		}
	}
	return nil
}

func reconnectStorm(ctx context.Context, w *intruder) error {
	many(8, func(int) {
		for range w.some(300, 30) {
			w.ask(ctx, w.node)
		}
	})
	return nil
}

func signingStorm(ctx context.Context, w *intruder) error {
	token, err := w.issuer.good("shop", "web")
	if err != nil {
		return err
	}
	conn, err := w.connect(nil)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // nothing depends on it
	many(8, func(i int) {
		for range w.some(500, 50) {
			id := identity("shop", "web")
			if i%2 == 0 {
				id.ServiceAccount = "pay"
			}
			_, _ = sign(withToken(ctx, token), conn, id) // accepted or rejected
		}
	})
	return nil
}
