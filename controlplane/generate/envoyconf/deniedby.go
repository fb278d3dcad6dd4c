// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package envoyconf

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	mutationrulesv3 "github.com/envoyproxy/go-control-plane/envoy/config/common/mutation_rules/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	celv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/filters/cel/v3"
	matchingv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/matching/v3"
	mutationv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/header_mutation/v3"
	headertometadatav3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/header_to_metadata/v3"
	httprbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/anypb"
)

// deniedByHeader is the header of responses to requests that rules deny. It has the name of the rule,
// as namespace/name[index], or those of the rules of which none allows the request.
const deniedByHeader = "x-outrigger-denied-by"

const (
	// detail is how Envoy's reason for a denial begins; the name of the rule in brackets follows.
	detail = "rbac_access_denied_matched_policy"
	// ruleInDetail matches the reason. The groups are the namespace, the name and the index.
	ruleInDetail = detail + `\[ns\[([^\]]*)\]-policy\[([^\]]*)\]-rule\[([0-9]+)\]\]`
)

// denialReplies returns the settings that add the header to the responses to requests that the rules
// of filters deny. Envoy stores the metadata of a decision only after the response. Therefore, the
// header first has the reason, which [denialHeader] replaces.
func denialReplies(filters []*hcmv3.HttpFilter) *hcmv3.LocalReplyConfig {
	return &hcmv3.LocalReplyConfig{Mappers: []*hcmv3.ResponseMapper{
		denial(`response.code_details == "`+detail+`[none]"`, strings.ReplaceAll(allowing(filters), "%", "%%")),
		denial(`response.code_details.startsWith("`+detail+`")`, "%RESPONSE_CODE_DETAILS%"),
	}}
}

// denialHeader returns two filters. On the way of the response, the second one makes metadata of the
// reason, which the first one writes to the header.
func denialHeader() []*hcmv3.HttpFilter {
	const namespace, key = "outrigger.denied", "by"
	return []*hcmv3.HttpFilter{
		RequestFilter("envoy.filters.http.header_mutation", &mutationv3.HeaderMutation{Mutations: &mutationv3.Mutations{
			ResponseMutations: []*mutationrulesv3.HeaderMutation{{Action: &mutationrulesv3.HeaderMutation_Append{
				Append: deniedBy("%DYNAMIC_METADATA(" + namespace + ":" + key + ")%"),
			}}},
		}}),
		RequestFilter("envoy.filters.http.header_to_metadata", &headertometadatav3.Config{ResponseRules: []*headertometadatav3.Config_Rule{{
			Header: deniedByHeader, Remove: true,
			OnHeaderPresent: &headertometadatav3.Config_KeyValuePair{
				MetadataNamespace: namespace, Key: key,
				RegexValueRewrite: &matcherv3.RegexMatchAndSubstitute{Pattern: &matcherv3.RegexMatcher{Regex: ruleInDetail}, Substitution: `\1/\2[\3]`},
			},
		}}}),
	}
}

// denial returns the settings that add the header to the responses that a CEL expression selects.
func denial(expression, value string) *hcmv3.ResponseMapper {
	return &hcmv3.ResponseMapper{
		Filter:       Selected(expression),
		HeadersToAdd: []*corev3.HeaderValueOption{deniedBy(value)},
	}
}

// Selected returns the filter that selects the requests for which a CEL expression is true.
func Selected(expression string) *accesslogv3.AccessLogFilter {
	return &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_ExtensionFilter{ExtensionFilter: &accesslogv3.ExtensionFilter{
		Name:       "envoy.access_loggers.extension_filters.cel",
		ConfigType: &accesslogv3.ExtensionFilter_TypedConfig{TypedConfig: Pack(&celv3.ExpressionFilter{Expression: expression})},
	}}}
}

func deniedBy(value string) *corev3.HeaderValueOption {
	return &corev3.HeaderValueOption{
		Header:       &corev3.HeaderValue{Key: deniedByHeader, Value: value},
		AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD,
	}
}

// allowing returns the names of the rules that allow requests, or a part of them.
func allowing(filters []*hcmv3.HttpFilter) string {
	const most = 10
	var names []string
	for _, f := range filters {
		if rules := enforcedRules(f.GetTypedConfig()); rules.GetAction() == rbacv3.RBAC_ALLOW {
			names = slices.AppendSeq(names, maps.Keys(rules.GetPolicies()))
		}
	}
	if len(names) == 0 {
		return "none"
	}
	slices.Sort(names)
	rest := ""
	if n := len(names) - most; n > 0 {
		names, rest = names[:most], fmt.Sprintf(" and %d more", n)
	}
	rule := regexp.MustCompile(ruleInDetail)
	for i, name := range names {
		names[i] = rule.ReplaceAllString(detail+"["+name+"]", "$1/$2[$3]")
	}
	return "none of " + strings.Join(names, ", ") + rest
}

// enforcedRules returns the rules of an RBAC filter, also of one with a matcher, and nil for other
// filters.
func enforcedRules(config *anypb.Any) *rbacv3.RBAC {
	with, rbac := &matchingv3.ExtensionWithMatcher{}, &httprbacv3.RBAC{}
	if config.MessageIs(with) && config.UnmarshalTo(with) == nil {
		config = with.GetExtensionConfig().GetTypedConfig()
	}
	if !config.MessageIs(rbac) || config.UnmarshalTo(rbac) != nil {
		return nil
	}
	return rbac.GetRules()
}
