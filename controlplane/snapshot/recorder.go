// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package snapshot

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	telemetryv1alpha1 "istio.io/api/telemetry/v1alpha1"

	"github.com/outrigger-mesh/outrigger/bootstrap/meshconfig"
	"github.com/outrigger-mesh/outrigger/controlplane/expression"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// Recorder is an extension provider for access logs or spans, as a workload reaches it.
type Recorder struct {
	Provider *meshv1alpha1.MeshConfig_ExtensionProvider
	// Reached is the service that receives the records. It is zero for files.
	Reached
	// Sampler is the service that decides which requests are traced, or zero.
	Sampler Reached
}

// Logger returns the provider of access logs with a name in the mesh config, as workloads of a
// namespace reach it. Their Sidecar may be nil. The error says why it writes no log.
func (m *Mesh) Logger(name, namespace string, sidecar *Sidecar) (Recorder, error) {
	return m.recorder(name, "access logs: name one with envoyFileAccessLog, envoyHttpAls, envoyTcpAls or envoyOtelAls", loggerOf, namespace, sidecar)
}

// Tracer is like [Mesh.Logger] for providers of tracing.
func (m *Mesh) Tracer(name, namespace string, sidecar *Sidecar) (Recorder, error) {
	return m.recorder(name, "tracing that a stock Envoy has: name one with opentelemetry, zipkin, datadog or skywalking", tracerOf, namespace, sidecar)
}

// file is the destination of logs that are not sent to a service.
type file struct{}

func (file) GetService() string { return "" }
func (file) GetPort() uint32    { return 0 }

// loggerOf returns the destination of a provider's access logs, or nil.
func loggerOf(p *meshv1alpha1.MeshConfig_ExtensionProvider) destination {
	switch p := p.GetProvider().(type) {
	case *meshv1alpha1.MeshConfig_ExtensionProvider_EnvoyFileAccessLog:
		return file{}
	case *meshv1alpha1.MeshConfig_ExtensionProvider_EnvoyHttpAls:
		return p.EnvoyHttpAls
	case *meshv1alpha1.MeshConfig_ExtensionProvider_EnvoyTcpAls:
		return p.EnvoyTcpAls
	case *meshv1alpha1.MeshConfig_ExtensionProvider_EnvoyOtelAls:
		return p.EnvoyOtelAls
	}
	return nil
}

// tracerOf returns the destination of a provider's spans, or nil.
func tracerOf(p *meshv1alpha1.MeshConfig_ExtensionProvider) destination {
	switch p := p.GetProvider().(type) {
	case *meshv1alpha1.MeshConfig_ExtensionProvider_Opentelemetry:
		return p.Opentelemetry
	case *meshv1alpha1.MeshConfig_ExtensionProvider_Zipkin:
		return p.Zipkin
	case *meshv1alpha1.MeshConfig_ExtensionProvider_Datadog:
		return p.Datadog
	case *meshv1alpha1.MeshConfig_ExtensionProvider_Skywalking:
		return p.Skywalking
	case *meshv1alpha1.MeshConfig_ExtensionProvider_Lightstep:
		//lint:ignore SA1019 users still write it
		return p.Lightstep
	case *meshv1alpha1.MeshConfig_ExtensionProvider_Opencensus:
		//lint:ignore SA1019 users still write it
		return p.Opencensus
	}
	return nil
}

// Receives reports whether an extension provider of a mesh config sends logs or spans to a port of a
// service.
func Receives(mesh *meshv1alpha1.MeshConfig, service *model.Service, port uint32) bool {
	return slices.ContainsFunc(mesh.GetExtensionProviders(), func(p *meshv1alpha1.MeshConfig_ExtensionProvider) bool {
		for _, to := range []destination{loggerOf(p), tracerOf(p)} {
			if to == nil || to.GetPort() != port {
				continue
			}
			if in, host := meshconfig.ProviderService(to.GetService()); host == service.Hostname && (in == "" || in == service.Namespace) {
				return true
			}
		}
		return false
	})
}

func (m *Mesh) recorder(name, use string, of func(*meshv1alpha1.MeshConfig_ExtensionProvider) destination, namespace string, sidecar *Sidecar) (r Recorder, err error) {
	if r.Provider, err = m.extensionProvider(name); err != nil {
		return r, err
	}
	to := of(r.Provider)
	if to == nil {
		return r, fmt.Errorf("the extension provider %q is not for %s", name, use)
	}
	if err = checkRecorder(r.Provider); err != nil || to == (file{}) {
		return r, err
	}
	if r.Reached, err = m.receiver(name, to, namespace, sidecar); err != nil {
		return r, err
	}
	if api := r.Provider.GetOpentelemetry().GetDynatraceSampler().GetHttpService(); api.GetService() != "" {
		r.Sampler, err = m.receiver(name, api, namespace, sidecar)
	}
	return r, err
}

