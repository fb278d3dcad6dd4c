// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package validate

import (
	"math/big"
	"slices"
	"strings"

	"github.com/outrigger-mesh/outrigger/controlplane/config/field"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
)

// maxMaglevTable is the largest table that Envoy takes.
const maxMaglevTable = 5_000_011

func (c *checker) loadBalancer(lb *networkingv1alpha3.LoadBalancerSettings, outlier *networkingv1alpha3.OutlierDetection, path string) {
	if lb == nil {
		return
	}
	switch lb.GetSimple() {
	case networkingv1alpha3.LoadBalancerSettings_PASSTHROUGH:
		c.warnf(path+".simple", "is PASSTHROUGH, which has an effect only where traffic is redirected to the proxy: gateways and proxies with the interception mode NONE use LEAST_REQUEST")
	//lint:ignore SA1019 users still write it
	case networkingv1alpha3.LoadBalancerSettings_LEAST_CONN:
		c.warnf(path+".simple", "is LEAST_CONN, the form of older versions: write LEAST_REQUEST")
	default:
	}
	c.consistentHash(lb.GetConsistentHash(), path+".consistentHash")
	c.locality(lb.GetLocalityLbSetting(), outlier, path+".localityLbSetting")
	c.zoneAware(lb, path)
	c.duration(lb.GetWarmupDurationSecs(), path+".warmupDurationSecs")
	w := lb.GetWarmup()
	if w != nil && lb.GetWarmupDurationSecs() != nil {
		c.warnf(path+".warmupDurationSecs", "has no effect beside warmup: remove it, the form of older versions")
	}
	if w != nil && w.GetDuration() == nil {
		c.errorf(path+".warmup.duration", "is missing: write how long new endpoints get fewer requests, for example 60s")
	}
	c.duration(w.GetDuration(), path+".warmup.duration")
	if v := w.GetMinimumPercent().GetValue(); !(v >= 0 && v <= 100) {
		c.errorf(path+".warmup.minimumPercent", "is %v: a percentage is between 0 and 100", v)
	}
	if a := w.GetAggression(); a != nil && !(a.GetValue() >= 1) {
		c.errorf(path+".warmup.aggression", "is %v: it must be 1 or more", a.GetValue())
	}
}

func (c *checker) consistentHash(h *networkingv1alpha3.LoadBalancerSettings_ConsistentHashLB, path string) {
	if h == nil {
		return
	}
	if cookie := h.GetHttpCookie(); cookie != nil {
		if cookie.GetName() == "" {
			c.errorf(path+".httpCookie.name", "is missing: write the name of the cookie")
		}
		if cookie.GetTtl().AsDuration() < 0 {
			c.errorf(path+".httpCookie.ttl", "is %s: it must be 0s or more", cookie.GetTtl().AsDuration())
		}
		seen := map[string]bool{}
		for i, a := range cookie.GetAttributes() {
			at := field.Index(path+".httpCookie.attributes", i) + ".name"
			switch name := a.GetName(); {
			case name == "":
				c.errorf(at, "is missing: write an attribute such as SameSite")
			case seen[name]:
				c.errorf(at, "is %s, as of an earlier attribute: remove one", field.Quote(name))
			default:
				seen[name] = true
			}
		}
	}
	//lint:ignore SA1019 users still write it
	if h.GetMinimumRingSize() != 0 {
		c.warnf(path+".minimumRingSize", "is the form of older versions: write ringHash.minimumRingSize")
		if h.GetHashAlgorithm() != nil {
			c.errorf(path+".minimumRingSize", "and ringHash or maglev exclude each other: remove one")
		}
	}
	if m := h.GetMaglev(); m != nil {
		size := m.GetTableSize()
		if size > maxMaglevTable || !new(big.Int).SetUint64(size).ProbablyPrime(0) {
			c.errorf(path+".maglev.tableSize", "is %d: write a prime number of at most %d, for example 65537", size, maxMaglevTable)
		}
	}
}

// The labels that failover already looks at.
var topologyLabels = []string{"topology.kubernetes.io/region", "topology.kubernetes.io/zone", "topology.istio.io/subzone"}

