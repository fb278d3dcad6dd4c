// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"net/netip"
	"slices"
	"strings"
)

// streamMatch is one combination of values that a filter chain matches. Envoy rejects a listener
// in which two chains share a combination.
type streamMatch struct {
	name   string       // empty matches all
	prefix netip.Prefix // zero matches all
}

// add adds a chain for the connections that no earlier chain matches.
func (p *planner) add(l *outboundListener, chain streamChain) {
	prefixes := distinct(chain.prefixes)
	var rest []streamChain // prefixes that no earlier chain matches
	reported := false
	for _, name := range distinct(chain.serverNames) {
		var left []netip.Prefix
		for _, prefix := range prefixes {
			same, taken := l.taken[streamMatch{name, prefix}]
			switch {
			case !taken:
				left = append(left, prefix)
			case l.chains[same].from != chain.from && !reported:
				reported = true
				p.conflict(l, chain, l.chains[same])
			}
		}
		if len(left) == 0 {
			continue
		}
		at := slices.IndexFunc(rest, func(c streamChain) bool { return slices.Equal(c.prefixes, left) })
		if at < 0 {
			some := chain
			some.serverNames, some.prefixes = nil, left
			at, rest = len(rest), append(rest, some)
		}
		rest[at].serverNames = append(rest[at].serverNames, name)
	}
	for _, c := range rest {
		for _, name := range c.serverNames {
			for _, prefix := range c.prefixes {
				l.taken[streamMatch{name, prefix}] = len(l.chains)
			}
		}
		if c.serverNames[0] == "" {
			c.serverNames = nil
		}
		if !c.prefixes[0].IsValid() {
			c.prefixes = nil
		}
		l.chains, l.sources = append(l.chains, c), append(l.sources, c.sources...)
	}
}

// distinct returns the distinct values of a list. For an empty list it returns the zero value,
// which matches everything.
func distinct[T comparable](list []T) []T {
	if len(list) == 0 {
		return make([]T, 1)
	}
	seen := make(map[T]bool, len(list))
	out := make([]T, 0, len(list))
	for _, v := range list {
		if !seen[v] {
			seen[v] = true
			out = append(out, v)
		}
	}
	return out
}

// serverNames returns the names in the form that Envoy matches, in lower case and sorted. The
// result is empty if "*" is among them, because it matches every name. It returns false if none of
// the names can be matched: Envoy accepts "*" only before a dot and otherwise rejects the
// listener.
func serverNames(names []string) (out []string, ok bool) {
	for _, name := range names {
		if name == "*" {
			return nil, true
		}
		if rest := strings.TrimPrefix(name, "*."); rest != "" && !strings.Contains(rest, "*") {
			out = append(out, strings.ToLower(name))
		}
	}
	slices.Sort(out)
	return slices.Compact(out), len(out) > 0
}
