// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package debug

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	securityv1beta1 "istio.io/api/security/v1beta1"

	"github.com/outrigger-mesh/outrigger/controlplane/generate/decision"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/report"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// noIssuer is an issuer and an audience that nobody accepts, and noHost a host that nobody has.
const (
	noIssuer = "https://issuer.invalid"
	noHost   = "host.invalid"
)

// probe is a request to try. The zero value of a field leaves its attribute to the client, or to the
// server: all ports are tried for the port 0.
type probe struct {
	decision.Request
	// as is the identity that sends it; nil for all clients.
	as *string
}

// header adds a header. A pseudo header sets the attribute that it stands for.
func (q *probe) header(name, value string) {
	switch name = strings.ToLower(name); name {
	case ":method":
		q.Method = value
	case ":authority", "host":
		q.Host = value
	case ":path":
		q.Path = value
	case ":scheme":
	default:
		if q.Header == nil {
			q.Header = map[string][]string{}
		}
		q.Header[name] = []string{value}
	}
}

// claim adds a claim to the token.
func (q *probe) claim(value any, path ...string) {
	if q.Claims == nil {
		q.Claims = map[string]any{}
	}
	at := q.Claims
	for _, key := range path[:len(path)-1] {
		of, ok := at[key].(map[string]any)
		if !ok {
			of = map[string]any{}
			at[key] = of
		}
		at = of
	}
	at[path[len(path)-1]] = value
}

// describe writes the attributes of the request that are not the same for all.
func (q *probe) describe(x *report.Flipped) {
	for name, values := range q.Header {
		if x.Headers == nil {
			x.Headers = map[string]string{}
		}
		x.Headers[name] = strings.Join(values, ",")
	}
	x.Claims, x.SNI = q.Claims, q.SNI
	if q.Peer.IsValid() {
		x.Address = q.Peer.String()
	}
}

// extends reports whether the request has all attributes of another one.
func (q *probe) extends(o *probe) bool {
	has := func(own, other string, none ...string) bool { return own == other || slices.Contains(none, other) }
	if !has(q.Method, o.Method, "", "GET") || !has(q.Path, o.Path, "", "/") || !has(q.Host, o.Host, "") || !has(q.SNI, o.SNI, "") || o.Peer.IsValid() && q.Peer != o.Peer {
		return false
	}
	for name, values := range o.Header {
		if !slices.Equal(q.Header[name], values) {
			return false
		}
	}
	for name, value := range o.Claims {
		if fmt.Sprint(q.Claims[name]) != fmt.Sprint(value) {
			return false
		}
	}
	return true
}

// probes are the requests for a set of policies.
type probes struct {
	list    []*probe
	seen    map[string]bool
	left    int // values of rules without a request
	issuers []issuer
	of      *flips
}

// issuer is an issuer of tokens, with an audience that is accepted; empty for any.
type issuer struct{ name, audience string }

// add adds a request, unless there are too many.
func (s *probes) add(make func(*probe)) {
	if len(s.list) == maxProbes {
		s.left++
		return
	}
	q := &probe{Request: decision.Request{Method: "GET", Path: "/"}}
	make(q)
	as := "all"
	if q.as != nil {
		as = *q.as
	}
	key := fmt.Sprint(as, " ", q.Method, " ", q.Host, " ", q.Path, " ", q.Port, " ", q.SNI, " ", q.Peer, q.Header, q.Claims)
	if !s.seen[key] {
		s.seen[key] = true
		s.list = append(s.list, q)
	}
}

// probesOf returns requests for the rules of the policies that listeners are made from, before and
// after the change: GET /, tokens of each issuer and of another one, and for each rule a request that
// matches it and others that differ from that in one value. Changed policies come first.
func (f *flips) probesOf(before, after *xds.Set) *probes {
	var changed, others []model.Key
	has := map[model.Key][2]bool{}
	for side, set := range []*xds.Set{before, after} {
		for _, r := range set.Resources {
			for _, key := range r.Sources.Keys() {
				if key.Kind == model.AuthorizationPolicy || key.Kind == model.RequestAuthentication {
					sides := has[key]
					sides[side] = true
					has[key] = sides
				}
			}
		}
	}
	for _, key := range slices.SortedFunc(maps.Keys(has), model.Key.Compare) {
		if _, ok := f.change[key]; ok {
			changed = append(changed, key)
		} else {
			others = append(others, key)
		}
	}
	var specs []*model.Config
	name := ""
	for _, key := range slices.Concat(changed, others) {
		name += fmt.Sprint(key, has[key])
		now := f.cfg.object(key)
		then, proposed := f.change[key]
		if !proposed {
			then = now
		}
		if has[key][0] && now != nil {
			specs = append(specs, now)
		}
		if has[key][1] && then != nil && (then != now || !has[key][0]) {
			specs = append(specs, then)
		}
	}
	if f.probes[name] == nil {
		f.probes[name] = f.newProbes(specs)
		f.untried.values += f.probes[name].left
	}
	return f.probes[name]
}

