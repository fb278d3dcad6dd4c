// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package decision

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
)

// facts are what is known of a request while filters process it.
type facts struct {
	request  Request
	identity string // empty if the chain does not ask for a certificate
	client   netip.Addr
	path     string // normalized, with its query
	header   map[string][]string
	// metadata is that of the request, by filter and key.
	metadata map[string]map[string]any
	// individually is true for Envoys that compare the values of a repeated header one by one.
	individually bool
}

// set stores metadata.
func (f *facts) set(filter, key string, value any) {
	if f.metadata[filter] == nil {
		f.metadata[filter] = map[string]any{}
	}
	f.metadata[filter][key] = value
}

// matcher is a combination of others, or a leaf that reads one attribute.
type matcher struct {
	op   op
	kids []*matcher
	leaf leaf
}

type op int

const (
	isLeaf op = iota
	allOf
	anyOf
	noneOf // of its only kid
)

// leaf reads one attribute of a request.
type leaf struct {
	name  string // in policies; empty for a leaf that reads nothing
	value func(*facts) string
	test  func(*facts) bool
}

func (n *matcher) matches(f *facts) bool {
	switch n.op {
	case allOf:
		return !slices.ContainsFunc(n.kids, func(k *matcher) bool { return !k.matches(f) })
	case anyOf:
		return slices.ContainsFunc(n.kids, func(k *matcher) bool { return k.matches(f) })
	case noneOf:
		return !n.kids[0].matches(f)
	case isLeaf:
	}
	return n.leaf.test(f)
}

// rule is a named policy of Envoy.
type rule struct {
	name string
	*matcher
}

// ruleset are the rules of a filter, in the order in which Envoy evaluates them.
type ruleset struct {
	action rbacv3.RBAC_Action
	rules  []rule
}

// first returns the first rule that matches.
func (s *ruleset) first(f *facts) (rule, bool) {
	for _, r := range s.rules {
		if r.matches(f) {
			return r, true
		}
	}
	return rule{}, false
}

// compiler compiles the matchers of Envoy's configuration. Equal expressions are compiled once.
type compiler struct {
	patterns map[string]*pattern
	claims   map[string]bool // the names of the claims of tokens that matchers compare
}

func (c *compiler) rules(config *rbacv3.RBAC) (*ruleset, error) {
	if config == nil {
		return nil, nil
	}
	out := &ruleset{action: config.GetAction()}
	for _, name := range slices.Sorted(maps.Keys(config.GetPolicies())) {
		policy := config.GetPolicies()[name]
		if policy.GetCondition() != nil || policy.GetCheckedCondition() != nil {
			return nil, fmt.Errorf("the rule %s has a condition, which is not supported", name)
		}
		to, err := combined(anyOf, policy.GetPermissions(), c.permission)
		if err != nil {
			return nil, fmt.Errorf("read the rule %s: %w", name, err)
		}
		from, err := combined(anyOf, policy.GetPrincipals(), c.principal)
		if err != nil {
			return nil, fmt.Errorf("read the rule %s: %w", name, err)
		}
		out.rules = append(out.rules, rule{name, &matcher{op: allOf, kids: []*matcher{from, to}}})
	}
	return out, nil
}

func combined[M any](op op, list []M, compile func(M) (*matcher, error)) (*matcher, error) {
	out := &matcher{op: op}
	for _, m := range list {
		kid, err := compile(m)
		if err != nil {
			return nil, err
		}
		out.kids = append(out.kids, kid)
	}
	return out, nil
}

// always is a leaf that reads nothing.
func always(is bool) *matcher {
	return &matcher{leaf: leaf{value: func(*facts) string { return "" }, test: func(*facts) bool { return is }}}
}

func (c *compiler) permission(m *rbacv3.Permission) (*matcher, error) {
	switch m := m.GetRule().(type) {
	case *rbacv3.Permission_AndRules:
		return combined(allOf, m.AndRules.GetRules(), c.permission)
	case *rbacv3.Permission_OrRules:
		return combined(anyOf, m.OrRules.GetRules(), c.permission)
	case *rbacv3.Permission_NotRule:
		return combined(noneOf, []*rbacv3.Permission{m.NotRule}, c.permission)
	case *rbacv3.Permission_Any:
		return always(m.Any), nil
	case *rbacv3.Permission_Header:
		return c.header(m.Header)
	case *rbacv3.Permission_UrlPath:
		return c.text("paths", m.UrlPath.GetPath(), func(f *facts) string { return withoutQuery(f.path) })
	case *rbacv3.Permission_DestinationIp:
		return address("destination.ip", m.DestinationIp, func(f *facts) netip.Addr { return f.request.Server })
	case *rbacv3.Permission_DestinationPort:
		value := func(f *facts) string { return strconv.FormatUint(uint64(f.request.Port), 10) }
		return &matcher{leaf: leaf{"ports", value, func(f *facts) bool { return f.request.Port == m.DestinationPort }}}, nil
	case *rbacv3.Permission_RequestedServerName:
		return c.text("connection.sni", m.RequestedServerName, func(f *facts) string { return f.request.SNI })
	case *rbacv3.Permission_SourcedMetadata:
		return c.metadata(m.SourcedMetadata)
	default:
		return nil, fmt.Errorf("the matcher %T is not supported", m)
	}
}

