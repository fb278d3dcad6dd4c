// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package debug

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	securityv1beta1 "istio.io/api/security/v1beta1"

	"github.com/outrigger-mesh/outrigger/controlplane/generate/authorization"
	"github.com/outrigger-mesh/outrigger/controlplane/generate/decision"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/report"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// maxRequest is the maximum size of the fields of a request, in bytes.
const maxRequest = 16 << 10

// request returns what a proxy decides about a request.
func (d debugger) request() (answerOf, error) {
	if d.mesh.Services == nil {
		return answerOf{}, errors.New("there is no snapshot of services yet")
	}
	size := 0
	for name, values := range d.query {
		if name != "jwt" {
			size += len(strings.Join(values, ""))
		}
	}
	if size > maxRequest || len(d.query.Get("jwt")) > maxRequest {
		return answerOf{}, fmt.Errorf("a request and its token may have %d bytes each: shorten the path or the headers", maxRequest)
	}
	d, unknown, err := d.inPast()
	if err != nil {
		return answerOf{}, err
	}
	d = d.located()
	decided, err := d.decide()
	if err != nil {
		return answerOf{}, err
	}
	out := explainedRequest{Decision: decided}
	out.Unrecorded = unknown
	if d.then {
		out.Current = d.currentFor(decided)
	}
	if d.asker.all && d.cfg.Objects != nil && d.query.Get("findings") == "true" {
		out.Unused = d.unused(decided)
		if !d.then { // what the stores refused in the past is not known
			if out.Findings, err = d.related(decided); err != nil {
				return answerOf{}, err
			}
		}
	}
	return answerOf{json: out}, nil
}

// decide returns what the proxies decide about the request of the question.
func (d debugger) decide() (report.Decision, error) {
	to, unreachable := d.target(d.query.Get("to"))
	if unreachable != nil && to.service == nil {
		return d.blocked(unreachable)
	}
	from, err := d.client(d.query.Get("from"))
	if err != nil {
		return report.Decision{}, err
	}
	r, err := d.composed(from, to)
	if err != nil {
		return report.Decision{}, err
	}
	if from.stream != nil && to.service != nil {
		hop, sent, err := d.hop(from.stream, to.service, to.servicePort, r)
		if err != nil {
			return report.Decision{}, err
		}
		if hop != nil {
			return d.passed(passage{from: from, hop: hop, service: to.service, request: sent}, to)
		}
	}
	if unreachable != nil {
		return report.Decision{}, unreachable
	}
	return d.received(passage{from: from, request: r}, to)
}

// deciding returns the objects behind a verdict that no rule decides.
func (d debugger) deciding(v decision.Verdict, p *model.Proxy, r decision.Request) (out []report.Origin) {
	switch {
	case v.By == decision.ByConnection && r.Identity == "" && d.mesh.PeerAuthentications.Mode(p.Namespace, p.OwnLabels(), r.Port) == snapshot.MutualTLSStrict:
		out = origins(d.mesh.PeerAuthentications.Of(p.Namespace, p.OwnLabels())...)
	case v.By == decision.ByToken:
		var services []model.Key
		for _, i := range d.mesh.Instances.At(p.IPs) {
			services = append(services, i.Service.Source)
		}
		for _, of := range d.mesh.RequestAuthentications.For(p.Namespace, p.OwnLabels(), services) {
			out = append(out, origins(of.Config)...)
		}
	}
	return out
}

// origins returns objects with their places.
func origins(list ...*model.Config) (out []report.Origin) {
	for _, c := range list {
		out = append(out, report.Origin{Ref: refOf(c.Key), Source: c.Source})
	}
	return out
}