func (f *flips) newProbes(specs []*model.Config) *probes {
	s := &probes{seen: map[string]bool{}, of: f}
	for _, c := range specs {
		if spec, ok := c.Spec.(*securityv1beta1.RequestAuthentication); ok {
			for _, rule := range spec.GetJwtRules() {
				one := issuer{name: rule.GetIssuer()}
				if len(rule.GetAudiences()) > 0 {
					one.audience = rule.GetAudiences()[0]
				}
				if !slices.Contains(s.issuers, one) {
					s.issuers = append(s.issuers, one)
				}
			}
		}
	}
	s.add(func(*probe) {})
	for _, by := range s.issuers {
		s.add(func(q *probe) { by.token(q, "") })
		if by.audience != "" {
			s.add(func(q *probe) {
				by.token(q, "")
				q.claim(noIssuer, "aud")
			})
		}
	}
	if len(s.issuers) > 0 {
		s.add(func(q *probe) { issuer{name: noIssuer}.token(q, "") })
	}
	for _, c := range specs {
		if spec, ok := c.Spec.(*securityv1beta1.AuthorizationPolicy); ok {
			for _, r := range spec.GetRules() {
				s.rule(r, c.Namespace)
			}
		}
	}
	return s
}

// token adds a token of the issuer.
func (i issuer) token(q *probe, subject string) {
	q.claim(i.name, "iss")
	q.claim(cmp.Or(subject, "subject"), "sub")
	if i.audience != "" {
		q.claim(i.audience, "aud")
	}
}

// dimension is an attribute of requests in a rule: how a request has the values that match, and how it
// has others.
type dimension struct{ match, differ []func(*probe) }

// rule adds requests for a rule. Each alternative of its sources is combined with the first of its
// operations, and the other way around.
func (s *probes) rule(r *securityv1beta1.Rule, namespace string) {
	froms, tos := r.GetFrom(), r.GetTo()
	if len(froms) == 0 {
		froms = make([]*securityv1beta1.Rule_From, 1)
	}
	if len(tos) == 0 {
		tos = make([]*securityv1beta1.Rule_To, 1)
	}
	var when []dimension
	for _, w := range r.GetWhen() {
		when = append(when, s.condition(w, namespace))
	}
	first := s.operation(tos[0].GetOperation())
	source := s.source(froms[0].GetSource(), namespace)
	s.vary(slices.Concat(source, first, when), len(source)+len(first)+len(when))
	for i, from := range froms[1:] {
		if len(s.list) == maxProbes { // so that the work remains linear
			s.left += len(froms[1:]) - i
			break
		}
		another := s.source(from.GetSource(), namespace)
		s.vary(slices.Concat(another, first, when), len(another))
	}
	for i, to := range tos[1:] {
		if len(s.list) == maxProbes {
			s.left += len(tos[1:]) - i
			break
		}
		another := s.operation(to.GetOperation())
		s.vary(slices.Concat(another, source, when), len(another))
	}
}

// vary adds a request that matches all attributes, and for each other value of the first n of them one
// that differs from it.
func (s *probes) vary(all []dimension, n int) {
	with := func(changed int, set func(*probe)) {
		s.add(func(q *probe) {
			for i, d := range all {
				switch {
				case i == changed:
					set(q)
				case len(d.match) > 0:
					d.match[0](q)
				}
			}
		})
	}
	with(-1, nil)
	for i, d := range all[:n] {
		for _, set := range d.match[min(1, len(d.match)):] {
			with(i, set)
		}
		for _, set := range d.differ {
			with(i, set)
		}
	}
}

// settersOf returns a function for each value.
func settersOf(values []string, set func(q *probe, value string)) (out []func(*probe)) {
	for _, v := range values {
		out = append(out, func(q *probe) { set(q, v) })
	}
	return out
}

// valued returns the dimension of an attribute with values and others.
func valued(values, others []string, set func(q *probe, value string)) dimension {
	return dimension{settersOf(values, set), settersOf(others, set)}
}

// optional is valued for an attribute that a request need not have.
func optional(values, others []string, set func(q *probe, value string)) dimension {
	d := valued(values, others, set)
	if len(values) > 0 {
		d.differ = append(d.differ, func(*probe) {})
	}
	return d
}

