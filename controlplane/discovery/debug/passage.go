// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package debug

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/outrigger-mesh/outrigger/bootstrap/node"
	"github.com/outrigger-mesh/outrigger/controlplane/generate/decision"
	"github.com/outrigger-mesh/outrigger/controlplane/generate/envoyconf"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/report"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
)

// blocked returns the decision about a request to a host that no service has, if the proxy of the client
// allows requests to known hosts only, and unreachable as the error if not.
func (d debugger) blocked(unreachable error) (report.Decision, error) {
	from, err := d.client(d.query.Get("from"))
	if err != nil || from.stream == nil || !errors.Is(unreachable, errUnknown) {
		return report.Decision{}, unreachable
	}
	port, protocol := uint32(80), model.ProtocolHTTP
	if n, err := strconv.ParseUint(d.query.Get("port"), 10, 16); err == nil {
		port = uint32(n)
	}
	if port == 443 {
		protocol = model.ProtocolHTTPS
	}
	svc := &model.Service{ServiceKey: model.ServiceKey{Hostname: d.query.Get("to")}, Ports: []model.Port{{Number: port, Protocol: protocol}}}
	r, err := d.composed(from, target{host: svc.Hostname, service: svc})
	if err != nil {
		return report.Decision{}, err
	}
	hop, sent, err := d.hop(from.stream, svc, port, r)
	blackHole := func(to report.Destination) bool { return to.Cluster == envoyconf.BlackHoleCluster }
	if err != nil || hop == nil || hop.VirtualHost != "block_all" && !slices.ContainsFunc(hop.Destinations, blackHole) {
		return report.Decision{}, unreachable
	}
	hop.Destinations = nil // it is none
	out := d.notReceived(passage{from: from, hop: hop, request: sent})
	out.Reason = "no service has the host, and outboundTrafficPolicy of the mesh config is REGISTRY_ONLY: add a ServiceEntry for it"
	if sidecar := sidecarOf(d.mesh, from.stream.Proxy); sidecar != nil && sidecar.Spec.GetOutboundTrafficPolicy() != nil {
		out.Reason = "no service has the host, and outboundTrafficPolicy of the Sidecar is REGISTRY_ONLY: add a ServiceEntry for it"
		out.Objects = origins(sidecar.Config)
	}
	return out, nil
}

// passage is a request on its way.
type passage struct {
	from    client
	hop     *report.Hop    // of the proxy that sends it; nil if that is not known
	service *model.Service // that it is for; nil if a gateway sends it
	request decision.Request
	through *report.Decision // what the gateway before has decided
	passed  int              // how many gateways
}

// maxGateways is how many gateways a request passes at most.
const maxGateways = 3

// passed returns the decision about a request that a proxy has sent on. named is the workload of the
// question: it receives the request if the application chooses the address.
func (d debugger) passed(p passage, named target) (report.Decision, error) {
	to, ok := d.arrives(p.hop)
	if i := slices.IndexFunc(p.hop.Destinations, func(to report.Destination) bool { return to.Reason == forwards }); !ok && i >= 0 && named.stream != nil {
		to, ok = named, true // one of the addresses that the application may choose
		to.sent, to.plaintext = p.hop.Destinations[i], !p.hop.Destinations[i].TLS
	}
	if !ok {
		return d.notReceived(p), nil
	}
	if to.plaintext {
		p.from.identity = "" // the server sees no certificate
	}
	p.request.Identity, p.request.Server, p.request.Port = p.from.identity, to.address, to.port
	p.request.TLS = p.request.TLS || to.sent.Anonymous
	p.request.Version = forwarded(p.request, to.sent)
	if p.request.SNI == "" && p.request.Identity == "" && p.request.Method != "" {
		p.request.SNI, _, _ = strings.Cut(p.request.Host, ":")
	}
	return d.received(p, to)
}

// received returns the decision about a request that a proxy receives.
func (d debugger) received(p passage, to target) (report.Decision, error) {
	envoy, listeners, err := d.envoyOf(to.stream)
	if err != nil {
		return report.Decision{}, err
	}
	if to.port == 0 {
		ports := envoy.Ports()
		if len(ports) != 1 {
			return report.Decision{}, fmt.Errorf("%s has the ports %s: choose one with --port", to.stream.Proxy.ID, numbers(ports))
		}
		to.port, p.request.Port = ports[0], ports[0]
	}
	r := p.request
	v, err := envoy.Decide(r)
	if err != nil {
		return report.Decision{}, fmt.Errorf("decide as the proxy %s: %w", to.stream.Proxy.ID, err)
	}
	out := report.Decision{
		Replica: d.cfg.Replica, Proxy: to.stream.Proxy.ID, Others: to.others, Identity: r.Identity, Port: r.Port,
		Client: p.hop, Gateway: p.through, HTTP: v.HTTP, Method: r.Method, Host: r.Host, Path: cmp.Or(v.Path, r.Path),
		Allowed: v.Allowed, Status: v.Status, By: string(v.By), Reason: v.Reason, Skipped: v.Skipped,
	}
	out.Deadline = text(v.Limits.Whole)
	if out.Wait = waitOf(v.Wait); r.Method == "" && v.HTTP && v.Allowed {
		status, reason := notHTTP(r)
		out.Allowed, out.Status, out.By, out.Reason = false, int(status), string(decision.ByProtocol), reason
	}
	if r.Peer.IsValid() {
		out.Address = r.Peer.String()
	}
	d.addRules(&out, v)
	out.Objects, out.TLS = d.deciding(v, to.stream.Proxy, r), d.secured(p.from, p.hop, to, r.Identity)
	if v.By == decision.ByNoRule {
		d.addUnable(&out, listeners)
	}
	if v.Allowed && !v.Plaintext && to.stream.Proxy.Role == node.Router {
		if reason, gw := d.uncertified(to.stream, r); reason != "" {
			out.Allowed, out.By, out.Reason, out.Rule, out.Matched = false, string(decision.ByConnection), reason, nil, nil
			out.HTTP, out.Objects = false, origins(gw)
			return out, nil
		}
	}
	switch reason := p.misunderstood(to.sent, v); {
	case reason != "":
		out.Allowed, out.By, out.Reason, out.Rule, out.Matched, out.Status = false, "tls", reason, nil, nil, 0
		if p.hop.Routes != "" {
			out.Status = 503
		}
	case v.Allowed && to.stream.Proxy.Role == node.Router && p.passed < maxGateways:
		return d.behind(p, out, to.stream, r.After(v))
	}
	return out, nil
}

