// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package decision

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/types/known/anypb"
)

// Config is the configuration of an Envoy.
type Config struct {
	Listeners []*listenerv3.Listener
	// Extension returns the configuration of a filter that a listener refers to by name, or nil if
	// there is none. A nil function has none.
	Extension func(name string) *anypb.Any
	// Gateway is true if the Envoy is a gateway, whose listeners all accept connections.
	Gateway bool
	// Minor is the version 1.x of the Envoy.
	Minor int
}

// Envoy decides about requests as the Envoy with a configuration. It is not safe for concurrent use.
type Envoy struct {
	listeners []*listenerv3.Listener
	extension func(name string) *anypb.Any
	gateway   bool
	minor     int
	compiler  *compiler
	chains    map[*listenerv3.FilterChain]*chain
}

// New returns an Envoy.
func New(cfg Config) *Envoy {
	e := &Envoy{
		listeners: cfg.Listeners, extension: cfg.Extension, gateway: cfg.Gateway, minor: cfg.Minor,
		compiler: &compiler{patterns: map[string]*pattern{}, claims: map[string]bool{}}, chains: map[*listenerv3.FilterChain]*chain{},
	}
	if e.extension == nil {
		e.extension = func(string) *anypb.Any { return nil }
	}
	return e
}

// individuallySince is the first Envoy 1.x that compares the values of a repeated header one by one.
const individuallySince = 38

// Decide returns the decision about a request. It returns an error if the configuration has filters
// or matchers that are not supported.
func (e *Envoy) Decide(r Request) (Verdict, error) {
	l := e.listener(r.Server, r.Port)
	if l == nil {
		return Verdict{By: ByConnection, Reason: fmt.Sprintf("nothing listens on port %d", r.Port)}, nil
	}
	picked, tls := pick(l, r)
	if !tls {
		r.SNI = "" // which only a TLS handshake has
	}
	if picked == nil {
		return Verdict{By: ByConnection, Reason: r.unaccepted(l)}, nil
	}
	c, err := e.chain(picked)
	if err != nil {
		return Verdict{}, fmt.Errorf("read the filters of the listener %s: %w", l.GetName(), err)
	}
	if no := c.tls.refuses(r.Identity); no != "" {
		return Verdict{By: ByConnection, Reason: no}, nil
	}
	f := &facts{request: r, client: r.Peer, metadata: map[string]map[string]any{}, individually: e.minor >= individuallySince}
	if c.tls != nil && c.tls.asked {
		f.identity = r.Identity
	}
	out := Verdict{HTTP: c.hcm != nil, Allowed: true, By: ByNothing, Skipped: c.skipped, Plaintext: c.tls == nil}
	if r.Silent && !tls {
		out.Wait = waits(l, r.Port)
	}
	if c.hcm == nil {
		out.run(c.stream, f)
		return out, nil
	}
	if out.run(c.stream, f); !out.Allowed || r.Method == "" {
		return out, nil
	}
	if status, no := r.refuses(c.hcm, nil); status > 0 {
		return Verdict{HTTP: true, By: ByProtocol, Status: status, Reason: no}, nil
	}
	if f.path, err = normalized(c.hcm, r.Path, e.minor); err != nil {
		return Verdict{HTTP: true, By: ByPath, Status: 400, Reason: err.Error()}, nil
	}
	out.Path = withoutQuery(f.path)
	f.header = clone(r.Header)
	f.header[":method"], f.header[":authority"], f.header[":path"] = []string{r.Method}, []string{r.Host}, []string{f.path}
	f.client = clientOf(c.hcm, r)
	out.run(c.http, f)
	out.metadata = f.metadata
	if out.Allowed && r.Header["grpc-timeout"] != nil && c.hcm.GetRouteConfig() != nil {
		r.Brief = true
		var routed Routed
		err = e.route(&routed, c.hcm, r, nil)
		out.Limits = routed.Limits
	}
	return out, err
}

// ReadsClaims reports whether rules of the ports of requests that were decided compare claims of
// tokens.
func (e *Envoy) ReadsClaims() bool { return len(e.compiler.claims) > 0 }

// ReadsClaim reports whether they compare the claim with a name.
func (e *Envoy) ReadsClaim(name string) bool { return e.compiler.claims[name] }

// pick returns the chain of a listener for a request, and whether the client speaks TLS.
func pick(l *listenerv3.Listener, r Request) (picked *listenerv3.FilterChain, tls bool) {
	tls = r.Identity != "" || r.TLS || r.Method == "" && r.SNI != ""
	picked = choose(l, r.connection(tls))
	if !tls && (picked == nil || picked.GetTransportSocket() != nil) { // the client speaks TLS where the port requires it
		return choose(l, r.connection(true)), true
	}
	return picked, tls
}

// unaccepted says that no filter chain of a listener is for the connection of a request.
func (r Request) unaccepted(l *listenerv3.Listener) string {
	byName := slices.ContainsFunc(l.GetFilterChains(), func(c *listenerv3.FilterChain) bool { return len(c.GetFilterChainMatch().GetServerNames()) > 0 })
	out := fmt.Sprintf("no filter chain of the listener %s accepts the connection", l.GetName())
	switch {
	case byName && r.SNI == "":
		out += ": the client sends no server name"
	case byName:
		out += ": none is for the server name " + r.SNI
	}
	return out
}

// connection returns the attributes of the request's connection, with or without TLS.
func (r Request) connection(tls bool) connection {
	c := connection{server: r.Server, port: r.Port, tls: tls, sni: r.SNI, alpn: r.ALPN}
	switch {
	case tls:
	case r.Method == "":
		c.sni, c.alpn = "", nil
	default:
		c.sni, c.alpn = "", r.plainALPN()
	}
	return c
}

// refuses returns why a handshake fails, or "".
func (h *handshake) refuses(identity string) string {
	switch {
	case h == nil:
		return ""
	case identity == "" && h.required:
		return "the port requires mutual TLS, and the client has no certificate"
	case identity != "" && h.asked && len(h.names) > 0 && !slices.ContainsFunc(h.names, func(is func(string) bool) bool { return is(identity) }):
		return "the port does not accept the trust domain of " + identity
	}
	return ""
}

// clientOf returns the address of the client, which proxies write into x-forwarded-for.
func clientOf(hcm *hcmv3.HttpConnectionManager, r Request) netip.Addr {
	skipped := int(hcm.GetXffNumTrustedHops())
	if hcm.GetUseRemoteAddress().GetValue() {
		skipped--
	}
	list := strings.Split(joined(r.Header["x-forwarded-for"]), ",")
	if skipped < 0 || skipped >= len(list) {
		return r.Peer
	}
	if a, err := netip.ParseAddr(strings.TrimSpace(list[len(list)-1-skipped])); err == nil {
		return a
	}
	return r.Peer
}
