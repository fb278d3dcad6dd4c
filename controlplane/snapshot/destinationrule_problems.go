// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package snapshot

import (
	"fmt"
	"slices"
	"strings"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// MaxRing is the maximum size of a hash ring in Envoy.
const MaxRing = 8 << 20

// The maximum TCP keepalive values of the Linux kernel (tcp(7)). With larger values, Envoy cannot
// open connections.
const (
	MaxKeepaliveProbes  = 127
	MaxKeepaliveSeconds = 32767
)

func (c *checker) destinationRule(obj *model.Config) {
	spec, ok := obj.Spec.(*networkingv1alpha3.DestinationRule)
	if !ok {
		return
	}
	host := c.mesh.ResolveHost(spec.GetHost(), obj.Namespace)
	if !isWildcard(host) && c.mesh.Services.ForHost(host, obj.Namespace) == nil {
		c.dangling(obj, "spec.host: no service has the host %q, so the rule has no effect; correct the host or add a ServiceEntry", host)
	}
	c.olderRules(obj, spec, host)
	selected := len(spec.GetWorkloadSelector().GetMatchLabels()) > 0
	c.policy(obj, "spec.trafficPolicy", spec.GetTrafficPolicy(), selected)
	for i, s := range spec.GetSubsets() {
		c.policy(obj, fmt.Sprintf("spec.subsets[%d].trafficPolicy", i), s.GetTrafficPolicy(), selected)
	}
}

// olderRules reports the settings that are ignored because an older rule of the same host has them
// too.
func (c *checker) olderRules(obj *model.Config, spec *networkingv1alpha3.DestinationRule, host string) {
	rules := c.mesh.DestinationRules.withHost(obj.Namespace, host)
	at := slices.IndexFunc(rules, func(r *DestinationRule) bool {
		return slices.ContainsFunc(r.From, func(o *model.Config) bool { return o.Key == obj.Key })
	})
	if at < 0 {
		return
	}
	own := rules[at]
	for _, other := range rules[:at] {
		if !other.Selected() && !own.Selected() && own.From[0].Key == obj.Key {
			c.report(obj, "spec.exportTo: differs from that of the older DestinationRule %s for %q, so the two are not merged, and only the older one has an effect in %s; "+
				"write the same exportTo in both", other.From[0].Name, host, obj.Namespace)
		}
	}
	position := slices.IndexFunc(own.From, func(o *model.Config) bool { return o.Key == obj.Key })
	for _, older := range own.From[:position] {
		said, ok := older.Spec.(*networkingv1alpha3.DestinationRule)
		if !ok || ofGatewayAPI(older) || ofGatewayAPI(obj) { // those two kinds of rules are merged
			continue
		}
		if spec.GetTrafficPolicy() != nil && said.GetTrafficPolicy() != nil {
			c.report(obj, "spec.trafficPolicy: %q already has one in the older DestinationRule %s, which wins; remove one of them", host, older.Name)
		}
		for i, s := range spec.GetSubsets() {
			if slices.ContainsFunc(said.GetSubsets(), func(o *networkingv1alpha3.Subset) bool { return o.GetName() == s.GetName() }) {
				c.report(obj, "spec.subsets[%d].name: the subset %q of %q is already defined by the older DestinationRule %s, which wins; remove one of them",
					i, s.GetName(), host, older.Name)
			}
		}
	}
}

// portPolicy is the common interface of a traffic policy and of its port settings.
type portPolicy interface {
	GetLoadBalancer() *networkingv1alpha3.LoadBalancerSettings
	GetConnectionPool() *networkingv1alpha3.ConnectionPoolSettings
	GetTls() *networkingv1alpha3.ClientTLSSettings
}

// policy reports settings that have no effect, or not the one that they describe.
func (c *checker) policy(obj *model.Config, at string, policy *networkingv1alpha3.TrafficPolicy, selected bool) {
	c.portPolicy(obj, at, policy, selected)
	for i, p := range policy.GetPortLevelSettings() {
		c.portPolicy(obj, fmt.Sprintf("%s.portLevelSettings[%d]", at, i), p, selected)
	}
}

func (c *checker) portPolicy(obj *model.Config, at string, p portPolicy, selected bool) {
	lb, tls := p.GetLoadBalancer(), p.GetTls()
	if n := lb.GetConsistentHash().GetRingHash().GetMinimumRingSize(); n > MaxRing {
		c.warn(obj, "%s.loadBalancer.consistentHash.ringHash.minimumRingSize: %d is more than Envoy allows: %d is used", at, n, MaxRing)
	}
	if hash := lb.GetConsistentHash(); hash != nil && lb.GetWarmup() != nil || lb.GetSimple() == networkingv1alpha3.LoadBalancerSettings_RANDOM && lb.GetWarmup() != nil {
		c.warn(obj, "%s.loadBalancer.warmup: has an effect only with ROUND_ROBIN and LEAST_REQUEST; use one of them", at)
	}
	c.keepalive(obj, at+".connectionPool.tcp.tcpKeepalive", p.GetConnectionPool().GetTcp().GetTcpKeepalive())
	if fault := TLSFault(tls); fault != "" {
		c.report(obj, "%s.tls.%s: requests to the host are answered with 503 until then, and never sent as plaintext", at, fault)
		return
	}
	if strings.HasPrefix(tls.GetCredentialName(), ConfigMapScheme) {
		if !ofGatewayAPI(obj) {
			c.warn(obj, "%s.tls.credentialName: roots in ConfigMaps are for BackendTLSPolicies: proxies may not read them for this rule, requests to the host are answered with 503, "+
				"and never sent as plaintext; write a BackendTLSPolicy, or the name of a Secret", at)
		}
		return
	}
	if OriginatesTLS(tls) && tls.GetCredentialName() != "" && !selected {
		c.warn(obj, "%s.tls.credentialName: sidecars use it only from a rule with a workloadSelector: their requests to the host are answered with 503, and never sent as plaintext; "+
			"write spec.workloadSelector, or use files", at)
	}
}

// keepalive reports values that exceed the limits of the kernel.
func (c *checker) keepalive(obj *model.Config, at string, k *networkingv1alpha3.ConnectionPoolSettings_TCPSettings_TcpKeepalive) {
	if n := k.GetProbes(); n > MaxKeepaliveProbes {
		c.warn(obj, "%s.probes: %d is more than the kernel allows: %d is used", at, n, MaxKeepaliveProbes)
	}
	for _, f := range []struct {
		name    string
		seconds int64
	}{{"time", k.GetTime().GetSeconds()}, {"interval", k.GetInterval().GetSeconds()}} {
		if f.seconds > MaxKeepaliveSeconds {
			c.warn(obj, "%s.%s: %ds is more than the kernel allows: %ds is used", at, f.name, f.seconds, MaxKeepaliveSeconds)
		}
	}
}

// ConfigMapScheme names the roots in a ConfigMap, which only objects of the Gateway API can use.
const ConfigMapScheme = "configmap://"

// OriginatesTLS reports whether the settings originate TLS other than mesh mutual TLS.
func OriginatesTLS(tls *networkingv1alpha3.ClientTLSSettings) bool {
	return tls.GetMode() == networkingv1alpha3.ClientTLSSettings_SIMPLE || tls.GetMode() == networkingv1alpha3.ClientTLSSettings_MUTUAL
}

// TLSFault returns the reason why TLS settings cannot be sent to any proxy, starting with the name
// of the field. It returns "" if they are valid.
func TLSFault(tls *networkingv1alpha3.ClientTLSSettings) string {
	if _, known := networkingv1alpha3.ClientTLSSettings_TLSmode_name[int32(tls.GetMode())]; !known { // from a newer client, or over MCP
		return fmt.Sprintf("mode: %d is unknown; write DISABLE, SIMPLE, MUTUAL or ISTIO_MUTUAL", tls.GetMode())
	}
	if !OriginatesTLS(tls) {
		return ""
	}
	if name := tls.GetCredentialName(); name != "" {
		if scheme, _, ok := strings.Cut(name, "://"); ok && scheme != "kubernetes" && scheme != "kubernetes-gateway" && scheme+"://" != ConfigMapScheme {
			return fmt.Sprintf("credentialName: no secrets are served for %s://; write the name of a Secret", scheme)
		}
		return ""
	}
	own := []string{tls.GetClientCertificate(), tls.GetPrivateKey()}
	if tls.GetMode() == networkingv1alpha3.ClientTLSSettings_MUTUAL && slices.Contains(own, "") {
		return "mode: MUTUAL needs a certificate; write clientCertificate and privateKey, or credentialName"
	}
	for i, path := range own {
		if strings.Contains(path, "~") {
			return fmt.Sprintf("%s: the agent cannot serve %q, which contains a ~; rename the file", []string{"clientCertificate", "privateKey"}[i], path)
		}
	}
	return ""
}

// subsetIndex are the subsets that select none of the existing endpoints.
type subsetIndex struct {
	problems []model.Problem

	rules     *DestinationRules
	services  *Services
	endpoints [2]*Endpoints
	found     map[*DestinationRule]subsetFinding
}

// subsetFinding is the result of checking one rule with these endpoints.
type subsetFinding struct {
	endpoints *EndpointSet
	problems  []model.Problem
}

// newSubsetIndex checks only the rules whose endpoints changed, and reuses the other findings.
func newSubsetIndex(old *subsetIndex, m *Mesh) *subsetIndex {
	endpoints := [2]*Endpoints{m.Endpoints, m.NamedEndpoints}
	if old != nil && old.rules == m.DestinationRules && old.services == m.Services && old.endpoints == endpoints {
		return old
	}
	x := &subsetIndex{rules: m.DestinationRules, services: m.Services, endpoints: endpoints, found: make(map[*DestinationRule]subsetFinding)}
	for _, rule := range m.DestinationRules.merged {
		if len(rule.Subsets) == 0 || isWildcard(rule.Host) {
			continue
		}
		svc := m.Services.ForHost(rule.Host, rule.From[0].Namespace)
		if svc == nil {
			continue // reported separately
		}
		set := endpoints[0].Of(svc.ServiceKey)
		if svc.Resolution.ByName() {
			set = endpoints[1].Of(svc.ServiceKey)
		}
		if set == nil {
			continue // scaled to zero: the labels may be correct
		}
		var f subsetFinding
		if old != nil {
			f = old.found[rule]
		}
		if f.endpoints != set {
			f = subsetFinding{endpoints: set, problems: emptySubsets(rule, set)}
		}
		x.found[rule] = f
		x.problems = append(x.problems, f.problems...)
	}
	return x
}

func emptySubsets(rule *DestinationRule, set *EndpointSet) []model.Problem {
	c := &checker{}
	for _, s := range rule.Subsets {
		if slices.ContainsFunc(set.List, func(ep *model.Endpoint) bool { return model.Selects(s.GetLabels(), ep.Labels) }) {
			continue
		}
		for _, obj := range rule.From {
			spec, ok := obj.Spec.(*networkingv1alpha3.DestinationRule)
			if i := slices.IndexFunc(spec.GetSubsets(), func(o *networkingv1alpha3.Subset) bool { return o.GetName() == s.GetName() }); ok && i >= 0 {
				c.dangling(obj, "spec.subsets[%d].labels: no endpoint of %q has them: requests to the subset %q are answered with 503; correct them, or those of the workloads",
					i, rule.Host, s.GetName())
				break // the oldest subset with the name wins
			}
		}
	}
	return c.found
}
