// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package snapshot

import (
	"maps"
	"slices"
	"strings"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// DestinationRule is the merged policy of one namespace for one host. It merges all objects with
// the same host, selector and exportTo.
type DestinationRule struct {
	// Host is the full name, or a wildcard.
	Host string
	// Policy is the first traffic policy; nil means none.
	Policy *networkingv1alpha3.TrafficPolicy
	// Subsets are the subsets of all objects. If names are equal, the first subset wins.
	Subsets []*networkingv1alpha3.Subset
	// From are the objects, oldest first; never empty.
	From []*model.Config

	byName   map[string]*networkingv1alpha3.Subset // name to element of Subsets
	exportTo []string
	selector map[string]string
	// securedBy is the object converted from a BackendTLSPolicy for the host, whose TLS settings
	// are merged into Policy; nil if there is none.
	securedBy *model.Config
}

// Objects returns the objects that the rule was built from. It returns nil for a nil rule.
func (d *DestinationRule) Objects() []*model.Config {
	if d == nil {
		return nil
	}
	if d.securedBy == nil || slices.Contains(d.From, d.securedBy) {
		return d.From
	}
	return append(slices.Clone(d.From), d.securedBy)
}

// Selected reports whether the rule applies only to certain workloads.
func (d *DestinationRule) Selected() bool { return len(d.selector) > 0 }

// Subset returns the subset with the given name, or nil if it does not exist.
func (d *DestinationRule) Subset(name string) *networkingv1alpha3.Subset {
	if d == nil {
		return nil
	}
	return d.byName[name]
}

// DestinationRules is the index of DestinationRules by namespace and host.
type DestinationRules struct {
	// SelectorLabels are the label keys that workload selectors use, sorted. Proxies with equal
	// values for these keys get the same rules.
	SelectorLabels []string
	// UsesLocality is true if a rule prefers endpoints by locality, or may do so because of the mesh
	// settings. LocalityLabels are the label keys that the rules compare for this purpose, sorted.
	UsesLocality   bool
	LocalityLabels []string

	root       string
	namespaces map[string]*hostRules
	secured    map[string]*model.Config // by host: objects converted from a BackendTLSPolicy
	merged     []*DestinationRule
	all        []*model.Config
}

type hostRules struct {
	byHost    map[string][]*DestinationRule // rules with a selector first
	wildcards []string                      // most specific first
}

func (d *DestinationRules) objects() []*model.Config {
	if d == nil {
		return nil
	}
	return d.all
}

func newDestinationRules(old *DestinationRules, objs []*model.Config, set settings) *DestinationRules {
	d := &DestinationRules{root: set.root, namespaces: make(map[string]*hostRules), secured: make(map[string]*model.Config), all: objs}
	labels := make(map[string]bool)
	for _, obj := range objs {
		spec, ok := obj.Spec.(*networkingv1alpha3.DestinationRule)
		if !ok {
			continue
		}
		for k := range spec.GetWorkloadSelector().GetMatchLabels() {
			labels[k] = true
		}
		d.add(obj, spec, set)
		d.place(spec)
	}
	slices.Sort(d.LocalityLabels)
	d.LocalityLabels = slices.Compact(d.LocalityLabels)
	d.SelectorLabels = slices.Sorted(maps.Keys(labels))
	d.secure()
	d.keep(old)
	for _, ns := range d.namespaces {
		for h, rules := range ns.byHost {
			slices.SortStableFunc(rules, func(a, b *DestinationRule) int { return min(len(b.selector), 1) - min(len(a.selector), 1) })
			if isWildcard(h) {
				ns.wildcards = append(ns.wildcards, h)
			}
		}
		slices.SortFunc(ns.wildcards, mostSpecific)
	}
	return d
}

// add merges one object into the rule with the same namespace, host, selector and exportTo.
func (d *DestinationRules) add(obj *model.Config, spec *networkingv1alpha3.DestinationRule, set settings) {
	ns := d.namespaces[obj.Namespace]
	if ns == nil {
		ns = &hostRules{byHost: make(map[string][]*DestinationRule)}
		d.namespaces[obj.Namespace] = ns
	}
	host := set.resolveHost(spec.GetHost(), obj.Namespace)
	selector := spec.GetWorkloadSelector().GetMatchLabels()
	exportTo := slices.Sorted(slices.Values(exportTo(spec.GetExportTo(), set.exportRules)))
	if slices.Equal(exportTo, []string{"*"}) {
		exportTo = nil // the default
	}
	var rule *DestinationRule
	for _, r := range ns.byHost[host] {
		if maps.Equal(r.selector, selector) && slices.Equal(r.exportTo, exportTo) {
			rule = r
		}
	}
	if rule == nil {
		rule = &DestinationRule{Host: host, exportTo: exportTo, selector: selector}
		ns.byHost[host] = append(ns.byHost[host], rule)
		d.merged = append(d.merged, rule)
	}
	rule.From = append(rule.From, obj)
	if ofGatewayAPI(obj) {
		if d.secured[host] == nil {
			d.secured[host] = obj
		}
	} else if rule.Policy == nil {
		rule.Policy = spec.GetTrafficPolicy()
	}
	for _, s := range spec.GetSubsets() {
		if rule.Subset(s.GetName()) == nil {
			rule.Subsets = append(rule.Subsets, s)
			if rule.byName == nil {
				rule.byName = map[string]*networkingv1alpha3.Subset{}
			}
			rule.byName[s.GetName()] = s
		}
	}
}

// balances is the common interface of a traffic policy and of its port settings for load balancing.
type balances interface {
	GetLoadBalancer() *networkingv1alpha3.LoadBalancerSettings
	GetOutlierDetection() *networkingv1alpha3.OutlierDetection
}

// place updates Placed and LocalityLabels for an object.
func (d *DestinationRules) place(spec *networkingv1alpha3.DestinationRule) {
	policies := []*networkingv1alpha3.TrafficPolicy{spec.GetTrafficPolicy()}
	for _, s := range spec.GetSubsets() {
		policies = append(policies, s.GetTrafficPolicy())
	}
	for _, p := range policies {
		all := []balances{p}
		for _, at := range p.GetPortLevelSettings() {
			all = append(all, at)
		}
		for _, b := range all {
			setting, zones := b.GetLoadBalancer().GetLocalityLbSetting(), b.GetLoadBalancer().GetZoneAwareLbSetting()
			d.UsesLocality = d.UsesLocality || setting != nil || zones != nil || b.GetOutlierDetection() != nil
			for _, label := range append(slices.Clip(setting.GetFailoverPriority()), zones.GetFailoverPriority()...) {
				key, _, _ := strings.Cut(label, "=")
				d.LocalityLabels = append(d.LocalityLabels, key)
			}
		}
	}
}

// keep replaces new rules that did not change by the previous pointers.
func (d *DestinationRules) keep(old *DestinationRules) {
	if old == nil {
		return
	}
	before := make(map[model.Key]*DestinationRule, len(old.merged))
	for _, r := range old.merged {
		before[r.From[0].Key] = r
	}
	for i, r := range d.merged {
		prev := before[r.From[0].Key]
		if prev == nil || prev.Host != r.Host || !sameLender(prev.securedBy, r.securedBy) || !slices.EqualFunc(prev.From, r.From, sameConfig) {
			continue
		}
		d.merged[i] = prev
		same := d.namespaces[r.From[0].Namespace].byHost[r.Host]
		same[slices.Index(same, r)] = prev
	}
}

// For returns the rule of a host for a proxy, or nil if there is none. It looks in the namespace of
// the proxy, then in that of the service, then in the root namespace. A proxy in the root namespace
// first considers only rules that are private to that namespace.
func (d *DestinationRules) For(svc model.ServiceKey, proxyNamespace string, labels map[string]string) *DestinationRule {
	if r := d.namespaces[proxyNamespace].find(svc.Hostname, func(r *DestinationRule) bool {
		// A rule for a wildcard does not override a BackendTLSPolicy for the host.
		return model.Selects(r.selector, labels) && visible(r.exportTo, proxyNamespace, proxyNamespace) && (proxyNamespace != d.root || r.private(d.root)) &&
			(d.secured[svc.Hostname] == nil || r.securedBy != nil)
	}); r != nil {
		return r
	}
	for _, owner := range []string{svc.Namespace, d.root} {
		if r := d.namespaces[owner].find(svc.Hostname, func(r *DestinationRule) bool {
			if len(r.selector) > 0 && (owner != proxyNamespace || !model.Selects(r.selector, labels)) {
				return false // rules with a selector are private to their namespace
			}
			return visible(r.exportTo, owner, proxyNamespace)
		}); r != nil {
			return r
		}
	}
	return nil
}

// private reports whether the rule applies only to proxies of its own namespace.
func (d *DestinationRule) private(namespace string) bool {
	return d.Selected() || len(d.exportTo) == 1 && (d.exportTo[0] == "." || d.exportTo[0] == namespace)
}

// withHost returns the rules of a namespace whose host is exactly this one.
func (d *DestinationRules) withHost(namespace, host string) []*DestinationRule {
	ns := d.namespaces[namespace]
	if ns == nil {
		return nil
	}
	return ns.byHost[host]
}

func (h *hostRules) find(host string, applies func(*DestinationRule) bool) *DestinationRule {
	if h == nil {
		return nil
	}
	for _, r := range h.byHost[host] {
		if applies(r) {
			return r
		}
	}
	for _, w := range h.wildcards {
		if !HostMatches(w, host) {
			continue
		}
		for _, r := range h.byHost[w] {
			if applies(r) {
				return r
			}
		}
	}
	return nil
}
