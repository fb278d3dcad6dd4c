// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package debug

import (
	"cmp"
	"net"
	"slices"
	"strconv"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
	securityv1beta1 "istio.io/api/security/v1beta1"

	"github.com/outrigger-mesh/outrigger/certs"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/report"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
)

// secured returns how the connection of a client to a workload is secured, and why. hop is nil if the way
// of the request through the proxy of the client is not known. identity is what the workload sees.
func (d debugger) secured(from client, hop *report.Hop, to target, identity string) *report.Security {
	p := to.stream.Proxy
	out := &report.Security{Mutual: identity != "", Server: certificateOf(to.stream, d.identityOf(to.stream))}
	if out.Mutual {
		out.Client = certificateOf(from.stream, identity)
	}
	out.Mode = map[snapshot.MutualTLS]string{
		snapshot.MutualTLSPermissive: "PERMISSIVE", snapshot.MutualTLSStrict: "STRICT", snapshot.MutualTLSDisabled: "DISABLE",
	}[d.mesh.PeerAuthentications.Mode(p.Namespace, p.OwnLabels(), to.port)]
	if c := decidingMode(d.mesh.PeerAuthentications.Of(p.Namespace, p.OwnLabels()), to.port); c != nil {
		out.Modes = origins(c)
	}
	if hop == nil {
		out.Reason = "the client has no certificate"
		if out.Mutual {
			out.Reason = "the client is assumed to use it: its proxy is not connected, or does not send the request"
		}
		return out
	}
	i := slices.IndexFunc(hop.Destinations, func(one report.Destination) bool {
		return slices.Contains(one.Endpoints, net.JoinHostPort(to.address.String(), strconv.FormatUint(uint64(to.port), 10)))
	})
	if i < 0 { // the application chooses the address
		out.Reason = "the proxy of the client uses none for addresses that the application chooses"
		if out.Mutual {
			out.Reason = "the proxy of the client uses it for all addresses that the application chooses"
		}
		return out
	}
	switch one := hop.Destinations[i]; {
	case one.TLS:
		out.Reason, out.Objects = "a DestinationRule sets TLS", one.Objects
	case one.MutualTLS > 0:
		out.Reason = "the workload has a proxy that accepts it, so it is automatic"
	default:
		out.Reason = "the workload accepts none: it has no proxy, or its port is DISABLE"
		for _, of := range one.Objects {
			if d.disablesTLS(of.Ref) {
				out.Reason, out.Objects = "a DestinationRule switches TLS off", append(out.Objects, of)
			}
		}
	}
	return out
}

// identityOf returns the identity of a proxy.
func (d debugger) identityOf(st *Stream) string {
	id := certs.ID{TrustDomain: cmp.Or(d.mesh.Config.GetTrustDomain(), "cluster.local"), Namespace: st.Proxy.Namespace, ServiceAccount: st.Proxy.ServiceAccount}
	if st.Caller != nil {
		id = st.Caller.ID
	}
	return id.String()
}

// certificateOf returns what is known of the certificate of a workload, whose proxy may be nil.
func certificateOf(st *Stream, identity string) *report.Certificate {
	out := &report.Certificate{Identity: identity}
	if st != nil {
		out.Proxy, out.Namespace = st.Proxy.ID, st.Proxy.Namespace
		if len(st.Proxy.IPs) > 0 {
			out.Address = st.Proxy.IPs[0]
		}
	}
	return out
}

// decidingMode returns the most specific PeerAuthentication that sets a mode for a port; nil if there is none.
func decidingMode(list []*model.Config, port uint32) (out *model.Config) {
	for _, c := range list {
		spec, ok := c.Spec.(*securityv1beta1.PeerAuthentication)
		if !ok {
			continue
		}
		ofPort := spec.GetPortLevelMtls()[port]
		if len(spec.GetSelector().GetMatchLabels()) == 0 {
			ofPort = nil // has no effect
		}
		if spec.GetMtls().GetMode()+ofPort.GetMode() != securityv1beta1.PeerAuthentication_MutualTLS_UNSET {
			out = c
		}
	}
	return out
}

// disablesTLS reports whether a DestinationRule switches TLS off for any of its ports or subsets.
func (d debugger) disablesTLS(of report.Ref) bool {
	c := d.cfg.object(model.Key{Kind: model.Kind(of.Kind), Namespace: of.Namespace, Name: of.Name})
	if c == nil {
		return false
	}
	spec, ok := c.Spec.(*networkingv1alpha3.DestinationRule)
	if !ok {
		return false
	}
	policies := []*networkingv1alpha3.TrafficPolicy{spec.GetTrafficPolicy()}
	for _, s := range spec.GetSubsets() {
		policies = append(policies, s.GetTrafficPolicy())
	}
	off := func(tls *networkingv1alpha3.ClientTLSSettings) bool {
		return tls != nil && tls.GetMode() == networkingv1alpha3.ClientTLSSettings_DISABLE
	}
	return slices.ContainsFunc(policies, func(p *networkingv1alpha3.TrafficPolicy) bool {
		return off(p.GetTls()) || slices.ContainsFunc(p.GetPortLevelSettings(), func(port *networkingv1alpha3.TrafficPolicy_PortTrafficPolicy) bool { return off(port.GetTls()) })
	})
}
