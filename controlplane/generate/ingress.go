// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/generate/authentication"
	"github.com/outrigger-mesh/outrigger/controlplane/generate/authorization"
	"github.com/outrigger-mesh/outrigger/controlplane/generate/cluster"
	"github.com/outrigger-mesh/outrigger/controlplane/generate/envoyconf"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
	"github.com/outrigger-mesh/outrigger/internal/specialaddr"
)

// ingress describes how traffic reaches the workload of a proxy.
type ingress struct {
	target  *target
	entries []ingressEntry
	// fallback contains the mutual TLS modes of ports without an entry, if all inbound traffic is
	// redirected. The mode of port 0 applies to all ports that are not listed.
	fallback []portMode
	// addressed is true if the application is reached at the proxy's own address, so that the
	// clusters depend on that address.
	addressed bool
	// refused lists ports that accept no connections.
	refused  []uint32
	problems []model.Problem
	// peers are the PeerAuthentications that apply to the workload.
	peers xds.Sources
}

// portMode is the mutual TLS mode of a port.
type portMode struct {
	port uint32
	mode snapshot.MutualTLS
}

// ingressEntry is one port of the workload.
type ingressEntry struct {
	bind     string // address of the listener, if it is bound
	port     uint32
	protocol model.Protocol
	mode     snapshot.MutualTLS
	// target is the address of the application; nil means the original destination.
	target *corev3.Address
	// bound is true for a separate listener, false for a part of the listener that receives
	// redirected traffic.
	bound bool
	// host and servicePort identify the service that is reached here. They are empty and 0 for
	// ports that a Sidecar names.
	host        string
	servicePort uint32
	// mixed is true if services declare different HTTP versions for the port. The proxy then uses
	// the version of the caller.
	mixed bool
	// tls replaces mutual TLS for the application's callers. pool configures connections to the
	// application. Both may be nil.
	tls  *networkingv1alpha3.ServerTLSSettings
	pool *networkingv1alpha3.ConnectionPoolSettings
	// service is the service that is reached here; nil for ports that a Sidecar names.
	service *model.Service
	// shown is the service in metrics if service is nil; may be nil.
	shown *model.Service
	// validated and enforced are the filters of tokens and policies for the port, while listeners are
	// built.
	validated *authentication.Filters
	enforced  *authorization.Filters
	// from are the objects that define the port: the Sidecar, or services.
	from xds.Sources
}

// statName returns a part of the counter names.
func (e ingressEntry) statName(s *target) string {
	if e.bound {
		return e.bind + "_" + envoyconf.Number(e.port)
	}
	return listenerName(familiesOf(s.proxy).wildcards()[0], e.port)
}

// clusterStatName returns the name of the cluster of the port in the names of stats.
func (e ingressEntry) clusterStatName(mesh *meshv1alpha1.MeshConfig) string {
	pattern, svc := mesh.GetInboundClusterStatName(), cmp.Or(e.service, e.shown)
	if pattern == "" || svc == nil {
		return inboundName(e.port)
	}
	return envoyconf.ClusterStatName(pattern, svc, cmp.Or(e.servicePort, e.port), "", e.port)
}

// ingressOf returns the inbound ports of the workload: those that its Sidecar names, otherwise
// those of its services if traffic is redirected.
func ingressOf(s *target) *ingress {
	in := &ingress{target: s}
	in.peers.AddConfigs(s.mesh.PeerAuthentications.Of(s.proxy.Namespace, s.proxy.OwnLabels())...)
	if len(s.sidecar.Ingress()) > 0 {
		in.named()
	} else if s.intercepts() {
		in.served()
	}
	if !s.intercepts() {
		return in
	}
	in.sparePort(cmpPort(s.mesh.Config.GetProxyInboundListenPort(), inboundPort))
	in.fallback = []portMode{{0, in.mode(0)}}
	for _, port := range s.mesh.PeerAuthentications.Ports(s.proxy.Namespace, s.proxy.OwnLabels()) {
		if !slices.Contains(in.refused, port) && !slices.ContainsFunc(in.entries, func(e ingressEntry) bool { return !e.bound && e.port == port }) {
			in.fallback = append(in.fallback, portMode{port, in.mode(port)})
		}
	}
	return in
}