func (c *checker) locality(l *networkingv1alpha3.LocalityLoadBalancerSetting, outlier *networkingv1alpha3.OutlierDetection, path string) {
	if l == nil {
		return
	}
	if len(l.GetDistribute()) > 0 && len(l.GetFailover()) > 0 {
		c.errorf(path+".distribute", "and failover exclude each other: remove one")
	}
	sources := make([]string, 0, len(l.GetDistribute()))
	for i, d := range l.GetDistribute() {
		at := field.Index(path+".distribute", i)
		sources = append(sources, d.GetFrom())
		var total uint64
		var targets []string
		for to, weight := range field.Sorted(d.GetTo()) {
			if weight < 1 || weight > 100 {
				c.errorf(at+".to["+to+"]", "is %d: a weight is between 1 and 100", weight)
			}
			total += uint64(weight)
			targets = append(targets, to)
		}
		if total != 100 {
			c.errorf(at+".to", "has weights that sum up to %d: the sum must be 100", total)
		}
		c.localities(targets, func(j int) string { return field.Key(at+".to", targets[j]) })
	}
	c.localities(sources, func(i int) string { return field.Index(path+".distribute", i) + ".from" })
	failover(c, l.GetFailover(), path+".failover")
	for i, label := range l.GetFailoverPriority() {
		if len(l.GetFailover()) > 0 && slices.Contains(topologyLabels, label) {
			c.errorf(field.Index(path+".failoverPriority", i), "is %s, which failover already decides: remove one", field.Quote(label))
		}
	}
	if outlier == nil && (len(l.GetFailover()) > 0 || len(l.GetFailoverPriority()) > 0) {
		c.warnf(path, "has a failover, which needs outlierDetection to detect failures: write that too")
	}
}

// zoneAware checks the settings of Envoy's zone aware routing, which decides between zones itself.
func (c *checker) zoneAware(lb *networkingv1alpha3.LoadBalancerSettings, path string) {
	z := lb.GetZoneAwareLbSetting()
	if z == nil {
		return
	}
	path += ".zoneAwareLbSetting"
	if lb.GetLocalityLbSetting() != nil {
		c.errorf(path, "and localityLbSetting exclude each other: remove one")
	}
	if lb.GetConsistentHash() != nil {
		c.warnf(path, "chooses no zones together with consistentHash, only regions: remove one")
	}
	failover(c, z.GetFailover(), path+".failover")
	for i, label := range z.GetFailoverPriority() {
		if slices.Contains(topologyLabels, label) {
			c.errorf(field.Index(path+".failoverPriority", i), "is %s, which zoneAwareLbSetting already looks at: remove it", field.Quote(label))
		}
	}
}

// failover checks pairs of regions.
func failover[F interface {
	GetFrom() string
	GetTo() string
}](c *checker, list []F, path string) {
	for i, f := range list {
		at := field.Index(path, i)
		for _, side := range []struct{ name, region string }{{"from", f.GetFrom()}, {"to", f.GetTo()}} {
			if strings.ContainsAny(side.region, "/*") {
				c.errorf(at+"."+side.name, "is %s: failover is between whole regions; write the name of a region", field.Quote(side.region))
			}
		}
		if f.GetFrom() == f.GetTo() {
			c.errorf(at+".to", "is %s, as from is: write two different regions", field.Quote(f.GetTo()))
		}
	}
}

// localities checks the localities of a list, and that no two of them overlap.
func (c *checker) localities(list []string, path func(i int) string) {
	covering, below := firsts[string]{}, firsts[string]{}
	for i, l := range list {
		parts := strings.Split(l, "/")
		bad := len(parts) > 3
		for j, part := range parts {
			bad = bad || part == "" || strings.Contains(part, "*") && (part != "*" || j < len(parts)-1)
		}
		if bad {
			c.errorf(path(i), "is %s: write region, region/zone or region/zone/subzone, with \"*\" only at the end", field.Quote(l))
			continue
		}
		covers, within := localityPrefixes(strings.TrimSuffix(l, "*"))
		j, ok := covering.earliest(within...)
		if k, found := below.earliest(covers); found && (!ok || k < j) {
			j, ok = k, true
		}
		if ok {
			c.errorf(path(i), "is %s and overlaps with %s: remove one", field.Quote(l), field.Quote(list[j]))
		}
		covering.add(i, covers)
		below.add(i, within...)
	}
}

// localityPrefixes returns the prefix that a locality, without "*", covers, and
// the prefixes that cover it.
func localityPrefixes(l string) (covers string, within []string) {
	if covers = l; l != "" && !strings.HasSuffix(l, "/") {
		covers += "/"
	}
	for i := range covers {
		if covers[i] == '/' {
			within = append(within, covers[:i+1])
		}
	}
	return covers, append(within, "")
}
