// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package validate

import (
	"slices"
	"strings"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/config/field"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

func validateGateway(c *checker, cfg *model.Config) {
	gw, ok := cfg.Spec.(*networkingv1alpha3.Gateway)
	if !ok {
		return
	}
	if fault := labelNameFault(cfg.Name); fault != "" && cfg.Name != "" {
		c.errorf("metadata.name", "%s; hosts and VirtualServices could not refer to the gateway", fault)
	}
	for k, v := range field.Sorted(gw.GetSelector()) {
		if fault := LabelFault(k, v); fault != "" {
			c.warnf(field.Key("spec.selector", k), "%s; as written, it selects no workload", fault)
		}
	}
	if len(gw.GetServers()) == 0 {
		c.errorf("spec.servers", "is empty: write at least one server with port and hosts")
	}
	names := map[string]int{}
	for i, s := range gw.GetServers() {
		path := field.Index("spec.servers", i)
		c.server(s, path)
		name := s.GetPort().GetName()
		if first, ok := names[name]; ok && name != "" {
			c.errorf(path+".port.name", "is %s, as in spec.servers[%d]: give each port a name of its own", field.Quote(name), first)
		} else {
			names[name] = i
		}
	}
}

func (c *checker) server(s *networkingv1alpha3.Server, path string) {
	if len(s.GetHosts()) == 0 {
		c.errorf(path+".hosts", "is empty: write the hosts that the server is for, or \"*\"")
	}
	for i, h := range s.GetHosts() {
		c.serverHost(h, field.Index(path+".hosts", i))
	}
	c.serverPort(s, path)
	if s.GetBind() != "" {
		c.bind(s.GetBind(), s.GetPort().GetNumber(), path+".bind")
	}
	c.serverTLS(s.GetTls(), path+".tls")
	protocol := strings.ToUpper(s.GetPort().GetProtocol())
	tls := s.GetTls()
	switch {
	case s.GetPort() == nil || protocolFault(protocol) != "":
	case isTLS(protocol) && tls == nil:
		c.errorf(path+".tls", "is missing: a port of %s needs it; write tls with a mode", protocol)
	case !isTLS(protocol) && tls != nil && !isHTTP(protocol):
		c.errorf(path+".tls", "is not allowed on a port of %s: remove it, or write the protocol TLS or HTTPS", protocol)
	case !isTLS(protocol) && tls != nil && !onlyRedirects(tls):
		c.errorf(path+".tls", "may contain only httpsRedirect on a port of %s: remove the rest, or write the protocol HTTPS", protocol)
	}
	if tls.GetHttpsRedirect() && s.GetPort() != nil && !isHTTP(protocol) {
		c.warnf(path+".tls.httpsRedirect", "has no effect on a port of %s: write it on the port of HTTP", protocol)
	}
}

// serverHost checks "host" or "namespace/host".
func (c *checker) serverHost(s, path string) {
	namespace, host, ok := strings.Cut(s, "/")
	if !ok {
		host = s
	} else if namespace != "*" && namespace != "." && labelNameFault(namespace) != "" {
		c.errorf(path, "is %s: the part before \"/\" must be a namespace, \".\" or \"*\"", field.Quote(s))
	}
	if !isIP(host) || strings.Contains(host, ":") {
		c.fault(path, fullHostFault(s, host))
	}
}

// fullHostFault checks the host of a value such as namespace/host: it has to
// be "*" or to have a domain.
func fullHostFault(value, host string) string {
	if host == "" {
		return "is " + field.Quote(value) + ": write a host after \"/\""
	}
	if fault := hostFault(host, wholeWildcard); fault != "" {
		return strings.Replace(fault, field.Quote(host), field.Quote(value), 1)
	}
	if host != "*" && !strings.Contains(host, ".") {
		return "is " + field.Quote(value) + ": short names are not allowed here; write the full host, a wildcard such as *.example.com, or \"*\""
	}
	return ""
}

func (c *checker) serverPort(s *networkingv1alpha3.Server, path string) {
	p := s.GetPort()
	if p == nil {
		c.errorf(path+".port", "is missing: write the number, protocol and name of the port")
		return
	}
	if p.GetNumber() != 0 || !strings.HasPrefix(s.GetBind(), unixScheme) {
		c.port(p.GetNumber(), path+".port.number")
	}
	if p.GetProtocol() == "" {
		c.errorf(path+".port.protocol", "is missing: write one of %s", strings.Join(strings.Fields(protocols), ", "))
	} else {
		c.fault(path+".port.protocol", protocolFault(p.GetProtocol()))
	}
	if p.GetName() == "" {
		c.errorf(path+".port.name", "is missing: write a name such as http")
	}
	//lint:ignore SA1019 users still write it
	if p.GetTargetPort() != 0 {
		c.errorf(path+".port.targetPort", "has no effect on a gateway: remove it")
	}
}

// bind checks where a listener listens.
func (c *checker) bind(s string, port uint32, path string) {
	switch {
	case strings.HasPrefix(s, unixScheme):
		c.fault(path, unixSocketFault(s))
		if port != 0 {
			c.errorf(path, "is %s and the port is %d: with a socket write the port 0", field.Quote(s), port)
		}
	case !isIP(s):
		c.errorf(path, "is %s: it must be an IP address, or unix:// and the path of a socket with the port 0", field.Quote(s))
	}
}

// onlyRedirects reports whether TLS settings hold nothing but a redirect.
func onlyRedirects(tls *networkingv1alpha3.ServerTLSSettings) bool {
	return (tls.GetMode() == networkingv1alpha3.ServerTLSSettings_PASSTHROUGH || tls.GetMode() == networkingv1alpha3.ServerTLSSettings_AUTO_PASSTHROUGH) &&
		tls.GetServerCertificate() == "" && tls.GetPrivateKey() == "" && tls.GetCaCertificates() == ""
}

// serverCiphers are those that Envoy knows, and Istio with it.
const serverCiphers = " ECDHE-ECDSA-AES128-GCM-SHA256 ECDHE-RSA-AES128-GCM-SHA256 ECDHE-ECDSA-AES256-GCM-SHA384" +
	" ECDHE-RSA-AES256-GCM-SHA384 ECDHE-ECDSA-CHACHA20-POLY1305 ECDHE-RSA-CHACHA20-POLY1305" +
	" ECDHE-ECDSA-AES128-SHA ECDHE-RSA-AES128-SHA ECDHE-ECDSA-AES256-SHA ECDHE-RSA-AES256-SHA" +
	" AES128-GCM-SHA256 AES256-GCM-SHA384 AES128-SHA AES256-SHA DES-CBC3-SHA "

func (c *checker) serverTLS(tls *networkingv1alpha3.ServerTLSSettings, path string) {
	if tls == nil {
		return
	}
	c.serverVersions(tls, path)
	files := []struct{ name, value string }{
		{"serverCertificate", tls.GetServerCertificate()},
		{"privateKey", tls.GetPrivateKey()},
		{"caCertificates", tls.GetCaCertificates()},
	}
	named := tls.GetCredentialName() != "" || len(tls.GetCredentialNames()) > 0
	listed := len(tls.GetTlsCertificates()) > 0
	needed := 0
	switch mode := tls.GetMode(); mode {
	case networkingv1alpha3.ServerTLSSettings_ISTIO_MUTUAL:
		for _, f := range append(files, struct{ name, value string }{"credentialName", tls.GetCredentialName()}) {
			if f.value != "" {
				c.errorf(path+"."+f.name, "is not allowed with mode ISTIO_MUTUAL, which uses the certificates of the mesh: remove it, or write mode MUTUAL")
			}
		}
	case networkingv1alpha3.ServerTLSSettings_PASSTHROUGH, networkingv1alpha3.ServerTLSSettings_AUTO_PASSTHROUGH:
		if tls.GetCaCrl() != "" && tls.GetCredentialName() != "" {
			c.errorf(path+".caCrl", "and credentialName exclude each other: write the list into the Secret, or remove it")
		}
		if named || listed || slices.ContainsFunc(files, func(f struct{ name, value string }) bool { return f.value != "" }) || tls.GetCaCrl() != "" {
			c.warnf(path, "has certificates, which mode %s does not use: remove them, or write mode SIMPLE or MUTUAL", mode)
		}
	case networkingv1alpha3.ServerTLSSettings_SIMPLE:
		needed = 2
		if tls.GetCaCrl() != "" && named {
			c.warnf(path+".caCrl", "has no effect with mode SIMPLE, in which clients have no certificates: remove it, or write mode MUTUAL")
		} else if tls.GetCaCrl() != "" {
			c.errorf(path+".caCrl", "is not allowed with mode SIMPLE, in which clients have no certificates: remove it, or write mode MUTUAL")
		}
	case networkingv1alpha3.ServerTLSSettings_MUTUAL, networkingv1alpha3.ServerTLSSettings_OPTIONAL_MUTUAL:
		needed = 3
	}
	c.certificateSources(tls, path)
	if strings.HasPrefix(tls.GetCaCertCredentialName(), "configmap://") {
		c.warnf(path+".caCertCredentialName", "names a ConfigMap: proxies may read only those that objects of the Gateway API name; write the name of a Secret")
	}
	if tls.GetInsecureSkipVerify().GetValue() && needed != 3 {
		c.warnf(path+".insecureSkipVerify", "has no effect with mode %s: remove it, or write mode MUTUAL or OPTIONAL_MUTUAL", tls.GetMode())
	}
	for i, f := range files[:needed] {
		if f.value == "" && !named && !(listed && i < 2) && !(i == 2 && tls.GetCaCertCredentialName() != "") {
			c.errorf(path+"."+f.name, "is missing: mode %s needs it, or credentialName", tls.GetMode())
		}
	}
}

// certificateSources checks that the certificates of a server come from one place.
func (c *checker) certificateSources(tls *networkingv1alpha3.ServerTLSSettings, path string) {
	if tls.GetMode() == networkingv1alpha3.ServerTLSSettings_ISTIO_MUTUAL {
		for _, f := range []struct {
			name string
			set  bool
		}{{"credentialNames", len(tls.GetCredentialNames()) > 0}, {"tlsCertificates", len(tls.GetTlsCertificates()) > 0}} {
			if f.set {
				c.errorf(path+"."+f.name, "is not allowed with mode ISTIO_MUTUAL, which uses the certificates of the mesh: remove it, or write mode MUTUAL")
			}
		}
		return
	}
	var sources []string
	for _, s := range []struct {
		name string
		set  bool
	}{
		{"credentialName", tls.GetCredentialName() != ""},
		{"credentialNames", len(tls.GetCredentialNames()) > 0},
		{"serverCertificate", tls.GetServerCertificate() != "" && tls.GetPrivateKey() != ""},
		{"tlsCertificates", len(tls.GetTlsCertificates()) > 0},
	} {
		if s.set {
			sources = append(sources, s.name)
		}
	}
	if len(sources) > 1 {
		c.errorf(path, "has %s: keep one of them", strings.Join(sources, " and "))
	}
	const most = 2
	for _, f := range []struct {
		name string
		n    int
	}{{"credentialNames", len(tls.GetCredentialNames())}, {"tlsCertificates", len(tls.GetTlsCertificates())}} {
		if f.n > most {
			c.errorf(path+"."+f.name, "has %d entries: at most %d are allowed, one of RSA and one of ECDSA", f.n, most)
		}
	}
	if tls.GetMode() == networkingv1alpha3.ServerTLSSettings_PASSTHROUGH || tls.GetMode() == networkingv1alpha3.ServerTLSSettings_AUTO_PASSTHROUGH {
		return
	}
	for i, cert := range tls.GetTlsCertificates() {
		at := field.Index(path+".tlsCertificates", i)
		if cert.GetServerCertificate() == "" {
			c.errorf(at+".serverCertificate", "is missing: write the path of the certificate")
		}
		if cert.GetPrivateKey() == "" {
			c.errorf(at+".privateKey", "is missing: write the path of the key of the certificate")
		}
	}
}

func (c *checker) serverVersions(tls *networkingv1alpha3.ServerTLSSettings, path string) {
	seen := map[string]int{}
	for i, s := range tls.GetCipherSuites() {
		at := field.Index(path+".cipherSuites", i)
		if first, ok := seen[s]; ok {
			c.warnf(at, "is %s, as in cipherSuites[%d]: remove one", field.Quote(s), first)
			continue
		}
		seen[s] = i
		if s == "" || !strings.Contains(serverCiphers, " "+s+" ") {
			c.warnf(at, "is %s, which is not a known cipher and is ignored: write any of %s", field.Quote(s), strings.Join(strings.Fields(serverCiphers), ", "))
		}
	}
	switch v := tls.GetMinProtocolVersion(); v {
	case networkingv1alpha3.ServerTLSSettings_TLSV1_0, networkingv1alpha3.ServerTLSSettings_TLSV1_1:
		if len(tls.GetCipherSuites()) == 0 {
			c.warnf(path+".minProtocolVersion", "is %s, which the default ciphers do not support: write cipherSuites too, or TLSV1_2", v)
		}
	default:
	}
}
