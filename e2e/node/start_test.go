// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

//go:build linux

package node

import (
	"flag"
	"fmt"
	"slices"
	"testing"
	"time"
)

const startRuns = 3

var manyPods = flag.Int("pods", 10, "how many Pods TestStart starts at once")

// TestStart prints how long a Pod takes to become ready, without and with a proxy, and how long
// -pods Pods with proxies take at once. It runs before the parallel tests. All Pods must start; the
// time depends on the machine.
func TestStart(t *testing.T) {
	n := mesh.Node(t)
	if err := n.CreateNamespace(t.Context(), "start-plain"); err != nil {
		t.Fatal(err)
	}
	n.meshed(t, "start-mesh")
	took := map[string][]time.Duration{}
	for i := range startRuns {
		for _, namespace := range []string{"start-plain", "start-mesh"} {
			name := fmt.Sprintf("one-%d", i)
			began := time.Now()
			n.apply(t, namespace, fmt.Sprintf(server, name))
			n.Selected(t, namespace, "app="+name, Ready)
			took[namespace] = append(took[namespace], time.Since(began))
		}
	}
	for _, all := range took {
		slices.Sort(all)
	}
	plain, meshed := took["start-plain"][startRuns/2], took["start-mesh"][startRuns/2]
	began := time.Now()
	n.apply(t, "start-mesh", fmt.Sprintf(server, "many"))
	n.patch(t, "start-mesh", "many", fmt.Appendf(nil, `{"spec": {"replicas": %d}}`, *manyPods))
	n.rolledOut(t, "start-mesh", "many")
	many := time.Since(began)
	fmt.Printf("node: a Pod is ready after %s, with a proxy after %s; %d Pods with proxies after %s\n",
		plain.Round(10*time.Millisecond), meshed.Round(10*time.Millisecond), *manyPods, many.Round(100*time.Millisecond))
	for _, namespace := range []string{"start-plain", "start-mesh"} {
		if err := n.Delete(t.Context(), namespace); err != nil {
			t.Fatal(err)
		}
	}
}
