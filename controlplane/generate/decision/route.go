// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package decision

import (
	"cmp"
	"fmt"
	"net/netip"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	faultv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/fault/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	redisv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/redis_proxy/v3"
	tcpproxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"

	"github.com/outrigger-mesh/outrigger/controlplane/generate/envoyconf"
)

// Routed is where the Envoy of a client sends a request.
type Routed struct {
	Listener string
	// Routes is the name of the route configuration; empty for a connection whose requests are not
	// read. VirtualHost and Route are its parts that match the request.
	Routes, VirtualHost, Route string
	// Clusters receive the request, or shares of such requests. There are none if Envoy responds
	// itself.
	Clusters []Share
	// Status is that of Envoy's own response, and Location the target of a redirect.
	Status   uint32
	Location string
	// Action is the action of the route; nil if the route has none.
	Action *routev3.RouteAction
	// Faults are those that the route injects. Aborts is the share of requests that it aborts, in percent.
	Faults []string
	Aborts float64
	// Reason says why nothing receives the request.
	Reason string
	// Tried are the first routes of the virtual host that do not match, in their order.
	Tried []Tried
	// Path and Host are those of the request that is sent on. TLS is true if TLS is sent on, which the
	// Envoy does not end.
	Path, Host string
	TLS        bool
	// Limits are the timeouts of a request that is sent on, and Wait is how long the listener waits for
	// bytes of a client that sends none; nil if it does not.
	Limits Limits
	Wait   *Wait
}

// Share is a share of the requests that match a route.
type Share struct {
	Cluster string
	Percent float64
}

// Route returns where the Envoy of a client sends a request of its application, which connects to
// r.Server and r.Port, or where a gateway sends a request that arrives there. A connection without requests
// speaks TLS if it has an SNI; if Envoy would read requests on it, only the name of their routes is returned.
// Route returns the zero value if no listener accepts the connection, which then bypasses Envoy. If no listener is for them, and proxyPort is not 0, the
// application uses Envoy as an HTTP proxy there. routes returns a route configuration with all its
// virtual hosts; nil if there is none.
func (e *Envoy) Route(r Request, proxyPort uint32, routes func(name string) *routev3.RouteConfiguration) (Routed, error) {
	find := e.outbound
	if e.gateway {
		find = e.listener
	}
	l := find(r.Server, r.Port)
	if l == nil && proxyPort != 0 {
		l = e.outbound(netip.Addr{}, proxyPort)
	}
	if l == nil {
		return Routed{}, nil
	}
	out := Routed{Listener: l.GetName()}
	chain, tls := choose(l, r.application()), r.TLS
	if e.gateway && r.Method != "" {
		chain, tls = pick(l, r)
	}
	if chain == nil {
		out.Reason = "no filter chain of the listener accepts the connection"
		return out, nil
	}
	if r.Silent && !tls {
		out.Wait = waits(l, r.Port)
	}
	out.Path, out.Host, out.TLS = r.Path, r.Host, tls && chain.GetTransportSocket() == nil
	for _, f := range chain.GetFilters() {
		hcm, tcp, redis := &hcmv3.HttpConnectionManager{}, &tcpproxyv3.TcpProxy{}, &redisv3.RedisProxy{}
		switch packed := f.GetTypedConfig(); {
		case packed.MessageIs(hcm) && packed.UnmarshalTo(hcm) == nil && r.Method == "":
			out.Routes = cmp.Or(hcm.GetRds().GetRouteConfigName(), hcm.GetRouteConfig().GetName())
			return out, nil
		case packed.MessageIs(hcm) && packed.UnmarshalTo(hcm) == nil:
			if tls && chain.GetTransportSocket() == nil {
				out.Status, out.Reason = 400, "the proxy reads HTTP at this port, and the client sends TLS"
				return out, nil
			}
			r.TLS = tls
			return out, e.route(&out, hcm, r, routes)
		case packed.MessageIs(tcp) && packed.UnmarshalTo(tcp) == nil:
			out.Clusters, out.Limits.Idle = sharesOf(tcp), tcp.GetIdleTimeout().AsDuration()
			return out, nil
		case packed.MessageIs(redis) && packed.UnmarshalTo(redis) == nil:
			out.Clusters = []Share{{redis.GetPrefixRoutes().GetCatchAllRoute().GetCluster(), 100}}
			return out, nil
		}
	}
	return out, fmt.Errorf("the listener %s has neither an HTTP connection manager nor a TCP proxy", l.GetName())
}

// RouteBy returns where an Envoy with a route configuration sends a request. Its path is not normalized.
func (e *Envoy) RouteBy(config *routev3.RouteConfiguration, r Request) (out Routed, err error) {
	r.Brief = true
	err = e.route(&out, &hcmv3.HttpConnectionManager{RouteSpecifier: &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: config}}, r, nil)
	return out, err
}

