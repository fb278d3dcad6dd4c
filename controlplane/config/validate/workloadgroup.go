// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package validate

import (
	"regexp"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/config/field"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

func validateWorkloadGroup(c *checker, cfg *model.Config) {
	wg, ok := cfg.Spec.(*networkingv1alpha3.WorkloadGroup)
	if !ok {
		return
	}
	// The template is not checked as a workload: what it lacks, such as the
	// address, each workload brings along.
	if wg.GetTemplate() == nil {
		c.errorf("spec.template", "is missing: write the common properties of the workloads, or {}")
	}
	for name, port := range field.Sorted(wg.GetTemplate().GetPorts()) {
		c.fault("spec.template.ports["+name+"]", portKeyFault(name))
		c.port(port, "spec.template.ports["+name+"]")
	}
	c.account(wg.GetTemplate().GetServiceAccount(), "spec.template.serviceAccount")
	c.labels(wg.GetMetadata().GetLabels(), "spec.metadata.labels")
	if wg.GetProbe() != nil {
		c.probe(wg.GetProbe(), "spec.probe")
	}
}

// probeHeader matches the names of headers that Kubernetes allows in probes.
var probeHeader = regexp.MustCompile(`^[-A-Za-z0-9]+$`)

func (c *checker) probe(p *networkingv1alpha3.ReadinessProbe, path string) {
	for _, f := range []struct {
		name  string
		value int32
	}{
		{"initialDelaySeconds", p.GetInitialDelaySeconds()},
		{"timeoutSeconds", p.GetTimeoutSeconds()},
		{"periodSeconds", p.GetPeriodSeconds()},
		{"successThreshold", p.GetSuccessThreshold()},
		{"failureThreshold", p.GetFailureThreshold()},
	} {
		c.notNegative(f.value, path+"."+f.name)
	}
	switch m := p.GetHealthCheckMethod().(type) {
	case nil:
		c.errorf(path, "has no check: write one of httpGet, tcpSocket, exec or grpc")
	case *networkingv1alpha3.ReadinessProbe_HttpGet:
		c.port(m.HttpGet.GetPort(), path+".httpGet.port")
		if s := m.HttpGet.GetScheme(); s != "" && s != "HTTP" && s != "HTTPS" {
			c.errorf(path+".httpGet.scheme", "is %s: write HTTP or HTTPS", field.Quote(s))
		}
		for i, h := range m.HttpGet.GetHttpHeaders() {
			if at := field.Index(path+".httpGet.httpHeaders", i) + ".name"; !probeHeader.MatchString(h.GetName()) {
				c.errorf(at, "is %s: write letters, digits and \"-\"", field.Quote(h.GetName()))
			}
		}
	case *networkingv1alpha3.ReadinessProbe_TcpSocket:
		c.port(m.TcpSocket.GetPort(), path+".tcpSocket.port")
	case *networkingv1alpha3.ReadinessProbe_Exec:
		if len(m.Exec.GetCommand()) == 0 {
			c.errorf(path+".exec.command", "is empty: write the command and its arguments")
		}
		for i, word := range m.Exec.GetCommand() {
			c.notEmpty(word, field.Index(path+".exec.command", i))
		}
	case *networkingv1alpha3.ReadinessProbe_Grpc:
		c.port(m.Grpc.GetPort(), path+".grpc.port")
	}
}
