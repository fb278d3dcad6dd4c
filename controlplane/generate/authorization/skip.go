// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package authorization

import (
	"slices"
	"strings"

	xdscorev3 "github.com/cncf/xds/go/xds/core/v3"
	xdsmatcherv3 "github.com/cncf/xds/go/xds/type/matcher/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	matchingv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/matching/v3"
	actionv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/common/matcher/action/v3"
	httprbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/proto"
	securityv1beta1 "istio.io/api/security/v1beta1"

	"github.com/outrigger-mesh/outrigger/controlplane/generate/envoyconf"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
)

// Envoy evaluates rules one after the other. If there are many, a matcher with cheap comparisons
// decides first, for most requests, that the rules need not be evaluated: those that refuse, as none
// of them is about the path; those that allow, as one of them allows the request.
const (
	// fewValues is the number of callers and paths in rules that are always evaluated.
	fewValues = 8
	// plainSize and wideSize limit the length of an expression for several paths, in bytes. For longer
	// ones Envoy has not enough memory to match them in linear time.
	plainSize, wideSize = 32 << 10, 8 << 10
)

// requests returns the filters of a step for requests.
func (s step) requests(enforced, tried []*snapshot.AuthorizationPolicy, base converter) (out []*hcmv3.HttpFilter) {
	always := &httprbacv3.RBAC{Rules: s.rules(enforced, base, ofRequests)}
	if len(tried) > 0 {
		always.ShadowRules, always.ShadowRulesStatPrefix = s.rules(tried, base, ofRequests), s.shadow
	}
	var sometimes *rbacv3.RBAC
	var skip *xdsmatcherv3.Matcher
	if s.action != securityv1beta1.AuthorizationPolicy_ALLOW {
		skip, sometimes = takeRulesOfPaths(enforced, always.GetRules())
		shareAmbiguous(always.GetRules())
		shareAmbiguous(always.GetShadowRules())
		shareAmbiguous(sometimes)
	} else if skip = whereAllowed(always.GetRules()); skip != nil {
		always.Rules, sometimes = nil, always.GetRules()
	}
	if len(always.GetRules().GetPolicies()) > 0 || always.GetShadowRules() != nil || sometimes == nil {
		out = append(out, envoyconf.RequestFilter(httpRBAC, always))
	}
	if sometimes != nil {
		out = append(out, envoyconf.RequestFilter(httpRBAC, &matchingv3.ExtensionWithMatcher{
			ExtensionConfig: &corev3.TypedExtensionConfig{Name: httpRBAC, TypedConfig: envoyconf.Pack(&httprbacv3.RBAC{Rules: sometimes})},
			XdsMatcher:      skip,
		}))
	}
	return out
}

// takeRulesOfPaths moves the rules that refuse only certain paths, and returns a matcher of requests
// for other paths. It returns nil if there are only few paths.
func takeRulesOfPaths(list []*snapshot.AuthorizationPolicy, from *rbacv3.RBAC) (*xdsmatcherv3.Matcher, *rbacv3.RBAC) {
	plainly, widely := &pathExpressions{slash: "/", rest: "/?", limit: plainSize}, &pathExpressions{slash: separator, rest: ending, others: unplain, limit: wideSize}
	taken := &rbacv3.RBAC{Action: from.GetAction(), Policies: map[string]*rbacv3.Policy{}}
	for _, policy := range list {
		for i, rule := range policy.Spec.GetRules() {
			name := ruleName(policy, i)
			if made := from.GetPolicies()[name]; made != nil && plainly.add(rule) && widely.add(rule) {
				taken.Policies[name] = made
			}
		}
	}
	if plainly.count <= fewValues {
		return nil, nil
	}
	for name := range taken.GetPolicies() {
		delete(from.GetPolicies(), name)
	}
	return either([]*predicate{
		all([]*predicate{header(":path", "(?is)"+plain+`(\?.*)?`), not(plainly.predicate())}),
		// Envoy cannot compare a path that is not UTF-8. Such a path, and none, may be refused.
		all([]*predicate{header(":path", "(?s).*"), not(widely.predicate())}),
	}, skipping()), taken
}

// pathExpressions are regular expressions for the paths that rules refuse.
type pathExpressions struct {
	slash  string // matches what is taken for a slash
	rest   string // matches what is ignored at the end of a path
	others string // matches paths that are refused besides, if not empty
	limit  int    // of the size of an expression for several paths

	ended, open []string // expressions of paths, the latter with anything at their end
	size        int      // their length
	count       int      // the number of paths
	full        []string // expressions for several paths
}