// sparePort removes the entries at the port that receives redirected traffic. Connections to it
// come from the proxy itself and are closed.
func (in *ingress) sparePort(port uint32) {
	in.entries = slices.DeleteFunc(in.entries, func(e ingressEntry) bool {
		if e.bound || e.port != port {
			return false
		}
		p := model.Problem{Warning: true, Reason: fmt.Sprintf(
			"port %d of the workloads is where their proxies accept redirected traffic, so the application behind it is unreachable: have it listen on another port", port)}
		if in.sidecar() != nil {
			p.Object = in.sidecar().Config.Key
		} else {
			p.Object = e.service.Source
		}
		in.problems = append(in.problems, p)
		return true
	})
}

func (in *ingress) mode(port uint32) snapshot.MutualTLS {
	return in.target.mesh.PeerAuthentications.Mode(in.target.proxy.Namespace, in.target.proxy.OwnLabels(), port)
}

// named reads the ingress listeners of the Sidecar. If several name the same port, the first one
// wins.
func (in *ingress) named() {
	s := in.target
	seen := make(map[uint32]bool)
	for i, l := range s.sidecar.Ingress() {
		port := l.GetPort().GetNumber()
		if port == 0 || port > 65535 || seen[port] {
			continue
		}
		tls := l.GetTls()
		if tls != nil {
			switch in.mode(port) {
			case snapshot.MutualTLSDisabled:
				if _, err := envoyconf.ServerTLS(s.mesh.Config, "", tls, nil); err != nil {
					in.leave(i, port, err.Error())
					continue
				}
			case snapshot.MutualTLSStrict:
				tls = nil
			case snapshot.MutualTLSPermissive:
				// Omitting the listener is safer than accepting plaintext where the author
				// requires TLS.
				in.leave(i, port, "tls and mutual TLS of the mesh exclude each other, and the mode PERMISSIVE would accept plaintext: "+
					"set the mode of the port to DISABLE in a PeerAuthentication (spec.portLevelMtls)")
				continue
			}
		}
		bound := !s.intercepts() || l.GetCaptureMode() == networkingv1alpha3.CaptureMode_NONE
		target, own, ok := in.destination(l.GetDefaultEndpoint(), port)
		if !ok {
			continue // reported by validation
		}
		if l.GetDefaultEndpoint() == "" && !bound {
			target, own = nil, false
		}
		seen[port] = true
		in.addressed = in.addressed || own
		bind := cmp.Or(l.GetBind(), s.proxy.IPs[0])
		if _, unix := envoyconf.UnixPath(bind); !unix && !envoyconf.IsIP(bind) {
			continue
		}
		var from xds.Sources
		from.AddConfigs(s.sidecar.Config)
		if tls != nil {
			from = append(from, in.peers...) // without them the port would not exist
		}
		protocol := model.ParseProtocol(cmp.Or(l.GetPort().GetProtocol(), l.GetPort().GetName()))
		if tls != nil && protocol == model.ProtocolHTTPS {
			protocol = model.ProtocolHTTP // inside the TLS that ends here
		}
		shown := in.shown(port, &from)
		in.entries = append(in.entries, ingressEntry{
			from: from, bind: bind, port: port, target: target, bound: bound,
			protocol: protocol, mode: in.mode(port), tls: tls, pool: l.GetConnectionPool(), shown: shown,
		})
	}
}

// leave reports that an ingress listener is omitted.
func (in *ingress) leave(i int, port uint32, why string) {
	of := in.target.sidecar.Config
	in.refused = append(in.refused, port)
	in.problems = append(in.problems, model.Problem{
		Object: of.Key, Source: of.Source, Reason: fmt.Sprintf("spec.ingress[%d].tls: the port accepts no connections: %s", i, why),
	})
}

