// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tcpproxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
)

// listenerRows returns a row for each filter chain of a listener.
func listenerRows(r resource, all bool) (rows [][]string) {
	l := r.message.(*listenerv3.Listener)
	var hosts, ports []string
	for _, a := range addressesOf(l) {
		host, port := hostPort(a)
		if l.GetInternalListener() != nil && host == "" {
			host = "internal " + r.name
		}
		hosts = append(hosts, host)
		if text := number(port); text != "" && !slices.Contains(ports, text) {
			ports = append(ports, text)
		}
	}
	row := func(match, to string) {
		rows = append(rows, []string{some(hosts, all), some(ports, all), match, to, r.status})
	}
	for _, c := range l.GetFilterChains() {
		match := matchOf(c.GetFilterChainMatch(), all)
		if l.GetFilterChainMatcher() != nil {
			match = "Matcher: " + c.GetName()
		}
		row(match, destination(c, all))
	}
	if c := l.GetDefaultFilterChain(); c != nil {
		row("ALL", destination(c, all))
	}
	if len(rows) == 0 {
		to := ""
		if list := l.GetListenerFilters(); len(list) > 0 {
			to = "Filter: " + strings.TrimPrefix(list[len(list)-1].GetName(), "envoy.filters.")
		}
		row("ALL", to)
	}
	return rows
}

// blackHole is the cluster of connections that no listener is for.
const blackHole = "BlackHoleCluster"

// listenerType returns which protocols the filter chains of a listener are for. Chains that close
// connections do not count.
func listenerType(l *listenerv3.Listener) string {
	http, tcp := false, false
	for _, c := range append(slices.Clone(l.GetFilterChains()), l.GetDefaultFilterChain()) {
		for _, f := range c.GetFilters() {
			to := &tcpproxyv3.TcpProxy{}
			switch packed := f.GetTypedConfig(); {
			case packed.MessageIs(&hcmv3.HttpConnectionManager{}):
				http = true
			case packed.MessageIs(to) && packed.UnmarshalTo(to) == nil && to.GetCluster() != blackHole:
				tcp = true
			}
		}
	}
	switch {
	case http && tcp:
		return "http+tcp"
	case http:
		return "http"
	case tcp:
		return "tcp"
	}
	return "unknown"
}

// some joins texts; only the first is shown in full unless all are.
func some(list []string, all bool) string {
	if all || len(list) < 2 {
		return strings.Join(list, ", ")
	}
	return fmt.Sprintf("%s +%d", list[0], len(list)-1)
}

// matchOf describes which connections a filter chain is for.
func matchOf(m *listenerv3.FilterChainMatch, all bool) string {
	var words []string
	say := func(name string, list []string) {
		if len(list) > 0 {
			words = append(words, name+": "+some(list, all))
		}
	}
	one := func(text string) []string {
		if text == "" {
			return nil
		}
		return []string{text}
	}
	say("SNI", m.GetServerNames())
	say("Trans", one(m.GetTransportProtocol()))
	say("App", m.GetApplicationProtocols())
	to := ranges(m.GetPrefixRanges())
	if port := number(m.GetDestinationPort().GetValue()); port != "" {
		if len(to) == 0 {
			to = []string{"*"}
		}
		for i := range to {
			to[i] += ":" + port
		}
	}
	say("Addr", to)
	from := slices.Concat(ranges(m.GetDirectSourcePrefixRanges()), ranges(m.GetSourcePrefixRanges()))
	for _, port := range m.GetSourcePorts() {
		from = append(from, "*:"+number(port))
	}
	if kind := m.GetSourceType(); kind != listenerv3.FilterChainMatch_ANY {
		from = append(from, kind.String())
	}
	say("Source", from)
	if len(words) == 0 {
		return "ALL"
	}
	return strings.Join(words, "; ")
}

// ranges formats ranges of addresses.
func ranges(list []*corev3.CidrRange) (out []string) {
	for _, r := range list {
		out = append(out, fmt.Sprintf("%s/%d", r.GetAddressPrefix(), r.GetPrefixLen().GetValue()))
	}
	return out
}

