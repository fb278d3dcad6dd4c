// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// labelled is a Generator whose clusters are the labels of the proxy.
type labelled struct{}

func (labelled) Generate(_ *snapshot.Mesh, proxy *model.Proxy, typeURL string) *xds.Set {
	if typeURL != xds.TypeCluster {
		return noResources
	}
	made := &table{}
	content := map[string]string{}
	for k, v := range proxy.Labels {
		content[k] = k + "=" + v
	}
	made.set(typeURL, content)
	return made.Generate(nil, proxy, typeURL)
}

// The configuration of a proxy follows the labels of its workload from the first response on; they
// override those of its agent.
func TestLabelsFollow(t *testing.T) {
	t.Parallel()
	for name, delta := range map[string]bool{"sotw": false, "delta": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var mu sync.Mutex // guards now
			now := map[string]string{"app": "web"}
			h := &harness{table: &table{}}
			h.serve(t, Config{Generator: labelled{}, Workers: 2, Presence: PresenceConfig{Labels: func(p *model.Proxy) map[string]string {
				mu.Lock()
				defer mu.Unlock()
				if p.Labels["app"] != "old" {
					t.Errorf("asked for a proxy with the labels %v", p.Labels)
				}
				return maps.Clone(now)
			}}}, nil, insecure.NewCredentials(), insecure.NewCredentials())
			relabel := func(labels map[string]string) {
				mu.Lock()
				now = labels
				mu.Unlock()
				h.push()
			}
			h.push()
			p := h.connect(t, delta)
			p.node = shopNode(t, map[string]any{"LABELS": map[string]any{"app": "old", "gone": "yes"}, "STATIC_LABELS": map[string]any{"app": "old", "mine": "yes"}})
			p.subscribe(xds.TypeCluster)
			p.wantAck("cds app=web mine=yes")
			relabel(map[string]string{"app": "web", "mine": "yes"})
			p.quiet()
			relabel(map[string]string{"app": "shop"})
			if delta {
				p.wantAck("cds app=shop")
			} else {
				p.wantAck("cds app=shop mine=yes")
			}
			relabel(nil) // nobody knows
			p.quiet()
			relabel(map[string]string{})
			if delta {
				p.wantAck("cds app=old")
			} else {
				p.wantAck("cds app=old mine=yes")
			}
		})
	}
}

// Where a registry knows the workloads, the labels that a proxy claims select nothing for it,
// neither before nor after its workload is known.
func TestClaimedLabels(t *testing.T) {
	t.Parallel()
	for name, delta := range map[string]bool{"sotw": false, "delta": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var mu sync.Mutex // guards now
			var now map[string]string
			asked := make(chan struct{}, 1000)
			h := &harness{table: &table{}}
			h.serve(t, Config{Generator: labelled{}, Workers: 2, Presence: PresenceConfig{Registered: true, Labels: func(*model.Proxy) map[string]string {
				select {
				case asked <- struct{}{}:
				default:
				}
				mu.Lock()
				defer mu.Unlock()
				return maps.Clone(now)
			}}}, shopCaller, insecure.NewCredentials(), insecure.NewCredentials())
			set := func(labels map[string]string) {
				mu.Lock()
				defer mu.Unlock()
				now = labels
			}
			h.push()
			node := shopNode(t, map[string]any{"LABELS": map[string]any{"app": "pay"}, "STATIC_LABELS": map[string]any{"tier": "pay"}})
			h.server.labelWait.Store(0)
			p := h.connect(t, delta)
			p.node = node
			p.subscribe(xds.TypeCluster)
			p.wantAck("cds")
			set(map[string]string{"app": "web"})
			h.push()
			p.wantAck("cds app=web")
			set(nil) // its pod was deleted
			h.push()
			p.quiet()

			h.server.labelWait.Store(int64(time.Hour))
			late := h.connect(t, delta)
			late.node = node
			for len(asked) > 0 {
				<-asked
			}
			late.subscribe(xds.TypeCluster)
			<-asked
			<-asked // it waits
			set(map[string]string{"app": "late"})
			late.wantAck("cds app=late")
			// Others do not wait for an unknown proxy.
			set(nil)
			stuck := h.connect(t, delta)
			stuck.node = node
			stuck.subscribe(xds.TypeCluster)
			late.quiet()
		})
	}
}

