// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package debug

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/generate/decision"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/report"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// forwards is the reason of a destination whose endpoint the application chooses.
const forwards = "the proxy forwards the connection to its original destination"

// maxEndpoints is how many addresses of a cluster an answer contains.
const maxEndpoints = 5

// hop computes where the proxy of a client sends a request to a port of a service, and the request as it is
// sent. It returns nil if the connection bypasses the proxy.
func (d debugger) hop(st *Stream, svc *model.Service, port uint32, r decision.Request) (*report.Hop, decision.Request, error) {
	host := r.Host
	r.Server, r.Port = netip.Addr{}, port
	for _, text := range svc.AddressesFor(st.Proxy) {
		if a, err := netip.ParseAddr(text); err == nil {
			r.Server = a
			break
		}
	}
	if !r.Server.IsValid() { // an application finds the addresses of the endpoints
		r.Server = netip.IPv4Unspecified()
	}
	if st.Proxy.Interception == model.InterceptionNone && slices.ContainsFunc(svc.Ports, func(p model.Port) bool { return p.Number == port && !p.Protocol.IsHTTP() }) {
		r.Server = netip.Addr{} // the application connects to the address of the listener
	}
	proxyPort := uint32(0)
	if i := slices.IndexFunc(svc.Ports, func(p model.Port) bool { return p.Number == port }); i >= 0 {
		switch protocol := svc.Ports[i].Protocol; {
		case protocol.IsTLS():
			r.TLS = true
			r.SNI = cmp.Or(r.SNI, host)
		case protocol.IsHTTP():
			proxyPort = cmp.Or(st.Proxy.HTTPProxyPort, uint32(max(d.mesh.Config.GetProxyHttpPort(), 0)))
		}
	}
	if !strings.Contains(r.Host, ":") && port != 80 {
		r.Host = net.JoinHostPort(r.Host, strconv.FormatUint(uint64(port), 10))
	}
	written := r.Host
	out, r, err := d.sentBy(st, r, proxyPort)
	if r.Host == written {
		r.Host = host
	}
	return out, r, err
}

// sentBy computes where a proxy sends a request that it receives, and the request as it is sent. It returns
// nil if none of its listeners accepts it.
func (d debugger) sentBy(st *Stream, r decision.Request, proxyPort uint32) (*report.Hop, decision.Request, error) {
	sets := d.givenTo(st)
	set := func(typeURL string) *xds.Set {
		if given := sets[slices.Index(xds.Types, typeURL)]; given != nil && len(given.Resources) > 0 {
			return given
		}
		return d.source.Generate(d.mesh, st.Proxy, typeURL)
	}
	envoy, err := decision.Load(set(xds.TypeListener), d.source.Generate(d.mesh, st.Proxy, xds.TypeExtension), st.Proxy)
	if err != nil {
		return nil, r, err
	}
	routed, err := envoy.Route(r, proxyPort, func(name string) *routev3.RouteConfiguration { return routesOf(set, name) })
	if err != nil {
		return nil, r, fmt.Errorf("route as the proxy %s: %w", st.Proxy.ID, err)
	}
	if routed.Listener == "" {
		return nil, r, nil
	}
	routed.VirtualHost = strings.TrimPrefix(routed.VirtualHost, routed.Routes+"/") // of VHDS
	out := &report.Hop{
		Proxy: st.Proxy.ID, Listener: routed.Listener, Routes: routed.Routes, VirtualHost: routed.VirtualHost, Route: routed.Route,
		Status: routed.Status, Location: routed.Location, Reason: routed.Reason, Faults: routed.Faults,
	}
	out.Timeout, out.TimeoutBy, out.PerTry, out.Idle = text(routed.Limits.Whole), routed.Limits.By, text(routed.Limits.PerTry), text(routed.Limits.Idle)
	out.Wait = waitOf(routed.Wait)
	if r.Version == decision.HTTP10 && r.Method != "" && routed.Routes == "" && len(routed.Clusters) > 0 {
		out.Note = "the listener does not take HTTP/1.0 for HTTP, so that no route is for it: set HTTP10=1 in the metadata of the proxy, or PILOT_HTTP10"
	}
	if r.Method == "" && routed.Routes != "" {
		out.Status, out.Reason = notHTTP(r)
	}
	if retries := routed.Action.GetRetryPolicy(); retries != nil {
		out.Retries = max(retries.GetNumRetries().GetValue(), 1)
	}
	for _, t := range routed.Tried {
		out.Tried = append(out.Tried, report.Unmatched(t))
	}
	if routed.VirtualHost != "" {
		if routes := set(xds.TypeRoute).Get(routed.Routes); routes != nil {
			out.Objects = d.virtualServicesOf(set, routes, routed)
		}
	}
	lost := 0.0
	for _, share := range routed.Clusters {
		to, err := d.destination(set, share)
		if err != nil {
			return nil, r, err
		}
		if to.Lost {
			lost += to.Percent
		}
		if up := r.Upgrade(); up != "" && to.HTTP == decision.HTTP2 && to.Reason == "" {
			to.Reason = "the upgrade to " + up + " is sent as CONNECT of HTTP/2 (RFC 8441), which few servers accept: name the port http"
		}
		out.Destinations = append(out.Destinations, to)
	}
	out.Failing = routed.Aborts + (1-routed.Aborts/100)*lost
	r.Path, r.Host, r.TLS = cmp.Or(routed.Path, r.Path), cmp.Or(routed.Host, r.Host), routed.TLS
	return out, r, nil
}

