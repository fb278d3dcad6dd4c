// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package config

import (
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

func validateDestinationRule(c *checker, cfg *model.Config) {
	dr, ok := cfg.Spec.(*networkingv1alpha3.DestinationRule)
	if !ok {
		return
	}
	c.fault("spec.host", hostFault(dr.GetHost(), true))
	c.exportTo(dr.GetExportTo(), "spec.exportTo")
	if dr.GetWorkloadSelector() != nil {
		c.selector(dr.GetWorkloadSelector().GetMatchLabels(), "spec.workloadSelector.matchLabels")
		if to := dr.GetExportTo(); len(to) > 0 && (len(to) > 1 || to[0] != ".") {
			c.errorf("spec.exportTo", "is not [\".\"]: a rule with a workloadSelector holds in its own namespace only; remove exportTo")
		}
	}
	c.trafficPolicy(dr.GetTrafficPolicy(), "spec.trafficPolicy")
	names := map[string]int{}
	for i, s := range dr.GetSubsets() {
		path := index("spec.subsets", i)
		c.fault(path+".name", dnsLabelFault(s.GetName()))
		if first, ok := names[s.GetName()]; ok {
			c.errorf(path+".name", "is %s, as in spec.subsets[%d]: give each subset a name of its own", quote(s.GetName()), first)
		} else {
			names[s.GetName()] = i
		}
		c.labels(s.GetLabels(), path+".labels")
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
		at := index(path+".portLevelSettings", i)
		n := s.GetPort().GetNumber()
		c.port(n, at+".port.number")
		if first, ok := ports[n]; ok && n != 0 {
			c.errorf(at+".port.number", "is %d, as in portLevelSettings[%d]: each port can stand here once", n, first)
		}
		ports[n] = i
		c.portPolicy(s, at)
	}
}

func (c *checker) portPolicy(p portPolicy, path string) {
	if lb := p.GetLoadBalancer().GetSimple(); lb == networkingv1alpha3.LoadBalancerSettings_PASSTHROUGH {
		c.errorf(path+".loadBalancer.simple", "is %s: this version serves ROUND_ROBIN, LEAST_REQUEST and RANDOM", lb)
	}
	c.connectionPool(p.GetConnectionPool(), path+".connectionPool")
	c.outlierDetection(p.GetOutlierDetection(), path+".outlierDetection")
	tls := p.GetTls()
	switch mode := tls.GetMode(); mode {
	case networkingv1alpha3.ClientTLSSettings_SIMPLE, networkingv1alpha3.ClientTLSSettings_MUTUAL:
		c.errorf(path+".tls.mode", "is %s: this version serves ISTIO_MUTUAL and DISABLE", mode)
	case networkingv1alpha3.ClientTLSSettings_DISABLE:
		if tls.GetSni() != "" || len(tls.GetSubjectAltNames()) > 0 {
			c.errorf(path+".tls", "has the mode DISABLE, so sni and subjectAltNames have no effect: remove them")
		}
	}
}

func (c *checker) connectionPool(p *networkingv1alpha3.ConnectionPoolSettings, path string) {
	if p == nil {
		return
	}
	if p.GetTcp() == nil && p.GetHttp() == nil {
		c.errorf(path, "is empty: write tcp or http, or remove it")
	}
	c.notNegative(p.GetTcp().GetMaxConnections(), path+".tcp.maxConnections")
	c.duration(p.GetTcp().GetConnectTimeout(), path+".tcp.connectTimeout")
	c.duration(p.GetTcp().GetMaxConnectionDuration(), path+".tcp.maxConnectionDuration")
	c.seconds(p.GetTcp().GetTcpKeepalive().GetTime(), path+".tcp.tcpKeepalive.time")
	c.seconds(p.GetTcp().GetTcpKeepalive().GetInterval(), path+".tcp.tcpKeepalive.interval")
	h := p.GetHttp()
	c.durationOrZero(h.GetIdleTimeout(), path+".http.idleTimeout")
	c.notNegative(h.GetMaxConcurrentStreams(), path+".http.maxConcurrentStreams")
	if h.GetUseClientProtocol() && h.GetH2UpgradePolicy() == networkingv1alpha3.ConnectionPoolSettings_HTTPSettings_UPGRADE {
		c.errorf(path+".http.useClientProtocol", "and h2UpgradePolicy UPGRADE exclude each other: remove one")
	}
	c.notNegative(h.GetHttp1MaxPendingRequests(), path+".http.http1MaxPendingRequests")
	c.notNegative(h.GetHttp2MaxRequests(), path+".http.http2MaxRequests")
	c.notNegative(h.GetMaxRequestsPerConnection(), path+".http.maxRequestsPerConnection")
	c.notNegative(h.GetMaxRetries(), path+".http.maxRetries")
}

func (c *checker) outlierDetection(o *networkingv1alpha3.OutlierDetection, path string) {
	if o == nil {
		return
	}
	c.duration(o.GetInterval(), path+".interval")
	c.duration(o.GetBaseEjectionTime(), path+".baseEjectionTime")
	for _, f := range []struct {
		name  string
		value int32
	}{{"maxEjectionPercent", o.GetMaxEjectionPercent()}, {"minHealthPercent", o.GetMinHealthPercent()}} {
		if f.value < 0 || f.value > 100 {
			c.errorf(path+"."+f.name, "is %d: a percentage is between 0 and 100", f.value)
		}
	}
	if o.GetConsecutiveLocalOriginFailures() != nil && !o.GetSplitExternalLocalOriginErrors() {
		c.errorf(path+".consecutiveLocalOriginFailures", "has no effect without splitExternalLocalOriginErrors: write that too, or remove it")
	}
}