// add adds the paths of a rule. It returns false if the rule may refuse all paths.
func (p *pathExpressions) add(r *securityv1beta1.Rule) bool {
	for _, to := range alternatives(r.GetTo()) {
		paths := to.GetOperation().GetPaths()
		if len(paths) == 0 || slices.Contains(paths, "*") {
			return false
		}
	}
	for _, to := range r.GetTo() {
		for _, path := range to.GetOperation().GetPaths() {
			expr, open := servedAs(path, p.slash)
			if p.size+len(expr) > p.limit {
				p.flush()
			}
			p.size += len(expr)
			p.count++
			if open {
				p.open = append(p.open, expr)
			} else {
				p.ended = append(p.ended, expr)
			}
		}
	}
	return true
}

// flush combines the expressions. The header :path also contains the query.
func (p *pathExpressions) flush() {
	var list []string
	if p.others != "" {
		list = append(list, p.others)
	}
	if len(p.ended) > 0 {
		list = append(list, "("+strings.Join(p.ended, "|")+")"+p.rest)
	}
	if len(p.open) > 0 {
		list = append(list, "("+strings.Join(p.open, "|")+").*")
	}
	if len(list) > 0 {
		p.full = append(p.full, "(?is)("+strings.Join(list, "|")+")([?#].*)?")
	}
	p.ended, p.open, p.size = nil, nil, 0
}

// predicate returns the condition that a request is for one of the paths.
func (p *pathExpressions) predicate() *predicate {
	p.flush()
	var out []*predicate
	for _, expr := range p.full {
		out = append(out, header(":path", expr))
	}
	return anyOf(out)
}

// predicate is a condition of a matcher.
type predicate = xdsmatcherv3.Matcher_MatcherList_Predicate

type predicates = xdsmatcherv3.Matcher_MatcherList_Predicate_PredicateList

func all(list []*predicate) *predicate {
	if len(list) == 1 {
		return list[0]
	}
	return &predicate{MatchType: &xdsmatcherv3.Matcher_MatcherList_Predicate_AndMatcher{AndMatcher: &predicates{Predicate: list}}}
}

func anyOf(list []*predicate) *predicate {
	if len(list) == 1 {
		return list[0]
	}
	return &predicate{MatchType: &xdsmatcherv3.Matcher_MatcherList_Predicate_OrMatcher{OrMatcher: &predicates{Predicate: list}}}
}

func not(p *predicate) *predicate {
	return &predicate{MatchType: &xdsmatcherv3.Matcher_MatcherList_Predicate_NotMatcher{NotMatcher: p}}
}

// header returns the condition that a header matches an expression.
func header(name, expr string) *predicate {
	return input(headerInput(name), expr)
}

func headerInput(name string) *xdscorev3.TypedExtensionConfig {
	return extension(name, &matcherv3.HttpRequestHeaderMatchInput{HeaderName: name})
}

// input returns the condition that an input matches an expression.
func input(in *xdscorev3.TypedExtensionConfig, expr string) *predicate {
	return &predicate{MatchType: &xdsmatcherv3.Matcher_MatcherList_Predicate_SinglePredicate_{
		SinglePredicate: &xdsmatcherv3.Matcher_MatcherList_Predicate_SinglePredicate{
			Input: in,
			Matcher: &xdsmatcherv3.Matcher_MatcherList_Predicate_SinglePredicate_ValueMatch{ValueMatch: &xdsmatcherv3.StringMatcher{
				MatchPattern: &xdsmatcherv3.StringMatcher_SafeRegex{SafeRegex: &xdsmatcherv3.RegexMatcher{
					EngineType: &xdsmatcherv3.RegexMatcher_GoogleRe2{GoogleRe2: &xdsmatcherv3.RegexMatcher_GoogleRE2{}}, Regex: expr,
				}},
			}},
		},
	}}
}

// skipping returns the action of a matcher that skips the filter.
func skipping() *xdsmatcherv3.Matcher_OnMatch {
	return &xdsmatcherv3.Matcher_OnMatch{OnMatch: &xdsmatcherv3.Matcher_OnMatch_Action{Action: extension("skip", &actionv3.SkipFilter{})}}
}

func extension(name string, config proto.Message) *xdscorev3.TypedExtensionConfig {
	return &xdscorev3.TypedExtensionConfig{Name: name, TypedConfig: envoyconf.Pack(config)}
}

// either returns the matcher that acts if one of the conditions is true.
func either(list []*predicate, action *xdsmatcherv3.Matcher_OnMatch) *xdsmatcherv3.Matcher {
	return &xdsmatcherv3.Matcher{MatcherType: &xdsmatcherv3.Matcher_MatcherList_{MatcherList: &xdsmatcherv3.Matcher_MatcherList{
		Matchers: []*xdsmatcherv3.Matcher_MatcherList_FieldMatcher{{Predicate: anyOf(list), OnMatch: action}},
	}}}
}
