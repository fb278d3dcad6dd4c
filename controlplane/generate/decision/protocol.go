// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package decision

import (
	"cmp"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
)

// Versions of HTTP. The zero value is HTTP/1.1.
const (
	HTTP10 = "1.0"
	HTTP2  = "2"
)

// Timeouts of Envoy where the configuration has none.
const (
	defaultDetection = 15 * time.Second
	defaultTimeout   = 15 * time.Second
	defaultIdle      = 5 * time.Minute
)

// plainALPN returns the protocol that a listener detects in the first bytes of a request without TLS.
func (r Request) plainALPN() []string {
	switch r.Version {
	case HTTP10:
		return []string{"http/1.0"}
	case HTTP2:
		return []string{"h2c"}
	}
	return []string{"http/1.1"}
}

// Wait is how long a listener waits for the first bytes of a client.
type Wait struct {
	For    time.Duration // 0 is without end
	Closes bool          // the connection, after that time; else it is not HTTP
}

// waits returns how long a listener waits for the first bytes of a client that sends none; nil if it does
// not read them.
func waits(l *listenerv3.Listener, port uint32) *Wait {
	for _, f := range l.GetListenerFilters() {
		if !strings.HasSuffix(f.GetName(), "_inspector") || disabled(f.GetFilterDisabled(), port) {
			continue
		}
		out := &Wait{For: defaultDetection, Closes: !l.GetContinueOnListenerFiltersTimeout()}
		if d := l.GetListenerFiltersTimeout(); d != nil {
			out.For = d.AsDuration()
		}
		return out
	}
	return nil
}

// disabled reports whether a listener filter is off for connections to a port.
func disabled(p *listenerv3.ListenerFilterChainMatchPredicate, port uint32) bool {
	is := func(p *listenerv3.ListenerFilterChainMatchPredicate) bool { return disabled(p, port) }
	switch rule := p.GetRule().(type) {
	case *listenerv3.ListenerFilterChainMatchPredicate_OrMatch:
		return slices.ContainsFunc(rule.OrMatch.GetRules(), is)
	case *listenerv3.ListenerFilterChainMatchPredicate_AndMatch:
		return !slices.ContainsFunc(rule.AndMatch.GetRules(), func(p *listenerv3.ListenerFilterChainMatchPredicate) bool { return !is(p) })
	case *listenerv3.ListenerFilterChainMatchPredicate_NotMatch:
		return !is(rule.NotMatch)
	case *listenerv3.ListenerFilterChainMatchPredicate_AnyMatch:
		return rule.AnyMatch
	case *listenerv3.ListenerFilterChainMatchPredicate_DestinationPortRange:
		return int32(port) >= rule.DestinationPortRange.GetStart() && int32(port) < rule.DestinationPortRange.GetEnd()
	}
	return false
}

// refuses returns the status with which a connection manager refuses the protocol of a request, 0 for one
// that it accepts, and why. action is that of the route; it may be nil.
func (r Request) refuses(hcm *hcmv3.HttpConnectionManager, action *routev3.RouteAction) (status int, reason string) {
	if r.Version == HTTP10 && !hcm.GetHttpProtocolOptions().GetAcceptHttp_10() {
		return http.StatusUpgradeRequired, "the proxy does not accept HTTP/1.0: set HTTP10=1 in the metadata of the proxy, or PILOT_HTTP10"
	}
	to := r.Upgrade()
	if to == "" || strings.EqualFold(to, "h2c") { // which Envoy ignores
		return 0, ""
	}
	allowed := slices.ContainsFunc(hcm.GetUpgradeConfigs(), func(u *hcmv3.HttpConnectionManager_UpgradeConfig) bool {
		return strings.EqualFold(u.GetUpgradeType(), to) && (u.GetEnabled() == nil || u.GetEnabled().GetValue())
	})
	for _, u := range action.GetUpgradeConfigs() {
		if strings.EqualFold(u.GetUpgradeType(), to) {
			allowed = u.GetEnabled() == nil || u.GetEnabled().GetValue()
		}
	}
	switch {
	case !allowed:
		return http.StatusForbidden, "the proxy does not accept the upgrade to " + to
	case r.Version == HTTP2 && !hcm.GetHttp2ProtocolOptions().GetAllowConnect():
		return http.StatusServiceUnavailable, "the proxy does not accept the upgrade to " + to + " over HTTP/2, with which its port is declared: name the port http"
	}
	return 0, ""
}

// Upgrade returns the protocol that a request asks to change to, such as websocket; "" if it does not.
func (r Request) Upgrade() string { return strings.TrimSpace(joined(r.Header["upgrade"])) }

// Limits are timeouts of a request; 0 is none.
type Limits struct {
	// Whole is for the request, and By is what sets it: "route", "grpc-timeout" or "".
	Whole time.Duration
	By    string
	// PerTry is for each attempt, and Idle for a request without a byte.
	PerTry, Idle time.Duration
}

// What sets a timeout.
const (
	byRoute       = "route"
	byGRPCTimeout = "grpc-timeout"
)

// limits returns the timeouts of a request that follows a route.
func limits(hcm *hcmv3.HttpConnectionManager, action *routev3.RouteAction, header map[string][]string) (out Limits) {
	duration := action.GetMaxStreamDuration()
	wanted, asked := grpcTimeout(joined(header["grpc-timeout"]))
	longest := hcm.GetCommonHttpProtocolOptions().GetMaxStreamDuration().AsDuration()
	switch limit := duration.GetGrpcTimeoutHeaderMax(); {
	case asked && limit != nil:
		if out.Whole, out.By = wanted, byGRPCTimeout; limit.AsDuration() > 0 && wanted > limit.AsDuration() {
			out.Whole, out.By = limit.AsDuration(), byRoute
		}
		out.Whole = max(0, out.Whole-duration.GetGrpcTimeoutHeaderOffset().AsDuration())
	case duration.GetMaxStreamDuration() != nil:
		out.Whole, out.By = duration.GetMaxStreamDuration().AsDuration(), byRoute
	case longest > 0:
		out.Whole, out.By = longest, byRoute
	}
	if duration == nil { // else Envoy ignores it
		timeout := defaultTimeout
		if action.GetTimeout() != nil {
			timeout = action.GetTimeout().AsDuration()
		}
		if timeout > 0 && (out.Whole == 0 || timeout < out.Whole) {
			out.Whole, out.By = timeout, byRoute
		}
	}
	out.PerTry = action.GetRetryPolicy().GetPerTryTimeout().AsDuration()
	if out.Whole > 0 && out.PerTry >= out.Whole && duration == nil {
		out.PerTry = 0
	}
	out.Idle = defaultIdle
	if d := cmp.Or(action.GetIdleTimeout(), hcm.GetStreamIdleTimeout()); d != nil {
		out.Idle = d.AsDuration()
	}
	return out
}

// grpcTimeout parses the value of the header grpc-timeout.
func grpcTimeout(text string) (time.Duration, bool) {
	if len(text) < 2 || len(text) > 9 {
		return 0, false
	}
	unit, ok := map[byte]time.Duration{'H': time.Hour, 'M': time.Minute, 'S': time.Second, 'm': time.Millisecond, 'u': time.Microsecond, 'n': time.Nanosecond}[text[len(text)-1]]
	n, err := strconv.ParseUint(text[:len(text)-1], 10, 32)
	if !ok || err != nil {
		return 0, false
	}
	out := time.Duration(n) * unit
	return (out + time.Millisecond - 1) / time.Millisecond * time.Millisecond, true // Envoy rounds it up
}
