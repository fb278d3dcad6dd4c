// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package decision

import "slices"

// attributes returns the attributes by which a rule matches, each once, unless the verdict is brief.
func (r rule) attributes(f *facts) []Attribute {
	var out []Attribute
	if f.request.Brief {
		return nil
	}
	r.collect(f, func(l leaf) {
		a := Attribute{l.name, l.value(f)}
		if l.name != "" && !slices.Contains(out, a) {
			out = append(out, a)
		}
	})
	return out
}

// collect calls found for the leaves that make a matcher match.
func (n *matcher) collect(f *facts, found func(leaf)) {
	switch n.op {
	case allOf:
		for _, k := range n.kids {
			k.collect(f, found)
		}
	case anyOf:
		for _, k := range n.kids {
			if k.matches(f) {
				k.collect(f, found)
				return
			}
		}
	case noneOf:
		found(n.kids[0].first())
	case isLeaf:
		found(n.leaf)
	}
}

// first returns the first leaf that reads something, or else any leaf.
func (n *matcher) first() leaf {
	if n.op == isLeaf {
		return n.leaf
	}
	var out leaf
	for _, k := range n.kids {
		if out = k.first(); out.name != "" {
			return out
		}
	}
	if out.value == nil {
		return always(false).leaf
	}
	return out
}

// candidates returns why each of the rules does not match, unless the verdict is brief.
func (s *ruleset) candidates(f *facts) []Candidate {
	if f.request.Brief {
		return nil
	}
	out := make([]Candidate, 0, len(s.rules))
	for _, r := range s.rules {
		l, excluded := r.failing(f)
		out = append(out, Candidate{Rule: r.name, Attribute: Attribute{l.name, l.value(f)}, Excluded: excluded})
	}
	return out
}

// failing returns the first leaf because of which a matcher does not match, and reports whether it
// is one that should not match.
func (n *matcher) failing(f *facts) (l leaf, excluded bool) {
	switch n.op {
	case allOf:
		for _, k := range n.kids {
			if !k.matches(f) {
				return k.failing(f)
			}
		}
	case anyOf:
		var closest *matcher
		most := -1
		for _, k := range n.kids {
			if p := k.progress(f); p > most {
				closest, most = k, p
			}
		}
		if closest != nil {
			return closest.failing(f)
		}
	case noneOf:
		return n.kids[0].first(), true
	case isLeaf:
		return n.leaf, false
	}
	return always(false).leaf, false
}

// progress returns how many parts of a matcher match before one that does not.
func (n *matcher) progress(f *facts) int {
	if n.op != allOf {
		return 0
	}
	if i := slices.IndexFunc(n.kids, func(k *matcher) bool { return !k.matches(f) }); i >= 0 {
		return i
	}
	return len(n.kids)
}
