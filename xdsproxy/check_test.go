// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package xdsproxy

import (
	"errors"
	"strings"
	"testing"

	"google.golang.org/grpc/mem"
)

// TestCheck checks that a response that the check refuses does not reach Envoy, and that later
// responses do. A control plane that uses delta receives the reason.
func TestCheck(t *testing.T) {
	bothVariants(t, func(t *testing.T, delta bool) {
		r := startRig(t, Config{Check: &Check{Marker: "forbidden", Func: func(b []byte) error {
			if strings.Contains(string(b), "forbidden file") {
				return errors.New("it names a file")
			}
			return nil
		}}}, delta)
		e := r.envoy(t)
		e.ask(clusterType)
		r.nextOf(t, clusterType)
		r.push(clusterType, "1", "1", "a forbidden file")
		if delta {
			if got := r.nextOf(t, clusterType); got.nonce != "1" || got.code == 0 || got.reason != "refused by the agent: it names a file" {
				t.Errorf("the control plane received %+v", got)
			}
		}
		r.push(clusterType, "2", "2", "a forbidden word")
		e.wants(clusterType, "2")
		for _, s := range r.proxy.Status().Types {
			if s.TypeURL == clusterType && s.Reason != "refused by the agent: it names a file" {
				t.Errorf("status %+v", s)
			}
		}
	})
}

func TestContains(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{"": false, "mark": true, "xxmarkxx": true, "ma|rk": true, "m|a|r|k": true, "xm|ar|kx": true, "mar|mark": true, "ma|r": false, "mar|xk": false, "|mark|": true} {
		var data mem.BufferSlice
		for part := range strings.SplitSeq(text, "|") {
			data = append(data, mem.SliceBuffer(part))
		}
		if got := contains(data, []byte("mark")); got != want {
			t.Errorf("%q: %t", text, got)
		}
	}
}