// envoyOf returns what decides as a proxy, and its listeners.
func (d debugger) envoyOf(st *Stream) (*decision.Envoy, *xds.Set, error) {
	listeners := d.givenTo(st)[slices.Index(xds.Types, xds.TypeListener)]
	if listeners == nil || len(listeners.Resources) == 0 { // it has not asked for them yet
		listeners = d.source.Generate(d.mesh, st.Proxy, xds.TypeListener)
	}
	envoy, err := decision.Load(listeners, d.source.Generate(d.mesh, st.Proxy, xds.TypeExtension), st.Proxy)
	return envoy, listeners, err
}

// sidecarALPN returns the protocols that a sidecar offers to another one.
func sidecarALPN() []string { return []string{"istio-http/1.1", "istio", "http/1.1"} }

// numbers lists ports.
func numbers(ports []uint32) string {
	if len(ports) == 0 {
		return "(none)"
	}
	var out []string
	for _, p := range ports {
		out = append(out, strconv.FormatUint(uint64(p), 10))
	}
	return strings.Join(out, ", ")
}

// composed returns the request of a question.
func (d debugger) composed(from client, to target) (decision.Request, error) {
	r := decision.Request{
		Identity: from.identity, Peer: from.address, Server: to.address, Port: to.port, SNI: d.query.Get("sni"),
		ALPN:   sidecarALPN(),
		Method: cmp.Or(d.query.Get("method"), "GET"), Host: cmp.Or(d.query.Get("host"), to.host), Path: cmp.Or(d.query.Get("path"), "/"),
		Header: map[string][]string{}, Now: time.Now(),
	}
	switch {
	case r.SNI == "none":
		r.SNI = ""
	case r.SNI != "":
		r.TLS = from.identity == "" || from.stream != nil && to.service != nil // else that of the client's proxy
	case r.Identity == "":
		r.SNI, _, _ = strings.Cut(r.Host, ":") // as a client outside of the mesh
	}
	if !strings.HasPrefix(r.Path, "/") {
		return r, fmt.Errorf("the path %q does not begin with a slash: write it as in /items?id=1", r.Path)
	}
	for _, h := range d.query["header"] {
		name, value, ok := strings.Cut(h, "=")
		if name = strings.ToLower(strings.TrimSpace(name)); !ok || name == "" || strings.HasPrefix(name, ":") {
			return r, fmt.Errorf("the header %q is not written as NAME=VALUE", h)
		} else if name == "host" {
			return r, fmt.Errorf("the header %q is the host of the request: write it as --host %s", h, strings.TrimSpace(value))
		}
		r.Header[name] = append(r.Header[name], strings.TrimSpace(value))
	}
	if token := d.query.Get("jwt"); token != "" {
		r.Header["authorization"] = append(r.Header["authorization"], "Bearer "+token)
	}
	if err := speak(&r, d.query.Get("protocol")); err != nil {
		return r, err
	}
	r.Refused = d.query.Get("refused") == "true"
	if text := d.query.Get("claims"); text != "" {
		if err := json.Unmarshal([]byte(text), &r.Claims); err != nil {
			return r, fmt.Errorf("the claims of the token are not a JSON object: %w", err)
		}
	}
	if text := d.query.Get("address"); text != "" {
		a, err := netip.ParseAddr(text)
		if err != nil {
			return r, fmt.Errorf("the address %q of the client is not an IP address", text)
		}
		r.Peer = a
	}
	return r, nil
}

// ruleOf returns a rule by its name in Envoy's configuration, and its specification, which is nil if
// no store has the policy.
func (d debugger) ruleOf(name string) (*report.Rule, *securityv1beta1.Rule) {
	key, index, ok := authorization.ParseRule(name)
	if !ok {
		return &report.Rule{Ref: report.Ref{Name: name}, Index: -1}, nil
	}
	out := &report.Rule{Ref: refOf(key), Index: index}
	c := d.cfg.object(key)
	if c == nil {
		return out, nil
	}
	out.Source = c.Source
	if spec, ok := c.Spec.(*securityv1beta1.AuthorizationPolicy); ok && index < len(spec.GetRules()) {
		return out, spec.GetRules()[index]
	}
	return out, nil
}

