// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package authorization

import (
	"maps"
	"slices"

	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	"google.golang.org/protobuf/proto"
)

// shareAmbiguous removes the matchers of ambiguous paths from rules that refuse, where an earlier rule
// has them that differs in its paths only: it refuses the same ambiguous requests, and Envoy evaluates
// it first. These matchers take half of Envoy's memory for a rule.
func shareAmbiguous(rules *rbacv3.RBAC) {
	seen := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(rules.GetPolicies())) {
		policy := rules.GetPolicies()[name]
		rest := proto.CloneOf(policy)
		if !replacePaths(rest.GetPermissions(), func(path *rbacv3.Permission, _ bool) { path.Rule = nil }) {
			continue
		}
		key, err := proto.MarshalOptions{Deterministic: true}.Marshal(rest)
		if err != nil {
			continue
		}
		known := seen[string(key)]
		seen[string(key)] = true
		replacePaths(policy.GetPermissions(), func(path *rbacv3.Permission, first bool) {
			if known || !first {
				path.Rule = path.GetOrRules().GetRules()[0].GetRule()
			}
		})
	}
}

// replacePaths calls replace for the matchers of paths that contain one of ambiguous paths, and
// reports whether there are any. First is true for the first of several alternatives. If replace
// removes the rule of the matchers, only one of the alternatives is left.
func replacePaths(list []*rbacv3.Permission, replace func(path *rbacv3.Permission, first bool)) (found bool) {
	for _, p := range list {
		switch {
		case p.GetAndRules() != nil:
			found = replacePaths(p.GetAndRules().GetRules(), replace) || found
		case isWide(p):
			replace(p, true)
			found = true
		case p.GetOrRules() != nil:
			set := p.GetOrRules()
			if slices.ContainsFunc(set.GetRules(), func(p *rbacv3.Permission) bool { return !isWide(p) }) {
				continue // not alternatives of paths
			}
			for i, alternative := range set.GetRules() {
				replace(alternative, i == 0)
			}
			if set.GetRules()[0].GetRule() == nil {
				p.Rule = nil
			}
			found = true
		}
	}
	return found
}

// isWide reports whether a matcher is one of a path and of ambiguous paths.
func isWide(p *rbacv3.Permission) bool {
	set := p.GetOrRules().GetRules()
	return len(set) == 3 && set[1].GetUrlPath().GetPath().GetSafeRegex().GetRegex() == ambiguous
}