// uncertified returns why a gateway has no certificate for the host of a request, and its Gateway object.
func (d debugger) uncertified(st *Stream, r decision.Request) (string, *model.Config) {
	for _, gw := range d.mesh.Gateways.For(st.Proxy.Namespace, st.Proxy.Labels, d.cfg.GatewaysOwnNamespace) {
		for _, s := range gw.Spec.GetServers() {
			if s.GetPort().GetNumber() != r.Port || !slices.ContainsFunc(s.GetHosts(), func(h string) bool {
				return snapshot.HostMatches(strings.ToLower(h[strings.IndexByte(h, '/')+1:]), strings.ToLower(r.SNI))
			}) {
				continue
			}
			for _, name := range credentialNames(s.GetTls()) {
				if err := d.source.CredentialFault(d.mesh, st, name); err != nil {
					return fmt.Sprintf("the gateway has no certificate: %v", err), gw.Config
				}
			}
		}
	}
	return "", nil
}

// behind returns the decision about a request that a gateway has let in.
func (d debugger) behind(p passage, at report.Decision, gateway *Stream, r decision.Request) (report.Decision, error) {
	hop, sent, err := d.sentBy(gateway, r, 0)
	if err != nil || hop == nil {
		return at, err
	}
	from := client{identity: d.identityOf(gateway), address: firstAddress(gateway.Proxy), stream: gateway}
	sent.Identity, sent.SNI = from.identity, map[bool]string{true: sent.SNI}[sent.TLS]
	if sent.Peer.IsValid() {
		sent.Header = maps.Clone(sent.Header)
		sent.Header["x-forwarded-for"] = append(slices.Clone(sent.Header["x-forwarded-for"]), sent.Peer.String())
	}
	sent.Peer = from.address
	out, err := d.passed(passage{from: from, hop: hop, request: sent, through: &at, passed: p.passed + 1}, target{})
	out.Asked, out.Skipped, out.Trials = slices.Concat(at.Asked, out.Asked), slices.Concat(at.Skipped, out.Skipped), slices.Concat(at.Trials, out.Trials)
	return out, err
}

// misunderstood returns why the two sides of a connection do not understand each other; "" if they do.
func (p passage) misunderstood(sent report.Destination, v decision.Verdict) string {
	switch {
	case p.hop == nil || v.By == decision.ByConnection:
	case sent.TLS && v.Plaintext && (v.HTTP || !sent.Anonymous):
		return "the port accepts plaintext only, and the proxy of the client sends TLS"
	case p.request.TLS && v.HTTP && (v.Plaintext || p.request.Identity != ""):
		return "the port reads HTTP, and the client sends TLS"
	}
	return ""
}

// notReceived returns the answer about a request that no proxy of the mesh receives: the proxy of the
// client, or a gateway, responds itself, or sends it elsewhere.
func (d debugger) notReceived(p passage) report.Decision {
	hop, r := p.hop, p.request
	out := report.Decision{
		Replica: d.cfg.Replica, Proxy: hop.Proxy, Identity: p.from.identity, Client: hop, Gateway: p.through, Port: r.Port,
		HTTP: hop.Routes != "", Method: r.Method, Host: r.Host, Path: r.Path, Allowed: true,
	}
	if p.from.address.IsValid() {
		out.Address = p.from.address.String()
	}
	sent := func(to report.Destination) bool { return !to.Lost }
	i := slices.IndexFunc(hop.Destinations, sent)
	switch {
	case len(hop.Destinations) == 0:
		out.By, out.Status, out.Reason = "route", int(hop.Status), hop.Reason
		out.Allowed = hop.Status > 0 && hop.Status < 400
	case i < 0:
		out.By, out.Reason, out.Allowed = "route", hop.Destinations[0].Reason, false
		if out.HTTP {
			out.Status = 503
		}
	case r.TLS && hop.Destinations[i].TLS:
		out.By, out.Allowed, out.Objects = "tls", false, hop.Destinations[i].Objects
		out.Reason = "TLS twice: that of the client, and that of its proxy"
	default:
		out.Reason = "no proxy of the mesh receives it"
		sidecar, svc := sidecarOf(d.mesh, p.from.stream.Proxy), p.service
		if imported := func(to report.Destination) bool { return strings.HasSuffix(to.Cluster, "|"+svc.Hostname) }; svc != nil && sidecar != nil && !slices.ContainsFunc(hop.Destinations, imported) && !sidecar.Imports(svc.Namespace, svc.Hostname) {
			out.Reason = "the Sidecar of the client does not import the service"
			out.Objects = origins(sidecar.Config)
		}
	}
	return out
}