// routesOf returns a route configuration with all its virtual hosts; nil if there is none.
func routesOf(set func(string) *xds.Set, name string) *routev3.RouteConfiguration {
	config := &routev3.RouteConfiguration{}
	if r := set(xds.TypeRoute).Get(name); r == nil || r.UnmarshalTo(config) != nil {
		return nil
	}
	if config.GetVhds() == nil {
		return config
	}
	for _, r := range set(xds.TypeVirtualHost).Resources {
		host := &routev3.VirtualHost{}
		if strings.HasPrefix(r.Name, name+"/") && r.UnmarshalTo(host) == nil {
			config.VirtualHosts = append(config.VirtualHosts, host)
		}
	}
	return config
}

// virtualServicesOf returns the VirtualServices for the host of a virtual host.
func (d debugger) virtualServicesOf(set func(string) *xds.Set, routes *xds.Resource, routed decision.Routed) (out []report.Origin) {
	keys := routes.Sources.Keys()
	for _, r := range set(xds.TypeVirtualHost).Resources {
		if strings.HasPrefix(r.Name, routed.Routes+"/") {
			keys = append(keys, r.Sources.Keys()...)
		}
	}
	slices.SortFunc(keys, model.Key.Compare)
	host, _, err := net.SplitHostPort(routed.VirtualHost)
	if err != nil {
		host = routed.VirtualHost
	}
	best := ""
	for _, key := range slices.Compact(keys) {
		c := d.cfg.object(key)
		if c == nil {
			continue
		}
		spec, ok := c.Spec.(*networkingv1alpha3.VirtualService)
		if !ok {
			continue
		}
		for _, h := range spec.GetHosts() {
			if !strings.ContainsAny(h, ".*") && strings.HasPrefix(host, h+"."+c.Namespace+".") {
				h = host
			}
			switch {
			case !snapshot.HostMatches(h, host) || len(h) < len(best):
				continue
			case len(h) > len(best):
				best, out = h, nil
			}
			out = append(out, origins(c)...)
			break
		}
	}
	return out
}

