// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package envoyconf

import (
	"slices"
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	setstatev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/common/set_filter_state/v3"
	httprbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	networkrbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/rbac/v3"
	statev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/set_filter_state/v3"
	tcpproxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/outrigger-mesh/outrigger/bootstrap/node"
	"github.com/outrigger-mesh/outrigger/certs"
	"github.com/outrigger-mesh/outrigger/controlplane/denylist"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// Prefixed returns a matcher of values with a prefix.
func Prefixed(text string) *matcherv3.StringMatcher {
	return &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Prefix{Prefix: text}}
}

// Peer returns the principal of connections whose certificate contains a matching URI.
func Peer(uri *matcherv3.StringMatcher) *rbacv3.Principal {
	return &rbacv3.Principal{Identifier: &rbacv3.Principal_Authenticated_{Authenticated: &rbacv3.Principal_Authenticated{PrincipalName: uri}}}
}

// anyRequest returns the policy that applies to all requests of the principals.
func anyRequest(principals []*rbacv3.Principal) *rbacv3.Policy {
	return &rbacv3.Policy{Permissions: []*rbacv3.Permission{{Rule: &rbacv3.Permission_Any{Any: true}}}, Principals: principals}
}

// networkRBAC returns the network filter that applies rules to connections. The names of its
// counters start with the prefix.
func networkRBAC(prefix string, rules *rbacv3.RBAC) *listenerv3.Filter {
	return &listenerv3.Filter{Name: "envoy.filters.network.rbac", ConfigType: &listenerv3.Filter_TypedConfig{
		TypedConfig: Pack(&networkrbacv3.RBAC{StatPrefix: prefix, Rules: rules}),
	}}
}

// Filter state that ORIGINAL_DST clusters connect to instead of the original destination, and an
// address to which the kernel makes no TCP connection, from any source: that of broadcasts.
const (
	originalAddress = "envoy.network.transport_socket.original_dst_address"
	noAddress       = "255.255.255.255:0"
)

// rememberSerial returns the network filter that stores the serial number after the TLS handshake,
// and then sends connections with a denied one nowhere. Envoy 1.36 does not support the filter and
// ignores it.
func rememberSerial(denied []string) *listenerv3.Filter {
	quoted := make([]string, len(denied))
	for i, serial := range denied {
		quoted[i] = "b'" + serial + "'"
	}
	nowhere := "%CEL(filter_state['" + node.PeerSerial + "'] in [" + strings.Join(quoted, ", ") + "] ? '" + noAddress + "' : '')%"
	values := []*setstatev3.FilterStateValue{connectionState(node.PeerSerial, "%DOWNSTREAM_PEER_SERIAL%"), connectionState(originalAddress, nowhere)}
	values[0].FactoryKey, values[1].SkipIfEmpty = "envoy.string", true
	return &listenerv3.Filter{Name: "envoy.filters.network.set_filter_state", ConfigType: &listenerv3.Filter_TypedConfig{
		TypedConfig: Pack(&statev3.Config{OnDownstreamTlsHandshake: values}),
	}}
}

// connectionState returns the value that sets a key of the filter state to a formatted text.
func connectionState(key, format string) *setstatev3.FilterStateValue {
	return &setstatev3.FilterStateValue{
		Key: &setstatev3.FilterStateValue_ObjectKey{ObjectKey: key},
		Value: &setstatev3.FilterStateValue_FormatString{FormatString: &corev3.SubstitutionFormatString{
			Format: &corev3.SubstitutionFormatString_TextFormatSource{TextFormatSource: &corev3.DataSource{
				Specifier: &corev3.DataSource_InlineString{InlineString: format},
			}},
		}},
	}
}

// afterHandshake makes the filter that forwards connections connect after the TLS handshake, when
// the serial number is known. Other filters are returned as they are.
func afterHandshake(f *listenerv3.Filter) *listenerv3.Filter {
	forward := &tcpproxyv3.TcpProxy{}
	if !f.GetTypedConfig().MessageIs(forward) || f.GetTypedConfig().UnmarshalTo(forward) != nil {
		return f
	}
	forward.UpstreamConnectMode, forward.MaxEarlyDataBytes = tcpproxyv3.UpstreamConnectMode_ON_DOWNSTREAM_TLS_HANDSHAKE, wrapperspb.UInt32(0)
	return &listenerv3.Filter{Name: f.GetName(), ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: Pack(forward)}}
}

// Denied refuses the peers of a deny list. A nil Denied refuses none.
type Denied struct {
	names   *deniedNames         // peers whose TLS handshake fails; nil without identities
	filters []*listenerv3.Filter // for connections with a verified certificate
	late    bool                 // connect to the application after the TLS handshake only
	http    *hcmv3.HttpFilter    // for servers without network filters; nil without identities
}

// NewDenied returns a Denied for the entries of a list, or nil if the list is empty.
func NewDenied(list *denylist.List, mesh *meshv1alpha1.MeshConfig) *Denied {
	if list.Len() == 0 {
		return nil
	}
	domains := TrustDomains(mesh)
	d := &Denied{}
	if principals := deniedIdentities(list, domains); len(principals) > 0 {
		exact, prefixes := list.Patterns(domains)
		d.names = &deniedNames{exact: exact, prefixes: prefixes}
		d.http = RequestFilter("envoy.filters.http.rbac", &httprbacv3.RBAC{
			Rules: &rbacv3.RBAC{Action: rbacv3.RBAC_DENY, Policies: map[string]*rbacv3.Policy{"identities": anyRequest(principals)}},
		})
	}
	if len(list.Serials()) > 0 {
		d.filters, d.late = append(d.filters, rememberSerial(list.Serials())), true
	}
	d.filters = append(d.filters, networkRBAC("denied.", deniedRules(list, domains)))
	return d
}

