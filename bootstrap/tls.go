// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package bootstrap

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/bootstrap/node"
)

// tlsSocket returns the transport socket of a telemetry cluster, or nil for plaintext. SIMPLE and
// MUTUAL read certificates from the configured files; ISTIO_MUTUAL uses the workload's own.
func tlsSocket(s *networkingv1alpha3.ClientTLSSettings, r remote) (object, error) {
	if s == nil || s.GetMode() == networkingv1alpha3.ClientTLSSettings_DISABLE {
		return nil, nil
	}
	fail := func(field, value, cure string) error {
		return fmt.Errorf("ProxyConfig %s.%s is %q, %s", r.tlsField, field, value, cure)
	}
	if name := s.GetCredentialName(); name != "" {
		return nil, fail("credentialName", name, "the bootstrap has no secrets of the cluster; name files with caCertificates, clientCertificate, privateKey")
	}
	common, sni := object{}, s.GetSni()
	switch s.GetMode() {
	case networkingv1alpha3.ClientTLSSettings_ISTIO_MUTUAL:
		if sni == "" {
			sni = r.sni
		}
		common["tls_certificate_sds_secret_configs"] = []any{sdsSecret("default")}
		common["combined_validation_context"] = object{
			"default_validation_context":           validation(s.GetSubjectAltNames()),
			"validation_context_sds_secret_config": sdsSecret("ROOTCA"),
		}
	case networkingv1alpha3.ClientTLSSettings_MUTUAL:
		chain, key := cmp.Or(r.certificates.chain, s.GetClientCertificate()), cmp.Or(r.certificates.key, s.GetPrivateKey())
		if chain == "" {
			return nil, fail("clientCertificate", "", "mode MUTUAL needs the path of a certificate chain")
		}
		if key == "" {
			return nil, fail("privateKey", "", "mode MUTUAL needs the path of a private key")
		}
		common["tls_certificates"] = []any{object{
			"certificate_chain": object{"filename": chain},
			"private_key":       object{"filename": key},
		}}
		fallthrough
	case networkingv1alpha3.ClientTLSSettings_SIMPLE:
		if !s.GetInsecureSkipVerify().GetValue() {
			context, err := fileValidation(s, r, sni)
			if err != nil {
				return nil, fail("caCertificates", "", err.Error())
			}
			common["validation_context"] = context
		}
	default:
		return nil, fail("mode", s.GetMode().String(), "it must be DISABLE, SIMPLE, MUTUAL or ISTIO_MUTUAL")
	}
	if r.http2 {
		common["alpn_protocols"] = []any{"h2"}
		if s.GetMode() == networkingv1alpha3.ClientTLSSettings_ISTIO_MUTUAL {
			common["alpn_protocols"] = []any{"istio", "h2"}
		}
	}
	context := object{
		"@type":              "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
		"common_tls_context": common,
	}
	if sni != "" {
		context["sni"] = sni
	}
	return object{"name": "envoy.transport_sockets.tls", "typed_config": context}, nil
}

// fileValidation trusts the roots in a file, or those of the system. Anyone can obtain a
// certificate from a system root, so the name is always checked for those.
func fileValidation(s *networkingv1alpha3.ClientTLSSettings, r remote, sni string) (object, error) {
	names := s.GetSubjectAltNames()
	if roots := cmp.Or(r.certificates.roots, s.GetCaCertificates()); roots != "" {
		context := validation(names)
		context["trusted_ca"] = object{"filename": roots}
		if s.GetCaCrl() != "" {
			context["crl"] = object{"filename": s.GetCaCrl()}
		}
		return context, nil
	}
	if r.systemRoots == "" {
		return nil, errors.New("and this system has no root certificates where they usually are: name a file of root certificates")
	}
	if len(names) == 0 {
		if names = []string{sni}; sni == "" {
			names = []string{r.host}
		}
	}
	context := validation(names)
	context["trusted_ca"] = object{"filename": r.systemRoots}
	return context, nil
}

// validation requires one of the names in the peer's certificate; no names means any.
func validation(names []string) object {
	var matchers []any
	for _, name := range names {
		kind := "DNS"
		if _, err := netip.ParseAddr(name); err == nil {
			kind = "IP_ADDRESS"
		} else if strings.Contains(name, "://") {
			kind = "URI"
		}
		matchers = append(matchers, object{"san_type": kind, "matcher": object{"exact": name}})
	}
	if matchers == nil {
		return object{}
	}
	return object{"match_typed_subject_alt_names": matchers}
}

// sdsSecret returns the SDS configuration of a secret that the agent serves. Envoy waits at most
// one second for it during initialization, so that telemetry does not delay the start. A secret
// that arrives later is still used.
func sdsSecret(name string) object {
	return object{
		"name": name,
		"sds_config": object{
			"initial_fetch_timeout": "1s",
			"resource_api_version":  "V3",
			"api_config_source": object{
				"api_type":                       "GRPC",
				"transport_api_version":          "V3",
				"set_node_on_first_message_only": true,
				"grpc_services":                  []any{object{"envoy_grpc": object{"cluster_name": SDSCluster}}},
			},
		},
	}
}

// certificates are the files that the node's metadata names. They take precedence over those of the
// TLS settings.
type certificates struct{ chain, key, roots string }

func ownCertificates(m *node.Metadata) certificates {
	return certificates{chain: m.TLSClientCertChain, key: m.TLSClientKey, roots: m.TLSClientRootCert}
}

// File is a file that Envoy reads on start, and the field that names it.
type File struct{ Field, Path string }

// Files returns the files named by the TLS settings of the ProxyConfig, or by the metadata instead.
// Envoy does not start if one is missing.
func Files(pc *meshv1alpha1.ProxyConfig, m *node.Metadata) []File {
	var files []File
	add := func(field string, s *networkingv1alpha3.ClientTLSSettings) {
		file := func(name, path, key, own string) {
			if own != "" {
				files = append(files, File{"node metadata " + key + " (ISTIO_META_" + key + ")", own})
			} else if path != "" {
				files = append(files, File{"ProxyConfig " + field + ".tlsSettings." + name, path})
			}
		}
		mutual := s.GetMode() == networkingv1alpha3.ClientTLSSettings_MUTUAL
		if !mutual && s.GetMode() != networkingv1alpha3.ClientTLSSettings_SIMPLE {
			return
		}
		if !s.GetInsecureSkipVerify().GetValue() {
			file("caCertificates", s.GetCaCertificates(), "TLS_CLIENT_ROOT_CERT", m.TLSClientRootCert)
			file("caCrl", s.GetCaCrl(), "", "")
		}
		if mutual {
			file("clientCertificate", s.GetClientCertificate(), "TLS_CLIENT_CERT_CHAIN", m.TLSClientCertChain)
			file("privateKey", s.GetPrivateKey(), "TLS_CLIENT_KEY", m.TLSClientKey)
		}
	}
	if pc.GetTracing().GetTracer() != nil {
		add("tracing", pc.GetTracing().GetTlsSettings())
	}
	add("envoyMetricsService", pc.GetEnvoyMetricsService().GetTlsSettings())
	add("envoyAccessLogService", pc.GetEnvoyAccessLogService().GetTlsSettings())
	return files
}