// served adds the ports of the services of the workload. If several services use a port, the
// oldest one determines its protocol.
func (in *ingress) served() {
	instances := in.target.instances()
	slices.SortStableFunc(instances, func(a, b snapshot.Instance) int { return a.Service.Created.Compare(b.Service.Created) })
	for _, i := range instances {
		port := i.Endpoint.Port
		at := slices.IndexFunc(i.Service.Ports, func(p model.Port) bool { return p.Number == i.Endpoint.ServicePort })
		if at < 0 || port == 0 || i.Service.Ports[at].Protocol == model.ProtocolUDP {
			continue
		}
		e := ingressEntry{
			port: port, protocol: i.Service.Ports[at].Protocol, mode: in.mode(port),
			host: i.Service.Hostname, servicePort: i.Endpoint.ServicePort, service: i.Service,
		}
		e.from.Add(i.Service.Source)
		e.from.Add(i.Service.EndpointsFrom...) // one of them may select the workload
		same := slices.IndexFunc(in.entries, func(o ingressEntry) bool { return o.port == port })
		if same < 0 {
			in.entries = append(in.entries, e)
			continue
		}
		first := &in.entries[same]
		first.from = append(first.from, e.from...)
		switch {
		case first.protocol == e.protocol:
		case first.protocol.IsHTTP() && e.protocol.IsHTTP():
			first.mixed = true
		default:
			p := model.Problem{
				Object: i.Service.Source, Warning: true, Code: model.ConflictInbound,
				Reason: fmt.Sprintf("port %d of the workloads speaks %s for this service and %s for %s, which is older and wins: "+
					"give both ports the same protocol", port, e.protocol, first.protocol, first.host),
			}
			if !slices.Contains(in.problems, p) { // several endpoints may have the same address
				in.problems = append(in.problems, p)
			}
		}
	}
	slices.SortFunc(in.entries, func(a, b ingressEntry) int { return cmp.Compare(a.port, b.port) })
}

// sidecar returns the Sidecar that defines the entries, or nil if none does.
func (in *ingress) sidecar() *snapshot.Sidecar {
	if len(in.target.sidecar.Ingress()) == 0 {
		return nil
	}
	return in.target.sidecar
}

// destination parses a defaultEndpoint. The wildcard address means the proxy's own address; an
// empty endpoint means the same port on the loopback address.
func (in *ingress) destination(endpoint string, port uint32) (address *corev3.Address, own, ok bool) {
	if path, unix := envoyconf.UnixPath(endpoint); unix {
		return envoyconf.PipeAddress(path), false, path != ""
	}
	if endpoint == "" {
		return envoyconf.SocketAddress("127.0.0.1", port), false, true
	}
	i := strings.LastIndexByte(endpoint, ':')
	if i < 0 {
		return nil, false, false
	}
	ip, err := specialaddr.ParseHost(cmp.Or(endpoint[:i], "127.0.0.1"))
	n, errPort := strconv.ParseUint(endpoint[i+1:], 10, 16)
	if err != nil || errPort != nil || n == 0 || ip.Zone() != "" {
		return nil, false, false
	}
	if ip.IsUnspecified() {
		return envoyconf.SocketAddress(in.target.proxy.IPs[0], uint32(n)), true, true
	}
	return envoyconf.SocketAddress(ip.String(), uint32(n)), false, true
}

// clusterKey returns the key of the inbound clusters.
func (in *ingress) clusterKey() inboundKey {
	key := inboundKey{modes: in.target.unknownKey()}
	if s := in.pooled(); s != nil {
		key.sidecar = s.Config.Key
	}
	if in.addressed {
		key.address = in.target.proxy.IPs[0]
	}
	for _, e := range in.entries {
		key.modes += fmt.Sprintf(";%d/%s/%t/%d/%q/%s/%q", e.port, e.protocol, e.mixed, e.servicePort, e.host, e.from, e.clusterStatName(in.target.mesh.Config))
	}
	return key
}

// pooled returns the Sidecar that the inbound clusters depend on, or nil.
func (in *ingress) pooled() *snapshot.Sidecar {
	if in.target.sidecar.InboundPool() != nil {
		return in.target.sidecar
	}
	return in.sidecar()
}

// namedBy returns the key of the Sidecar that defines the ingress, or the zero key.
func (in *ingress) namedBy() model.Key {
	if s := in.sidecar(); s != nil {
		return s.Config.Key
	}
	return model.Key{}
}