// outbound returns the listener for connections of the application: the one with the address, or else
// the one for all addresses of the port, or else the one that accepts redirected connections.
func (e *Envoy) outbound(server netip.Addr, port uint32) *listenerv3.Listener {
	var found, redirected *listenerv3.Listener
	for _, l := range e.listeners {
		if l.GetTrafficDirection() == corev3.TrafficDirection_INBOUND {
			continue
		}
		if isRedirected(l) {
			redirected = l
			continue
		}
		addresses := []*corev3.Address{l.GetAddress()}
		for _, more := range l.GetAdditionalAddresses() {
			addresses = append(addresses, more.GetAddress())
		}
		for _, a := range addresses {
			at, err := netip.ParseAddr(a.GetSocketAddress().GetAddress())
			switch {
			case err != nil || a.GetSocketAddress().GetPortValue() != port:
			case at == server || !server.IsValid():
				return l
			case at.IsUnspecified():
				found = l
			}
		}
	}
	return cmp.Or(found, redirected)
}

func sharesOf(tcp *tcpproxyv3.TcpProxy) (out []Share) {
	if name := tcp.GetCluster(); name != "" {
		return []Share{{name, 100}}
	}
	total := uint32(0)
	for _, c := range tcp.GetWeightedClusters().GetClusters() {
		total += c.GetWeight()
	}
	for _, c := range tcp.GetWeightedClusters().GetClusters() {
		out = append(out, Share{c.GetName(), 100 * float64(c.GetWeight()) / float64(max(total, 1))})
	}
	return out
}

// route finds the route of a request.
func (e *Envoy) route(out *Routed, hcm *hcmv3.HttpConnectionManager, r Request, routes func(name string) *routev3.RouteConfiguration) error {
	config := hcm.GetRouteConfig()
	if config == nil {
		config = routes(hcm.GetRds().GetRouteConfigName())
	}
	if config == nil {
		out.Routes, out.Status, out.Reason = hcm.GetRds().GetRouteConfigName(), 404, "the client does not have the routes of the listener"
		return nil
	}
	early := r
	early.Header = nil // upgrades depend on the route
	if status, no := early.refuses(hcm, nil); status > 0 {
		out.Status, out.Reason = uint32(status), no
		return nil
	}
	path, err := normalized(hcm, r.Path, e.minor)
	if err != nil {
		out.Status, out.Reason = 400, err.Error()
		return nil
	}
	out.Routes = config.GetName()
	f := &facts{request: r, path: path, header: clone(r.Header), metadata: r.metadata, individually: e.minor >= individuallySince}
	if f.metadata == nil && r.Claims != nil {
		f.metadata = map[string]map[string]any{envoyconf.TokenFilter: {envoyconf.TokenPayload: r.Claims}}
	}
	f.header[":method"], f.header[":authority"], f.header[":path"], f.header[":scheme"] = []string{r.Method}, []string{r.Host}, []string{path}, []string{map[bool]string{false: "http", true: "https"}[r.TLS]}
	host := VirtualHost(config, r.Host)
	if host == nil {
		out.Status, out.Reason = 404, "no virtual host is for the host "+r.Host
		return nil
	}
	out.VirtualHost = host.GetName()
	if host.GetRequireTls() == routev3.VirtualHost_ALL && !r.TLS && routes != nil { // RouteBy compares routes
		out.Status, out.Location, out.Reason = 301, "https://"+r.Host+path, "the virtual host is for TLS only"
		return nil
	}
	for _, one := range host.GetRoutes() {
		differs, err := e.compiler.route(one.GetMatch(), f)
		if err != nil {
			return fmt.Errorf("route %s of the virtual host %s: %w", one.GetName(), host.GetName(), err)
		}
		if differs == nil {
			out.Route = one.GetName()
			if status, no := r.refuses(hcm, one.GetRoute()); status > 0 {
				out.Status, out.Reason = uint32(status), no
				return nil
			}
			out.take(one, f)
			if out.Action != nil {
				out.Limits = limits(hcm, out.Action, r.Header)
			}
			out.rewrite(one)
			return nil
		}
		if len(out.Tried) < maxTried && !r.Brief {
			out.Tried = append(out.Tried, Tried{one.GetName(), f.differs(differs)})
		}
	}
	out.Status, out.Reason = 404, "no route of the virtual host matches the request"
	if len(host.GetRoutes()) == 0 {
		out.Reason = "no route is for the host " + r.Host
	}
	return nil
}

