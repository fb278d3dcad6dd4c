// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"fmt"
	"slices"
	"testing"

	"github.com/outrigger-mesh/outrigger/controlplane/report"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// A proxy that rejected its first listener, and has none, receives the removal of the listener when
// it is deleted, and not before. Until then the status calls it REJECTED.
func TestRejectedWithdrawn(t *testing.T) {
	t.Parallel()
	for _, delta := range []bool{false, true} {
		for _, alone := range []bool{false, true} {
			t.Run(fmt.Sprintf("delta %t, alone %t", delta, alone), func(t *testing.T) {
				t.Parallel()
				h := startCanary(t)
				h.set(xds.TypeListener, map[string]string{"l": "l=1"})
				h.set(xds.TypeRoute, nil)
				h.push()
				states := func() (out []report.State) {
					var replica report.Replica
					debugGet(t, h.server, "proxies", &replica)
					for _, p := range replica.Proxies {
						i := slices.IndexFunc(p.Types, func(t report.Type) bool { return t.Name == "lds" })
						out = append(out, p.Types[i].State)
					}
					return out
				}
				var all []*peer
				for i := range 2 {
					p := h.connectAs(t, delta, i+1)
					p.subscribe(xds.TypeCluster)
					p.wantAck("cds a=1 b=1")
					p.subscribe(xds.TypeListener)
					p.want("lds l=1")
					p.nack(xds.TypeListener, "Error adding/updating listener(s) l: no")
					p.quiet()
					if all = append(all, p); alone {
						break
					}
				}
				if got := states(); slices.Contains(got, report.Synced) || !slices.Contains(got, report.Rejected) {
					t.Errorf("the states of the proxies are %v", got)
				}
				change := func(typeURL string, to map[string]string, inDelta, sotw string) {
					t.Helper()
					h.set(typeURL, to)
					h.push()
					order := all
					if to != nil { // removals are not sent to one proxy first
						first, others := canary(t, all)
						order = append([]*peer{first}, others...)
					}
					for _, p := range order {
						p.wantAck(p.line(inDelta, sotw))
						p.quiet()
					}
				}
				change(xds.TypeCluster, map[string]string{"a": "a=1", "b": "b=2"}, "cds b=2", "cds a=1 b=2")
				change(xds.TypeListener, nil, "lds -l", "lds")
				if got := states(); slices.ContainsFunc(got, func(s report.State) bool { return s != report.Synced }) {
					t.Errorf("after the deletion the states of the proxies are %v", got)
				}
				change(xds.TypeListener, map[string]string{"l": "l=2"}, "lds l=2", "lds l=2")
			})
		}
	}
}

// TestRejectedReverted checks that a proxy that rejected a version receives the previous one again, once
// that is what exists: Envoy may still warm the rejected one, and acknowledges nothing without a response.
func TestRejectedReverted(t *testing.T) {
	t.Parallel()
	type texts = map[string]string
	for typeURL, of := range map[string]struct {
		bad, good   texts
		delta, sotw string
	}{
		xds.TypeCluster:  {texts{"a": "a=bad", "b": "b=1"}, texts{"a": "a=1", "b": "b=1"}, "cds a=1", "cds a=1 b=1"},
		xds.TypeListener: {texts{"l": "l=bad"}, texts{"l": "l=1"}, "lds l=1", "lds l=1"},
		xds.TypeRoute:    {texts{"r": "r=bad a"}, texts{"r": "r=1 a"}, "rds r=1 a", "rds r=1 a"},
	} {
		for _, delta := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, delta %t", shortType(typeURL), delta), func(t *testing.T) {
				t.Parallel()
				h := startCanary(t)
				var all []*peer
				for i := range 2 {
					all = append(all, h.connectAs(t, delta, i+1))
					all[i].join("cds a=1 b=1", "lds l=1", "rds r=1 a")
				}
				h.set(typeURL, of.bad)
				h.push()
				first, others := canary(t, all)
				first.any()
				first.nack(typeURL, "no such thing")
				endpoints := func() { // of a changed cluster, which Envoy warms
					if typeURL == xds.TypeCluster {
						first.wantAck("eds ea=1")
					}
					first.quiet()
					others[0].quiet()
				}
				endpoints()
				if p := h.server.Distribution().Of(2); p.Rejected != 2 {
					t.Errorf("after the rejection: %+v", p)
				}
				h.set(typeURL, of.good)
				h.push()
				first.wantAck(first.line(of.delta, of.sotw))
				endpoints()
				if p := h.server.Distribution().Of(3); p.Acknowledged != 2 {
					t.Errorf("after the deletion: %+v", p)
				}
			})
		}
	}
}
