// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package authorization

import (
	"strconv"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	securityv1beta1 "istio.io/api/security/v1beta1"

	"github.com/outrigger-mesh/outrigger/controlplane/generate/envoyconf"
)

// converter converts the rules of a policy.
type converter struct {
	// domains are the trust domains of the mesh; namespace is that of the policy.
	domains   []string
	namespace string
	// issuers are those whose tokens are validated.
	issuers []string
	// refuses is true for policies whose rules match what is refused.
	refuses bool
	// reads says which attributes are known where the rules apply.
	reads attributes
	// headers bounds the expressions for the values of headers.
	headers *headerBudget
}

// attributes are the attributes that are known where a rule applies.
type attributes int

const (
	ofRequests    attributes = iota // all
	ofConnections                   // none of requests, which are not read
	ofLibrary                       // those that gRPC libraries support
)

// matcher is a permission or a principal.
type matcher interface {
	*rbacv3.Permission | *rbacv3.Principal
}

// attribute is one attribute of requests in a rule: it has one of the values, and none of the
// others.
type attribute[M matcher] struct {
	values, others []string
	kind           kind
	// convert returns the matcher of a value. It returns false if the value is invalid. A wide
	// matcher also matches what a server could take for the value.
	convert func(value string, wide bool) (M, bool)
}

// kind says where an attribute is known.
type kind int

const (
	ofAny          kind = iota
	ofRequest           // an attribute of requests
	ofEnvoy             // an attribute of connections that only Envoy knows
	ofEnvoyRequest      // an attribute of requests that only Envoy knows
)

// unread reports whether attributes of a kind are unknown where the rules apply.
func (c *converter) unread(k kind) bool {
	switch c.reads {
	case ofConnections:
		return k == ofRequest || k == ofEnvoyRequest
	case ofLibrary:
		return k == ofEnvoy || k == ofEnvoyRequest
	case ofRequests:
	}
	return false
}

// algebra combines matchers.
type algebra[M matcher] struct {
	anything func() M
	not      func(M) M
	all, any func([]M) M
}

// conjunction returns a matcher for all attributes, or false if no request can match it.
func conjunction[M matcher](c *converter, a algebra[M], attributes []attribute[M]) (out M, ok bool) {
	var all []M
	for _, at := range attributes {
		if len(at.values)+len(at.others) == 0 {
			continue
		}
		if c.unread(at.kind) {
			if c.refuses {
				continue // what cannot be read is refused
			}
			return nil, false
		}
		if len(at.values) > 0 {
			if m := disjunction(a, at, at.values, c.refuses); m != nil {
				all = append(all, m)
			} else {
				return nil, false
			}
		}
		if m := disjunction(a, at, at.others, !c.refuses); m != nil {
			all = append(all, a.not(m))
		}
	}
	switch len(all) {
	case 0:
		return a.anything(), true
	case 1:
		return all[0], true
	}
	return a.all(all), true
}

// disjunction returns a matcher for any of the values, or nil if there is none. Invalid values,
// which validation has reported, match everything in a wide matcher and nothing otherwise.
func disjunction[M matcher](a algebra[M], at attribute[M], values []string, wide bool) M {
	var list []M
	for _, v := range values {
		m, ok := at.convert(v, wide)
		switch {
		case ok:
			list = append(list, m)
		case wide:
			return a.anything()
		}
	}
	switch len(list) {
	case 0:
		return nil
	case 1:
		return list[0]
	}
	return a.any(list)
}

// policy returns the policy of a rule, or nil if no request can match it.
func (c *converter) policy(r *securityv1beta1.Rule) *rbacv3.Policy {
	out := &rbacv3.Policy{}
	for _, to := range alternatives(r.GetTo()) {
		attributes := c.operation(to.GetOperation())
		for _, w := range r.GetWhen() {
			attributes = append(attributes, c.destination(w)...)
		}
		if m, ok := conjunction(c, permissions, attributes); ok {
			out.Permissions = append(out.Permissions, m)
		}
	}
	for _, from := range alternatives(r.GetFrom()) {
		attributes := c.source(from.GetSource())
		for _, w := range r.GetWhen() {
			attributes = append(attributes, c.caller(w)...)
		}
		if m, ok := conjunction(c, callers, attributes); ok {
			out.Principals = append(out.Principals, m)
		}
	}
	if len(out.GetPermissions()) == 0 || len(out.GetPrincipals()) == 0 {
		return nil
	}
	return out
}

// alternatives returns the elements of a list, or one empty element, which matches everything.
func alternatives[T any](list []*T) []*T {
	if len(list) == 0 {
		return make([]*T, 1)
	}
	return list
}

func (c *converter) operation(o *securityv1beta1.Operation) []attribute[*rbacv3.Permission] {
	return []attribute[*rbacv3.Permission]{
		{o.GetHosts(), o.GetNotHosts(), ofRequest, host},
		{o.GetPorts(), o.GetNotPorts(), ofAny, port},
		{o.GetMethods(), o.GetNotMethods(), ofRequest, method},
		{o.GetPaths(), o.GetNotPaths(), ofRequest, path},
	}
}

