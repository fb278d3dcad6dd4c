// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package authorization

import (
	"fmt"
	"strings"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	streamv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/stream/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	securityv1beta1 "istio.io/api/security/v1beta1"

	"github.com/outrigger-mesh/outrigger/controlplane/generate/envoyconf"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
)

// addDryRun adds the logs of what policies of a step that are not enforced would deny.
func (out *Filters) addDryRun(s step, tried []*snapshot.AuthorizationPolicy) {
	of := func(filter string) string {
		return "%DYNAMIC_METADATA(" + filter + ":" + s.shadow + "shadow_effective_policy_id)%"
	}
	if s.action == securityv1beta1.AuthorizationPolicy_ALLOW { // no rule has matched
		names := candidates(tried)
		of = func(string) string { return names }
	}
	out.HTTPLog = append(out.HTTPLog, dryRunLog(matched(httpRBAC, s.shadow), map[string]string{
		"msg": "a policy in dry run would deny the request", "policy": of(httpRBAC), "method": "%REQ(:METHOD)%",
		"path": "%REQ(X-ENVOY-ORIGINAL-PATH?:PATH)%", "authority": "%REQ(:AUTHORITY)%", "request_id": "%REQ(X-REQUEST-ID)%",
	}))
	out.StreamLog = append(out.StreamLog, dryRunLog(matched(streamRBAC, s.shadow), map[string]string{
		"msg": "a policy in dry run would deny the connection", "policy": of(streamRBAC), "sni": "%REQUESTED_SERVER_NAME%",
	}))
}

// candidates returns the names of policies that allow nothing unless one of them matches.
func candidates(policies []*snapshot.AuthorizationPolicy) string {
	const most = 10
	var names []string
	for i, p := range policies {
		if i == most {
			names = append(names, fmt.Sprintf("and %d more", len(policies)-most))
			break
		}
		names = append(names, fmt.Sprintf("ns[%s]-policy[%s]", p.Config.Namespace, p.Config.Name))
	}
	return "no rule matched: " + strings.Join(names, ", ")
}

// dryRunLog returns a log on Envoy's standard error of requests or connections with metadata.
func dryRunLog(when *matcherv3.MetadataMatcher, fields map[string]string) *accesslogv3.AccessLog {
	fields["time"], fields["level"] = "%START_TIME%", "info"
	fields["peer"], fields["source"], fields["destination"] = "%DOWNSTREAM_PEER_URI_SAN%", "%DOWNSTREAM_REMOTE_ADDRESS%", "%DOWNSTREAM_LOCAL_ADDRESS%"
	format := &structpb.Struct{Fields: map[string]*structpb.Value{}}
	for name, value := range fields {
		format.Fields[name] = structpb.NewStringValue(value)
	}
	return &accesslogv3.AccessLog{
		Name: "envoy.access_loggers.stderr",
		Filter: &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_MetadataFilter{
			MetadataFilter: &accesslogv3.MetadataFilter{Matcher: when, MatchIfKeyNotFound: wrapperspb.Bool(false)},
		}},
		ConfigType: &accesslogv3.AccessLog_TypedConfig{TypedConfig: envoyconf.Pack(&streamv3.StderrAccessLog{
			AccessLogFormat: &streamv3.StderrAccessLog_LogFormat{LogFormat: &corev3.SubstitutionFormatString{
				Format: &corev3.SubstitutionFormatString_JsonFormat{JsonFormat: format},
			}},
		})},
	}
}
