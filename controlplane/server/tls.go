// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package server

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"
)

// The files of the control plane's own certificate if it is provided.
const (
	OwnCertFile = "./var/run/secrets/istiod/tls/tls.crt"
	OwnKeyFile  = "./var/run/secrets/istiod/tls/tls.key"
	OwnRootFile = "./var/run/secrets/istiod/ca/root-cert.pem"
	// ownEvery is the minimum interval in which handshakes check the files for changes.
	ownEvery = 5 * time.Second
)

// TLSConfig configures the control plane's own certificate.
type TLSConfig struct {
	CertFile, KeyFile string   // reloaded when they change; empty means the default files, or none
	RootFile          string   // roots of the certificate, which are distributed to the mesh
	Suites            []string // names of TLS 1.2 suites; empty means Go's
	Provider          string   // CertProviderIstiod or CertProviderCustom
}

// files returns the files of the own certificate, or none if the authority issues it.
func (c *TLSConfig) files() (own *ownCertificate, roots string, err error) {
	cert, key := c.CertFile, c.KeyFile
	_, certErr := os.Stat(OwnCertFile)
	_, keyErr := os.Stat(OwnKeyFile)
	switch {
	case (cert == "") != (key == ""):
		return nil, "", errors.New("--tlsCertFile and --tlsKeyFile belong together: set both, or none")
	case cert != "":
	case certErr == nil && keyErr == nil:
		cert, key = OwnCertFile, OwnKeyFile
	case c.Provider == CertProviderCustom:
		return nil, "", fmt.Errorf("PILOT_CERT_PROVIDER is %s, but there is no %s with %s: put them there, or name others with --tlsCertFile and --tlsKeyFile", c.Provider, OwnCertFile, OwnKeyFile)
	case c.RootFile != "":
		return nil, "", errors.New("--caCertFile is set without --tlsCertFile: additional roots of the mesh belong in caCertificates of the mesh config")
	default:
		return nil, "", nil
	}
	if roots = c.RootFile; roots == "" {
		if _, err := os.Stat(OwnRootFile); err == nil {
			roots = OwnRootFile
		}
	}
	return &ownCertificate{certFile: cert, keyFile: key}, roots, nil
}

// The values of PILOT_CERT_PROVIDER.
const (
	CertProviderIstiod = "istiod"
	CertProviderCustom = "custom"
)

// ciphers returns the ids of the configured cipher suites.
func (c *TLSConfig) ciphers() (ids []uint16, err error) {
	known := map[string]uint16{}
	for _, c := range tls.CipherSuites() {
		known[c.Name] = c.ID
	}
	for _, name := range c.Suites {
		id, ok := known[strings.TrimSpace(name)]
		if !ok {
			return nil, fmt.Errorf("--tls-cipher-suites: %q is not one of the known secure suites, such as TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", name)
		}
		ids = append(ids, id)
	}
	return ids, nil
}

// newTLS returns the configuration of the TLS server of a port. Its certificate is issued for
// the names of serverNames, or comes from files.
func (s *Server) newTLS(cfg Config, port string) (*tls.Config, error) {
	names, ips := serverNames(cfg, s.snapshots.mesh.GetDefaultConfig().GetDiscoveryAddress())
	out, err := s.identity.authority.ServerCertificate(names, ips)
	if err != nil {
		return nil, fmt.Errorf("make the control plane's certificate: %w", err)
	}
	suites, err := cfg.TLS.ciphers()
	if err != nil {
		return nil, err
	}
	own, roots, err := cfg.TLS.files()
	one := served{port: port, get: out.GetCertificate}
	if own != nil {
		one.file, one.get = own.certFile, own.get
	}
	s.identity.served = append(s.identity.served, one)
	if err != nil || own == nil && len(suites) == 0 && cfg.Compliance == "" {
		return out, err
	}
	o := &overlay{inner: out.GetConfigForClient, apply: func(c *tls.Config) {
		if c.CipherSuites = suites; own != nil {
			c.GetCertificate = own.get
		}
		cfg.Compliance.Restrict(c)
	}}
	if own != nil {
		own.log = s.log.With("component", "control")
		if _, err := own.get(nil); err != nil {
			return nil, fmt.Errorf("the control plane's own certificate: %w", err)
		}
		if err := s.trustFile(roots); err != nil {
			return nil, err
		}
	}
	o.apply(out)
	out.GetConfigForClient = o.get
	return out, nil
}

// trustFile adds the roots of the own certificate to those of the mesh, and follows
// their file: a new certificate may be signed by another root.
func (s *Server) trustFile(file string) error {
	if file == "" {
		return nil
	}
	_, err := os.Stat(file)
	if err == nil {
		err = s.followFile(file, "own certificate")
	}
	if err != nil {
		return fmt.Errorf("roots of the control plane's own certificate: %w", err)
	}
	return nil
}

// overlay changes the TLS configuration that the authority returns for a handshake.
// The authority returns the same one until its roots change, so that sessions can be
// resumed; overlay does too.
type overlay struct {
	inner func(*tls.ClientHelloInfo) (*tls.Config, error)
	apply func(*tls.Config)

	mu       sync.Mutex // guards the fields below
	from, to *tls.Config
}

func (o *overlay) get(hello *tls.ClientHelloInfo) (*tls.Config, error) {
	cfg, err := o.inner(hello)
	if err != nil {
		return nil, err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.from != cfg {
		o.from, o.to = cfg, cfg.Clone()
		o.apply(o.to)
	}
	return o.to, nil
}

// ownCertificate is the control plane's certificate in files. Handshakes reload changed
// files; if those are invalid, the last good certificate stays in force.
type ownCertificate struct {
	certFile, keyFile string
	log               *slog.Logger

	mu        sync.Mutex // guards the fields below
	looked    time.Time
	cert, key []byte
	good      *tls.Certificate
	said      string
}

// get implements tls.Config.GetCertificate.
func (o *ownCertificate) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.good != nil && time.Since(o.looked) < ownEvery {
		return o.good, nil
	}
	o.looked = time.Now()
	err := o.read()
	switch {
	case err == nil:
		o.said = ""
	case o.good == nil:
		return nil, err
	case o.said != err.Error():
		o.said = err.Error()
		o.log.Warn("the control plane's own certificate cannot be reloaded; the previous one stays in force", "err", err)
	}
	return o.good, nil
}

func (o *ownCertificate) read() error {
	cert, err := os.ReadFile(o.certFile)
	if err != nil {
		return err
	}
	key, err := os.ReadFile(o.keyFile)
	if err != nil {
		return err
	}
	if o.good != nil && bytes.Equal(cert, o.cert) && bytes.Equal(key, o.key) {
		return nil
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return fmt.Errorf("%s with %s: %w", o.certFile, o.keyFile, err)
	}
	o.cert, o.key, o.good = cert, key, &pair
	return nil
}
