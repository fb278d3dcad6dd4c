// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package debug

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/outrigger-mesh/outrigger/bootstrap/node"
	"github.com/outrigger-mesh/outrigger/controlplane/config/codec"
	"github.com/outrigger-mesh/outrigger/controlplane/generate/authorization"
	"github.com/outrigger-mesh/outrigger/controlplane/generate/decision"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/patch"
	"github.com/outrigger-mesh/outrigger/controlplane/report"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// Generator generates the resources of proxies.
type Generator interface {
	Generate(mesh *snapshot.Mesh, proxy *model.Proxy, typeURL string) *xds.Set
	// Hits returns what the patches of EnvoyFilters had an effect on in the resources of a type.
	Hits(mesh *snapshot.Mesh, proxy *model.Proxy, typeURL string) []patch.Hit
}

// logged is one line of Envoy's access log: the fields of Istio's JSON format, and others that can be
// added to it. The line of a connection has no method and no path.
type logged struct {
	Method   string `json:"method"`
	Path     string `json:"path"`
	Host     string `json:"authority"`
	Remote   string `json:"downstream_remote_address"`
	Local    string `json:"downstream_local_address"`
	Upstream string `json:"upstream_cluster"`
	SNI      string `json:"requested_server_name"`
	For      string `json:"x_forwarded_for"`
	Agent    string `json:"user_agent"`
	ID       string `json:"request_id"`
	Details  string `json:"response_code_details"`

	// Peer is the URI of the client's certificate, null without one.
	Peer json.RawMessage `json:"downstream_peer_uri_san"`
	// Headers are other headers of the request.
	Headers map[string]*string `json:"request_headers"`
	// Claims are those of the token that Envoy accepted, null without one.
	Claims json.RawMessage `json:"request_claims"`
	// Omitted are the names of its claims that the line leaves out.
	Omitted []string `json:"request_claims_omitted"`
}

// request returns the request of a line. Named is false if the line does not say who sent it.
func (l logged) request() (r decision.Request, named bool, err error) {
	for _, text := range []*string{&l.Method, &l.Path, &l.SNI} {
		if *text == "-" {
			*text = ""
		}
	}
	local, err := netip.ParseAddrPort(l.Local)
	if err != nil || (l.Method == "") != (l.Path == "") {
		return r, false, errors.New("a field is missing")
	}
	r = decision.Request{
		Refused: strings.HasPrefix(l.Details, report.RefusedToken),
		Server:  local.Addr().Unmap(), Port: uint32(local.Port()), SNI: l.SNI, ALPN: sidecarALPN(),
		Method: l.Method, Host: l.Host, Path: l.Path, Header: map[string][]string{}, Now: time.Now(), Brief: true,
	}
	if remote, err := netip.ParseAddrPort(l.Remote); err == nil {
		r.Peer = remote.Addr().Unmap()
	}
	for name, value := range map[string]string{"x-forwarded-for": l.For, "user-agent": l.Agent, "x-request-id": l.ID} {
		if value != "" {
			r.Header[name] = []string{value}
		}
	}
	for name, value := range l.Headers {
		if value != nil {
			r.Header[strings.ToLower(name)] = []string{*value}
		}
	}
	if len(l.Peer) > 0 && string(l.Peer) != "null" {
		err = json.Unmarshal(l.Peer, &r.Identity)
	}
	switch {
	case r.Method != "":
	case r.Identity != "":
		r.ALPN = []string{"istio"} // no protocol of HTTP
	default:
		r.ALPN = nil
	}
	if len(l.Claims) > 0 {
		err = errors.Join(err, json.Unmarshal(l.Claims, &r.Claims))
	}
	return r, len(l.Peer) > 0, err
}