// destination describes where a filter chain sends connections or requests.
func destination(c *listenerv3.FilterChain, all bool) string {
	last := ""
	for _, f := range c.GetFilters() {
		manager, tcp := &hcmv3.HttpConnectionManager{}, &tcpproxyv3.TcpProxy{}
		switch packed := f.GetTypedConfig(); {
		case packed.MessageIs(manager) && packed.UnmarshalTo(manager) == nil:
			return managed(manager, all)
		case packed.MessageIs(tcp) && packed.UnmarshalTo(tcp) == nil:
			list := []string{}
			if tcp.GetCluster() != "" {
				list = append(list, tcp.GetCluster())
			}
			for _, w := range tcp.GetWeightedClusters().GetClusters() {
				list = append(list, w.GetName())
			}
			return "Cluster: " + some(list, all)
		}
		last = "Filter: " + strings.TrimPrefix(f.GetName(), "envoy.filters.network.")
	}
	return last
}

// managed describes where an HTTP connection manager sends requests.
func managed(m *hcmv3.HttpConnectionManager, all bool) string {
	switch {
	case m.GetRds() != nil:
		return "Route: " + m.GetRds().GetRouteConfigName()
	case m.GetScopedRoutes() != nil:
		return "Scoped routes: " + m.GetScopedRoutes().GetName()
	}
	hosts := m.GetRouteConfig().GetVirtualHosts()
	if len(hosts) == 1 && len(hosts[0].GetRoutes()) == 1 {
		r := hosts[0].GetRoutes()[0]
		if to := r.GetRoute().GetCluster(); to != "" && pathOf(r.GetMatch()) == "/*" && len(conditions(r.GetMatch())) == 0 {
			return "Cluster: " + to
		}
	}
	var list []string
	for _, h := range hosts {
		for _, r := range h.GetRoutes() {
			list = append(list, routeMatch(r.GetMatch(), all))
		}
	}
	return "Inline Route: " + some(list, all)
}

// routeRows returns a row for each route of a route configuration. Unless all is true, it shows the
// shortest domain, and leaves out the name of the route in that of a virtual host.
func routeRows(r resource, all bool) (rows [][]string) {
	for _, h := range r.message.(*routev3.RouteConfiguration).GetVirtualHosts() {
		list, name := h.GetDomains(), h.GetName()
		if !all {
			list = slices.SortedStableFunc(slices.Values(list), func(a, b string) int { return cmp.Compare(len(a), len(b)) })
			if rest, ok := strings.CutPrefix(name, r.name+"/"); ok {
				name = "…/" + rest
			}
		}
		domains := some(list, all)
		for _, route := range h.GetRoutes() {
			from := fromPath(route.GetMetadata(), "virtual-service")
			rows = append(rows, []string{r.name, name, domains, routeMatch(route.GetMatch(), all), from})
		}
		if len(h.GetRoutes()) == 0 {
			rows = append(rows, []string{r.name, name, domains, "", ""})
		}
	}
	return rows
}

// routeMatch describes which requests a route is for.
func routeMatch(m *routev3.RouteMatch, all bool) string {
	return some(append([]string{pathOf(m)}, conditions(m)...), all)
}

// pathOf describes the paths of a route.
func pathOf(m *routev3.RouteMatch) string {
	switch p := m.GetPathSpecifier().(type) {
	case *routev3.RouteMatch_Prefix:
		return p.Prefix + "*"
	case *routev3.RouteMatch_Path:
		return p.Path
	case *routev3.RouteMatch_SafeRegex:
		return "regex " + p.SafeRegex.GetRegex()
	case *routev3.RouteMatch_PathSeparatedPrefix:
		return p.PathSeparatedPrefix + "[/*]"
	case *routev3.RouteMatch_ConnectMatcher_:
		return "CONNECT"
	case *routev3.RouteMatch_PathMatchPolicy:
		return "policy " + p.PathMatchPolicy.GetName()
	}
	return "*"
}

// conditions describes what a route compares in addition to the path.
func conditions(m *routev3.RouteMatch) (out []string) {
	for _, h := range m.GetHeaders() {
		out = append(out, "header "+h.GetName())
	}
	for _, q := range m.GetQueryParameters() {
		out = append(out, "query "+q.GetName())
	}
	for _, c := range m.GetCookies() {
		out = append(out, "cookie "+c.GetName())
	}
	if m.GetRuntimeFraction() != nil {
		out = append(out, "a fraction of the requests")
	}
	return out
}