// receiver is like reach, but refuses a host of which no service is preferred, and services whose
// endpoints a proxy cannot choose.
func (m *Mesh) receiver(name string, of destination, namespace string, sidecar *Sidecar) (Reached, error) {
	to, err := m.reach(name, of, namespace, sidecar)
	if err != nil {
		return to, err
	}
	in, host := meshconfig.ProviderService(of.GetService())
	for _, other := range m.Services.byHost[host] {
		if in == "" && other != to.Service && preferred(other, to.Service) == 0 && visible(exportTo(other.ExportTo, m.Services.export), other.Namespace, namespace) {
			return to, fmt.Errorf("the extension provider %q names the service %q, which is in the namespaces %s and %s: write namespace/host",
				name, host, to.Service.Namespace, other.Namespace)
		}
	}
	if to.Service.Passthrough || to.Service.Headless {
		return to, fmt.Errorf("the extension provider %q names the service %q, of which a proxy cannot choose an endpoint: use one that is not headless and whose resolution is not NONE", name, host)
	}
	return to, nil
}

// checkRecorder returns an error if an Envoy would refuse what a provider is configured with.
func checkRecorder(p *meshv1alpha1.MeshConfig_ExtensionProvider) error {
	at := fmt.Sprintf("the mesh config is invalid: extensionProviders[%q].", p.GetName())
	text, labels := "", (*structpb.Struct)(nil)
	var timeouts []*durationpb.Duration
	var names []string // of headers
	var headers []*meshv1alpha1.MeshConfig_ExtensionProvider_HttpHeader
	switch p := p.GetProvider().(type) {
	case *meshv1alpha1.MeshConfig_ExtensionProvider_EnvoyFileAccessLog:
		at += "envoyFileAccessLog."
		text, labels = p.EnvoyFileAccessLog.GetLogFormat().GetText(), p.EnvoyFileAccessLog.GetLogFormat().GetLabels()
	case *meshv1alpha1.MeshConfig_ExtensionProvider_EnvoyHttpAls:
		at += "envoyHttpAls."
		names = slices.Concat(p.EnvoyHttpAls.GetAdditionalRequestHeadersToLog(), p.EnvoyHttpAls.GetAdditionalResponseHeadersToLog(), p.EnvoyHttpAls.GetAdditionalResponseTrailersToLog())
	case *meshv1alpha1.MeshConfig_ExtensionProvider_EnvoyOtelAls:
		at += "envoyOtelAls."
		text, labels = p.EnvoyOtelAls.GetLogFormat().GetText(), p.EnvoyOtelAls.GetLogFormat().GetLabels()
	case *meshv1alpha1.MeshConfig_ExtensionProvider_Opentelemetry:
		at += "opentelemetry."
		o := p.Opentelemetry
		sampler := o.GetDynatraceSampler().GetHttpService().GetHttp()
		timeouts = append(timeouts, o.GetHttp().GetTimeout(), o.GetGrpc().GetTimeout(), sampler.GetTimeout())
		headers = slices.Concat(o.GetHttp().GetHeaders(), o.GetGrpc().GetInitialMetadata(), sampler.GetHeaders())
		if o.GetHttp() != nil && !strings.HasPrefix(o.GetHttp().GetPath(), "/") {
			return fmt.Errorf("%shttp.path is %q: write the path of the receiver, such as /v1/traces", at, o.GetHttp().GetPath())
		}
		if o.GetHttp() != nil && o.GetGrpc() != nil {
			return errors.New(at + "http: spans are sent over either grpc or http: remove one of them")
		}
	case *meshv1alpha1.MeshConfig_ExtensionProvider_Zipkin:
		at += "zipkin."
		timeouts, headers = append(timeouts, p.Zipkin.GetTimeout()), p.Zipkin.GetHeaders()
		if path := p.Zipkin.GetPath(); path != "" && path[0] != '/' {
			return fmt.Errorf("%spath is %q: it must start with /", at, path)
		}
	}
	for _, d := range timeouts {
		if d != nil && (d.CheckValid() != nil || d.AsDuration() < time.Millisecond) {
			return fmt.Errorf("%stimeout is %s: it must be at least 1ms", at, d.AsDuration())
		}
	}
	for _, h := range headers {
		names = append(names, h.GetName())
		if n := h.GetName(); strings.EqualFold(n, "host") || strings.HasPrefix(n, ":") {
			return fmt.Errorf("%sheader %q cannot be set: remove it", at, n)
		}
		if !httpguts.ValidHeaderFieldValue(h.GetValue()) {
			return fmt.Errorf("%sheader %q contains a control character: remove it", at, h.GetName()) // the value may be a secret
		}
		if strings.ContainsAny(h.GetEnvName(), "()%") {
			return fmt.Errorf("%sheader %q has the envName %q, which cannot be the name of a variable: correct it", at, h.GetName(), h.GetEnvName())
		}
	}
	for _, name := range names {
		if !httpguts.ValidHeaderFieldName(strings.TrimPrefix(name, ":")) {
			return fmt.Errorf("%sheader %q is not the name of a header: correct it", at, name)
		}
	}
	if err := expression.CheckFormat(text); err != nil {
		return fmt.Errorf("%slogFormat.text is %q: %w", at, text, err)
	}
	if err := expression.CheckLabels(labels.AsMap()); err != nil {
		return fmt.Errorf("%slogFormat.labels%w", at, err)
	}
	return nil
}