func (s *probes) operation(o *securityv1beta1.Operation) []dimension {
	if o == nil {
		return nil
	}
	// The usual value of a request may be one of those that are excluded.
	besides := func(values, others []string, usual ...string) []string {
		if len(values) > 0 || len(others) == 0 {
			return values
		}
		for _, v := range usual {
			if !slices.Contains(others, v) {
				return []string{v}
			}
		}
		return nil
	}
	return []dimension{
		valued(o.GetHosts(), o.GetNotHosts(), func(q *probe, v string) { q.Host = concrete(v) }),
		valued(o.GetPorts(), o.GetNotPorts(), setPort),
		valued(besides(o.GetMethods(), o.GetNotMethods(), "GET", "POST"), o.GetNotMethods(), func(q *probe, v string) { q.Method = cmp.Or(strings.Trim(v, "*"), "GET") }),
		valued(besides(o.GetPaths(), o.GetNotPaths(), "/", "/other"), o.GetNotPaths(), func(q *probe, v string) {
			if path := concrete(v); strings.HasPrefix(path, "/") {
				q.Path = path
			} else {
				q.Path = "/" + path
			}
		}),
	}
}

func setPort(q *probe, v string) {
	if n, err := strconv.ParseUint(v, 10, 16); err == nil {
		q.Port = uint32(n)
	}
}

func (s *probes) source(o *securityv1beta1.Source, namespace string) []dimension {
	if o == nil {
		return nil
	}
	return []dimension{
		optional(o.GetPrincipals(), o.GetNotPrincipals(), s.setPrincipal),
		s.tokens(o.GetRequestPrincipals(), o.GetNotRequestPrincipals(), s.setRequestPrincipal),
		optional(o.GetNamespaces(), o.GetNotNamespaces(), s.setNamespace),
		optional(o.GetTrustDomains(), o.GetNotTrustDomains(), setTrustDomain),
		optional(o.GetServiceAccounts(), o.GetNotServiceAccounts(), s.setAccount(namespace)),
		optional(o.GetIpBlocks(), o.GetNotIpBlocks(), setPeer),
		optional(o.GetRemoteIpBlocks(), o.GetNotRemoteIpBlocks(), setClient),
	}
}

// condition returns the dimension of a condition. Destination addresses are those of the server, and
// metadata of filters has no known source.
func (s *probes) condition(w *securityv1beta1.Condition, namespace string) dimension {
	values, others := w.GetValues(), w.GetNotValues()
	key := w.GetKey()
	switch key {
	case "source.ip":
		return optional(values, others, setPeer)
	case "remote.ip":
		return optional(values, others, setClient)
	case "source.namespace":
		return optional(values, others, s.setNamespace)
	case "source.principal":
		return optional(values, others, s.setPrincipal)
	case "source.trustDomain":
		return optional(values, others, setTrustDomain)
	case "source.serviceAccount":
		return optional(values, others, s.setAccount(namespace))
	case "destination.port":
		return valued(values, others, setPort)
	case "connection.sni":
		return optional(values, others, func(q *probe, v string) { q.SNI = concrete(v) })
	case "request.auth.principal":
		return s.tokens(values, others, s.setRequestPrincipal)
	case "request.auth.audiences":
		return s.tokens(values, others, func(q *probe, v string) { q.claim(concrete(v), "aud") })
	case "request.auth.presenter":
		return s.tokens(values, others, func(q *probe, v string) { q.claim(concrete(v), "azp") })
	}
	if path, ok := strings.CutPrefix(key, "request.auth.claims["); ok {
		claim := strings.Split(strings.TrimSuffix(path, "]"), "][")
		return s.tokens(values, others, func(q *probe, v string) { q.claim(concrete(v), claim...) })
	}
	if name, ok := strings.CutPrefix(key, "request.headers["); ok {
		return optional(values, others, func(q *probe, v string) { q.header(strings.TrimSuffix(name, "]"), concrete(v)) })
	}
	return dimension{}
}

// tokens returns the dimension of an attribute of tokens. Requests without one, and with a token that
// lacks the attribute, differ.
func (s *probes) tokens(values, others []string, set func(q *probe, value string)) dimension {
	if len(s.issuers) == 0 || len(values)+len(others) == 0 {
		return dimension{} // no token is read
	}
	d := optional(values, others, func(q *probe, v string) {
		if q.Claims == nil {
			s.issuers[0].token(q, "")
		}
		set(q, v)
	})
	if len(values) > 0 {
		d.differ = append(d.differ, func(q *probe) {
			if q.Claims == nil {
				s.issuers[0].token(q, "")
			}
		})
	}
	return d
}