// listenerKey returns the key of the proxy's inbound listeners and HTTP proxy.
func (in *ingress) listenerKey() inboundKey {
	s := in.target
	key := inboundKey{sidecar: in.namedBy(), port: httpProxyPort(s), modes: s.unknownKey() + string(s.proxy.Interception)}
	if key.port != 0 {
		key.address = httpProxyAddress(s)
	}
	for _, e := range in.entries {
		if e.bound {
			key.address += "," + s.proxy.IPs[0]
		}
		if e.shown != nil {
			key.modes += e.shown.Hostname + "@" + e.shown.Namespace
		}
		key.modes += fmt.Sprintf(";%d/%d/%d/%s/%q/%s/%x/%x/%q", e.mode, e.port, e.servicePort, e.protocol, e.host, e.from, in.policies(e).Key, in.tokens(e).Key, e.clusterStatName(s.mesh.Config))
	}
	key.modes += fmt.Sprint(in.refused, in.peers)
	for _, f := range in.fallback {
		key.modes += fmt.Sprintf(";%d/%d", f.mode, f.port)
	}
	for _, p := range in.problems { // the set contains the problems
		key.modes += fmt.Sprintf(";%q", p)
	}
	return key
}

// shown returns the oldest service that is reached at a port that a Sidecar names, for metrics. It
// adds the objects that say so to from.
func (in *ingress) shown(port uint32, from *xds.Sources) *model.Service {
	if !in.target.recorded.Counts() {
		return nil
	}
	var first *model.Service
	for _, i := range in.target.instances() {
		if i.Endpoint.Port == port && (first == nil || i.Service.Created.Before(first.Created)) {
			first = i.Service
		}
	}
	if first != nil {
		from.Add(first.Source)
		from.Add(first.EndpointsFrom...)
	}
	return first
}

// policies returns the policies of a port.
func (in *ingress) policies(e ingressEntry) authorization.Policies {
	return in.target.policiesOf(in.target.services(e.port))
}

// tokens returns the RequestAuthentications of a port.
func (in *ingress) tokens(e ingressEntry) authentication.Tokens {
	return in.target.tokensOf(in.target.services(e.port))
}

// policy returns the policy for connections to the application: the settings of the Sidecar for
// the port, then those for all ports, then the DestinationRule of the service. It adds the object
// that it uses to from.
func (in *ingress) policy(e ingressEntry, from *xds.Sources) cluster.Policy {
	s := in.target
	pool := cmp.Or(e.pool, s.sidecar.InboundPool())
	if pool != nil {
		from.AddConfigs(s.sidecar.Config)
	}
	if pool != nil || e.service == nil {
		return cluster.InboundPolicy(pool, nil, e.port)
	}
	rule := s.mesh.DestinationRules.For(e.service.ServiceKey, s.proxy.Namespace, s.proxy.Labels)
	policy := cluster.InboundPolicy(nil, rule, e.servicePort)
	if policy.Pool != nil {
		from.AddConfigs(rule.Objects()...)
	}
	return policy
}

// inboundCluster is a cluster and the objects that it is built from.
type inboundCluster struct {
	message *clusterv3.Cluster
	from    xds.Sources
}

// clusters returns the clusters that lead from the inbound listeners to the application or to the
// original destination.
func (in *ingress) clusters(mesh *meshv1alpha1.MeshConfig) []inboundCluster {
	out := make([]inboundCluster, 0, len(in.entries)+3)
	add := func(c *clusterv3.Cluster, from xds.Sources) { out = append(out, inboundCluster{c, from}) }
	family := familiesOf(in.target.proxy)
	for _, e := range in.entries {
		name, protocol := inboundName(e.port), e.protocol
		if e.mixed {
			protocol = model.ProtocolUnsupported
		}
		from := slices.Clone(e.from)
		own := in.policy(e, &from)
		c := cluster.InboundOriginal(name, protocol, family.four || !family.six, family.six, mesh, own)
		if e.target != nil {
			c = cluster.Inbound(name, e.target, protocol, mesh, own)
		}
		if stat := e.clusterStatName(mesh); stat != name {
			c.AltStatName = stat
		}
		add(c, from)
	}
	unknown := func(c *clusterv3.Cluster, from xds.Sources) {
		if in.target.recorded.Labelled {
			cluster.Label(c)
			from.Add(in.target.recorded.LabelledBy)
		}
		add(c, from)
	}
	if to, from := in.target.forwarded(); to == cluster.ForwardName {
		unknown(cluster.Forward(mesh, in.target.viewer), from)
	}
	if !in.target.intercepts() {
		return out
	}
	if family.four || !family.six {
		add(cluster.InboundPassthrough(false, mesh), nil)
	}
	if family.six {
		add(cluster.InboundPassthrough(true, mesh), nil)
	}
	unknown(cluster.Passthrough(mesh), nil)
	return out
}