// An unknown proxy waits for a bounded time and is looked up a few times.
func TestLabelsAreAwaited(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		known time.Duration // after the first question; 0: never
		took  time.Duration
		asks  int
	}{{0, 2 * time.Second, 8}, {time.Millisecond, labelPoll, 2}, {500 * time.Millisecond, 620 * time.Millisecond, 6}} {
		synctest.Test(t, func(t *testing.T) {
			began, asks := time.Now(), 0
			s := &Server{log: slog.New(slog.DiscardHandler), presence: PresenceConfig{Registered: true, Labels: func(*model.Proxy) map[string]string {
				asks++
				if tc.known == 0 || time.Since(began) < tc.known {
					return nil
				}
				return map[string]string{"app": "web"}
			}}}
			s.labelWait.Store(int64(labelWait))
			proxy := &model.Proxy{Labels: map[string]string{"app": "pay"}}
			if !s.bind(t.Context(), proxy) || time.Since(began) != tc.took || asks != tc.asks || (proxy.Labels["app"] == "web") != (tc.known > 0) {
				t.Errorf("known after %s: %v after %s and %d questions, want %s and %d", tc.known, proxy.Labels, time.Since(began), asks, tc.took, tc.asks)
			}
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			if tc.known == 0 && s.bind(ctx, proxy) {
				t.Error("a stream that has ended is served")
			}
		})
	}
}

// Observers of proxies receive their node, and may refuse them.
func TestPresence(t *testing.T) {
	t.Parallel()
	came, left := make(chan model.ConnectedProxy, 1), make(chan *model.Proxy, 1)
	var mu sync.Mutex // guards refuse
	var refuse error
	h := &harness{table: &table{}}
	h.serve(t, Config{
		Generator: h.table, Workers: 2, OnGone: func(p *model.Proxy) { left <- p },
		Presence: PresenceConfig{OnConnect: func(p model.ConnectedProxy) error {
			came <- p
			mu.Lock()
			defer mu.Unlock()
			return refuse
		}},
	}, nil, insecure.NewCredentials(), insecure.NewCredentials())
	h.push()
	p := h.connect(t, false)
	p.node = shopNode(t, map[string]any{"PROXY_CONFIG": map[string]any{"readinessProbe": map[string]any{"tcpSocket": map[string]any{"port": 1}}}})
	p.node.Locality = &corev3.Locality{Region: "r", Zone: "z"}
	p.subscribe(xds.TypeCluster)
	got := <-came
	if got.Verified || !got.Source.IsLoopback() || got.Locality != "r/z" || !got.Probed || got.Proxy.ID != "shop-1.default" {
		t.Errorf("heard of %+v", got)
	}
	p.leave(h)
	if gone := <-left; gone != got.Proxy {
		t.Errorf("another proxy has left: %+v", gone)
	}

	mu.Lock()
	refuse = errors.New("there is no such group")
	mu.Unlock()
	p = h.connect(t, true)
	p.subscribe(xds.TypeCluster)
	if got := <-came; got.Probed || got.Locality != "" {
		t.Errorf("heard of %+v", got)
	}
	select {
	case m, ok := <-p.got:
		if ok {
			t.Fatalf("it is served: %v", m)
		}
	case <-time.After(2 * time.Minute):
		t.Fatal("the stream stays")
	}
	if err := p.err.Load().(error); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "no such group") {
		t.Errorf("it ended with %v", err)
	}
	if n := h.server.Connected(); n != 0 {
		t.Errorf("%d streams are open", n)
	}
	if len(left) != 0 {
		t.Error(fmt.Sprint("who never came has left: ", <-left))
	}
}
