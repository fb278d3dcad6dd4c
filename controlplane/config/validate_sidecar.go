// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package config

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
	securityv1beta1 "istio.io/api/security/v1beta1"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

func validateSidecar(c *checker, cfg *model.Config) {
	s, ok := cfg.Spec.(*networkingv1alpha3.Sidecar)
	if !ok {
		return
	}
	if len(s.GetIngress()) == 0 && len(s.GetEgress()) == 0 && s.GetOutboundTrafficPolicy() == nil {
		c.errorf("spec", "is without effect: write ingress, egress or outboundTrafficPolicy")
	}
	if mode := s.GetOutboundTrafficPolicy().GetMode(); mode != networkingv1alpha3.OutboundTrafficPolicy_REGISTRY_ONLY {
		c.errorf("spec.outboundTrafficPolicy.mode", "is %s, which is not supported by this version: without interception, hosts that are not in the mesh are not reached through it; write REGISTRY_ONLY", mode)
	}
	c.selector(s.GetWorkloadSelector().GetLabels(), "spec.workloadSelector.labels")
	numbers := map[uint32]int{}
	for i, in := range s.GetIngress() {
		path := index("spec.ingress", i)
		c.ingress(in, path)
		n := in.GetPort().GetNumber()
		if first, ok := numbers[n]; ok && n != 0 {
			c.errorf(path+".port.number", "is %d, as in spec.ingress[%d]: each port can stand here once", n, first)
		}
		numbers[n] = i
	}
	for i, e := range s.GetEgress() {
		c.egress(e, index("spec.egress", i))
	}
	if n := len(s.GetEgress()); n > 1 {
		c.errorf("spec.egress", "has %d entries without port: only one is allowed; write all hosts into it", n)
	}
}

func (c *checker) ingress(in *networkingv1alpha3.IstioIngressListener, path string) {
	if in.GetPort() == nil {
		c.errorf(path+".port", "is missing: write the number, protocol and name of the port")
	} else {
		c.port(in.GetPort().GetNumber(), path+".port.number")
		c.protocol(in.GetPort().GetProtocol(), path+".port.protocol")
		if name := in.GetPort().GetName(); name != "" {
			c.fault(path+".port.name", portNameFault(name))
		}
	}
	if b := in.GetBind(); b != "" && !isIP(b) {
		c.errorf(path+".bind", "is %s: it has to be an IP address", quote(b))
	}
	if in.GetCaptureMode() == networkingv1alpha3.CaptureMode_IPTABLES {
		c.errorf(path+".captureMode", "is IPTABLES: this version serves DEFAULT and NONE")
	}
	c.defaultEndpoint(in.GetDefaultEndpoint(), path+".defaultEndpoint")
}

// defaultEndpoint checks where requests go from the sidecar: the loopback
// address, any address of the workload, or a Unix socket; empty means the
// same port on the loopback address.
func (c *checker) defaultEndpoint(s, path string) {
	const cure = "write 127.0.0.1:PORT, 0.0.0.0:PORT, [::1]:PORT, [::]:PORT or unix:///PATH"
	if s == "" {
		return
	}
	if socket, ok := strings.CutPrefix(s, "unix://"); ok {
		if socket == "" {
			c.errorf(path, "is %s: %s", quote(s), cure)
		}
		return
	}
	addr, err := netip.ParseAddrPort(s)
	if err != nil || addr.Port() == 0 {
		c.errorf(path, "is %s: %s", quote(s), cure)
		return
	}
	switch addr.Addr() {
	case netip.IPv4Unspecified(), netip.IPv6Unspecified(), netip.IPv6Loopback(), netip.AddrFrom4([4]byte{127, 0, 0, 1}):
	default:
		c.errorf(path, "is %s, another machine or address: %s", quote(s), cure)
	}
}

func (c *checker) egress(e *networkingv1alpha3.IstioEgressListener, path string) {
	if len(e.GetHosts()) == 0 {
		c.errorf(path+".hosts", "is empty: write hosts such as \"./*\" or \"*/catalog.default.svc.cluster.local\"")
	}
	for i, h := range e.GetHosts() {
		at := index(path+".hosts", i)
		ns, host, ok := strings.Cut(h, "/")
		if !ok {
			c.errorf(at, "is %s: write namespace/host, for example \"*/%s\"", quote(h), h)
			continue
		}
		if ns != "*" && ns != "." && ns != "~" && dnsLabelFault(ns) != "" {
			c.errorf(at, "is %s: the part in front of \"/\" has to be a namespace, \".\", \"*\" or \"~\"", quote(h))
		}
		c.fault(at, hostFault(host, true))
	}
}

func validatePeerAuthentication(c *checker, cfg *model.Config) {
	pa, ok := cfg.Spec.(*securityv1beta1.PeerAuthentication)
	if !ok {
		return
	}
	c.selector(pa.GetSelector().GetMatchLabels(), "spec.selector.matchLabels")
	if len(pa.GetPortLevelMtls()) > 0 && len(pa.GetSelector().GetMatchLabels()) == 0 {
		c.errorf("spec.portLevelMtls", "needs a selector that names the workloads: write selector, or remove it")
	}
	for _, n := range slices.Sorted(maps.Keys(pa.GetPortLevelMtls())) {
		c.port(n, fmt.Sprintf("spec.portLevelMtls[%d]", n))
	}
}

// hasAny reports whether any field of m is set.
func hasAny(m proto.Message) bool {
	found := false
	m.ProtoReflect().Range(func(protoreflect.FieldDescriptor, protoreflect.Value) bool {
		found = true
		return false
	})
	return found
}
