// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

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

	"github.com/outrigger-mesh/outrigger/bootstrap"
)

// The files that trust comes from, relative to the working directory unless
// they begin with a slash.
const (
	meshRootFile   = "./var/run/secrets/istio/root-cert.pem"
	oldRootFile    = "./etc/certs/root-cert.pem"
	meshTokenFile  = "./var/run/secrets/tokens/istio-token"
	kubeTokenFile  = "/var/run/secrets/kubernetes.io/serviceaccount/token"
	systemRoots    = "SYSTEM"
	plaintextPort  = "15010"
	maxTokenLength = 1 << 16
)

// upstream is a server of the control plane.
type upstream struct {
	address, serverName string
	// roots is the file of root certificates, or SYSTEM; empty for plaintext.
	roots string
	// provCert is the directory of a client certificate, if there is one.
	provCert string
}

// upstreams resolves how control plane and certificate authority are reached.
func upstreams(src sources, pc *meshv1alpha1.ProxyConfig) (xds, ca upstream, err error) {
	e := src.env
	if e.certProvider != "istiod" {
		return xds, ca, fmt.Errorf("environment variable PILOT_CERT_PROVIDER is %q: only istiod is supported yet; name the root certificates with XDS_ROOT_CA and CA_ROOT_CA instead", e.certProvider)
	}
	xds = upstream{address: pc.GetDiscoveryAddress(), serverName: e.istiodSAN, provCert: e.provCert}
	if xds.serverName == "" {
		xds.serverName = bootstrap.ServerName(xds.address)
	}
	ca = xds
	if e.caAddress != "" {
		// ISTIOD_SAN is the name of the control plane, not of another authority.
		host, port, err := net.SplitHostPort(e.caAddress)
		if number, portErr := strconv.ParseUint(port, 10, 16); err != nil || host == "" || portErr != nil || number == 0 {
			return xds, ca, fmt.Errorf("environment variable CA_ADDR is %q, it must be host:port with a port from 1 to 65535", e.caAddress)
		}
		ca.address, ca.serverName = e.caAddress, host
	}
	plaintext := pc.GetControlPlaneAuthPolicy() == meshv1alpha1.AuthenticationPolicy_NONE
	if !plaintext {
		if xds.roots, err = rootFile(src.read, "XDS_ROOT_CA", e.xdsRoot, e.provCert, oldRootFile); err != nil {
			return xds, ca, err
		}
	}
	if !(plaintext && e.caAddress == "") && !strings.HasSuffix(ca.address, ":"+plaintextPort) {
		if ca.roots, err = rootFile(src.read, "CA_ROOT_CA", e.caRoot, e.provCert); err != nil {
			return xds, ca, err
		}
	}
	return xds, ca, nil
}

// rootFile chooses the file of root certificates: the one that the variable
// names, the first optional one that exists, that of PROV_CERT, or the mesh's.
func rootFile(read func(string) ([]byte, error), variable, named, provCert string, optional ...string) (string, error) {
	path, from := meshRootFile, ""
	switch {
	case named == systemRoots:
		return systemRoots, nil
	case named != "":
		path = named
	default:
		if provCert != "" {
			path, from = filepath.Join(provCert, "root-cert.pem"), " (in the directory that PROV_CERT names)"
		}
		for _, candidate := range optional {
			if _, err := read(candidate); err == nil {
				path, from = candidate, ""
				break
			}
		}
	}
	if _, err := read(path); err != nil {
		return "", fmt.Errorf("root certificates: %w%s; without them the control plane cannot be verified: provide the file, or name another with %s", err, from, variable)
	}
	return path, nil
}

// checkRoots refuses files without a certificate: with them no connection
// could ever be made.
func checkRoots(cfg *config) error {
	for _, server := range []struct {
		variable string
		upstream
	}{{"XDS_ROOT_CA", cfg.xds}, {"CA_ROOT_CA", cfg.ca}} {
		if server.roots == "" || server.roots == systemRoots {
			continue // the system's take a while to load, and are read when they are needed
		}
		if _, err := loadRoots(server.roots); err != nil {
			return fmt.Errorf("%w; replace the file, or name another with %s", err, server.variable)
		}
	}
	return nil
}

// tlsConfig returns what makes the TLS configuration for each connection; nil
// for plaintext. Files are read anew each time, so that replaced ones count.
// workload gives the workload's own certificate, or nil while there is none.
func (u upstream) tlsConfig(workload func() *tls.Certificate) func() (*tls.Config, error) {
	if u.roots == "" {
		return nil
	}
	return func() (*tls.Config, error) {
		roots, err := loadRoots(u.roots)
		if err != nil {
			return nil, err
		}
		return &tls.Config{
			MinVersion: tls.VersionTLS12,
			RootCAs:    roots,
			ServerName: u.serverName,
			GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
				if cert := provisioned(u.provCert); cert != nil {
					return cert, nil
				}
				if cert := workload(); cert != nil {
					return cert, nil
				}
				return &tls.Certificate{}, nil // the token has to do
			},
		}, nil
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
		return nil, fmt.Errorf("root certificates: %s holds no certificate in PEM", path)
	}
	return pool, nil
}

// provisioned loads the client certificate of a directory; nil when there is
// none that is valid now.
func provisioned(dir string) *tls.Certificate {
	if dir == "" {
		return nil
	}
	cert, err := tls.LoadX509KeyPair(filepath.Join(dir, "cert-chain.pem"), filepath.Join(dir, "key.pem"))
	if err != nil || cert.Leaf == nil || time.Now().After(cert.Leaf.NotAfter) {
		return nil // the workload's certificate or the token takes over
	}
	return &cert
}

// tokenSource returns what reads the token for each call; nil when the policy
// wants none.
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
