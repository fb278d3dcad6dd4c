// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package snapshot

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// TestImports compares the index with a linear search of the rules.
func TestImports(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	namespaces := []string{"*", "a", "b"}
	hosts := []string{"*", "*.x", "*.y.x", "x", "z.x", "y.x", "z.y.x", "*x", "*.z.y.x", ""}
	for range 50_000 {
		var rules []importRule
		for range r.IntN(4) {
			rules = append(rules, importRule{namespaces[r.IntN(3)], hosts[r.IntN(len(hosts))]})
		}
		list := newImports(rules)
		namespace, host := namespaces[1+r.IntN(2)], hosts[r.IntN(len(hosts))]
		hold := len(rules) == 0 || slices.ContainsFunc(rules, func(r importRule) bool {
			return (r.namespace == "*" || r.namespace == namespace) && HostMatches(r.host, host)
		})
		meet := hold || slices.ContainsFunc(rules, func(r importRule) bool {
			return (r.namespace == "*" || r.namespace == namespace) && HostMatches(host, r.host)
		})
		if list.hold(namespace, host) != hold || list.meet(namespace, host) != meet {
			t.Fatalf("%v: hold(%s, %s) = %v, want %v; meet = %v, want %v", rules, namespace, host,
				list.hold(namespace, host), hold, list.meet(namespace, host), meet)
		}
	}
}
