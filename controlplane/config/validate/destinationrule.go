// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package validate

import (
	"time"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/config/field"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

func validateDestinationRule(c *checker, cfg *model.Config) {
	dr, ok := cfg.Spec.(*networkingv1alpha3.DestinationRule)
	if !ok {
		return
	}
	c.fault("spec.host", hostFault(dr.GetHost(), anyWildcard))
	c.exportTo(cfg.Namespace, dr.GetExportTo(), "spec.exportTo")
	c.notToNone(dr.GetExportTo(), "spec.exportTo")
	if dr.GetWorkloadSelector() != nil {
		c.selector(true, dr.GetWorkloadSelector().GetMatchLabels(), "spec.workloadSelector.matchLabels")
		if to := dr.GetExportTo(); len(to) > 1 || len(to) == 1 && to[0] != "." && to[0] != cfg.Namespace {
			c.errorf("spec.exportTo", "is not [\".\"]: a rule with a workloadSelector applies only in its own namespace; remove exportTo")
		}
	}
	c.trafficPolicy(dr.GetTrafficPolicy(), "spec.trafficPolicy")
	names := map[string]int{}
	c.atMost(len(dr.GetSubsets()), maxSubsets, "spec.subsets")
	for i, s := range dr.GetSubsets() {
		path := field.Index("spec.subsets", i)
		c.fault(path+".name", labelNameFault(s.GetName()))
		if first, ok := names[s.GetName()]; ok {
			c.errorf(path+".name", "is %s, as in spec.subsets[%d]: give each subset a name of its own", field.Quote(s.GetName()), first)
		} else {
			names[s.GetName()] = i
		}
		c.longLabels(s.GetLabels(), path+".labels")
		c.trafficPolicy(s.GetTrafficPolicy(), path+".trafficPolicy")
	}
}

// portPolicy is what a policy and the settings of one port have in common.
type portPolicy interface {
	GetLoadBalancer() *networkingv1alpha3.LoadBalancerSettings
	GetConnectionPool() *networkingv1alpha3.ConnectionPoolSettings
	GetOutlierDetection() *networkingv1alpha3.OutlierDetection
	GetTls() *networkingv1alpha3.ClientTLSSettings
}

func (c *checker) trafficPolicy(p *networkingv1alpha3.TrafficPolicy, path string) {
	if p == nil {
		return
	}
	if !hasAny(p) {
		c.errorf(path, "is empty: write a policy or remove it")
	}
	c.portPolicy(p, path)
	ports := map[uint32]int{}
	for i, s := range p.GetPortLevelSettings() {
		at := field.Index(path+".portLevelSettings", i)
		n := s.GetPort().GetNumber()
		c.port(n, at+".port.number")
		if first, ok := ports[n]; ok && n != 0 {
			c.warnf(at+".port.number", "is %d, as in portLevelSettings[%d], which wins: remove one", n, first)
		} else {
			ports[n] = i
		}
		if s.GetLoadBalancer() == nil && s.GetConnectionPool() == nil && s.GetOutlierDetection() == nil && s.GetTls() == nil {
			c.errorf(at, "has no policy for the port: write loadBalancer, connectionPool, outlierDetection or tls, or remove it")
		}
		c.portPolicy(s, at)
	}
	if t := p.GetTunnel(); t != nil {
		if proto := t.GetProtocol(); proto != "" && proto != "CONNECT" && proto != "POST" {
			c.errorf(path+".tunnel.protocol", "is %s: write CONNECT or POST", field.Quote(proto))
		}
		c.fault(path+".tunnel.targetHost", hostOrIPFault(t.GetTargetHost(), noWildcard))
		c.port(t.GetTargetPort(), path+".tunnel.targetPort")
		if p.GetProxyProtocol() != nil {
			c.errorf(path+".tunnel", "and proxyProtocol exclude each other: remove one")
		}
	}
	if b := p.GetRetryBudget(); b != nil {
		if v := b.GetPercent().GetValue(); !(v >= 0 && v <= 100) {
			c.errorf(path+".retryBudget.percent", "is %v: a percentage is between 0 and 100", v)
		}
		if b.GetBudgetInterval().AsDuration() != 0 { // 0s is the default
			c.duration(b.GetBudgetInterval(), path+".retryBudget.budgetInterval")
		}
	}
}

func (c *checker) portPolicy(p portPolicy, path string) {
	c.loadBalancer(p.GetLoadBalancer(), p.GetOutlierDetection(), path+".loadBalancer")
	c.connectionPool(p.GetConnectionPool(), path+".connectionPool")
	c.outlierDetection(p.GetOutlierDetection(), path+".outlierDetection")
	c.clientTLS(p.GetTls(), path+".tls")
}

func (c *checker) clientTLS(tls *networkingv1alpha3.ClientTLSSettings, path string) {
	if tls == nil {
		return
	}
	files := []struct{ name, value string }{
		{"clientCertificate", tls.GetClientCertificate()},
		{"privateKey", tls.GetPrivateKey()},
		{"caCertificates", tls.GetCaCertificates()},
		{"caCrl", tls.GetCaCrl()},
	}
	switch mode := tls.GetMode(); mode {
	case networkingv1alpha3.ClientTLSSettings_SIMPLE, networkingv1alpha3.ClientTLSSettings_MUTUAL:
		mutual := mode == networkingv1alpha3.ClientTLSSettings_MUTUAL
		for i, f := range files {
			switch {
			case f.value != "" && tls.GetCredentialName() != "":
				c.errorf(path+"."+f.name, "and credentialName exclude each other: remove one")
			case f.value == "" && i < 2 && mutual && tls.GetCredentialName() == "":
				c.errorf(path+"."+f.name, "is missing: mode MUTUAL needs clientCertificate and privateKey, or credentialName")
			}
		}
		if !tls.GetInsecureSkipVerify().GetValue() {
			return
		}
		const cure = "has no effect where insecureSkipVerify is true: remove one of them"
		if tls.GetCaCertificates() != "" {
			c.errorf(path+".caCertificates", cure)
		}
		if len(tls.GetSubjectAltNames()) > 0 {
			c.errorf(path+".subjectAltNames", cure)
		}
		if tls.GetCredentialName() != "" && !mutual {
			c.errorf(path+".credentialName", cure)
		}
	case networkingv1alpha3.ClientTLSSettings_DISABLE:
		if tls.GetSni() != "" || len(tls.GetSubjectAltNames()) > 0 {
			c.warnf(path, "has the mode DISABLE, so sni and subjectAltNames have no effect: remove them, or write another mode")
		}
	case networkingv1alpha3.ClientTLSSettings_ISTIO_MUTUAL:
	}
}

func (c *checker) connectionPool(p *networkingv1alpha3.ConnectionPoolSettings, path string) {
	if p == nil {
		return
	}
	if p.GetTcp() == nil && p.GetHttp() == nil {
		c.errorf(path, "is empty: write tcp or http, or remove it")
	}
	t := p.GetTcp()
	c.notNegative(t.GetMaxConnections(), path+".tcp.maxConnections")
	c.duration(t.GetConnectTimeout(), path+".tcp.connectTimeout")
	c.duration(t.GetMaxConnectionDuration(), path+".tcp.maxConnectionDuration")
	if t.GetIdleTimeout().AsDuration() != 0 { // 0s means no limit
		c.duration(t.GetIdleTimeout(), path+".tcp.idleTimeout")
	}
	for _, f := range []struct {
		name string
		span interface{ AsDuration() time.Duration }
	}{{"time", t.GetTcpKeepalive().GetTime()}, {"interval", t.GetTcpKeepalive().GetInterval()}} {
		if v := f.span.AsDuration(); v >= time.Millisecond && v%time.Second != 0 {
			c.warnf(path+".tcp.tcpKeepalive."+f.name, "is %s: the part below a second has no effect; write whole seconds", v)
		}
	}
	c.duration(t.GetTcpKeepalive().GetTime(), path+".tcp.tcpKeepalive.time")
	c.duration(t.GetTcpKeepalive().GetInterval(), path+".tcp.tcpKeepalive.interval")
	h := p.GetHttp()
	c.duration(h.GetIdleTimeout(), path+".http.idleTimeout")
	c.notNegative(h.GetMaxConcurrentStreams(), path+".http.maxConcurrentStreams")
	if h.GetUseClientProtocol() && h.GetH2UpgradePolicy() == networkingv1alpha3.ConnectionPoolSettings_HTTPSettings_UPGRADE {
		c.errorf(path+".http.useClientProtocol", "and h2UpgradePolicy UPGRADE exclude each other: remove one")
	}
	c.notNegative(h.GetHttp1MaxPendingRequests(), path+".http.http1MaxPendingRequests")
	c.notNegative(h.GetHttp2MaxRequests(), path+".http.http2MaxRequests")
	c.notNegative(h.GetMaxRequestsPerConnection(), path+".http.maxRequestsPerConnection")
	c.notNegative(h.GetMaxRetries(), path+".http.maxRetries")
	if k := h.GetHttp2KeepAlive(); k != nil {
		c.duration(k.GetInterval(), path+".http.http2KeepAlive.interval")
		c.duration(k.GetTimeout(), path+".http.http2KeepAlive.timeout")
		if k.GetInterval() == nil || k.GetTimeout() == nil {
			c.errorf(path+".http.http2KeepAlive", "needs both interval and timeout: write the missing one")
		}
	}
}

func (c *checker) outlierDetection(o *networkingv1alpha3.OutlierDetection, path string) {
	if o == nil {
		return
	}
	c.duration(o.GetInterval(), path+".interval")
	c.duration(o.GetBaseEjectionTime(), path+".baseEjectionTime")
	c.wholePercent(o.GetMaxEjectionPercent(), path+".maxEjectionPercent")
	c.wholePercent(o.GetMinHealthPercent(), path+".minHealthPercent")
	for i, code := range o.GetOutlierDetectionHttpErrorCodes() {
		if code < 100 || code > 599 {
			c.errorf(field.Index(path+".outlierDetectionHttpErrorCodes", i), "is %d: a status code is between 100 and 599", code)
		}
	}
	if o.GetConsecutiveLocalOriginFailures().GetValue() > 0 && !o.GetSplitExternalLocalOriginErrors() {
		c.errorf(path+".consecutiveLocalOriginFailures", "has no effect without splitExternalLocalOriginErrors: write that too, or remove it")
	}
	//lint:ignore SA1019 users still write it
	if o.GetConsecutiveErrors() != 0 {
		c.warnf(path+".consecutiveErrors", "is the form of older versions and has no effect: write consecutive5xxErrors or consecutiveGatewayErrors")
	}
}
