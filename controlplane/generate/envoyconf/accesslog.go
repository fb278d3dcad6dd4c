// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package envoyconf

import (
	"cmp"
	"encoding/json"
	"net/http"
	"strings"
	"time"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	filev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/file/v3"
	grpclogv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/grpc/v3"
	reqwithoutqueryv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/formatter/req_without_query/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/outrigger-mesh/outrigger/bootstrap/node"
)

// TextFormat is the access log format of Istio.
const TextFormat = `[%START_TIME%] "%REQ(:METHOD)% %REQ(X-ENVOY-ORIGINAL-PATH?:PATH)% %PROTOCOL%" %RESPONSE_CODE% %RESPONSE_FLAGS% ` +
	`%RESPONSE_CODE_DETAILS% %CONNECTION_TERMINATION_DETAILS% "%UPSTREAM_TRANSPORT_FAILURE_REASON%" %BYTES_RECEIVED% %BYTES_SENT% ` +
	`%DURATION% %RESP(X-ENVOY-UPSTREAM-SERVICE-TIME)% "%REQ(X-FORWARDED-FOR)%" "%REQ(USER-AGENT)%" "%REQ(X-REQUEST-ID)%" ` +
	`"%REQ(:AUTHORITY)%" "%UPSTREAM_HOST%" %UPSTREAM_CLUSTER% %UPSTREAM_LOCAL_ADDRESS% %DOWNSTREAM_LOCAL_ADDRESS% ` +
	`%DOWNSTREAM_REMOTE_ADDRESS% %REQUESTED_SERVER_NAME% %ROUTE_NAME%` + "\n"

// jsonFormat returns the fields of Istio's JSON access log by name.
func jsonFormat() map[string]any {
	return map[string]any{
		"start_time": "%START_TIME%", "route_name": "%ROUTE_NAME%", "method": "%REQ(:METHOD)%",
		"path": "%REQ(X-ENVOY-ORIGINAL-PATH?:PATH)%", "protocol": "%PROTOCOL%", "response_code": "%RESPONSE_CODE%",
		"response_flags": "%RESPONSE_FLAGS%", "response_code_details": "%RESPONSE_CODE_DETAILS%",
		"connection_termination_details":    "%CONNECTION_TERMINATION_DETAILS%",
		"upstream_transport_failure_reason": "%UPSTREAM_TRANSPORT_FAILURE_REASON%",
		"bytes_received":                    "%BYTES_RECEIVED%", "bytes_sent": "%BYTES_SENT%", "duration": "%DURATION%",
		"upstream_service_time": "%RESP(X-ENVOY-UPSTREAM-SERVICE-TIME)%", "x_forwarded_for": "%REQ(X-FORWARDED-FOR)%",
		"user_agent": "%REQ(USER-AGENT)%", "request_id": "%REQ(X-REQUEST-ID)%", "authority": "%REQ(:AUTHORITY)%",
		"upstream_host": "%UPSTREAM_HOST%", "upstream_cluster": "%UPSTREAM_CLUSTER%",
		"upstream_local_address": "%UPSTREAM_LOCAL_ADDRESS%", "downstream_local_address": "%DOWNSTREAM_LOCAL_ADDRESS%",
		"downstream_remote_address": "%DOWNSTREAM_REMOTE_ADDRESS%", "requested_server_name": "%REQUESTED_SERVER_NAME%",
	}
}

// FileLog returns the access log of the mesh settings. It is empty if they name no file.
func FileLog(mesh *meshv1alpha1.MeshConfig) []*accesslogv3.AccessLog {
	if mesh.GetAccessLogFile() == "" {
		return nil
	}
	return []*accesslogv3.AccessLog{{
		Name:       "envoy.access_loggers.file",
		ConfigType: &accesslogv3.AccessLog_TypedConfig{TypedConfig: Pack(fileLog(mesh.GetAccessLogFile(), meshFormat(mesh)))},
	}}
}

// FileLogOf returns the configuration of the logger of a provider. Istio's own one has the format of
// the mesh settings.
func FileLogOf(name string, mesh *meshv1alpha1.MeshConfig, of *meshv1alpha1.MeshConfig_ExtensionProvider_EnvoyFileAccessLogProvider) *filev3.FileAccessLog {
	format := textFormatOf(lineOf(of.GetLogFormat().GetText()))
	switch labels := of.GetLogFormat().GetLabels(); {
	case labels != nil && len(labels.GetFields()) == 0:
		format.Format = &corev3.SubstitutionFormatString_JsonFormat{JsonFormat: jsonFields("")}
	case labels != nil:
		format.Format = &corev3.SubstitutionFormatString_JsonFormat{JsonFormat: labels}
	case name == "envoy" && of.GetLogFormat() == nil:
		format = meshFormat(mesh)
	}
	format.OmitEmptyValues = of.GetOmitEmptyValues()
	format.Formatters = Formatters(format)
	return fileLog(cmp.Or(of.GetPath(), "/dev/stdout"), format)
}

// lineOf returns a format that ends with a line break. An empty one is that of Istio.
func lineOf(text string) string {
	if text == "" {
		return TextFormat
	}
	return strings.TrimSuffix(text, "\n") + "\n"
}

func fileLog(path string, format *corev3.SubstitutionFormatString) *filev3.FileAccessLog {
	return &filev3.FileAccessLog{Path: path, AccessLogFormat: &filev3.FileAccessLog_LogFormat{LogFormat: format}}
}

func textFormatOf(text string) *corev3.SubstitutionFormatString {
	return &corev3.SubstitutionFormatString{Format: &corev3.SubstitutionFormatString_TextFormatSource{
		TextFormatSource: &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: text}},
	}}
}