// destination describes a cluster and its endpoints.
func (d debugger) destination(set func(string) *xds.Set, share decision.Share) (report.Destination, error) {
	out := report.Destination{Cluster: share.Cluster, Percent: share.Percent}
	r, c := set(xds.TypeCluster).Get(share.Cluster), &clusterv3.Cluster{}
	if r == nil {
		out.Lost, out.Reason = true, "the proxy has no such cluster: the host, port or subset is unknown"
		return out, nil
	}
	if err := r.UnmarshalTo(c); err != nil {
		return out, err
	}
	for _, key := range r.Sources.Keys() {
		if obj := d.cfg.object(key); obj != nil && key.Kind == model.DestinationRule {
			out.Objects = append(out.Objects, report.Origin{Ref: refOf(key), Source: obj.Source})
		}
	}
	out.HTTP = versionOf(c)
	tls := &tlsv3.UpstreamTlsContext{}
	if out.TLS = c.GetTransportSocket() != nil; out.TLS && c.GetTransportSocket().GetTypedConfig().UnmarshalTo(tls) == nil {
		common := tls.GetCommonTlsContext()
		out.Anonymous = len(common.GetTlsCertificateSdsSecretConfigs())+len(common.GetTlsCertificates()) == 0
	}
	assignment := c.GetLoadAssignment()
	switch c.GetType() {
	case clusterv3.Cluster_EDS:
		name := c.GetEdsClusterConfig().GetServiceName()
		if name == "" {
			name = c.GetName()
		}
		assignment = &endpointv3.ClusterLoadAssignment{}
		if e := set(xds.TypeEndpoint).Get(name); e != nil {
			if err := e.UnmarshalTo(assignment); err != nil {
				return out, err
			}
		}
	case clusterv3.Cluster_ORIGINAL_DST:
		out.Reason = forwards
		return out, nil
	case clusterv3.Cluster_STATIC, clusterv3.Cluster_STRICT_DNS, clusterv3.Cluster_LOGICAL_DNS:
	}
	if assignment == nil {
		return out, nil // the cluster resolves the host of the request
	}
	for _, locality := range assignment.GetEndpoints() {
		for _, e := range locality.GetLbEndpoints() {
			out.All++
			if e.GetHealthStatus() != corev3.HealthStatus_UNKNOWN && e.GetHealthStatus() != corev3.HealthStatus_HEALTHY {
				continue
			}
			out.Healthy++
			if len(c.GetTransportSocketMatches()) > 0 && e.GetMetadata().GetFilterMetadata()["envoy.transport_socket_match"].GetFields()["tlsMode"].GetStringValue() == "istio" {
				out.MutualTLS++
			}
			if at := e.GetEndpoint().GetAddress().GetSocketAddress(); at != nil && len(out.Endpoints) < maxEndpoints {
				out.Endpoints = append(out.Endpoints, net.JoinHostPort(at.GetAddress(), strconv.FormatUint(uint64(at.GetPortValue()), 10)))
			}
		}
	}
	switch {
	case out.All == 0:
		out.Lost, out.Reason = true, "no workload belongs to it"
	case out.Healthy == 0:
		out.Lost, out.Reason = true, "none of its endpoints is healthy"
	}
	return out, nil
}

// arrives returns the workload with a proxy that receives the request of a hop, and false if there is
// none.
func (d debugger) arrives(hop *report.Hop) (target, bool) {
	proxies := d.followers()
	var out target
	for _, to := range hop.Destinations {
		for _, text := range to.Endpoints {
			at, err := netip.ParseAddrPort(text)
			if err != nil {
				continue
			}
			i := slices.IndexFunc(proxies, func(st *Stream) bool { return slices.Contains(st.Proxy.IPs, at.Addr().String()) })
			switch {
			case i < 0:
			case out.stream == nil:
				out.plaintext, out.sent = to.MutualTLS == 0 && !to.TLS || to.Anonymous, to
				out.stream, out.address, out.port = proxies[i], at.Addr(), uint32(at.Port())
			default:
				out.others++
			}
		}
	}
	return out, out.stream != nil
}