// addRules adds the rules of a verdict.
func (d debugger) addRules(out *report.Decision, v decision.Verdict) {
	if v.Rule != "" {
		out.Rule, _ = d.ruleOf(v.Rule)
	}
	for _, a := range v.Matched {
		out.Matched = append(out.Matched, report.Attribute(a))
	}
	for _, a := range v.Asked {
		asked := report.Asked{Provider: a.Provider}
		if a.Rule != "" {
			asked.Rule, _ = d.ruleOf(a.Rule)
		}
		out.Asked = append(out.Asked, asked)
	}
	for _, trial := range v.Trials {
		one := report.Trial{}
		if trial.Rule != "" {
			one.Rule, _ = d.ruleOf(trial.Rule)
		}
		out.Trials = append(out.Trials, one)
	}
	for _, c := range v.Candidates {
		r, spec := d.ruleOf(c.Rule)
		if c.Name == "" {
			out.Candidates = append(out.Candidates, report.Candidate{Rule: *r, Reason: "no request to this port can match it"})
			continue
		}
		out.Candidates = append(out.Candidates, report.Candidate{
			Rule: *r, Attribute: report.Attribute(c.Attribute), Excluded: c.Excluded, Wanted: wanted(spec, c.Name),
		})
	}
}

// wanted returns the values of an attribute in a rule.
func wanted(r *securityv1beta1.Rule, name string) []string {
	var out []string
	for _, to := range r.GetTo() {
		o := to.GetOperation()
		out = append(out, map[string][]string{"hosts": o.GetHosts(), "methods": o.GetMethods(), "paths": o.GetPaths(), "ports": o.GetPorts()}[name]...)
	}
	for _, from := range r.GetFrom() {
		s := from.GetSource()
		switch name {
		case "principals":
			out = slices.Concat(out, s.GetPrincipals(), s.GetServiceAccounts(), s.GetNamespaces(), s.GetTrustDomains())
		case "ipBlocks":
			out = append(out, s.GetIpBlocks()...)
		case "remoteIpBlocks":
			out = append(out, s.GetRemoteIpBlocks()...)
		case "request.auth.claims[iss]", "request.auth.claims[sub]":
			out = append(out, s.GetRequestPrincipals()...)
		}
	}
	for _, w := range r.GetWhen() {
		if strings.EqualFold(w.GetKey(), name) {
			out = append(out, w.GetValues()...)
		}
	}
	return out
}

// addUnable adds the rules that allow requests and match none to this port, such as those of a policy
// without rules.
func (d debugger) addUnable(out *report.Decision, listeners *xds.Set) {
	seen := map[model.Key]bool{}
	for _, r := range listeners.Resources {
		for _, key := range r.Sources.Keys() {
			c := d.cfg.object(key)
			if seen[key] || key.Kind != model.AuthorizationPolicy || c == nil {
				continue
			}
			seen[key] = true
			spec, ok := c.Spec.(*securityv1beta1.AuthorizationPolicy)
			if !ok || spec.GetAction() != securityv1beta1.AuthorizationPolicy_ALLOW || c.Annotations["istio.io/dry-run"] == "true" {
				continue
			}
			if len(spec.GetRules()) == 0 {
				out.Candidates = append(out.Candidates, report.Candidate{Rule: report.Rule{Ref: refOf(key), Index: -1, Source: c.Source}, Reason: "it has no rules, so it allows nothing"})
			}
			for i := range spec.GetRules() {
				if !slices.ContainsFunc(out.Candidates, func(c report.Candidate) bool { return c.Ref == refOf(key) && c.Index == i }) {
					out.Candidates = append(out.Candidates, report.Candidate{
						Rule: report.Rule{Ref: refOf(key), Index: i, Source: c.Source}, Reason: "no request to this port can match it",
					})
				}
			}
		}
	}
}