// destination returns the attribute of a condition, if it is one of the destination.
func (c *converter) destination(w *securityv1beta1.Condition) []attribute[*rbacv3.Permission] {
	at := attribute[*rbacv3.Permission]{values: w.GetValues(), others: w.GetNotValues()}
	filter, ofFilter := strings.CutPrefix(w.GetKey(), "experimental.")
	switch {
	case w.GetKey() == "destination.ip":
		at.convert = func(value string, _ bool) (*rbacv3.Permission, bool) {
			r, ok := addresses(value)
			return &rbacv3.Permission{Rule: &rbacv3.Permission_DestinationIp{DestinationIp: r}}, ok
		}
	case w.GetKey() == "destination.port":
		at.convert = port
	case w.GetKey() == "connection.sni":
		at.kind = ofEnvoy
		at.convert = func(value string, _ bool) (*rbacv3.Permission, bool) {
			return &rbacv3.Permission{Rule: &rbacv3.Permission_RequestedServerName{RequestedServerName: text(value, true)}}, true
		}
	case ofFilter:
		at.kind, at.convert = ofEnvoy, metadata(filter)
	default:
		return nil
	}
	return []attribute[*rbacv3.Permission]{at}
}

func (c *converter) source(s *securityv1beta1.Source) []attribute[*rbacv3.Principal] {
	return []attribute[*rbacv3.Principal]{
		{s.GetPrincipals(), s.GetNotPrincipals(), ofAny, c.principal},
		{s.GetRequestPrincipals(), s.GetNotRequestPrincipals(), ofEnvoyRequest, c.requestPrincipal},
		{s.GetNamespaces(), s.GetNotNamespaces(), ofAny, c.namespaced},
		{s.GetTrustDomains(), s.GetNotTrustDomains(), ofAny, ofDomain},
		{s.GetServiceAccounts(), s.GetNotServiceAccounts(), ofAny, c.account},
		{s.GetIpBlocks(), s.GetNotIpBlocks(), ofAny, peerAddress},
		{s.GetRemoteIpBlocks(), s.GetNotRemoteIpBlocks(), ofAny, clientAddress},
	}
}

// caller returns the attribute of a condition, if it is one of the caller. An unknown key matches
// nothing, as an attribute that no request has.
func (c *converter) caller(w *securityv1beta1.Condition) []attribute[*rbacv3.Principal] {
	at := attribute[*rbacv3.Principal]{values: w.GetValues(), others: w.GetNotValues()}
	name, ofHeader := strings.CutPrefix(w.GetKey(), "request.headers[")
	switch key := w.GetKey(); {
	case len(c.destination(w)) > 0:
		return nil
	case key == "source.ip":
		at.convert = peerAddress
	case key == "remote.ip":
		at.convert = clientAddress
	case key == "source.namespace":
		at.convert = c.namespaced
	case key == "source.principal":
		at.convert = c.principal
	case key == "source.trustDomain":
		at.convert = ofDomain
	case key == "source.serviceAccount":
		at.convert = c.account
	case ofHeader:
		name = strings.TrimSuffix(name, "]")
		at.kind, at.convert = ofRequest, c.header(name)
		if strings.HasPrefix(strings.ToLower(name), "grpc-") { // gRPC libraries reject rules with such a header
			at.kind = ofEnvoyRequest
		}
	default:
		at.kind, at.convert = ofRequest, unknown
		if convert := c.tokenAttribute(key); convert != nil {
			at.kind, at.convert = ofEnvoyRequest, convert
		}
	}
	return []attribute[*rbacv3.Principal]{at}
}

func host(value string, wide bool) (*rbacv3.Permission, bool) {
	m := text(value, true)
	if value == "*" || wide {
		m = pattern(authority(value))
	}
	return &rbacv3.Permission{Rule: &rbacv3.Permission_Header{Header: valued(":authority", m)}}, true
}

func method(value string, wide bool) (*rbacv3.Permission, bool) {
	return &rbacv3.Permission{Rule: &rbacv3.Permission_Header{Header: valued(":method", text(value, wide))}}, true
}

func port(value string, _ bool) (*rbacv3.Permission, bool) {
	n, err := strconv.ParseUint(value, 10, 16)
	return &rbacv3.Permission{Rule: &rbacv3.Permission_DestinationPort{DestinationPort: uint32(n)}}, err == nil && n > 0
}

