// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package gatewayapi

import (
	"fmt"
	"math/rand/v2"
	"testing"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// TestConflicts compares the listeners that are in conflict with those of a comparison of all pairs,
// for random Gateways and ListenerSets.
func TestConflicts(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	protocols := []gatewayv1.ProtocolType{"HTTP", "HTTPS", "TLS", "TCP"}
	conflicting := 0
	for range 3000 {
		g := &gateway{}
		own := r.IntN(4)
		for i := range own + r.IntN(5) {
			host := gatewayv1.Hostname([]string{"", "a", "b"}[r.IntN(3)])
			l := &listener{Listener: gatewayv1.Listener{Name: gatewayv1.SectionName(fmt.Sprint(i)), Port: gatewayv1.PortNumber(80 + r.IntN(2)), Protocol: protocols[r.IntN(4)], Hostname: &host}}
			if i >= own {
				l.set = &listenerSet{}
			}
			if r.IntN(6) == 0 {
				l.refused = fault{"Refused", ""}
			}
			g.listeners = append(g.listeners, l)
		}
		want := make([]bool, len(g.listeners))
		for i, a := range g.listeners {
			for j, b := range g.listeners[:i] {
				lost := want[j] && b.set != nil // it is not served
				if a.Port == b.Port && !a.refused.is() && !b.refused.is() && !lost && conflict(b, a).is() {
					want[i] = true
					want[j] = want[j] || a.set == nil
				}
			}
		}
		g.conflicts()
		for i, l := range g.listeners {
			if l.conflict.is() != want[i] {
				t.Fatalf("listener %d of %+v is in conflict: %t, want %t", i, g.listeners, l.conflict.is(), want[i])
			}
			if want[i] {
				conflicting++
			}
		}
	}
	if conflicting < 1000 {
		t.Errorf("only %d listeners are in conflict", conflicting)
	}
}
