// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package config

import (
	"net/netip"
	"strings"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

func validateServiceEntry(c *checker, cfg *model.Config) {
	se, ok := cfg.Spec.(*networkingv1alpha3.ServiceEntry)
	if !ok {
		return
	}
	c.serviceHosts(se)
	c.exportToAll(se.GetExportTo(), "spec.exportTo")
	for i, a := range se.GetAddresses() {
		if _, err := netip.ParsePrefix(a); err != nil && !isIP(a) {
			c.errorf(index("spec.addresses", i), "is %s: it has to be an IP address or a range such as 10.0.0.0/24", quote(a))
		}
	}
	c.servicePorts(se)
	switch r := se.GetResolution(); r {
	case networkingv1alpha3.ServiceEntry_STATIC, networkingv1alpha3.ServiceEntry_DNS:
	case networkingv1alpha3.ServiceEntry_NONE:
		c.errorf("spec.resolution", "is NONE, or missing, which is the same: this version serves STATIC and DNS; write one of them")
	default:
		c.errorf("spec.resolution", "is %s: this version serves STATIC and DNS", r)
	}
	if se.GetResolution() == networkingv1alpha3.ServiceEntry_DNS {
		for i, a := range se.GetAddresses() {
			if _, err := netip.ParsePrefix(a); err == nil {
				c.errorf(index("spec.addresses", i), "is %s: with resolution DNS only single addresses are allowed", quote(a))
			}
		}
	}
	c.serviceEndpoints(se)
	if se.GetWorkloadSelector() != nil {
		c.selector(se.GetWorkloadSelector().GetLabels(), "spec.workloadSelector.labels")
	}
	for i, san := range se.GetSubjectAltNames() {
		if san == "" {
			c.errorf(index("spec.subjectAltNames", i), "is empty: write an identity such as spiffe://cluster.local/ns/default/sa/catalog")
		}
	}
}

func (c *checker) serviceHosts(se *networkingv1alpha3.ServiceEntry) {
	if len(se.GetHosts()) == 0 {
		c.errorf("spec.hosts", "is empty: write the host of the service")
	}
	for i, h := range se.GetHosts() {
		path := index("spec.hosts", i)
		if strings.HasPrefix(h, "*") {
			c.errorf(path, "is %s: this version serves no wildcards in a ServiceEntry; write the full host", quote(h))
			continue
		}
		c.fault(path, hostFault(h, false))
		for j, other := range se.GetHosts()[:i] {
			if strings.EqualFold(h, other) {
				c.errorf(path, "is %s, as spec.hosts[%d]: remove one", quote(h), j)
			}
		}
	}
}

// protocols are the values that port.protocol may have; upper case.
const protocols = " HTTP HTTP2 GRPC GRPC-WEB HTTPS TLS TCP MONGO REDIS MYSQL HTTP_PROXY "

func (c *checker) servicePorts(se *networkingv1alpha3.ServiceEntry) {
	if len(se.GetPorts()) == 0 {
		c.errorf("spec.ports", "is empty: write the ports of the service")
	}
	names, numbers := map[string]int{}, map[uint32]int{}
	for i, p := range se.GetPorts() {
		path := index("spec.ports", i)
		c.port(p.GetNumber(), path+".number")
		c.fault(path+".name", portNameFault(p.GetName()))
		c.optionalPort(p.GetTargetPort(), path+".targetPort")
		c.protocol(p.GetProtocol(), path+".protocol")
		if first, ok := names[p.GetName()]; ok && p.GetName() != "" {
			c.errorf(path+".name", "is %s, as in spec.ports[%d]: give each port a name of its own", quote(p.GetName()), first)
		}
		if first, ok := numbers[p.GetNumber()]; ok && p.GetNumber() != 0 {
			c.errorf(path+".number", "is %d, as in spec.ports[%d]: each port can stand here once", p.GetNumber(), first)
		}
		names[p.GetName()], numbers[p.GetNumber()] = i, i
		if len(se.GetHosts()) > 1 && !tellsHosts(p.GetProtocol()) {
			c.errorf(path+".protocol", "is %s, which cannot tell the %d hosts of this object apart: write one ServiceEntry for each host",
				quote(p.GetProtocol()), len(se.GetHosts()))
		}
	}
}

// protocol checks a protocol name; empty is fine.
func (c *checker) protocol(s, path string) {
	switch known := strings.Contains(protocols, " "+strings.ToUpper(s)+" "); {
	case s == "" || known:
	case strings.EqualFold(s, "UDP"):
		c.errorf(path, "is %s: no mesh feature works with it; remove the port", quote(s))
	default:
		c.errorf(path, "is %s: write one of %s", quote(s), strings.Join(strings.Fields(protocols), ", "))
	}
}

// tellsHosts reports whether requests of a protocol name their host.
func tellsHosts(protocol string) bool {
	switch strings.ToUpper(protocol) {
	case "HTTP", "HTTP2", "GRPC", "GRPC-WEB", "HTTP_PROXY", "HTTPS", "TLS":
		return true
	}
	return false
}

func (c *checker) serviceEndpoints(se *networkingv1alpha3.ServiceEntry) {
	endpoints, selector := se.GetEndpoints(), se.GetWorkloadSelector()
	static := se.GetResolution() == networkingv1alpha3.ServiceEntry_STATIC
	switch {
	case len(endpoints) > 0 && selector != nil:
		c.errorf("spec.endpoints", "and spec.workloadSelector exclude each other: remove one")
	case len(endpoints) == 0 && selector == nil && static:
		c.errorf("spec.endpoints", "is empty: resolution STATIC needs endpoints or a workloadSelector")
	case len(endpoints) == 0 && selector == nil && se.GetResolution() == networkingv1alpha3.ServiceEntry_DNS:
		for i, h := range se.GetHosts() {
			if !strings.Contains(h, ".") {
				c.errorf(index("spec.hosts", i), "is %s: with resolution DNS and no endpoints the host is looked up, so write its full name", quote(h))
			}
		}
	}
	ports := map[string]bool{}
	for _, p := range se.GetPorts() {
		ports[p.GetName()] = true
	}
	for i, e := range endpoints {
		path := index("spec.endpoints", i)
		c.workload(e, path)
		if static && !isIP(e.GetAddress()) && hostFault(e.GetAddress(), false) == "" {
			c.errorf(path+".address", "is %s: resolution STATIC takes only IP addresses; write one, or write resolution: DNS", quote(e.GetAddress()))
		}
		for name := range sorted(e.GetPorts()) {
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
	case a == "":
		c.errorf(path+".address", "is missing: write the IP address of the workload")
	case strings.HasPrefix(a, "unix://"):
		c.errorf(path+".address", "is %s: Unix sockets are not supported by this version; write an IP address", quote(a))
	default:
		c.fault(path+".address", hostFault(a, false))
	}
	for name, n := range sorted(w.GetPorts()) {
		c.fault(path+".ports["+name+"]", portNameFault(name))
		c.port(n, path+".ports["+name+"]")
	}
	c.labels(w.GetLabels(), path+".labels")
	if l := w.GetLocality(); l != "" {
		parts := strings.Split(l, "/")
		if len(parts) > 3 || parts[0] == "" {
			c.errorf(path+".locality", "is %s: write region, region/zone or region/zone/subzone", quote(l))
		}
	}
	if sa := w.GetServiceAccount(); sa != "" {
		c.fault(path+".serviceAccount", subdomainFault(sa))
	}
}
