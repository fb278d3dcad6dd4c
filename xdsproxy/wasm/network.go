// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package wasm

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/specialaddr"
)

const (
	userAgent = "outrigger-agent"
	// maxAnswer is the maximum size of a registry's response other than a module. Tokens, manifests
	// and errors are held in memory.
	maxAnswer    = 4 << 20
	maxRedirects = 10
	dialTimeout  = 10 * time.Second
	idleTimeout  = 30 * time.Second
	maxHeader    = 64 << 10
)

// errRefused means that a request is not permitted. A retry does not help.
var errRefused = errors.New("refused")

// network makes the connections for downloads. All decisions about which addresses a URL may reach
// are made here.
type network struct {
	verified   http.RoundTripper
	unverified http.RoundTripper // does not verify certificates
	insecure   map[string]bool   // hosts; "*" means all
	allowed    specialaddr.Allowed
}

func newNetwork(cfg Config) (*network, error) {
	a, err := specialaddr.ParseAllowed(cfg.AllowedHosts)
	if err != nil {
		return nil, fmt.Errorf("allowed hosts for Wasm modules: %w", err)
	}
	n := &network{insecure: map[string]bool{}, allowed: a}
	for _, host := range cfg.InsecureRegistries {
		if host = strings.ToLower(strings.TrimSpace(host)); host != "" {
			n.insecure[host] = true
		}
	}
	n.verified = n.transport(cfg.HTTPTimeout, cfg.TLS.Restrict(&tls.Config{MinVersion: tls.VersionTLS12}))
	n.unverified = n.transport(cfg.HTTPTimeout, cfg.TLS.Restrict(&tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: true})) //nolint:gosec // hosts that are listed for it
	return n, nil
}

func (n *network) transport(timeout time.Duration, config *tls.Config) *http.Transport {
	return &http.Transport{
		Proxy:                  nil, // a proxy would connect without these checks
		DialContext:            n.dial,
		TLSClientConfig:        config,
		TLSHandshakeTimeout:    dialTimeout,
		ResponseHeaderTimeout:  timeout,
		MaxResponseHeaderBytes: maxHeader,
		IdleConnTimeout:        idleTimeout,
		DisableCompression:     true, // compressed data is decompressed elsewhere, with limits
		ForceAttemptHTTP2:      true,
	}
}

// dial connects to an address, after name resolution, if it is allowed.
func (n *network) dial(ctx context.Context, protocol, address string) (net.Conn, error) {
	d := net.Dialer{
		Timeout: dialTimeout,
		Control: func(_, resolved string, _ syscall.RawConn) error { return n.checkAddress(address, resolved) },
	}
	return d.DialContext(ctx, protocol, address)
}

// isInsecure reports whether a host's certificate is not verified.
func (n *network) isInsecure(host string) bool {
	return n.insecure["*"] || n.insecure[strings.ToLower(host)]
}

// RoundTrip sends a request according to the configuration of the host. It rejects redirects from
// https to http.
func (n *network) RoundTrip(req *http.Request) (*http.Response, error) {
	insecure := n.isInsecure(req.URL.Host)
	from := req.Response // the redirect that led here, or nil
	switch {
	case req.URL.Scheme != "http" && req.URL.Scheme != "https":
		return nil, fmt.Errorf("%w: the scheme %q is neither http nor https", errRefused, req.URL.Scheme)
	case req.URL.Scheme == "http" && !insecure && from != nil && from.Request != nil && from.Request.URL.Scheme == "https":
		return nil, fmt.Errorf("%w: a redirect leads from https to http, to %s", errRefused, req.URL.Host)
	case insecure:
		return n.unverified.RoundTrip(req)
	}
	return n.verified.RoundTrip(req)
}

// client returns an HTTP client that follows redirects.
func (n *network) client() *http.Client {
	return &http.Client{Transport: n, CheckRedirect: func(_ *http.Request, via []*http.Request) error {
		if len(via) >= maxRedirects {
			return fmt.Errorf("%w: more than %d redirects", errRefused, maxRedirects)
		}
		return nil
	}}
}

// registryTransport is the transport of a registry client.
type registryTransport struct {
	*network
	credentials bool  // the requests may contain credentials
	maxBlob     int64 // maximum size of a layer, in bytes
}

func (t registryTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	if t.credentials && req.URL.Scheme == "http" && !t.isInsecure(req.URL.Host) {
		return nil, plaintextError(req.URL.Host)
	}
	resp, err := t.network.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	most := int64(maxAnswer)
	if isBlob(req) {
		most = t.maxBlob
	}
	resp.Body = struct {
		io.Reader
		io.Closer
	}{limit(resp.Body, most), resp.Body}
	return resp, nil
}

func plaintextError(host string) error {
	return fmt.Errorf("%w: credentials would go to %s in plaintext; list it in WASM_INSECURE_REGISTRIES if that is intended", errRefused, host)
}

// isBlob reports whether a request is for a layer, or was redirected from one.
func isBlob(req *http.Request) bool {
	for range maxRedirects + 1 {
		if req.Response == nil || req.Response.Request == nil {
			break
		}
		req = req.Response.Request
	}
	return strings.Contains(req.URL.Path, "/blobs/")
}

// checkAddress returns an error if a connection is not allowed. address is the requested address,
// resolved the address after name resolution.
func (n *network) checkAddress(address, resolved string) error {
	if err := n.allowed.Check(address, resolved); err != nil {
		return fmt.Errorf("%w: %w; allow it in OUTRIGGER_WASM_ALLOWED_HOSTS if that is intended", errRefused, err)
	}
	return nil
}
