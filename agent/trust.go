// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package agent

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/outrigger-mesh/outrigger/agent/environ"
	"github.com/outrigger-mesh/outrigger/bootstrap"
	"github.com/outrigger-mesh/outrigger/internal/tlspolicy"
)

// The files of root certificates and tokens, relative to the working directory unless
// they are absolute.
const (
	meshRootFile = "./var/run/secrets/istio/root-cert.pem"
	oldRootFile  = "./etc/certs/root-cert.pem"
	// Kubernetes' roots, mounted for the agent, or for every pod.
	kubeRootFile           = "./var/run/secrets/istio/kubernetes/ca.crt"
	serviceAccountRootFile = "./var/run/secrets/kubernetes.io/serviceaccount/ca.crt"
	meshTokenFile          = "./var/run/secrets/tokens/istio-token"
	kubeTokenFile          = "/var/run/secrets/kubernetes.io/serviceaccount/token"
	systemRoots            = "SYSTEM"
	plaintextPort          = "15010"
	maxTokenLength         = 1 << 16
)

// upstream is a server of the control plane.
type upstream struct {
	address, serverName string
	// roots is the file of root certificates, or SYSTEM; "" means plaintext.
	roots string
	// chain and key are the files of a client certificate, if there is one.
	chain, key string
	// ownFirst prefers the workload's certificate over that of the files.
	ownFirst bool
	policy   tlspolicy.Policy // of TLS
}

// upstreams returns how to connect to the control plane and the certificate authority.
func upstreams(src sources, pc *meshv1alpha1.ProxyConfig, source identitySource) (xds, ca upstream, err error) {
	e := src.Environ
	xds = upstream{address: pc.GetDiscoveryAddress(), serverName: e.Upstream.XDSName, policy: e.Compliance}
	mounted := ""
	if e.Upstream.ProvCert != "" {
		xds.chain, xds.key = filepath.Join(e.Upstream.ProvCert, "cert-chain.pem"), filepath.Join(e.Upstream.ProvCert, "key.pem")
		// The agent writes these files, so they are never newer than its own certificate.
		xds.ownFirst = reusesCertificates(e)
	} else if e.Identity.FileMounted {
		values := pc.GetProxyMetadata()
		xds.chain, xds.key, mounted = values["ISTIO_META_TLS_CLIENT_CERT_CHAIN"], values["ISTIO_META_TLS_CLIENT_KEY"], values["ISTIO_META_TLS_CLIENT_ROOT_CERT"]
	}
	if xds.serverName == "" {
		xds.serverName = bootstrap.ServerName(xds.address)
	}
	ca = xds
	if e.Upstream.CAAddress != "" {
		// ISTIOD_SAN is the name of the control plane, not of another authority.
		host, port, err := net.SplitHostPort(e.Upstream.CAAddress)
		if number, portErr := strconv.ParseUint(port, 10, 16); err != nil || host == "" || portErr != nil || number == 0 {
			return xds, ca, fmt.Errorf("environment variable CA_ADDR is %q; it must be host:port with a port from 1 to 65535", e.Upstream.CAAddress)
		}
		ca.address, ca.serverName = e.Upstream.CAAddress, host
	}
	plaintext := pc.GetControlPlaneAuthPolicy() == meshv1alpha1.AuthenticationPolicy_NONE
	if !plaintext {
		roots := rootChoice{variable: "XDS_ROOT_CA", named: e.Upstream.XDSRoot, first: oldRootFile, mounted: mounted}
		if xds.roots, err = roots.file(src.read, e); err != nil {
			return xds, ca, err
		}
	}
	if source.dir == "" && !(plaintext && e.Upstream.CAAddress == "") && !strings.HasSuffix(ca.address, ":"+plaintextPort) {
		roots := rootChoice{variable: "CA_ROOT_CA", named: e.Upstream.CARoot}
		if e.Upstream.CertProvider == "custom" {
			roots.named = oldRootFile
		}
		if e.Upstream.CARoot != "" {
			roots.named = e.Upstream.CARoot
		}
		if ca.roots, err = roots.file(src.read, e); err != nil {
			return xds, ca, err
		}
	}
	return xds, ca, nil
}

// reusesCertificates reports whether the agent's client certificate is the one that it
// has written to files before, as on a machine. At the first start there is none.
func reusesCertificates(e environ.Values) bool {
	return e.Upstream.ProvCert != "" && e.Identity.OutputDir != "" && filepath.Clean(e.Upstream.ProvCert) == filepath.Clean(e.Identity.OutputDir)
}

// rootChoice are the candidates for a file of root certificates.
type rootChoice struct {
	variable, named string // the variable that names a file, and its value
	first           string // used before the remaining ones, if it exists
	mounted         string // used with FILE_MOUNTED_CERTS
}

