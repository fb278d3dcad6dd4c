// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"cmp"
	"net/netip"
	"strconv"
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/outrigger-mesh/outrigger/controlplane/generate/cluster"
	"github.com/outrigger-mesh/outrigger/controlplane/generate/parts"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
)

// ingress are the inbound listeners that the Sidecar of a proxy asks for.
type ingress struct {
	scope   *scope
	entries []ingressEntry
	// addressed is true when an application is reached at the proxy's own
	// address, so that the clusters depend on it.
	addressed bool
}

type ingressEntry struct {
	bind     string
	port     uint32
	protocol model.Protocol
	mode     snapshot.MutualTLS
	// target is where the application listens.
	target *corev3.Address
}

// ingressOf reads the ingress listeners; of several on one address or for one
// port the first counts.
func ingressOf(s *scope) *ingress {
	in := &ingress{scope: s}
	seen := make(map[uint32]bool)
	for _, l := range s.sidecar.Ingress() {
		port := l.GetPort().GetNumber()
		if port == 0 || port > 65535 || seen[port] {
			continue
		}
		if l.GetTls() != nil {
			// Certificates of its own are not served: no listener is better
			// than one that takes plaintext where the author wants TLS.
			continue
		}
		target, own, ok := in.target(l.GetDefaultEndpoint(), port)
		if !ok {
			continue // validation tells the author
		}
		seen[port] = true
		in.addressed = in.addressed || own
		bind := cmp.Or(l.GetBind(), s.proxy.IPs[0])
		if _, unix := parts.UnixPath(bind); !unix && !parts.IsIP(bind) {
			continue
		}
		in.entries = append(in.entries, ingressEntry{
			bind: bind, port: port, target: target,
			protocol: model.ParseProtocol(cmp.Or(l.GetPort().GetProtocol(), l.GetPort().GetName())),
			mode:     s.mesh.PeerAuthentications.Mode(s.proxy.Namespace, s.proxy.Labels, port),
		})
	}
	return in
}

// sidecar is the object that the entries come from; nil without any.
func (in *ingress) sidecar() *snapshot.Sidecar {
	if len(in.entries) == 0 {
		return nil
	}
	return in.scope.sidecar
}

// target reads a defaultEndpoint. The wildcard address stands for the proxy's
// own; an empty endpoint is the same port on the loopback address.
func (in *ingress) target(endpoint string, port uint32) (address *corev3.Address, own, ok bool) {
	if path, unix := parts.UnixPath(endpoint); unix {
		return parts.PipeAddress(path), false, path != ""
	}
	if endpoint == "" {
		return parts.SocketAddress("127.0.0.1", port), false, true
	}
	i := strings.LastIndexByte(endpoint, ':')
	if i < 0 {
		return nil, false, false
	}
	ip, err := netip.ParseAddr(cmp.Or(strings.Trim(endpoint[:i], "[]"), "127.0.0.1"))
	n, errPort := strconv.ParseUint(endpoint[i+1:], 10, 16)
	if err != nil || errPort != nil || n == 0 {
		return nil, false, false
	}
	if ip.IsUnspecified() {
		return parts.SocketAddress(in.scope.proxy.IPs[0], uint32(n)), true, true
	}
	return parts.SocketAddress(ip.String(), uint32(n)), false, true
}

// clusterKey decides the inbound clusters.
func (in *ingress) clusterKey() inboundKey {
	if len(in.entries) == 0 {
		return inboundKey{}
	}
	key := inboundKey{sidecar: in.scope.sidecar.Config.Key}
	if in.addressed {
		key.address = in.scope.proxy.IPs[0]
	}
	return key
}

// listenerKey decides all listeners of the proxy.
func (in *ingress) listenerKey() inboundKey {
	key := inboundKey{address: in.scope.proxy.IPs[0], port: httpProxyPort(in.scope)}
	if len(in.entries) > 0 {
		key.sidecar = in.scope.sidecar.Config.Key
	}
	for _, e := range in.entries {
		key.modes += strconv.Itoa(int(e.mode))
	}
	return key
}

// clusters lead from the inbound listeners to the application.
func (in *ingress) clusters(mesh *meshv1alpha1.MeshConfig) []*clusterv3.Cluster {
	out := make([]*clusterv3.Cluster, 0, len(in.entries))
	for _, e := range in.entries {
		out = append(out, cluster.Inbound(parts.InboundName(e.port), e.target, e.protocol, mesh))
	}
	return out
}
