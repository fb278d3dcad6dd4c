// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package validate

import (
	"net"
	"strconv"
	"strings"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/outrigger-mesh/outrigger/controlplane/config/field"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

func validateSidecar(c *checker, cfg *model.Config) {
	s, ok := cfg.Spec.(*networkingv1alpha3.Sidecar)
	if !ok {
		return
	}
	if len(s.GetIngress()) == 0 && len(s.GetEgress()) == 0 && s.GetOutboundTrafficPolicy() == nil && s.GetInboundConnectionPool() == nil {
		c.errorf("spec", "has no effect: write ingress, egress or outboundTrafficPolicy")
	}
	c.outboundTrafficPolicy(s.GetOutboundTrafficPolicy(), "spec.outboundTrafficPolicy")
	c.connectionPool(s.GetInboundConnectionPool(), "spec.inboundConnectionPool")
	c.selector(s.GetWorkloadSelector() != nil, s.GetWorkloadSelector().GetLabels(), "spec.workloadSelector.labels")
	numbers := map[uint32]int{}
	for i, in := range s.GetIngress() {
		path := field.Index("spec.ingress", i)
		c.ingress(in, path)
		n := in.GetPort().GetNumber()
		if first, ok := numbers[n]; ok && n != 0 {
			c.errorf(path+".port.number", "is %d, as in spec.ingress[%d]: each port is allowed only once", n, first)
		} else {
			numbers[n] = i
		}
	}
	c.egressListeners(s.GetEgress(), cfg.Namespace)
}

func (c *checker) outboundTrafficPolicy(p *networkingv1alpha3.OutboundTrafficPolicy, path string) {
	if p.GetEgressProxy() == nil {
		return
	}
	if p.GetMode() != networkingv1alpha3.OutboundTrafficPolicy_ALLOW_ANY {
		c.errorf(path+".egressProxy", "is allowed only with mode ALLOW_ANY: write that, or remove it")
	}
	c.destination(p.GetEgressProxy(), path+".egressProxy")
	if h := p.GetEgressProxy().GetHost(); h != "*" && strings.HasPrefix(h, "*") {
		c.errorf(path+".egressProxy.host", "is %s: write the full host", field.Quote(h))
	}
	if p.GetEgressProxy().GetPort() == nil {
		c.errorf(path+".egressProxy.port", "is missing: write the number of the port")
	}
}

// sidecarPort checks the port of a listener but for its number.
func (c *checker) sidecarPort(p *networkingv1alpha3.SidecarPort, path string) {
	c.protocol(p.GetProtocol(), path+".protocol")
	if p.GetName() != "" {
		c.fault(path+".name", labelNameFault(p.GetName()))
	}
	//lint:ignore SA1019 users still write it
	if p.GetTargetPort() != 0 {
		c.errorf(path+".targetPort", "has no effect on a sidecar: remove it")
	}
}

func (c *checker) ingress(in *networkingv1alpha3.IstioIngressListener, path string) {
	if in.GetPort() == nil {
		c.errorf(path+".port", "is missing: write the number, protocol and name of the port")
	} else {
		c.port(in.GetPort().GetNumber(), path+".port.number")
		c.sidecarPort(in.GetPort(), path+".port")
	}
	if b := in.GetBind(); b != "" && !isIP(b) {
		c.errorf(path+".bind", "is %s: it must be an IP address", field.Quote(b))
	}
	c.defaultEndpoint(in.GetDefaultEndpoint(), path+".defaultEndpoint")
	c.connectionPool(in.GetConnectionPool(), path+".connectionPool")
	terminated := in.GetTls() != nil && strings.EqualFold(in.GetPort().GetProtocol(), "HTTPS")
	if in.GetConnectionPool().GetHttp() != nil && !isHTTP(in.GetPort().GetProtocol()) && !terminated {
		c.warnf(path+".connectionPool.http", "has no effect on a port whose protocol is %s: write the protocol HTTP, or remove it", field.Quote(in.GetPort().GetProtocol()))
	}
	tls := in.GetTls()
	if tls == nil {
		return
	}
	switch mode := tls.GetMode(); mode {
	case networkingv1alpha3.ServerTLSSettings_ISTIO_MUTUAL, networkingv1alpha3.ServerTLSSettings_AUTO_PASSTHROUGH:
		c.errorf(path+".tls.mode", "is %s: it is not allowed in a Sidecar; write SIMPLE or MUTUAL", mode)
	default:
	}
	for _, f := range []struct {
		name string
		set  bool
	}{
		{"subjectAltNames", len(tls.GetSubjectAltNames()) > 0},
		{"httpsRedirect", tls.GetHttpsRedirect()},
		{"credentialName", tls.GetCredentialName() != ""},
		{"credentialNames", len(tls.GetCredentialNames()) > 0},
		{"tlsCertificates", len(tls.GetTlsCertificates()) > 0},
	} {
		if f.set {
			c.errorf(path+".tls."+f.name, "is not allowed in a Sidecar: remove it")
		}
	}
	if p := in.GetPort().GetProtocol(); in.GetPort() != nil && !isTLS(p) {
		c.errorf(path+".tls", "is not allowed on a port whose protocol is %s: remove it, or write the protocol TLS or HTTPS", field.Quote(p))
	}
	c.serverTLS(tls, path+".tls")
}

// defaultEndpoint checks where requests go from the sidecar: the loopback
// address, any address of the workload, or a Unix socket; empty means the
// same port on the loopback address.
func (c *checker) defaultEndpoint(s, path string) {
	const cure = "write 127.0.0.1:PORT, 0.0.0.0:PORT, [::1]:PORT, [::]:PORT or unix:///PATH"
	if s == "" {
		return
	}
	if strings.HasPrefix(s, unixScheme) {
		c.fault(path, unixSocketFault(s))
		return
	}
	host, port, err := net.SplitHostPort(s)
	n, errPort := strconv.ParseUint(port, 10, 16)
	if err != nil || errPort != nil || n == 0 {
		c.errorf(path, "is %s: %s", field.Quote(s), cure)
		return
	}
	switch host {
	case "", "127.0.0.1", "0.0.0.0", "::1", "::":
	default:
		c.errorf(path, "is %s, which is on another machine or address: %s", field.Quote(s), cure)
	}
}

func (c *checker) egressListeners(list []*networkingv1alpha3.IstioEgressListener, namespace string) {
	ports, sockets := map[uint32]int{}, map[string]int{}
	for i, e := range list {
		path := field.Index("spec.egress", i)
		c.egressHosts(e.GetHosts(), namespace, path+".hosts")
		n := e.GetPort().GetNumber()
		switch {
		case e.GetPort() == nil:
			if i < len(list)-1 {
				c.errorf(path+".port", "is missing: only the last entry may be without port; write one, or move the entry to the end")
			}
			continue
		case n == 0:
			if !strings.HasPrefix(e.GetBind(), unixScheme) {
				c.errorf(path+".port.number", "is 0 or missing: write a port between 1 and 65535, or a bind of unix:// and the path of a socket")
			} else {
				c.fault(path+".bind", unixSocketFault(e.GetBind()))
			}
			if e.GetCaptureMode() == networkingv1alpha3.CaptureMode_IPTABLES {
				c.errorf(path+".captureMode", "is IPTABLES: a socket cannot be intercepted; write DEFAULT or NONE")
			}
			if first, ok := sockets[e.GetBind()]; ok {
				c.errorf(path+".bind", "is %s, as in spec.egress[%d]: each socket is allowed only once", field.Quote(e.GetBind()), first)
			}
			sockets[e.GetBind()] = i
		default:
			c.port(n, path+".port.number")
			if b := e.GetBind(); b != "" && !isIP(b) {
				c.errorf(path+".bind", "is %s: with a port it must be an IP address", field.Quote(b))
			}
			if first, ok := ports[n]; ok {
				c.errorf(path+".port.number", "is %d, as in spec.egress[%d]: each port is allowed only once", n, first)
			}
			ports[n] = i
		}
		c.sidecarPort(e.GetPort(), path+".port")
	}
}

func (c *checker) egressHosts(hosts []string, namespace, path string) {
	if len(hosts) == 0 {
		c.errorf(path, "is empty: write hosts such as \"./*\" or \"*/catalog.default.svc.cluster.local\"")
	}
	type entry struct{ namespace, host string }
	seen := firsts[entry]{}
	for i, h := range hosts {
		at := field.Index(path, i)
		ns, host, ok := strings.Cut(h, "/")
		if !ok {
			c.errorf(at, "is %s: write namespace/host, for example \"*/%s\"", field.Quote(h), field.Clip(h, field.MaxKeyText))
			continue
		}
		if ns != "*" && ns != "." && ns != "~" && labelNameFault(ns) != "" {
			c.errorf(at, "is %s: the part before \"/\" must be a namespace, \".\", \"*\" or \"~\"", field.Quote(h))
		}
		c.fault(at, fullHostFault(h, host))
		if ns == "." && namespace != "" {
			ns = namespace
		}
		host = strings.ToLower(host)
		if first, ok := seen.earliest(entry{ns, host}, entry{ns, "*"}, entry{"*", host}, entry{"*", "*"}); ok {
			c.warnf(at, "is %s, which an earlier entry includes (%s): remove one", field.Quote(h), field.Quote(hosts[first]))
		}
		seen.add(i, entry{ns, host})
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
