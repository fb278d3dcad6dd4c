// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package telemetry

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	grpclogv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/grpc/v3"
	otellogv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/open_telemetry/v3"
	commonv1 "go.opentelemetry.io/proto/otlp/common/v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/outrigger-mesh/outrigger/controlplane/generate/envoyconf"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
)

// selection is a provider that objects, or the mesh config, select.
type selection struct {
	name string
	// by is the object that selects it, and at the field; by is nil for the mesh config.
	by *snapshot.Telemetry
	at string
	// filter is a CEL expression; empty selects everything.
	filter string
}

// logs are the access logs of one direction.
type logs struct {
	// chosen is false if neither objects nor default providers decide, so that the file of the mesh
	// config counts.
	chosen bool
	list   []log
}

// log is an access log.
type log struct {
	selection
	snapshot.Recorder
}

// selected merges the objects of a workload for one direction, in the order of their levels. An entry
// without providers is for those of the entry before, the first one for those of the mesh config.
// Only the providers of the last level that names some write logs. The list is sorted by name.
func selected(mesh *meshv1alpha1.MeshConfig, levels []*snapshot.Telemetry, server bool) (list []selection, chosen bool) {
	current := make(map[string]selection)
	var names []string // of the entry before
	for i, name := range mesh.GetDefaultProviders().GetAccessLogging() {
		names = append(names, name)
		current[name] = selection{name: name, at: fmt.Sprintf("defaultProviders.accessLogging[%d]", i)}
	}
	chosen = len(names) > 0
	for _, level := range levels {
		scope := map[string]bool{}
		for i, entry := range level.Spec.GetAccessLogging() {
			chosen = true
			at := "spec.accessLogging[" + strconv.Itoa(i) + "]"
			if len(entry.GetProviders()) > 0 {
				names = nil
				for _, p := range entry.GetProviders() {
					names = append(names, p.GetName())
				}
			}
			if ofClient, ofServer := modes(entry.GetMatch().GetMode()); server && !ofServer || !server && !ofClient {
				continue
			}
			for j, name := range names {
				if len(entry.GetProviders()) > 0 {
					scope[name] = true
				}
				if entry.GetDisabled().GetValue() {
					delete(current, name)
					continue
				}
				s := selection{name: name, by: level, at: at, filter: entry.GetFilter().GetExpression()}
				if len(entry.GetProviders()) > 0 {
					s.at += ".providers[" + strconv.Itoa(j) + "].name"
				}
				current[name] = s
			}
		}
		if len(scope) > 0 {
			maps.DeleteFunc(current, func(name string, _ selection) bool { return !scope[name] })
		}
	}
	list = slices.Collect(maps.Values(current))
	slices.SortFunc(list, func(a, b selection) int { return strings.Compare(a.name, b.name) })
	return list, chosen
}

// key returns a text that differs between logs with different loggers, apart from the mesh config.
func (l logs) key() string {
	var b strings.Builder
	fmt.Fprint(&b, l.chosen)
	for _, log := range l.list {
		fmt.Fprintf(&b, "%q%q%s", log.name, log.filter, reachedKey(log.Reached))
	}
	return b.String()
}

// reachedKey returns a text for the cluster of a service and the object behind it.
func reachedKey(to snapshot.Reached) string {
	if to.Service == nil {
		return "-"
	}
	return fmt.Sprintf("%s@%s", clusterOf(to), to.Service.Source)
}

func clusterOf(to snapshot.Reached) string {
	return envoyconf.OutboundName(to.Port.Number, "", to.Service.Hostname)
}

// add adds the logs of a chain to what is recorded.
func (l logs) add(mesh *meshv1alpha1.MeshConfig, envoy support, out *envoyconf.Observed) {
	if !l.chosen {
		file := envoyconf.FileLog(mesh)
		out.RequestLog, out.StreamLog, out.ListenerLog = file, file, file
	}
	for _, log := range l.list {
		request, stream := log.messages(mesh, envoy)
		out.RequestLog = append(out.RequestLog, log.logger(request)...)
		out.StreamLog = append(out.StreamLog, log.logger(stream)...)
	}
	if l.chosen {
		out.ListenerLog = out.StreamLog
	}
	if mesh.GetEnableEnvoyAccessLogService() && mesh.GetDefaultConfig().GetEnvoyAccessLogService().GetAddress() != "" {
		common := grpcLog("", &corev3.GrpcService_EnvoyGrpc{ClusterName: "envoy_accesslog_service"})
		http, tcp := proto.CloneOf(common), common
		http.LogName, tcp.LogName = httpLogName, tcpLogName
		out.RequestLog = slices.Concat(out.RequestLog, log{}.logger(&grpclogv3.HttpGrpcAccessLogConfig{CommonConfig: http}))
		own := log{}.logger(&grpclogv3.TcpGrpcAccessLogConfig{CommonConfig: tcp})
		out.StreamLog, out.ListenerLog = slices.Concat(out.StreamLog, own), slices.Concat(out.ListenerLog, own)
	}
	if mesh.GetDisableEnvoyListenerLog() {
		out.ListenerLog = nil
	}
	out.ClosedLog, out.ListenerLog = out.StreamLog, envoyconf.Unmatched(out.ListenerLog)
}

// The names of logs that set none.
const (
	httpLogName = "http_envoy_accesslog"
	tcpLogName  = "tcp_envoy_accesslog"
	otelLogName = "otel_envoy_accesslog"
)

