// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package snapshot

import (
	"cmp"
	"slices"
	"strings"
)

// imports are the hosts that egress listeners import; the zero value imports everything. The cost
// of a lookup does not depend on the number of rules.
type imports struct {
	// rules are sorted, without duplicates.
	rules []importRule
	// exact contains all rules; wildcards contains those with a wildcard host, without the "*".
	exact, wildcards map[importRule]bool
	// lengths are the distinct lengths of the wildcards without the "*", ascending.
	lengths []int
	// backwards are the reversed hosts of each namespace without the "*", sorted.
	backwards map[string][]string
}

// importRule is one "namespace/host" of an egress listener.
type importRule struct{ namespace, host string }

func newImports(rules []importRule) imports {
	if len(rules) == 0 {
		return imports{}
	}
	list := imports{rules: slices.Clone(rules), exact: map[importRule]bool{}, wildcards: map[importRule]bool{}, backwards: map[string][]string{}}
	slices.SortFunc(list.rules, func(a, b importRule) int {
		return cmp.Or(strings.Compare(a.namespace, b.namespace), strings.Compare(a.host, b.host))
	})
	list.rules = slices.Compact(list.rules)
	for _, r := range list.rules {
		list.exact[r] = true
		suffix, wild := strings.CutPrefix(r.host, "*")
		if wild {
			list.wildcards[importRule{r.namespace, suffix}] = true
			list.lengths = append(list.lengths, len(suffix))
		}
		list.backwards[r.namespace] = append(list.backwards[r.namespace], backwards(suffix))
	}
	slices.Sort(list.lengths)
	list.lengths = slices.Compact(list.lengths)
	for _, hosts := range list.backwards {
		slices.Sort(hosts)
	}
	return list
}

// backwards returns s with its bytes in reverse order.
func backwards(s string) string {
	b := []byte(s)
	slices.Reverse(b)
	return string(b)
}

// hold reports whether a host of a namespace, or a narrower wildcard, is imported.
func (list *imports) hold(namespace, host string) bool {
	if len(list.rules) == 0 {
		return true
	}
	bare := strings.TrimPrefix(host, "*")
	for _, ns := range []string{"*", namespace} {
		if list.exact[importRule{ns, host}] {
			return true
		}
		for _, n := range list.lengths {
			if n > len(bare) {
				break
			}
			if list.wildcards[importRule{ns, bare[len(bare)-n:]}] {
				return true
			}
		}
	}
	return false
}

// meet reports whether the host is imported or, for a wildcard, whether a part of it is.
func (list *imports) meet(namespace, host string) bool {
	if list.hold(namespace, host) {
		return true
	}
	suffix, wild := strings.CutPrefix(host, "*")
	if !wild {
		return false
	}
	end := backwards(suffix)
	for _, ns := range []string{"*", namespace} {
		hosts := list.backwards[ns]
		if at, _ := slices.BinarySearch(hosts, end); at < len(hosts) && strings.HasPrefix(hosts[at], end) {
			return true
		}
	}
	return false
}

// key returns a string that is equal for equal imports, and empty if everything is imported.
func (list *imports) key() string {
	var b strings.Builder
	for _, r := range list.rules {
		b.WriteString(r.namespace + "/" + r.host + ",")
	}
	return b.String()
}