// take reads the faults and the action of the route that matches.
func (out *Routed) take(r *routev3.Route, f *facts) {
	if out.inject(r); out.Aborts >= 100 {
		return
	}
	switch action := r.GetAction().(type) {
	case *routev3.Route_DirectResponse:
		out.Status, out.Reason = action.DirectResponse.GetStatus(), "the route responds itself"
	case *routev3.Route_Redirect:
		out.Status = map[routev3.RedirectAction_RedirectResponseCode]uint32{
			routev3.RedirectAction_MOVED_PERMANENTLY: 301, routev3.RedirectAction_FOUND: 302, routev3.RedirectAction_SEE_OTHER: 303,
			routev3.RedirectAction_TEMPORARY_REDIRECT: 307, routev3.RedirectAction_PERMANENT_REDIRECT: 308,
		}[action.Redirect.GetResponseCode()]
		out.Location, out.Reason = action.Redirect.GetHostRedirect()+action.Redirect.GetPathRedirect()+action.Redirect.GetPrefixRewrite(), "the route redirects the client"
	case *routev3.Route_Route:
		out.Action = action.Route
		switch to := action.Route.GetClusterSpecifier().(type) {
		case *routev3.RouteAction_Cluster:
			out.Clusters = []Share{{to.Cluster, 100}}
		case *routev3.RouteAction_ClusterHeader:
			out.Clusters = []Share{{joined(f.header[lower(to.ClusterHeader)]), 100}}
		case *routev3.RouteAction_WeightedClusters:
			total := uint32(0)
			for _, c := range to.WeightedClusters.GetClusters() {
				total += c.GetWeight().GetValue()
			}
			for _, c := range to.WeightedClusters.GetClusters() {
				out.Clusters = append(out.Clusters, Share{c.GetName(), 100 * float64(c.GetWeight().GetValue()) / float64(max(total, 1))})
			}
		}
	}
}

// inject reads the faults of a route.
func (out *Routed) inject(r *routev3.Route) {
	fault := &faultv3.HTTPFault{}
	if packed := r.GetTypedPerFilterConfig()[envoyconf.FaultFilter]; packed == nil || packed.UnmarshalTo(fault) != nil {
		return
	}
	share := func(p *typev3.FractionalPercent) float64 {
		of := map[typev3.FractionalPercent_DenominatorType]float64{
			typev3.FractionalPercent_HUNDRED: 100, typev3.FractionalPercent_TEN_THOUSAND: 10_000, typev3.FractionalPercent_MILLION: 1_000_000,
		}[p.GetDenominator()]
		return 100 * float64(p.GetNumerator()) / max(of, 1)
	}
	if d := fault.GetDelay(); d != nil {
		out.Faults = append(out.Faults, fmt.Sprintf("delay %g %% by %s", share(d.GetPercentage()), d.GetFixedDelay().AsDuration()))
	}
	a := fault.GetAbort()
	if a == nil {
		return
	}
	status, what := a.GetHttpStatus(), fmt.Sprintf("status %d", a.GetHttpStatus())
	if status == 0 {
		status, what = 200, fmt.Sprintf("gRPC status %d", a.GetGrpcStatus())
	}
	out.Aborts = share(a.GetPercentage())
	out.Faults = append(out.Faults, fmt.Sprintf("abort %g %% with %s", out.Aborts, what))
	if out.Aborts >= 100 {
		out.Status, out.Reason = status, "the route aborts every request, with "+what
	}
}

// VirtualHost returns the virtual host for a host: by the whole name, by the longest end, by the
// longest beginning, or the one for all hosts; nil if there is none.
func VirtualHost(config *routev3.RouteConfiguration, host string) *routev3.VirtualHost {
	host = lower(host)
	if config.GetIgnorePortInHostMatching() {
		if i := strings.LastIndexByte(host, ':'); i > strings.LastIndexByte(host, ']') {
			host = host[:i]
		}
	}
	var found *routev3.VirtualHost
	rank := -1 // of the domain that found has
	const exact, end, beginning = 3 << 20, 2 << 20, 1 << 20
	for _, vh := range config.GetVirtualHosts() {
		for _, domain := range vh.GetDomains() {
			domain = lower(domain)
			is := -1
			switch suffix, prefix := strings.TrimPrefix(domain, "*"), strings.TrimSuffix(domain, "*"); {
			case domain == "*":
				is = 0
			case domain == host:
				is = exact
			case suffix != domain && strings.HasSuffix(host, suffix) && len(host) > len(suffix):
				is = end + len(suffix)
			case prefix != domain && strings.HasPrefix(host, prefix) && len(host) > len(prefix):
				is = beginning + len(prefix)
			}
			if is > rank {
				found, rank = vh, is
			}
		}
	}
	return found
}
