// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package authorization

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	xdscorev3 "github.com/cncf/xds/go/xds/core/v3"
	xdsmatcherv3 "github.com/cncf/xds/go/xds/type/matcher/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	networkinputsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/matching/common_inputs/network/v3"
	sslinputsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/matching/common_inputs/ssl/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
)

// whereAllowed returns a matcher of requests that rules allow. It knows the rules that compare
// callers, paths, methods and ports with texts, and finds them by the caller or by the path. It
// returns nil if there are only few of either.
func whereAllowed(rules *rbacv3.RBAC) *xdsmatcherv3.Matcher {
	byCaller, byPath := map[string][]operation{}, map[string][]operation{}
	for _, name := range slices.Sorted(maps.Keys(rules.GetPolicies())) {
		ids, operations, ok := simple(rules.GetPolicies()[name])
		if !ok {
			continue
		}
		for _, id := range ids {
			byCaller[id] = append(byCaller[id], operations...)
		}
		for _, o := range operations {
			if len(ids) > 0 {
				continue
			}
			for _, path := range o.paths {
				byPath[path] = append(byPath[path], operation{methods: o.methods, ports: o.ports})
			}
		}
	}
	if len(byCaller)+len(byPath) <= fewValues {
		return nil
	}
	var out *xdsmatcherv3.Matcher
	if len(byPath) > 0 {
		out = tree(headerInput(":path"), byPath)
	}
	if len(byCaller) > 0 {
		first := tree(extension("caller", &sslinputsv3.UriSanInput{}), byCaller)
		if out != nil {
			first.OnNoMatch = &xdsmatcherv3.Matcher_OnMatch{OnMatch: &xdsmatcherv3.Matcher_OnMatch_Matcher{Matcher: out}}
		}
		out = first
	}
	return out
}

// tree returns a matcher that skips the filter if an input equals a text and the request is one of
// its operations.
func tree(in *xdscorev3.TypedExtensionConfig, texts map[string][]operation) *xdsmatcherv3.Matcher {
	entries := map[string]*xdsmatcherv3.Matcher_OnMatch{}
	for text, operations := range texts {
		action := skipping()
		var list []*predicate
		for _, o := range operations {
			p := o.predicate()
			if p == nil {
				list = nil
				break
			}
			list = append(list, p)
		}
		if len(list) > 0 {
			action = &xdsmatcherv3.Matcher_OnMatch{OnMatch: &xdsmatcherv3.Matcher_OnMatch_Matcher{Matcher: either(list, action)}}
		}
		entries[text] = action
	}
	return &xdsmatcherv3.Matcher{MatcherType: &xdsmatcherv3.Matcher_MatcherTree_{MatcherTree: &xdsmatcherv3.Matcher_MatcherTree{
		Input:    in,
		TreeType: &xdsmatcherv3.Matcher_MatcherTree_ExactMatchMap{ExactMatchMap: &xdsmatcherv3.Matcher_MatcherTree_MatchMap{Map: entries}},
	}}}
}

// operation is a set of requests. An empty list contains everything.
type operation struct{ paths, methods, ports []string }

// predicate returns the condition that a request is in the set, or nil if all are.
func (o operation) predicate() *predicate {
	var out []*predicate
	if len(o.paths) > 0 {
		out = append(out, header(":path", "(?s)("+alternation(o.paths)+`)(\?.*)?`))
	}
	if len(o.methods) > 0 {
		out = append(out, header(":method", alternation(o.methods)))
	}
	if len(o.ports) > 0 {
		out = append(out, input(extension("port", &networkinputsv3.DestinationPortInput{}), alternation(o.ports)))
	}
	if len(out) == 0 {
		return nil
	}
	return all(out)
}

// simple returns the callers and operations of a rule, or false if it has other conditions. Without
// callers, the rule is for all of them.
func simple(rule *rbacv3.Policy) (ids []string, operations []operation, ok bool) {
	size := 0
	for _, p := range rule.GetPrincipals() {
		of, ok := identities(p)
		if !ok {
			return nil, nil, false
		}
		ids = append(ids, of...)
	}
	for _, p := range rule.GetPermissions() {
		var o operation
		if !o.read(p) {
			return nil, nil, false
		}
		operations = append(operations, o)
		size += 1 + len(o.paths) + len(o.methods) + len(o.ports)
	}
	// The operations are written once for each caller.
	return ids, operations, len(ids)*size <= 2*(len(ids)+size)
}

// identities returns the callers that a principal matches. They are nil for all callers.
func identities(p *rbacv3.Principal) (ids []string, ok bool) {
	switch p.GetIdentifier().(type) {
	case *rbacv3.Principal_Any:
		return nil, true
	case *rbacv3.Principal_Authenticated_:
		id, ok := exactText(p.GetAuthenticated().GetPrincipalName())
		return []string{id}, ok && !strings.Contains(id, ",") // separates several of a certificate
	case *rbacv3.Principal_OrIds:
		for _, one := range p.GetOrIds().GetIds() {
			of, ok := identities(one)
			if !ok || of == nil {
				return nil, false
			}
			ids = append(ids, of...)
		}
		return ids, true
	}
	return nil, false
}

// read restricts an operation to what a permission matches. It returns false if it cannot.
func (o *operation) read(p *rbacv3.Permission) bool {
	switch p.GetRule().(type) {
	case *rbacv3.Permission_Any:
		return true
	case *rbacv3.Permission_AndRules:
		for _, one := range p.GetAndRules().GetRules() {
			if !o.read(one) {
				return false
			}
		}
		return true
	}
	list := []*rbacv3.Permission{p}
	if or := p.GetOrRules(); or != nil {
		list = or.GetRules()
	}
	var read operation
	for _, one := range list {
		if !read.readText(one) {
			return false
		}
	}
	for _, of := range []struct{ to, from *[]string }{{&o.paths, &read.paths}, {&o.methods, &read.methods}, {&o.ports, &read.ports}} {
		switch len(*of.from) {
		case 0:
		case len(list):
			if *of.to != nil {
				return false // both conditions must be true
			}
			*of.to = *of.from
		default:
			return false // one of different conditions must be true
		}
	}
	return true
}

// readText adds the text that a permission compares.
func (o *operation) readText(p *rbacv3.Permission) bool {
	switch r := p.GetRule().(type) {
	case *rbacv3.Permission_UrlPath:
		path, ok := exactText(r.UrlPath.GetPath())
		o.paths = append(o.paths, path)
		return ok && !strings.ContainsAny(path, "?#")
	case *rbacv3.Permission_Header:
		method, ok := exactText(r.Header.GetStringMatch())
		o.methods = append(o.methods, method)
		return ok && r.Header.GetName() == ":method" && !r.Header.GetInvertMatch()
	case *rbacv3.Permission_DestinationPort:
		o.ports = append(o.ports, strconv.Itoa(int(r.DestinationPort)))
		return true
	}
	return false
}

// exactText returns the text that is equal to what matches.
func exactText(m *matcherv3.StringMatcher) (string, bool) {
	text, ok := m.GetMatchPattern().(*matcherv3.StringMatcher_Exact)
	if !ok || m.GetIgnoreCase() {
		return "", false
	}
	return text.Exact, true
}
