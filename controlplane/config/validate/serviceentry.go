// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package validate

import (
	"cmp"
	"strings"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/config/field"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

func validateServiceEntry(c *checker, cfg *model.Config) {
	se, ok := cfg.Spec.(*networkingv1alpha3.ServiceEntry)
	if !ok {
		return
	}
	c.atMost(len(se.GetHosts()), maxHosts, "spec.hosts")
	c.product(maxClusters, "spec.hosts and spec.ports", "clusters", len(se.GetHosts()), len(se.GetPorts()))
	c.product(maxEndpoints, "spec.hosts, spec.ports and spec.endpoints", "endpoints", len(se.GetHosts()), len(se.GetPorts()), len(se.GetEndpoints()))
	c.serviceHosts(se)
	c.exportTo(cfg.Namespace, se.GetExportTo(), "spec.exportTo")
	c.servicePorts(se)
	c.resolution(se, cfg.Labels)
	c.serviceEndpoints(se)
	c.selector(se.GetWorkloadSelector() != nil, se.GetWorkloadSelector().GetLabels(), "spec.workloadSelector.labels")
	for i, san := range se.GetSubjectAltNames() {
		if san == "" {
			c.warnf(field.Index("spec.subjectAltNames", i), "is empty, which no certificate has: write an identity such as spiffe://cluster.local/ns/default/sa/catalog")
		}
	}
}

func (c *checker) serviceHosts(se *networkingv1alpha3.ServiceEntry) {
	if len(se.GetHosts()) == 0 {
		c.errorf("spec.hosts", "is empty: write the host of the service")
	}
	seen := firsts[string]{}
	for i, h := range se.GetHosts() {
		path := field.Index("spec.hosts", i)
		if h == "*" {
			c.errorf(path, "is \"*\": write the host of the service, or a wildcard such as *.example.com")
			continue
		}
		c.fault(path, hostFault(h, anyWildcard))
		if strings.HasPrefix(h, "*") && !strings.HasPrefix(h, "*.") {
			c.warnf(path, "is %s: write a wildcard as the whole first part, as in *.example.com", field.Quote(h))
		}
		if j, ok := seen.earliest(strings.ToLower(h)); ok {
			c.warnf(path, "is %s, as spec.hosts[%d]: remove one", field.Quote(h), j)
		}
		seen.add(i, strings.ToLower(h))
	}
}

// resolution checks addresses and hosts against the way in which endpoints are
// found.
func (c *checker) resolution(se *networkingv1alpha3.ServiceEntry, labels map[string]string) {
	r := se.GetResolution()
	if r == networkingv1alpha3.ServiceEntry_DYNAMIC_DNS {
		c.dynamic(se, labels)
	}
	ranges := r == networkingv1alpha3.ServiceEntry_NONE || r == networkingv1alpha3.ServiceEntry_STATIC
	for i, a := range se.GetAddresses() {
		path := field.Index("spec.addresses", i)
		c.ipRange(a, path)
		if strings.Contains(a, "/") && !ranges {
			c.errorf(path, "is %s: with resolution %s only single addresses are allowed; write one, or resolution STATIC or NONE", field.Quote(a), r)
		}
	}
	dns := r == networkingv1alpha3.ServiceEntry_DNS || r == networkingv1alpha3.ServiceEntry_DNS_ROUND_ROBIN
	if !dns || len(se.GetEndpoints()) > 0 {
		return
	}
	for i, h := range se.GetHosts() {
		path := field.Index("spec.hosts", i)
		switch {
		case strings.HasPrefix(h, "*") && h != "*":
			c.errorf(path, "is %s: with resolution %s and no endpoints the host is looked up, so write its full name, or endpoints", field.Quote(h), r)
		case !strings.Contains(h, ".") && se.GetWorkloadSelector() == nil:
			c.warnf(path, "is %s: with resolution %s and no endpoints the host is looked up, so write its full name", field.Quote(h), r)
		}
	}
}

// dynamic checks an entry whose hosts are looked up for each request.
func (c *checker) dynamic(se *networkingv1alpha3.ServiceEntry, labels map[string]string) {
	for i, h := range se.GetHosts() {
		if !strings.HasPrefix(h, "*") {
			c.errorf(field.Index("spec.hosts", i), "is %s: with resolution DYNAMIC_DNS hosts are wildcards; write one, or resolution DNS", field.Quote(h))
		}
	}
	if use := labels["istio.io/use-waypoint"]; use != "" && !strings.EqualFold(use, "none") && se.GetLocation() == networkingv1alpha3.ServiceEntry_MESH_INTERNAL {
		c.errorf("spec.location", "is MESH_INTERNAL: with resolution DYNAMIC_DNS and the label istio.io/use-waypoint write MESH_EXTERNAL, or remove the label")
	}
	if len(se.GetAddresses()) > 0 {
		c.errorf("spec.addresses", "is not allowed with resolution DYNAMIC_DNS, which routes by host: remove it")
	}
	if len(se.GetEndpoints()) > 0 {
		c.errorf("spec.endpoints", "is not allowed with resolution DYNAMIC_DNS, which looks hosts up: remove it")
	}
	for i, p := range se.GetPorts() {
		switch protocol := strings.ToUpper(p.GetProtocol()); protocol {
		case "HTTP", "HTTP2", "GRPC", "TLS":
		default:
			c.errorf(field.Index("spec.ports", i)+".protocol", "is %s: with resolution DYNAMIC_DNS write HTTP, HTTP2, GRPC or TLS", field.Quote(p.GetProtocol()))
		}
	}
}

// protocols are the values that port.protocol may have; upper case.
const protocols = " HTTP HTTP2 GRPC GRPC-WEB HTTPS TLS TCP UDP MONGO REDIS MYSQL HTTP_PROXY HBONE "

func (c *checker) servicePorts(se *networkingv1alpha3.ServiceEntry) {
	if len(se.GetPorts()) == 0 {
		c.warnf("spec.ports", "is empty, so nothing can be reached: write the ports of the service")
	}
	none := se.GetResolution() == networkingv1alpha3.ServiceEntry_NONE
	names, numbers := map[string]int{}, map[uint32]int{}
	for i, p := range se.GetPorts() {
		path := field.Index("spec.ports", i)
		c.port(p.GetNumber(), path+".number")
		c.fault(path+".name", labelNameFault(p.GetName()))
		c.optionalPort(p.GetTargetPort(), path+".targetPort")
		if p.GetTargetPort() != 0 && none {
			c.warnf(path+".targetPort", "has no effect with resolution NONE: remove it")
		}
		c.protocol(p.GetProtocol(), path+".protocol")
		if first, ok := names[p.GetName()]; ok && p.GetName() != "" {
			c.errorf(path+".name", "is %s, as in spec.ports[%d]: give each port a name of its own", field.Quote(p.GetName()), first)
		} else {
			names[p.GetName()] = i
		}
		if first, ok := numbers[p.GetNumber()]; ok && p.GetNumber() != 0 {
			c.errorf(path+".number", "is %d, as in spec.ports[%d]: each port is allowed only once", p.GetNumber(), first)
		} else {
			numbers[p.GetNumber()] = i
		}
		if len(se.GetHosts()) > 1 && !none && !isHTTP(p.GetProtocol()) && !isTLS(p.GetProtocol()) {
			c.errorf(path+".protocol", "is %s, which cannot distinguish the %d hosts of this object: write HTTP or TLS, or one ServiceEntry for each host",
				field.Quote(p.GetProtocol()), len(se.GetHosts()))
		}
		protocol := strings.ToUpper(cmp.Or(p.GetProtocol(), p.GetName()))
		if len(se.GetAddresses()) == 0 && (protocol == "TCP" || p.GetProtocol() == "" && !tellsProtocol(protocol)) {
			c.warnf(path, "is a port of TCP, and without spec.addresses clients with interception cannot distinguish the service: write the addresses, or the protocol if it is another")
		}
	}
}

// tellsProtocol reports whether the name of a port, such as "http-web", begins
// with a protocol that is not TCP.
func tellsProtocol(name string) bool {
	base, _, _ := strings.Cut(name, "-")
	return base != "TCP" && protocolFault(base) == ""
}

// protocol checks a protocol name; empty is fine.
func (c *checker) protocol(s, path string) {
	if s == "" {
		return
	}
	c.fault(path, protocolFault(s))
	if strings.EqualFold(s, "UDP") {
		c.warnf(path, "is %s, which has no effect in this version: the port counts as TCP; remove it", field.Quote(s))
	}
}

// protocolFault checks a protocol name, in any case.
func protocolFault(s string) string {
	if s != "" && strings.Contains(protocols, " "+strings.ToUpper(s)+" ") {
		return ""
	}
	return "is " + field.Quote(s) + ": write one of " + strings.Join(strings.Fields(protocols), ", ")
}

// isHTTP reports whether a protocol is HTTP in the clear.
func isHTTP(protocol string) bool {
	switch strings.ToUpper(protocol) {
	case "HTTP", "HTTP2", "GRPC", "GRPC-WEB", "HTTP_PROXY":
		return true
	}
	return false
}

// isTLS reports whether connections of a protocol begin with a server name.
func isTLS(protocol string) bool {
	return strings.EqualFold(protocol, "HTTPS") || strings.EqualFold(protocol, "TLS")
}

func (c *checker) serviceEndpoints(se *networkingv1alpha3.ServiceEntry) {
	endpoints, selector, r := se.GetEndpoints(), se.GetWorkloadSelector(), se.GetResolution()
	static := r == networkingv1alpha3.ServiceEntry_STATIC
	resolved := r == networkingv1alpha3.ServiceEntry_DNS || r == networkingv1alpha3.ServiceEntry_DNS_ROUND_ROBIN
	switch {
	case len(endpoints) > 0 && selector != nil:
		c.errorf("spec.endpoints", "and spec.workloadSelector exclude each other: remove one")
	case len(endpoints) > 0 && r == networkingv1alpha3.ServiceEntry_NONE:
		c.errorf("spec.endpoints", "is not allowed with resolution NONE, in which clients choose the address: remove it, or write resolution STATIC or DNS")
	case len(endpoints) > 1 && r == networkingv1alpha3.ServiceEntry_DNS_ROUND_ROBIN:
		c.errorf("spec.endpoints", "has %d entries: resolution DNS_ROUND_ROBIN allows at most one; write resolution DNS", len(endpoints))
	case len(endpoints) == 0 && selector == nil && static:
		c.warnf("spec.endpoints", "is empty, so the service has no endpoint: resolution STATIC needs endpoints or a workloadSelector")
	}
	if selector != nil && r == networkingv1alpha3.ServiceEntry_NONE {
		c.warnf("spec.workloadSelector", "has no effect with resolution NONE: write resolution STATIC")
	}
	ports := map[string]bool{}
	for _, p := range se.GetPorts() {
		ports[p.GetName()] = true
	}
	for i, e := range endpoints {
		path := field.Index("spec.endpoints", i)
		c.workload(e, path)
		unix := strings.HasPrefix(e.GetAddress(), unixScheme)
		switch {
		case e.GetAddress() == "" && e.GetNetwork() != "" && resolved:
			c.errorf(path+".address", "is missing: resolution %s needs the name of a host", r)
		case unix && !static:
			c.errorf(path+".address", "is %s: only resolution STATIC allows sockets; write an IP address or a host name", field.Quote(e.GetAddress()))
		case unix && len(se.GetPorts()) != 1:
			c.errorf(path+".address", "is %s: a socket can serve one port only, and spec.ports has %d", field.Quote(e.GetAddress()), len(se.GetPorts()))
		case static && !unix && !isIP(e.GetAddress()) && hostFault(e.GetAddress(), noWildcard) == "":
			c.errorf(path+".address", "is %s: resolution STATIC allows only IP addresses; write one, or write resolution: DNS", field.Quote(e.GetAddress()))
		}
		for name := range field.Sorted(e.GetPorts()) {
			if !ports[name] {
				c.errorf(path+".ports["+name+"]", "names a port that spec.ports does not have: write one of its names")
			}
		}
	}
}

func validateWorkloadEntry(c *checker, cfg *model.Config) {
	if we, ok := cfg.Spec.(*networkingv1alpha3.WorkloadEntry); ok {
		c.workload(we, "spec")
	}
}

// workload checks a workload entry, alone or as an endpoint.
func (c *checker) workload(w *networkingv1alpha3.WorkloadEntry, path string) {
	switch a := w.GetAddress(); {
	case a == "" && w.GetNetwork() != "": // reached through a gateway of its network
	case a == "":
		c.errorf(path+".address", "is missing: write the IP address of the workload")
	case strings.HasPrefix(a, unixScheme):
		c.fault(path+".address", unixSocketFault(a))
		if strings.HasPrefix(a, unixScheme+"@") && strings.HasSuffix(a, "/") {
			c.errorf(path+".address", "is %s: the name of a socket does not end with \"/\"; remove it", field.Quote(a))
		}
		if len(w.GetPorts()) > 0 {
			c.errorf(path+".ports", "is not allowed with the socket %s: remove it", field.Quote(a))
		}
	default:
		c.fault(path+".address", hostOrIPFault(a, noWildcard))
	}
	for name, n := range field.Sorted(w.GetPorts()) {
		c.fault(path+".ports["+name+"]", portKeyFault(name))
		c.port(n, path+".ports["+name+"]")
	}
	c.longLabels(w.GetLabels(), path+".labels")
	if l := w.GetLocality(); l != "" {
		parts := strings.Split(l, "/")
		if len(parts) > 3 || parts[0] == "" {
			c.warnf(path+".locality", "is %s: write region, region/zone or region/zone/subzone", field.Quote(l))
		}
	}
	c.account(w.GetServiceAccount(), path+".serviceAccount")
}

// account checks the service account of a workload, which may be missing.
func (c *checker) account(s, path string) {
	switch fault := SubdomainFault(s); {
	case s == "" || fault == "":
	case len(s) > maxName:
		c.fault(path, fault)
	default:
		c.warnf(path, "%s; as written, it matches no identity", fault)
	}
}

// portKeyFault checks the name of a port that is the key of a map.
func portKeyFault(name string) string {
	if fault := labelNameFault(name); fault != "" {
		return "has a name that " + fault
	}
	return ""
}
