// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package debug

import (
	"fmt"
	"net"
	"slices"
	"strings"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
	securityv1beta1 "istio.io/api/security/v1beta1"

	"github.com/outrigger-mesh/outrigger/bootstrap/node"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/report"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
)

// maxUnused is how many objects without effect an answer contains.
const maxUnused = 20

// hostsOf returns the hosts that a request is for, and those of the services that it is sent to, each once.
func (d debugger) hostsOf(out report.Decision) []string {
	hosts := []string{d.query.Get("host"), d.query.Get("sni")}
	if svc := d.asked(); svc != nil {
		hosts = append(hosts, svc.Hostname)
	}
	for one := &out; one != nil; one = one.Gateway {
		hosts = append(hosts, one.Host)
		if one.Client == nil {
			continue
		}
		for _, to := range one.Client.Destinations {
			hosts = append(hosts, to.Cluster[strings.LastIndexByte(to.Cluster, '|')+1:])
		}
	}
	for i, h := range hosts {
		if name, _, err := net.SplitHostPort(h); err == nil {
			hosts[i] = name
		}
	}
	slices.Sort(hosts)
	return slices.DeleteFunc(slices.Compact(hosts), func(h string) bool { return h == "" })
}

// covers reports whether the host of an object in a namespace covers one of some hosts.
func (d debugger) covers(host, namespace string, hosts []string) bool {
	full := d.mesh.ResolveHost(host, namespace)
	return slices.ContainsFunc(hosts, func(h string) bool { return snapshot.HostMatches(full, strings.ToLower(h)) })
}

// unused returns the VirtualServices and DestinationRules for the hosts of a request that have no effect on
// it, and the Gateways, if nothing of a gateway is for it.
func (d debugger) unused(out report.Decision) (list []report.Unused) {
	hosts := d.hostsOf(out)
	add := func(c *model.Config, reason string) {
		if reason != "" && len(list) < maxUnused {
			list = append(list, report.Unused{Origin: origins(c)[0], Reason: reason})
		}
	}
	for one := &out; one != nil; one = one.Gateway {
		if one.Client == nil {
			continue
		}
		st := named(d.followers(), one.Client.Proxy)
		if st == nil {
			continue
		}
		for _, c := range d.cfg.Objects.List(model.VirtualService, "") {
			spec, ok := c.Spec.(*networkingv1alpha3.VirtualService)
			if ok && slices.ContainsFunc(spec.GetHosts(), func(h string) bool { return d.covers(h, c.Namespace, hosts) }) &&
				!slices.Contains(one.Client.Objects, origins(c)[0]) {
				add(c, d.routesNothing(st, one, c, spec))
			}
		}
		for _, c := range d.cfg.Objects.List(model.DestinationRule, "") {
			if spec, ok := c.Spec.(*networkingv1alpha3.DestinationRule); ok {
				add(c, d.changesNothing(st, one.Client, c, spec))
			}
		}
	}
	for _, c := range d.cfg.Objects.List(model.Gateway, "") {
		if spec, ok := c.Spec.(*networkingv1alpha3.Gateway); ok {
			add(c, d.opensNothing(out, c, spec, hosts))
		}
	}
	to := named(d.followers(), out.Proxy)
	for _, c := range d.cfg.Objects.List(model.AuthorizationPolicy, "") {
		spec, ok := c.Spec.(*securityv1beta1.AuthorizationPolicy)
		if ok && spec.GetAction() == securityv1beta1.AuthorizationPolicy_AUDIT && out.Allowed && to != nil &&
			c.Namespace == to.Proxy.Namespace && model.Selects(spec.GetSelector().GetMatchLabels(), to.Proxy.Labels) {
			add(c, "its action is AUDIT, which denies nothing")
		}
	}
	if from, svc := d.sender(out), d.asked(); from != nil && svc != nil {
		if sidecar := sidecarOf(d.mesh, from.Proxy); sidecar != nil && !sidecar.Imports(svc.Namespace, svc.Hostname) && len(out.Objects) == 0 {
			add(sidecar.Config, "it does not import the service "+svc.Hostname+", whose routes and settings the client therefore does not have")
		}
	}
	return list
}

// asked returns the service that the question names; nil if it is a proxy.
func (d debugger) asked() *model.Service {
	svc, err := d.service(d.query.Get("to"))
	if err != nil {
		return nil
	}
	return svc
}

// sender returns the stream of the first proxy that sends a request; nil if it is not known.
func (d debugger) sender(out report.Decision) *Stream {
	for out.Gateway != nil {
		out = *out.Gateway
	}
	if out.Client == nil {
		return nil
	}
	return named(d.followers(), out.Client.Proxy)
}

// routesNothing returns why a VirtualService for the host of a request has no effect on it; "" if that is
// not known.
func (d debugger) routesNothing(st *Stream, one *report.Decision, c *model.Config, spec *networkingv1alpha3.VirtualService) string {
	http, other := len(spec.GetHttp()) > 0, len(spec.GetTls())+len(spec.GetTcp()) > 0
	read := one.Client.Routes != ""
	sidecar := sidecarOf(d.mesh, st.Proxy)
	switch {
	case !d.mesh.Exported(c, st.Proxy.Namespace):
		return "spec.exportTo does not contain the namespace " + st.Proxy.Namespace
	case st.Proxy.Role == node.Router:
		if reason := d.notAtGateway(st, one, c, spec); reason != "" {
			return reason
		}
	case len(spec.GetGateways()) > 0 && !slices.Contains(spec.GetGateways(), "mesh"):
		return "it is for the Gateways " + strings.Join(spec.GetGateways(), ", ") + ", not for mesh, which is the name of all sidecars"
	case sidecar != nil && !slices.ContainsFunc(spec.GetHosts(), func(h string) bool { return sidecar.Imports(c.Namespace, d.mesh.ResolveHost(h, c.Namespace)) }):
		return fmt.Sprintf("the Sidecar %s/%s of the client does not import it", sidecar.Config.Namespace, sidecar.Config.Name)
	}
	switch {
	case read && !http && other:
		return "it has no routes for HTTP, and the proxy reads requests at this port"
	case !read && http && !other && one.Client.Reason == "":
		return "it has routes for HTTP only, and the proxy does not read requests at this port"
	case len(one.Client.Objects) > 0:
		return "another object has the same host, and is older or more specific"
	case read && http && st.Proxy.Role != node.Router && one.Client.Route != "":
		return "none of its routes is for this client: see the labels, the namespace and the port in their matches"
	}
	return ""
}