// deniedRules returns the rules that refuse the entries of a list.
func deniedRules(list *denylist.List, trustDomains []string) *rbacv3.RBAC {
	rules := &rbacv3.RBAC{Action: rbacv3.RBAC_DENY, Policies: map[string]*rbacv3.Policy{}}
	if principals := deniedIdentities(list, trustDomains); len(principals) > 0 {
		rules.Policies["identities"] = anyRequest(principals)
	}
	var serials []*rbacv3.Principal
	for _, serial := range list.Serials() {
		serials = append(serials, &rbacv3.Principal{Identifier: &rbacv3.Principal_FilterState{FilterState: &matcherv3.FilterStateMatcher{
			Key: node.PeerSerial, Matcher: &matcherv3.FilterStateMatcher_StringMatch{StringMatch: Exactly(serial)},
		}}})
	}
	if len(serials) > 0 {
		rules.Policies["serials"] = anyRequest(serials)
	}
	return rules
}

func deniedIdentities(list *denylist.List, trustDomains []string) (principals []*rbacv3.Principal) {
	exact, prefixes := list.Patterns(trustDomains)
	for _, uri := range exact {
		principals = append(principals, Peer(Exactly(uri)))
	}
	for _, prefix := range prefixes {
		principals = append(principals, Peer(Prefixed(prefix)))
	}
	return principals
}

// DeniedPeers returns the HTTP filter that refuses the entries of a list, under the name by which
// the listeners of Envoy's bootstrap request it. They store the serial number themselves.
func DeniedPeers(list *denylist.List, mesh *meshv1alpha1.MeshConfig) *corev3.TypedExtensionConfig {
	filter := &httprbacv3.RBAC{} // without rules, all requests pass
	if list.Len() > 0 {
		filter.Rules = deniedRules(list, TrustDomains(mesh))
	}
	return &corev3.TypedExtensionConfig{Name: node.DeniedPeers, TypedConfig: Pack(filter)}
}

// Owns reports whether a network filter is one of the deny list.
func (d *Denied) Owns(f *listenerv3.Filter) bool {
	return slices.ContainsFunc(d.filters, func(own *listenerv3.Filter) bool { return proto.Equal(f, own) })
}

// Guard makes a listener refuse denied peers: each chain that verifies client certificates checks
// the deny list first. A guarded listener stays as it is.
func (d *Denied) Guard(l *listenerv3.Listener) {
	if d == nil {
		return
	}
	chains := l.GetFilterChains()
	if chain := l.GetDefaultFilterChain(); chain != nil {
		chains = append(chains[:len(chains):len(chains)], chain)
	}
	for _, chain := range chains {
		if !verifiesClients(chain) {
			continue
		}
		rest := slices.DeleteFunc(slices.Clone(chain.GetFilters()), d.Owns) // chains may share the slice
		chain.Filters = slices.Concat(d.filters, rest)
		if last := len(chain.Filters) - 1; d.late {
			chain.Filters[last] = afterHandshake(chain.Filters[last])
		}
		socket := &corev3.TransportSocket{Name: chain.GetTransportSocket().GetName(), ConfigType: chain.GetTransportSocket().GetConfigType()}
		if xds.EditTLS(socket, func(context *tlsv3.DownstreamTlsContext) bool { return d.names.guard(context.GetCommonTlsContext()) }) {
			chain.TransportSocket = socket // chains may share the former one
		}
	}
}

// GuardNames makes a cluster refuse denied servers that its TLS settings accept by name.
func (d *Denied) GuardNames(c *clusterv3.Cluster) {
	sockets := []*corev3.TransportSocket{c.GetTransportSocket()}
	for _, m := range c.GetTransportSocketMatches() {
		sockets = append(sockets, m.GetTransportSocket())
	}
	for _, s := range sockets {
		xds.EditTLS(s, func(context *tlsv3.UpstreamTlsContext) bool {
			rules, _ := verification(context.GetCommonTlsContext())
			return len(rules.GetMatchTypedSubjectAltNames()) > 0 && d.names.guard(context.GetCommonTlsContext())
		})
	}
}

// verifiesClients reports whether a chain verifies client certificates.
func verifiesClients(chain *listenerv3.FilterChain) (verifies bool) {
	xds.EditTLS(chain.GetTransportSocket(), func(context *tlsv3.DownstreamTlsContext) bool {
		verifies = verifies || context.GetCommonTlsContext().GetValidationContextType() != nil
		return false
	})
	return verifies
}

// nobody is a name that no certificate of a mesh contains: a trust domain does not end with a
// slash.
const nobody = "spiffe://denied.invalid//"

// Accepted returns the names of a server without the denied ones. If all of them are denied, the
// result matches no server. If there are no names, every server of the mesh is accepted.
func Accepted(names []string, list *denylist.List, mesh *meshv1alpha1.MeshConfig) []string {
	if list.Len() == 0 || len(names) == 0 {
		return names
	}
	domains := TrustDomains(mesh)
	var out []string
	for _, name := range names {
		if id, err := certs.ParseID(name); err != nil || !list.Denies(id, domains) {
			out = append(out, name)
		}
	}
	if len(out) == 0 {
		return []string{nobody}
	}
	return out
}