// meshFormat returns the format of the access log of the mesh settings.
func meshFormat(mesh *meshv1alpha1.MeshConfig) *corev3.SubstitutionFormatString {
	format := textFormatOf(cmp.Or(mesh.GetAccessLogFormat(), TextFormat))
	if mesh.GetAccessLogEncoding() == meshv1alpha1.MeshConfig_JSON {
		format.Format = &corev3.SubstitutionFormatString_JsonFormat{JsonFormat: jsonFields(mesh.GetAccessLogFormat())}
	}
	format.Formatters = Formatters(format)
	return format
}

// Formatters returns the extensions that a format needs. Envoy has the others built in.
func Formatters(format proto.Message) []*corev3.TypedExtensionConfig {
	if !strings.Contains(prototext.Format(format), "%REQ_WITHOUT_QUERY(") {
		return nil
	}
	return []*corev3.TypedExtensionConfig{{Name: "envoy.formatter.req_without_query", TypedConfig: Pack(&reqwithoutqueryv3.ReqWithoutQuery{})}}
}

// Unmatched returns logs of the connections that no filter chain of a listener takes.
func Unmatched(logs []*accesslogv3.AccessLog) []*accesslogv3.AccessLog {
	out := make([]*accesslogv3.AccessLog, 0, len(logs))
	for _, l := range logs {
		l = proto.CloneOf(l)
		only := &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_ResponseFlagFilter{ResponseFlagFilter: &accesslogv3.ResponseFlagFilter{Flags: []string{"NR"}}}}
		if l.GetFilter() != nil {
			only = &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_AndFilter{AndFilter: &accesslogv3.AndFilter{Filters: []*accesslogv3.AccessLogFilter{only, l.GetFilter()}}}}
		}
		l.Filter = only
		out = append(out, l)
	}
	return out
}

// recordLog returns a log of requests that an agent records. Envoy writes it only while the agent has
// set the runtime key, without a change of listeners, and sends each entry at once: a timer of the
// log would wake every worker, always.
func recordLog(key string, headers []string) []*accesslogv3.AccessLog {
	if len(headers) == 0 {
		return nil
	}
	return []*accesslogv3.AccessLog{agentLog(key, headers, whenSet(key))}
}

// RecordConnections returns a log of connections that an agent records, like the log of requests.
func RecordConnections(headers []string) []*accesslogv3.AccessLog {
	if len(headers) == 0 {
		return nil
	}
	return []*accesslogv3.AccessLog{{
		Name:   "envoy.access_loggers.tcp_grpc",
		Filter: whenSet(node.RecordLog),
		ConfigType: &accesslogv3.AccessLog_TypedConfig{TypedConfig: Pack(&grpclogv3.TcpGrpcAccessLogConfig{
			CommonConfig: agentLogConfig(node.RecordLog),
		})},
	}}
}

// whenSet selects nothing, unless a runtime key is set.
func whenSet(key string) *accesslogv3.AccessLogFilter {
	return &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_RuntimeFilter{RuntimeFilter: &accesslogv3.RuntimeFilter{
		RuntimeKey: key, PercentSampled: &typev3.FractionalPercent{}, UseIndependentRandomness: true,
	}}}
}

// UnknownKeyLog returns a log, for the agent, of requests whose token no known key verifies.
func UnknownKeyLog() *accesslogv3.AccessLog {
	refused := &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_StatusCodeFilter{StatusCodeFilter: &accesslogv3.StatusCodeFilter{Comparison: &accesslogv3.ComparisonFilter{
		Op: accesslogv3.ComparisonFilter_EQ, Value: &corev3.RuntimeUInt32{DefaultValue: http.StatusUnauthorized, RuntimeKey: node.UnknownKeyLog},
	}}}}
	return agentLog(node.UnknownKeyLog, nil, &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_AndFilter{AndFilter: &accesslogv3.AndFilter{
		Filters: []*accesslogv3.AccessLogFilter{refused, Selected(unknownKey)}, // the status first: it is cheap
	}}})
}

// unknownKey selects the requests that jwt_authn refuses as no key has the token's kid, or as the key
// for a token without kid does not verify it.
const unknownKey = `response.code_details.startsWith("jwt_authn_access_denied{Jwks_doesn't_have_key") || response.code_details.startsWith("jwt_authn_access_denied{Jwt_verification_fails")`

// agentLog returns a log for the agent.
func agentLog(name string, headers []string, filter *accesslogv3.AccessLogFilter) *accesslogv3.AccessLog {
	return &accesslogv3.AccessLog{
		Name:   "envoy.access_loggers.http_grpc",
		Filter: filter,
		ConfigType: &accesslogv3.AccessLog_TypedConfig{TypedConfig: Pack(&grpclogv3.HttpGrpcAccessLogConfig{
			CommonConfig: agentLogConfig(name), AdditionalRequestHeadersToLog: headers,
		})},
	}
}

func agentLogConfig(name string) *grpclogv3.CommonGrpcAccessLogConfig {
	return &grpclogv3.CommonGrpcAccessLogConfig{
		LogName: name, TransportApiVersion: corev3.ApiVersion_V3,
		GrpcService: &corev3.GrpcService{TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{
			EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{ClusterName: node.XDSCluster},
		}},
		BufferSizeBytes: wrapperspb.UInt32(0), BufferFlushInterval: durationpb.New(24 * time.Hour),
	}
}

// jsonFields parses the configured JSON format. If it is not a JSON object, jsonFields returns the
// fields of Istio.
func jsonFields(format string) *structpb.Struct {
	fields := jsonFormat()
	if format != "" {
		var own map[string]any
		if json.Unmarshal([]byte(format), &own) == nil && len(own) > 0 {
			fields = own
		}
	}
	out, err := structpb.NewStruct(fields)
	if err != nil {
		return &structpb.Struct{}
	}
	return out
}