func (c *compiler) principal(m *rbacv3.Principal) (*matcher, error) {
	switch m := m.GetIdentifier().(type) {
	case *rbacv3.Principal_AndIds:
		return combined(allOf, m.AndIds.GetIds(), c.principal)
	case *rbacv3.Principal_OrIds:
		return combined(anyOf, m.OrIds.GetIds(), c.principal)
	case *rbacv3.Principal_NotId:
		return combined(noneOf, []*rbacv3.Principal{m.NotId}, c.principal)
	case *rbacv3.Principal_Any:
		return always(m.Any), nil
	case *rbacv3.Principal_Authenticated_:
		identity := func(f *facts) string { return f.identity }
		if m.Authenticated.GetPrincipalName() == nil {
			return &matcher{leaf: leaf{"principals", identity, func(f *facts) bool { return f.identity != "" }}}, nil
		}
		out, err := c.text("principals", m.Authenticated.GetPrincipalName(), identity)
		if err != nil {
			return nil, err
		}
		test := out.leaf.test
		out.leaf.test = func(f *facts) bool { return f.identity != "" && test(f) }
		return out, nil
	case *rbacv3.Principal_DirectRemoteIp:
		return address("ipBlocks", m.DirectRemoteIp, func(f *facts) netip.Addr { return f.request.Peer })
	case *rbacv3.Principal_RemoteIp:
		return address("remoteIpBlocks", m.RemoteIp, func(f *facts) netip.Addr { return f.client })
	case *rbacv3.Principal_Header:
		return c.header(m.Header)
	case *rbacv3.Principal_SourcedMetadata:
		return c.metadata(m.SourcedMetadata)
	case *rbacv3.Principal_FilterState:
		// The serial number of the client's certificate, which a request has none of here.
		return always(false), nil
	default:
		return nil, fmt.Errorf("the matcher %T is not supported", m)
	}
}

func address(name string, r *corev3.CidrRange, of func(*facts) netip.Addr) (*matcher, error) {
	first, err := netip.ParseAddr(r.GetAddressPrefix())
	if err != nil {
		return nil, fmt.Errorf("read a range of addresses: %w", err)
	}
	prefix := netip.PrefixFrom(first, int(r.GetPrefixLen().GetValue())).Masked()
	value := func(f *facts) string {
		if a := of(f); a.IsValid() {
			return a.String()
		}
		return ""
	}
	return &matcher{leaf: leaf{name, value, func(f *facts) bool { return prefix.Contains(of(f).Unmap()) }}}, nil
}

// header compiles the matcher of a header, or of a pseudo header.
func (c *compiler) header(m *routev3.HeaderMatcher) (*matcher, error) {
	if m.GetInvertMatch() || m.GetTreatMissingHeaderAsEmpty() {
		return nil, fmt.Errorf("the matcher of the header %s has options that are not supported", m.GetName())
	}
	name := lower(m.GetName())
	label := map[string]string{":method": "methods", ":authority": "hosts"}[name]
	if label == "" {
		label = "request.headers[" + name + "]"
	}
	value := func(f *facts) string { return joined(f.header[name]) }
	switch of := m.GetHeaderMatchSpecifier().(type) {
	case *routev3.HeaderMatcher_PresentMatch:
		return &matcher{leaf: leaf{label, value, func(f *facts) bool { return (len(f.header[name]) > 0) == of.PresentMatch }}}, nil
	case *routev3.HeaderMatcher_StringMatch:
		test, err := c.string(of.StringMatch)
		if err != nil {
			return nil, err
		}
		return &matcher{leaf: leaf{label, value, func(f *facts) bool {
			list := f.header[name]
			if f.individually {
				return slices.ContainsFunc(list, test)
			}
			return len(list) > 0 && test(joined(list))
		}}}, nil
	default:
		return nil, fmt.Errorf("the matcher %T of the header %s is not supported", of, name)
	}
}

// text compiles the matcher of one text.
func (c *compiler) text(name string, m *matcherv3.StringMatcher, value func(*facts) string) (*matcher, error) {
	test, err := c.string(m)
	if err != nil {
		return nil, err
	}
	return &matcher{leaf: leaf{name, value, func(f *facts) bool { return test(value(f)) }}}, nil
}