// replay compares what a proxy decides about recorded requests with what it would decide with other
// policies.
func (d debugger) replay() (answerOf, error) {
	if d.mesh.Services == nil || d.cfg.Preview == nil {
		return answerOf{}, errors.New("there is no snapshot of services yet")
	}
	proposed, err := proposedPolicies(d.query["policies"], d.query["source"])
	if err != nil {
		return answerOf{}, err
	}
	if svc, err := d.service(d.query.Get("to")); err == nil && svc != nil && len(svc.Ports) > 0 {
		d.query.Set("port", strconv.FormatUint(uint64(svc.Ports[0].Number), 10)) // each record has its own
	}
	target, err := d.target(d.query.Get("to"))
	if err != nil {
		return answerOf{}, err
	}
	proxy := target.stream.Proxy
	now, _, err := d.envoyOf(target.stream)
	if err != nil {
		return answerOf{}, err
	}
	preview, mesh := d.cfg.Preview(), d.mesh.WithPolicies(slices.Collect(maps.Values(proposed)))
	then, err := decision.Load(preview.Generate(mesh, proxy, xds.TypeListener), preview.Generate(mesh, proxy, xds.TypeExtension), proxy)
	if err != nil {
		return answerOf{}, err
	}
	out := report.Replay{Replica: d.cfg.Replica, Proxy: proxy.ID, Flips: []report.Flip{}}
	if d.query.Get("listeners") == "true" {
		if out.Listeners, err = trialOf(now, then); err != nil {
			return answerOf{}, err
		}
	}
	flips, number := map[string]int{}, -1
	for line := range strings.Lines(d.query.Get("records")) {
		var l logged
		if number++; strings.TrimSpace(line) == "" {
			continue
		}
		select {
		case <-d.ended: // thousands of records take seconds
			return answerOf{}, errEnded
		default:
		}
		if json.Unmarshal([]byte(line), &l) != nil {
			out.Unread++
			continue
		}
		if proxy.Role != node.Router && l.Upstream != "" && !strings.HasPrefix(strings.ToLower(l.Upstream), "inbound") {
			out.Other++
			continue
		}
		r, named, err := l.request()
		if err != nil {
			out.Unread++
			continue
		}
		if !slices.Contains(proxy.IPs, r.Server.String()) {
			r.Server = target.address // it was sent to another workload of the service
		}
		before, err := now.Decide(r)
		if err != nil {
			return answerOf{}, err
		}
		after, err := then.Decide(r)
		if err != nil {
			return answerOf{}, err
		}
		if r.Method == "" && before.HTTP && before.Allowed {
			out.Unread++ // no request was read from the connection
			continue
		}
		out.Decided++
		unclaimed := r.Method != "" && len(l.Claims) == 0 && !r.Refused && (now.ReadsClaims() || then.ReadsClaims()) ||
			slices.ContainsFunc(l.Omitted, func(name string) bool { return now.ReadsClaim(name) || then.ReadsClaim(name) })
		if !named {
			out.Unnamed++
		}
		if unclaimed {
			out.Unclaimed++
		}
		if r.Method == "" {
			out.Connections++
		}
		out.Skipped = after.Skipped
		flip := -1
		if before.Allowed != after.Allowed {
			flip = d.addFlip(&out, flips, before, after, r, proposed)
		}
		if d.query.Get("tried") == "true" {
			tried := triedAt(now.Place(r))
			tried.Line, tried.Server, tried.Now, tried.Then, tried.Flip = number, netip.AddrPortFrom(r.Server, uint16(r.Port)).String(), before.Allowed, after.Allowed, flip
			tried.Unnamed, tried.Unclaimed = !named, unclaimed
			out.Tried = append(out.Tried, tried)
		}
	}
	return answerOf{json: out}, nil
}

// triedAt returns the report of a request at a place.
func triedAt(p decision.Place) report.Tried {
	out := report.Tried{Listener: p.Listener, TLS: p.TLS, Opaque: p.Opaque, HTTP: p.HTTP}
	if p.Header != "" || p.Param != "" || p.Cookie != "" {
		out.Token = &report.Token{Header: p.Header, Prefix: p.Prefix, Param: p.Param, Cookie: p.Cookie}
	}
	return out
}

// trialOf returns the listeners for an Envoy that decides about requests with both sets of policies.
func trialOf(now, then *decision.Envoy) (out []json.RawMessage, err error) {
	first, err := now.Trial(report.TrialNow)
	if err != nil {
		return nil, err
	}
	second, err := then.Trial(report.TrialThen)
	if err != nil {
		return nil, err
	}
	for _, l := range append(first, second...) {
		raw, err := protojson.Marshal(l)
		if err != nil {
			return nil, fmt.Errorf("write the listener %s: %w", l.GetName(), err)
		}
		// The PROXY protocol changes the address that source_ip compares, which is otherwise the same.
		out = append(out, bytes.ReplaceAll(raw, []byte(`"directRemoteIp":`), []byte(`"sourceIp":`)))
	}
	return out, nil
}

// addFlip counts a request whose decision changes, and returns the index of its flip. indices has the
// indices of the flips by what decides.
func (d debugger) addFlip(out *report.Replay, indices map[string]int, before, after decision.Verdict, r decision.Request, proposed map[model.Key]*model.Config) int {
	refused := before
	if before.Allowed {
		refused = after
	}
	key := fmt.Sprint(after.Allowed, refused.By, refused.Rule, r.Method == "")
	if i, ok := indices[key]; ok {
		out.Flips[i].Count++
		return i
	}
	f := report.Flip{
		Allowed: after.Allowed, By: string(refused.By), Count: 1,
		Example: report.Recorded{Identity: r.Identity, Port: r.Port, Method: r.Method, Host: r.Host, Path: r.Path},
	}
	if r.Peer.IsValid() {
		f.Example.Address = r.Peer.String()
	}
	if refused.Rule != "" {
		f.Rule, _ = d.ruleOf(refused.Rule)
		if key, _, ok := authorization.ParseRule(refused.Rule); ok && before.Allowed && proposed[key] != nil {
			f.Rule.Source = proposed[key].Source
		}
	}
	indices[key] = len(out.Flips)
	out.Flips = append(out.Flips, f)
	return indices[key]
}

// proposedPolicies reads files of AuthorizationPolicies.
func proposedPolicies(texts, sources []string) (map[model.Key]*model.Config, error) {
	out := map[model.Key]*model.Config{}
	for i, text := range texts {
		source := "standard input"
		if i < len(sources) {
			source = sources[i]
		}
		objects, problems := codec.Decode(source, []byte(text))
		for _, p := range problems {
			if !p.Warning {
				return nil, errors.New(p.String())
			}
		}
		for _, c := range objects {
			if c.Kind != model.AuthorizationPolicy {
				return nil, fmt.Errorf("%s: it is a %s, but only AuthorizationPolicies can be replayed: remove it", c.Source, c.Kind)
			}
			out[c.Key] = c
		}
	}
	if len(out) == 0 {
		return nil, errors.New("no AuthorizationPolicies are proposed: name their files with -f FILE")
	}
	return out, nil
}
