// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package decision

import (
	"fmt"
	"slices"
	"strconv"

	xdscorev3 "github.com/cncf/xds/go/xds/core/v3"
	xdsmatcherv3 "github.com/cncf/xds/go/xds/type/matcher/v3"
	actionv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/common/matcher/action/v3"
	networkinputsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/matching/common_inputs/network/v3"
	sslinputsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/matching/common_inputs/ssl/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
)

// skippable are filters that Envoy skips for the requests of a matcher.
type skippable struct {
	skips func(*facts) bool
	steps []step
}

// apply applies the filters. Those that are skipped refuse nothing, but name the rule that allows the
// request, unless the verdict is brief.
func (s *skippable) apply(f *facts, v *Verdict) {
	if !s.skips(f) {
		v.run(s.steps, f)
		return
	}
	if f.request.Brief {
		return
	}
	with := *v
	if with.run(s.steps, f); with.Allowed {
		*v = with
	}
}

// skipping compiles a matcher whose only action skips a filter.
func (c *compiler) skipping(m *xdsmatcherv3.Matcher) (func(*facts) bool, error) {
	otherwise := func(*facts) bool { return false }
	if m.GetOnNoMatch() != nil {
		var err error
		if otherwise, err = c.onMatch(m.GetOnNoMatch()); err != nil {
			return nil, err
		}
	}
	switch of := m.GetMatcherType().(type) {
	case *xdsmatcherv3.Matcher_MatcherList_:
		var list []struct{ when, then func(*facts) bool }
		for _, one := range of.MatcherList.GetMatchers() {
			when, err := c.predicate(one.GetPredicate())
			if err != nil {
				return nil, err
			}
			then, err := c.onMatch(one.GetOnMatch())
			if err != nil {
				return nil, err
			}
			list = append(list, struct{ when, then func(*facts) bool }{when, then})
		}
		return func(f *facts) bool {
			for _, one := range list {
				if one.when(f) {
					return one.then(f)
				}
			}
			return otherwise(f)
		}, nil
	case *xdsmatcherv3.Matcher_MatcherTree_:
		value, err := input(of.MatcherTree.GetInput())
		if err != nil {
			return nil, err
		}
		texts := map[string]func(*facts) bool{}
		if of.MatcherTree.GetExactMatchMap() == nil {
			return nil, fmt.Errorf("the tree %T of a matcher is not supported", of.MatcherTree.GetTreeType())
		}
		for text, action := range of.MatcherTree.GetExactMatchMap().GetMap() {
			if texts[text], err = c.onMatch(action); err != nil {
				return nil, err
			}
		}
		return func(f *facts) bool {
			if text, ok := value(f); ok && texts[text] != nil {
				return texts[text](f)
			}
			return otherwise(f)
		}, nil
	default:
		return nil, fmt.Errorf("the matcher %T is not supported", of)
	}
}

// onMatch compiles what follows if a matcher matches.
func (c *compiler) onMatch(m *xdsmatcherv3.Matcher_OnMatch) (func(*facts) bool, error) {
	if inner := m.GetMatcher(); inner != nil {
		return c.skipping(inner)
	}
	if !m.GetAction().GetTypedConfig().MessageIs(&actionv3.SkipFilter{}) {
		return nil, fmt.Errorf("the action %s is not supported", m.GetAction().GetTypedConfig().GetTypeUrl())
	}
	return func(*facts) bool { return true }, nil
}

// predicate compiles a condition of a matcher.
func (c *compiler) predicate(p *xdsmatcherv3.Matcher_MatcherList_Predicate) (func(*facts) bool, error) {
	switch of := p.GetMatchType().(type) {
	case *xdsmatcherv3.Matcher_MatcherList_Predicate_AndMatcher:
		list, err := c.predicates(of.AndMatcher.GetPredicate())
		return func(f *facts) bool {
			return !slices.ContainsFunc(list, func(is func(*facts) bool) bool { return !is(f) })
		}, err
	case *xdsmatcherv3.Matcher_MatcherList_Predicate_OrMatcher:
		list, err := c.predicates(of.OrMatcher.GetPredicate())
		return func(f *facts) bool {
			return slices.ContainsFunc(list, func(is func(*facts) bool) bool { return is(f) })
		}, err
	case *xdsmatcherv3.Matcher_MatcherList_Predicate_NotMatcher:
		is, err := c.predicate(of.NotMatcher)
		return func(f *facts) bool { return !is(f) }, err
	case *xdsmatcherv3.Matcher_MatcherList_Predicate_SinglePredicate_:
		value, err := input(of.SinglePredicate.GetInput())
		if err != nil {
			return nil, err
		}
		re := of.SinglePredicate.GetValueMatch().GetSafeRegex()
		if re == nil {
			return nil, fmt.Errorf("the condition %T of a matcher is not supported", of.SinglePredicate.GetMatcher())
		}
		p, err := c.pattern(re.GetRegex())
		return func(f *facts) bool { text, ok := value(f); return ok && p.matches(text) }, err
	default:
		return nil, fmt.Errorf("the condition %T of a matcher is not supported", of)
	}
}

func (c *compiler) predicates(list []*xdsmatcherv3.Matcher_MatcherList_Predicate) ([]func(*facts) bool, error) {
	var out []func(*facts) bool
	for _, p := range list {
		is, err := c.predicate(p)
		if err != nil {
			return nil, err
		}
		out = append(out, is)
	}
	return out, nil
}

// input returns a function that reads what a matcher compares. It returns false if the request does
// not have it.
func input(config *xdscorev3.TypedExtensionConfig) (func(*facts) (string, bool), error) {
	switch m := message(config.GetTypedConfig()).(type) {
	case *matcherv3.HttpRequestHeaderMatchInput:
		name := lower(m.GetHeaderName())
		return func(f *facts) (string, bool) { return joined(f.header[name]), len(f.header[name]) > 0 }, nil
	case *sslinputsv3.UriSanInput:
		return func(f *facts) (string, bool) { return f.identity, f.identity != "" }, nil
	case *networkinputsv3.DestinationPortInput:
		return func(f *facts) (string, bool) { return strconv.FormatUint(uint64(f.request.Port), 10), true }, nil
	default:
		return nil, fmt.Errorf("the input %s of a matcher is not supported", config.GetTypedConfig().GetTypeUrl())
	}
}