// recorders checks that workloads in the namespace of a Telemetry reach the providers that it names.
func (c *checker) recorders(obj *model.Config) {
	spec, ok := obj.Spec.(*telemetryv1alpha1.Telemetry)
	if !ok {
		return
	}
	for i, m := range spec.GetMetrics() {
		for j, p := range m.GetProviders() {
			if _, err := c.mesh.extensionProvider(p.GetName()); err != nil {
				c.found = append(c.found, NotRecorded(obj, fmt.Sprintf("spec.metrics[%d].providers[%d].name", i, j), err))
			}
		}
	}
	for i, l := range spec.GetAccessLogging() {
		for j, p := range l.GetProviders() {
			if _, err := c.mesh.Logger(p.GetName(), obj.Namespace, nil); err != nil {
				c.found = append(c.found, NotRecorded(obj, fmt.Sprintf("spec.accessLogging[%d].providers[%d].name", i, j), err))
			}
		}
	}
	for i, t := range spec.GetTracing() {
		for j, p := range t.GetProviders() {
			if _, err := c.mesh.Tracer(p.GetName(), obj.Namespace, nil); err != nil {
				c.found = append(c.found, NotRecorded(obj, fmt.Sprintf("spec.tracing[%d].providers[%d].name", i, j), err))
			}
		}
	}
}

// NotRecorded returns the problem of an object, or of the mesh config if it is nil, one of whose
// fields names a provider that cannot be used.
func NotRecorded(obj *model.Config, at string, err error) model.Problem {
	var unknown unknownProvider
	p := model.Problem{Dangling: errors.As(err, &unknown), Reason: fmt.Sprintf("%s: the provider records nothing: %s", at, err)}
	if obj != nil {
		p.Object, p.Source = obj.Key, obj.Source
		return p
	}
	p.Object.Kind = model.MeshConfigKind
	p.Reason = "mesh config: " + p.Reason
	return p
}

// meshRecorders checks what the mesh config records by default.
func (c *checker) meshRecorders() {
	root := c.mesh.settings().root
	if err := c.mesh.formatProblem; err != nil {
		c.found = append(c.found, model.Problem{
			Object: model.Key{Kind: model.MeshConfigKind}, Reason: fmt.Sprintf("mesh config: accessLogFormat: %s; the last good format stays", err),
		})
	}
	defaults := c.mesh.Config.GetDefaultProviders()
	for i, name := range defaults.GetAccessLogging() {
		if _, err := c.mesh.Logger(name, root, nil); err != nil {
			c.found = append(c.found, NotRecorded(nil, fmt.Sprintf("defaultProviders.accessLogging[%d]", i), err))
		}
	}
	for i, name := range defaults.GetTracing() {
		if _, err := c.mesh.Tracer(name, root, nil); err != nil {
			c.found = append(c.found, NotRecorded(nil, fmt.Sprintf("defaultProviders.tracing[%d]", i), err))
		}
	}
}

// loggable replaces a format of the access log that Envoy would refuse with the last good one.
func (m *Mesh) loggable(prev *Mesh) {
	text := m.Config.GetAccessLogFormat()
	if m.Config.GetAccessLogEncoding() == meshv1alpha1.MeshConfig_JSON && text != "" {
		var labels map[string]any
		if m.formatProblem = json.Unmarshal([]byte(text), &labels); m.formatProblem == nil {
			m.formatProblem = expression.CheckLabels(labels)
		}
	} else {
		m.formatProblem = expression.CheckFormat(text)
	}
	if m.formatProblem == nil {
		return
	}
	m.Config = proto.CloneOf(m.Config)
	m.Config.AccessLogFormat = ""
	if prev != nil {
		m.Config.AccessLogFormat, m.Config.AccessLogEncoding = prev.Config.GetAccessLogFormat(), prev.Config.GetAccessLogEncoding()
	}
}
