// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package validate

import (
	"math"
	"strings"

	telemetryv1alpha1 "istio.io/api/telemetry/v1alpha1"

	"github.com/outrigger-mesh/outrigger/controlplane/config/field"
	"github.com/outrigger-mesh/outrigger/controlplane/expression"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

func validateTelemetry(c *checker, cfg *model.Config) {
	t, ok := cfg.Spec.(*telemetryv1alpha1.Telemetry)
	if !ok {
		return
	}
	c.targets(targets{selector: t.GetSelector(), ref: t.GetTargetRef(), refs: t.GetTargetRefs()})
	if n := len(t.GetTracing()); n > 1 {
		c.warnf("spec.tracing", "has %d entries: Istio supports one; write the settings in one entry", n)
	}
	for i, tr := range t.GetTracing() {
		c.tracing(tr, field.Index("spec.tracing", i))
	}
	for i, m := range t.GetMetrics() {
		at := field.Index("spec.metrics", i)
		c.providers(m.GetProviders(), at+".providers")
		c.duration(m.GetReportingInterval(), at+".reportingInterval")
		for j, o := range m.GetOverrides() {
			c.metricOverride(o, field.Index(at+".overrides", j))
		}
	}
	for i, l := range t.GetAccessLogging() {
		at := field.Index("spec.accessLogging", i)
		c.providers(l.GetProviders(), at+".providers")
		if l.GetFilter() != nil {
			c.expression(l.GetFilter().GetExpression(), at+".filter.expression", expression.Check)
		}
	}
}

func (c *checker) providers(list []*telemetryv1alpha1.ProviderRef, path string) {
	for i, p := range list {
		if p.GetName() == "" {
			c.errorf(field.Index(path, i)+".name", "is missing: write the name of one of the mesh config's extensionProviders")
		}
	}
}

func (c *checker) tracing(t *telemetryv1alpha1.Tracing, path string) {
	c.providers(t.GetProviders(), path+".providers")
	if n := len(t.GetProviders()); n > 1 {
		c.warnf(path+".providers", "has %d entries: only the first has an effect", n)
	}
	if p := t.GetRandomSamplingPercentage(); p != nil && (math.IsNaN(p.GetValue()) || p.GetValue() < 0 || p.GetValue() > 100) {
		c.errorf(path+".randomSamplingPercentage", "is %v: a percentage is between 0 and 100", p.GetValue())
	}
	for name, tag := range field.Sorted(t.GetCustomTags()) {
		at := path + ".customTags[" + name + "]"
		if name == "" {
			c.errorf(path+".customTags", "has an empty key: write the name of a tag")
		}
		switch v := tag.GetType().(type) {
		case *telemetryv1alpha1.Tracing_CustomTag_Literal:
			c.notEmpty(v.Literal.GetValue(), at+".literal.value")
		case *telemetryv1alpha1.Tracing_CustomTag_Environment:
			c.notEmpty(v.Environment.GetName(), at+".environment.name")
		case *telemetryv1alpha1.Tracing_CustomTag_Header:
			c.notEmpty(v.Header.GetName(), at+".header.name")
		case *telemetryv1alpha1.Tracing_CustomTag_Formatter:
			c.notEmpty(v.Formatter.GetValue(), at+".formatter.value")
			if err := expression.CheckFormat(v.Formatter.GetValue()); err != nil {
				c.errorf(at+".formatter.value", "is %s: %v", field.Quote(v.Formatter.GetValue()), err)
			} else if strings.Contains(v.Formatter.GetValue(), "%REQ_WITHOUT_QUERY(") {
				c.errorf(at+".formatter.value", "is %s: tags do not have the command REQ_WITHOUT_QUERY: use %%PATH(NQ)%%", field.Quote(v.Formatter.GetValue()))
			}
		default:
			c.warnf(at, "is empty, so the tag is left out: write literal, environment, header or formatter")
		}
	}
}

func (c *checker) notEmpty(s, path string) {
	if s == "" {
		c.errorf(path, "is empty: write a value")
	}
}

func (c *checker) metricOverride(o *telemetryv1alpha1.MetricsOverrides, path string) {
	if v, ok := o.GetMatch().GetMetricMatch().(*telemetryv1alpha1.MetricSelector_CustomMetric); ok {
		c.notEmpty(v.CustomMetric, path+".match.customMetric")
	}
	switch o.GetMatch().GetMetric() {
	case telemetryv1alpha1.MetricSelector_GRPC_REQUEST_MESSAGES, telemetryv1alpha1.MetricSelector_GRPC_RESPONSE_MESSAGES:
		c.warnf(path+".match.metric", "is %s: messages of gRPC streams are counted by cluster, without labels, so it has no effect", o.GetMatch().GetMetric())
	default:
	}
	for name, tag := range field.Sorted(o.GetTagOverrides()) {
		if name == "" {
			c.warnf(path+".tagOverrides", "has an empty key, so the tag is left out: write the name of a tag")
		}
		at := path + ".tagOverrides[" + name + "].value"
		switch remove := tag.GetOperation() == telemetryv1alpha1.MetricsOverrides_TagOverride_REMOVE; {
		case remove && tag.GetValue() != "":
			c.errorf(at, "is %s: the operation REMOVE has none; remove it", field.Quote(tag.GetValue()))
		case !remove && tag.GetValue() == "":
			c.errorf(at, "is missing: the operation UPSERT needs an expression, such as request.host")
		case !remove:
			if err := inFormat(tag.GetValue()); err != nil {
				c.warnf(at, "is %s: it is %v; the tag has its standard value, or is left out", field.Quote(tag.GetValue()), err)
			}
		}
	}
}

func inFormat(text string) error {
	_, err := expression.Format(text)
	return err
}

// expression checks an expression that Envoy evaluates.
func (c *checker) expression(s, path string, check func(text string) error) {
	if s == "" {
		c.errorf(path, "is missing: write an expression, such as response.code >= 400")
		return
	}
	if err := check(s); err != nil {
		c.errorf(path, "is %s: it is %v", field.Quote(s), err)
	}
}
