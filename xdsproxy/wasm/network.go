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
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"time"
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
	allowed    allowed
}

func newNetwork(cfg Config) (*network, error) {
	a, err := parseAllowed(cfg.AllowedHosts)
	if err != nil {
		return nil, err
	}
	n := &network{insecure: map[string]bool{}, allowed: a}
	for _, host := range cfg.InsecureRegistries {
		if host = strings.ToLower(strings.TrimSpace(host)); host != "" {
			n.insecure[host] = true
		}
	}
	n.verified = n.transport(cfg.HTTPTimeout, &tls.Config{MinVersion: tls.VersionTLS12})
	n.unverified = n.transport(cfg.HTTPTimeout, &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: true}) //nolint:gosec // hosts that are listed for it
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
		Control: func(_, resolved string, _ syscall.RawConn) error { return n.allowed.check(address, resolved) },
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
	return fmt.Errorf("%w: credentials would go to %s in plaintext; list it in WASM_INSECURE_REGISTRIES if that is meant", errRefused, host)
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

// allowed contains the special addresses that are allowed.
type allowed struct {
	hosts    []string // host or host:port, as in URLs
	networks []netip.Prefix
}

func parseAllowed(entries []string) (allowed, error) {
	var a allowed
	for _, e := range entries {
		e = strings.ToLower(strings.TrimSpace(e))
		if e == "" {
			continue
		}
		if strings.Contains(e, "/") {
			p, err := netip.ParsePrefix(e)
			if err != nil {
				return a, fmt.Errorf("allowed host %q for Wasm modules is no network like 10.0.0.0/8", e)
			}
			a.networks = append(a.networks, p.Masked())
			continue
		}
		if ip, err := netip.ParseAddr(strings.Trim(e, "[]")); err == nil {
			ip = ip.Unmap()
			a.networks = append(a.networks, netip.PrefixFrom(ip, ip.BitLen()))
			continue
		}
		a.hosts = append(a.hosts, e)
	}
	return a, nil
}

// check decides whether a connection is allowed. address is the requested address, resolved the
// address after name resolution.
func (a allowed) check(address, resolved string) error {
	to, err := netip.ParseAddrPort(resolved)
	if err != nil {
		return fmt.Errorf("%w: %q is no address", errRefused, resolved)
	}
	ip := to.Addr().Unmap().WithZone("")
	if !special(ip) {
		return nil
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("%w: %q is no address", errRefused, address)
	}
	if slices.Contains(a.hosts, strings.ToLower(address)) || slices.Contains(a.hosts, strings.ToLower(host)) {
		return nil
	}
	for _, p := range a.networks {
		if p.Contains(ip) {
			return nil
		}
	}
	return fmt.Errorf("%w: %s is at %s, a loopback, link-local or metadata address; allow it in OUTRIGGER_WASM_ALLOWED_HOSTS if that is meant", errRefused, host, ip)
}

// specialNetworks are networks that are not valid origins of modules: this host, this link,
// multicast, and the metadata services of clouds.
var specialNetworks = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"),
	netip.MustParsePrefix("127.0.0.0/8"),
	netip.MustParsePrefix("169.254.0.0/16"),     // link-local; metadata in most clouds
	netip.MustParsePrefix("100.100.100.200/32"), // metadata, Alibaba
	netip.MustParsePrefix("168.63.129.16/32"),   // metadata, Azure
	netip.MustParsePrefix("192.0.0.192/32"),     // metadata, Oracle
	netip.MustParsePrefix("224.0.0.0/4"),
	netip.MustParsePrefix("240.0.0.0/4"),
	netip.MustParsePrefix("::/127"), // unspecified and loopback
	netip.MustParsePrefix("fe80::/10"),
	netip.MustParsePrefix("ff00::/8"),
	netip.MustParsePrefix("fd00:ec2::/32"),    // metadata, AWS
	netip.MustParsePrefix("fd20:ce::254/128"), // metadata, Google
	netip.MustParsePrefix("fd00:42::42/128"),  // metadata, Scaleway
}

// embedding are IPv6 networks whose addresses contain the IPv4 address to which packets are
// delivered, with its byte offset.
var embedding = []struct {
	network netip.Prefix
	at      int
}{
	{netip.MustParsePrefix("64:ff9b::/96"), 12},    // NAT64
	{netip.MustParsePrefix("64:ff9b:1::/48"), 12},  // NAT64 of the local network
	{netip.MustParsePrefix("::ffff:0:0:0/96"), 12}, // translated by SIIT
	{netip.MustParsePrefix("2002::/16"), 2},        // 6to4
	{netip.MustParsePrefix("::/96"), 12},           // IPv4-compatible
}

func special(ip netip.Addr) bool {
	for _, p := range specialNetworks {
		if p.Contains(ip) {
			return true
		}
	}
	for _, e := range embedding {
		if e.network.Contains(ip) {
			b := ip.As16()
			return special(netip.AddrFrom4([4]byte(b[e.at : e.at+4])))
		}
	}
	return false
}