// metadata returns the conversion of the values of an attribute that a filter sets, written as
// filter[key]. A value in brackets is that of an element of a list.
func metadata(name string) func(value string, _ bool) (*rbacv3.Permission, bool) {
	filter, key, ok := strings.Cut(strings.TrimSuffix(name, "]"), "[")
	return func(value string, _ bool) (*rbacv3.Permission, bool) {
		of := func(v string) *matcherv3.ValueMatcher {
			return &matcherv3.ValueMatcher{MatchPattern: &matcherv3.ValueMatcher_StringMatch{StringMatch: text(v, false)}}
		}
		m := of(value)
		if strings.HasPrefix(value, "[") && strings.HasSuffix(value, "]") {
			m = &matcherv3.ValueMatcher{MatchPattern: &matcherv3.ValueMatcher_ListMatch{ListMatch: &matcherv3.ListMatcher{
				MatchPattern: &matcherv3.ListMatcher_OneOf{OneOf: of(value[1 : len(value)-1])},
			}}}
		}
		return &rbacv3.Permission{Rule: &rbacv3.Permission_SourcedMetadata{SourcedMetadata: &rbacv3.SourcedMetadata{MetadataMatcher: &matcherv3.MetadataMatcher{
			Filter: filter, Value: m,
			Path: []*matcherv3.MetadataMatcher_PathSegment{{Segment: &matcherv3.MetadataMatcher_PathSegment_Key{Key: key}}},
		}}}}, ok && key != ""
	}
}

func (c *converter) principal(value string, _ bool) (*rbacv3.Principal, bool) {
	var all []*rbacv3.Principal
	for _, m := range principals(value, c.domains) {
		all = append(all, envoyconf.Peer(m))
	}
	if len(all) == 1 {
		return all[0], true
	}
	return callers.any(all), true
}

func (c *converter) namespaced(value string, wide bool) (*rbacv3.Principal, bool) {
	return envoyconf.Peer(inNamespace(value, c.ofMesh(wide))), true
}

func (c *converter) account(value string, wide bool) (*rbacv3.Principal, bool) {
	return envoyconf.Peer(ofAccount(value, c.namespace, c.ofMesh(wide))), true
}

// ofMesh returns a regular expression for the trust domains whose namespaces and service accounts
// are meant: those of the mesh, or all.
func (c *converter) ofMesh(wide bool) string {
	if wide {
		return "[^/]+"
	}
	return alternation(c.domains)
}

func ofDomain(value string, _ bool) (*rbacv3.Principal, bool) {
	return envoyconf.Peer(inDomain(value)), true
}

func peerAddress(value string, _ bool) (*rbacv3.Principal, bool) {
	r, ok := addresses(value)
	return &rbacv3.Principal{Identifier: &rbacv3.Principal_DirectRemoteIp{DirectRemoteIp: r}}, ok
}

func clientAddress(value string, _ bool) (*rbacv3.Principal, bool) {
	r, ok := addresses(value)
	return &rbacv3.Principal{Identifier: &rbacv3.Principal_RemoteIp{RemoteIp: r}}, ok
}

// unknown is the conversion of the values of an attribute that no request has.
func unknown(string, bool) (*rbacv3.Principal, bool) {
	return callers.not(callers.anything()), true
}

func valued(name string, m *matcherv3.StringMatcher) *routev3.HeaderMatcher {
	return &routev3.HeaderMatcher{Name: name, HeaderMatchSpecifier: &routev3.HeaderMatcher_StringMatch{StringMatch: m}}
}

// addresses parses an address or a range of addresses.
func addresses(value string) (*corev3.CidrRange, bool) {
	r := envoyconf.ParseRange(value)
	return r, r != nil
}

// permissions combines permissions. It is never written to.
var permissions = algebra[*rbacv3.Permission]{
	anything: func() *rbacv3.Permission { return &rbacv3.Permission{Rule: &rbacv3.Permission_Any{Any: true}} },
	not: func(m *rbacv3.Permission) *rbacv3.Permission {
		return &rbacv3.Permission{Rule: &rbacv3.Permission_NotRule{NotRule: m}}
	},
	all: func(list []*rbacv3.Permission) *rbacv3.Permission {
		return &rbacv3.Permission{Rule: &rbacv3.Permission_AndRules{AndRules: &rbacv3.Permission_Set{Rules: list}}}
	},
	any: func(list []*rbacv3.Permission) *rbacv3.Permission {
		return &rbacv3.Permission{Rule: &rbacv3.Permission_OrRules{OrRules: &rbacv3.Permission_Set{Rules: list}}}
	},
}

// callers combines principals. It is never written to.
var callers = algebra[*rbacv3.Principal]{
	anything: func() *rbacv3.Principal { return &rbacv3.Principal{Identifier: &rbacv3.Principal_Any{Any: true}} },
	not: func(m *rbacv3.Principal) *rbacv3.Principal {
		return &rbacv3.Principal{Identifier: &rbacv3.Principal_NotId{NotId: m}}
	},
	all: func(list []*rbacv3.Principal) *rbacv3.Principal {
		return &rbacv3.Principal{Identifier: &rbacv3.Principal_AndIds{AndIds: &rbacv3.Principal_Set{Ids: list}}}
	},
	any: func(list []*rbacv3.Principal) *rbacv3.Principal {
		return &rbacv3.Principal{Identifier: &rbacv3.Principal_OrIds{OrIds: &rbacv3.Principal_Set{Ids: list}}}
	},
}