// file returns the file to use. In order: the one that the variable names, first if it
// exists, that of Kubernetes, that of PROV_CERT, that of FILE_MOUNTED_CERTS, the
// mesh's.
func (c rootChoice) file(read func(string) ([]byte, error), e environ.Values) (string, error) {
	exists := func(path string) bool {
		_, err := read(path)
		return path != "" && err == nil
	}
	path, from := meshRootFile, ""
	switch {
	case c.named == systemRoots:
		return systemRoots, nil
	case c.named != "":
		path = c.named
	case exists(c.first):
		path = c.first
	case e.Upstream.CertProvider == "kubernetes":
		if path = kubeRootFile; !exists(path) {
			path = serviceAccountRootFile
		}
		from = " (PILOT_CERT_PROVIDER is kubernetes)"
	case e.Upstream.ProvCert != "" && !(reusesCertificates(e) && !exists(filepath.Join(e.Upstream.ProvCert, "root-cert.pem")) && exists(meshRootFile)):
		path, from = filepath.Join(e.Upstream.ProvCert, "root-cert.pem"), " (in the directory that PROV_CERT names)"
	case c.mounted != "":
		path, from = c.mounted, " (ISTIO_META_TLS_CLIENT_ROOT_CERT of proxyMetadata)"
	case e.Upstream.CertProvider == "none":
		return "", fmt.Errorf("environment variable PILOT_CERT_PROVIDER is none: the control plane cannot be verified; name the root certificates with %s", c.variable)
	}
	if _, err := read(path); err != nil {
		return "", fmt.Errorf("root certificates: %w%s; without them the control plane cannot be verified: provide the file, or name another with %s", err, from, c.variable)
	}
	return path, nil
}

// checkRoots returns an error for a file without certificates, with which every
// connection would fail.
func checkRoots(cfg *settings) error {
	for _, server := range []struct {
		variable string
		upstream
	}{{"XDS_ROOT_CA", cfg.xds}, {"CA_ROOT_CA", cfg.ca}} {
		if server.roots == "" || server.roots == systemRoots {
			continue // the system's roots are slow to load, and are loaded when needed
		}
		if _, err := loadRoots(server.roots); err != nil {
			return fmt.Errorf("%w; replace the file, or name another with %s", err, server.variable)
		}
	}
	return nil
}

// tlsConfig returns a function that creates the TLS configuration of each connection,
// or nil for plaintext. The function reads the files each time, so that replaced ones
// take effect. workload returns the workload's own certificate, or nil if there is
// none yet.
func (u upstream) tlsConfig(workload func() *tls.Certificate) func() (*tls.Config, error) {
	if u.roots == "" {
		return nil
	}
	return func() (*tls.Config, error) {
		roots, err := loadRoots(u.roots)
		if err != nil {
			return nil, err
		}
		return u.policy.Restrict(&tls.Config{
			MinVersion: tls.VersionTLS12,
			RootCAs:    roots,
			ServerName: u.serverName,
			GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
				given, own := provisioned(u.chain, u.key), workload()
				switch {
				case given != nil && !(u.ownFirst && own != nil):
					return given, nil
				case own != nil:
					return own, nil
				}
				return &tls.Certificate{}, nil // the token authenticates the agent
			},
		}), nil
	}
}

// loadRoots reads root certificates.
func loadRoots(path string) (*x509.CertPool, error) {
	if path == systemRoots {
		pool, err := x509.SystemCertPool()
		if err != nil {
			return nil, fmt.Errorf("root certificates of the system: %w", err)
		}
		return pool, nil
	}
	doc, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("root certificates: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(doc) {
		return nil, fmt.Errorf("root certificates: %s contains no certificate in PEM", path)
	}
	return pool, nil
}

// provisioned loads a client certificate. It returns nil if there is none that is
// valid now.
func provisioned(chain, key string) *tls.Certificate {
	if chain == "" || key == "" {
		return nil
	}
	cert, err := tls.LoadX509KeyPair(chain, key)
	if err != nil || cert.Leaf == nil || time.Now().After(cert.Leaf.NotAfter) {
		return nil // the workload's certificate or the token is used
	}
	return &cert
}

// tokenSource returns a function that reads the token for each call, or nil if the
// policy requires none.
func tokenSource(policy string) func() (string, error) {
	path := ""
	switch policy {
	case "third-party-jwt":
		path = meshTokenFile
	case "first-party-jwt":
		path = kubeTokenFile
	default:
		return nil
	}
	return func() (string, error) {
		doc, err := os.ReadFile(path)
		if err != nil {
			return "", fmt.Errorf("token: %w", err)
		}
		if len(doc) > maxTokenLength {
			return "", errors.New("token: " + path + " is too long for a token")
		}
		return strings.TrimSpace(string(doc)), nil
	}
}