// notAtGateway returns why a VirtualService is not for the port of a gateway.
func (d debugger) notAtGateway(st *Stream, one *report.Decision, c *model.Config, spec *networkingv1alpha3.VirtualService) (reason string) {
	at := one.Gateway
	if at == nil {
		return ""
	}
	reason = "it is for mesh, which is the name of all sidecars, not for a gateway"
	for _, name := range spec.GetGateways() {
		full := snapshot.GatewayName(name, c.Namespace)
		gw := d.mesh.Gateways.Get(full)
		switch {
		case name == "mesh":
			continue
		case gw == nil:
			reason = "the Gateway " + full + " does not exist"
			continue
		case !slices.Contains(d.mesh.Gateways.For(st.Proxy.Namespace, st.Proxy.Labels, d.cfg.GatewaysOwnNamespace), gw):
			reason = "the Gateway " + full + " does not select " + st.Proxy.ID
			continue
		}
		reason = fmt.Sprintf("the Gateway %s has no server for its hosts at port %d", full, at.Port)
		for _, s := range gw.Spec.GetServers() {
			if s.GetPort().GetNumber() != at.Port || !slices.ContainsFunc(gw.ServerHosts(s, c.Namespace), func(h string) bool {
				return slices.ContainsFunc(spec.GetHosts(), func(own string) bool {
					return snapshot.HostMatches(h, strings.ToLower(own)) || snapshot.HostMatches(strings.ToLower(own), h)
				})
			}) {
				continue
			}
			return ""
		}
	}
	return reason
}

// changesNothing returns why a DestinationRule for a destination of a request has no effect on it.
func (d debugger) changesNothing(st *Stream, hop *report.Hop, c *model.Config, spec *networkingv1alpha3.DestinationRule) string {
	for _, to := range hop.Destinations {
		parts := strings.Split(to.Cluster, "|") // outbound|PORT|SUBSET|HOST
		if len(parts) != 4 || !d.covers(spec.GetHost(), c.Namespace, parts[3:]) {
			continue
		}
		if slices.ContainsFunc(to.Objects, func(o report.Origin) bool { return o.Ref == refOf(c.Key) }) {
			has := func(s *networkingv1alpha3.Subset) bool { return s.GetTrafficPolicy() != nil }
			if i := slices.IndexFunc(spec.GetSubsets(), has); parts[2] == "" && i >= 0 && spec.GetTrafficPolicy() == nil {
				return "the settings of the subset " + spec.GetSubsets()[i].GetName() + " are for routes to that subset, and this route names none"
			}
			continue
		}
		if !d.mesh.Exported(c, st.Proxy.Namespace) {
			return "spec.exportTo does not contain the namespace " + st.Proxy.Namespace
		}
		owners := []string{st.Proxy.Namespace, d.mesh.Config.GetRootNamespace()}
		for _, svc := range d.mesh.Services.Sorted {
			if svc.Hostname == parts[3] {
				owners = append(owners, svc.Namespace)
			}
		}
		if !slices.Contains(owners, c.Namespace) {
			return fmt.Sprintf("it is in the namespace %s: rules are for clients of their own namespace, unless it is that of the service", c.Namespace)
		}
		if !to.Lost {
			return "another object has the same host, and comes first"
		}
	}
	return ""
}

// opensNothing returns why a Gateway has no server for a request that a gateway refuses; "" if it has one.
func (d debugger) opensNothing(out report.Decision, c *model.Config, spec *networkingv1alpha3.Gateway, hosts []string) string {
	at := &out
	if at.By == "route" && at.Gateway != nil && len(at.Client.Objects) == 0 {
		at = at.Gateway // which let it in, and has no route
	}
	gw, st := d.mesh.Gateways.Get(c.Namespace+"/"+c.Name), named(d.followers(), at.Proxy)
	if out.Allowed || gw == nil || st == nil || st.Proxy.Role != node.Router {
		return ""
	}
	var ports []uint32
	var served []string
	covers := false // its servers have the host
	for _, s := range spec.GetServers() {
		ports = append(ports, s.GetPort().GetNumber())
		for _, h := range s.GetHosts() {
			host := h[strings.IndexByte(h, '/')+1:]
			covers = covers || d.covers(host, c.Namespace, hosts)
			if s.GetPort().GetNumber() == at.Port {
				served = append(served, host)
			}
		}
	}
	switch {
	case !slices.Contains(d.mesh.Gateways.For(st.Proxy.Namespace, st.Proxy.Labels, d.cfg.GatewaysOwnNamespace), gw):
		if covers {
			return d.unselected(spec.GetSelector())
		}
	case covers && !slices.Contains(ports, at.Port):
		return "its servers have the ports " + numbers(ports)
	case len(served) > 0 && (!covers || d.query.Get("sni") == "none"):
		return fmt.Sprintf("its servers at port %d are for %s", at.Port, strings.Join(served[:min(len(served), 10)], ", "))
	}
	return ""
}