// messages returns the configuration of the loggers of requests, and of connections. One of them may
// be nil.
func (l log) messages(mesh *meshv1alpha1.MeshConfig, envoy support) (request, stream proto.Message) {
	switch p := l.Provider.GetProvider().(type) {
	case *meshv1alpha1.MeshConfig_ExtensionProvider_EnvoyFileAccessLog:
		file := envoyconf.FileLogOf(l.name, mesh, p.EnvoyFileAccessLog)
		return file, file
	case *meshv1alpha1.MeshConfig_ExtensionProvider_EnvoyHttpAls:
		common := grpcLog(cmp.Or(p.EnvoyHttpAls.GetLogName(), httpLogName), grpcTo(l.Reached))
		common.FilterStateObjectsToLog = p.EnvoyHttpAls.GetFilterStateObjectsToLog()
		return &grpclogv3.HttpGrpcAccessLogConfig{
			CommonConfig:                    common,
			AdditionalRequestHeadersToLog:   p.EnvoyHttpAls.GetAdditionalRequestHeadersToLog(),
			AdditionalResponseHeadersToLog:  p.EnvoyHttpAls.GetAdditionalResponseHeadersToLog(),
			AdditionalResponseTrailersToLog: p.EnvoyHttpAls.GetAdditionalResponseTrailersToLog(),
		}, nil
	case *meshv1alpha1.MeshConfig_ExtensionProvider_EnvoyTcpAls:
		common := grpcLog(cmp.Or(p.EnvoyTcpAls.GetLogName(), tcpLogName), grpcTo(l.Reached))
		common.FilterStateObjectsToLog = p.EnvoyTcpAls.GetFilterStateObjectsToLog()
		return nil, &grpclogv3.TcpGrpcAccessLogConfig{CommonConfig: common}
	case *meshv1alpha1.MeshConfig_ExtensionProvider_EnvoyOtelAls:
		text := cmp.Or(p.EnvoyOtelAls.GetLogFormat().GetText(), strings.TrimSuffix(envoyconf.TextFormat, "\n"))
		otel := &otellogv3.OpenTelemetryAccessLogConfig{
			Body:       &commonv1.AnyValue{Value: &commonv1.AnyValue_StringValue{StringValue: text}},
			Attributes: attributes(p.EnvoyOtelAls.GetLogFormat().GetLabels()),
		}
		otel.Formatters = envoyconf.Formatters(otel)
		name := cmp.Or(p.EnvoyOtelAls.GetLogName(), otelLogName)
		if envoy != none {
			otel.LogName, otel.GrpcService = name, &corev3.GrpcService{TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{EnvoyGrpc: grpcTo(l.Reached)}}
		} else {
			//lint:ignore SA1019 Envoy 1.36 has no other field
			otel.CommonConfig = grpcLog(name, grpcTo(l.Reached))
		}
		return otel, otel
	}
	return nil, nil
}

func grpcTo(to snapshot.Reached) *corev3.GrpcService_EnvoyGrpc {
	return &corev3.GrpcService_EnvoyGrpc{ClusterName: clusterOf(to), Authority: to.Service.Hostname}
}

func grpcLog(name string, to *corev3.GrpcService_EnvoyGrpc) *grpclogv3.CommonGrpcAccessLogConfig {
	return &grpclogv3.CommonGrpcAccessLogConfig{
		LogName: name, TransportApiVersion: corev3.ApiVersion_V3,
		GrpcService: &corev3.GrpcService{TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{EnvoyGrpc: to}},
	}
}

// attributes returns labels as OpenTelemetry attributes, sorted by name.
func attributes(labels *structpb.Struct) *commonv1.KeyValueList {
	if len(labels.GetFields()) == 0 {
		return nil
	}
	out := &commonv1.KeyValueList{}
	for _, name := range slices.Sorted(maps.Keys(labels.GetFields())) {
		out.Values = append(out.Values, &commonv1.KeyValue{Key: name, Value: attribute(labels.GetFields()[name])})
	}
	return out
}

func attribute(v *structpb.Value) *commonv1.AnyValue {
	switch v := v.GetKind().(type) {
	case *structpb.Value_StructValue:
		return &commonv1.AnyValue{Value: &commonv1.AnyValue_KvlistValue{KvlistValue: attributes(v.StructValue)}}
	case *structpb.Value_ListValue:
		list := &commonv1.ArrayValue{}
		for _, item := range v.ListValue.GetValues() {
			list.Values = append(list.Values, attribute(item))
		}
		return &commonv1.AnyValue{Value: &commonv1.AnyValue_ArrayValue{ArrayValue: list}}
	}
	// Envoy accepts only text elsewhere.
	return &commonv1.AnyValue{Value: &commonv1.AnyValue_StringValue{StringValue: fmt.Sprint(v.AsInterface())}}
}

// logger returns an access logger that writes what the filter of the log selects, or none for a nil
// configuration.
func (l log) logger(config proto.Message) []*accesslogv3.AccessLog {
	if config == nil {
		return nil
	}
	name := map[string]string{
		"FileAccessLog": "envoy.access_loggers.file", "HttpGrpcAccessLogConfig": "envoy.access_loggers.http_grpc",
		"TcpGrpcAccessLogConfig": "envoy.access_loggers.tcp_grpc", "OpenTelemetryAccessLogConfig": "envoy.access_loggers.open_telemetry",
	}[string(config.ProtoReflect().Descriptor().Name())]
	out := &accesslogv3.AccessLog{Name: name, ConfigType: &accesslogv3.AccessLog_TypedConfig{TypedConfig: envoyconf.Pack(config)}}
	if l.filter != "" {
		out.Filter = envoyconf.Selected(l.filter)
	}
	return []*accesslogv3.AccessLog{out}
}
