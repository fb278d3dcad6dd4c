// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package authn

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/clip"
)

const (
	discoveryPath = "/.well-known/openid-configuration"
	// maxDocument is the maximum size of the discovery document in bytes.
	maxDocument  = 256 << 10
	maxRedirects = 3
	fetchTimeout = 10 * time.Second
)

// FetchConfig configures how keys are fetched from a URL. The zero value is for an issuer on the
// public Internet that serves its own keys.
type FetchConfig struct {
	// AllowedHosts are the hosts that may be contacted, as host or host:port (default port 443).
	// Empty means only the host of the issuer.
	AllowedHosts []string
	// AllowLoopback allows loopback addresses, and plain HTTP to them.
	AllowLoopback bool
	// RootCAs verify the servers; nil means the system roots.
	RootCAs *x509.CertPool
	// Refresh is the interval for fetching keys; zero means 20 minutes.
	Refresh time.Duration
	// MinRefresh is the minimum interval between fetches for tokens signed with an unknown key;
	// zero means 10 s.
	MinRefresh time.Duration
	// MaxStale is how long keys remain trusted while they cannot be fetched again; zero means 24
	// hours.
	MaxStale time.Duration
	// Wait limits how long a call waits for a fetch; zero means 5 s.
	Wait time.Duration
}

// fetcher gets documents from allowed hosts.
type fetcher struct {
	client   *http.Client
	allowed  []string // host:port
	loopback bool
}

func newFetcher(cfg FetchConfig, issuer string) (*fetcher, error) {
	f := &fetcher{loopback: cfg.AllowLoopback}
	for _, h := range cfg.AllowedHosts {
		if strings.ContainsAny(h, "/@*? ") || h == "" {
			return nil, fmt.Errorf("allowed host %q is not a host or host:port", h)
		}
		f.allowed = append(f.allowed, hostPort(h, "443"))
	}
	if u, err := url.Parse(issuer); len(cfg.AllowedHosts) == 0 && err == nil && u.Host != "" {
		f.allowed = []string{hostPort(u.Host, defaultPort(u.Scheme))}
	}
	dialer := &net.Dialer{Timeout: fetchTimeout / 2, Control: f.checkAddress}
	f.client = &http.Client{
		Timeout: fetchTimeout,
		Transport: &http.Transport{
			// No proxy: with one, the dialed address could not be checked.
			Proxy:                  nil,
			DialContext:            dialer.DialContext,
			TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: cfg.RootCAs},
			TLSHandshakeTimeout:    fetchTimeout / 2,
			ForceAttemptHTTP2:      true,
			DisableKeepAlives:      true, // the next fetch is minutes away
			DisableCompression:     true,
			MaxResponseHeaderBytes: 64 << 10,
		},
		CheckRedirect: func(req *http.Request, via []*http.Request) error {
			if len(via) > maxRedirects {
				return fmt.Errorf("it is redirected more than %d times", maxRedirects)
			}
			return f.checkURL(req.URL)
		},
	}
	return f, nil
}

func defaultPort(scheme string) string {
	if scheme == "http" {
		return "80"
	}
	return "443"
}

// hostPort normalizes a host for comparison.
func hostPort(host, port string) string {
	h, p, err := net.SplitHostPort(host)
	if err != nil {
		h, p = strings.Trim(host, "[]"), port
	}
	return net.JoinHostPort(strings.ToLower(h), p)
}

// checkStart checks the first URL that will be requested, so that a configuration error is reported
// at startup.
func (f *fetcher) checkStart(address, issuer string) error {
	if address == "" {
		address = issuer
	}
	u, err := url.Parse(address)
	if err != nil || u.Scheme == "" {
		return errors.New("neither keys are given nor a URL to fetch them from, and the issuer is not a URL that tells where they are")
	}
	return f.checkURL(u)
}

// checkURL returns an error if a URL must not be requested.
func (f *fetcher) checkURL(u *url.URL) error {
	switch {
	case u.User != nil:
		return fmt.Errorf("%s holds a password; keys are public, leave it out", u.Redacted())
	case u.Host == "":
		return fmt.Errorf("%q names no host", u.Redacted())
	case u.Scheme == "http" && f.loopback && isLoopbackName(u.Hostname()):
	case u.Scheme != "https":
		return fmt.Errorf("%s is not https; keys that travel in plaintext can be exchanged on the way", u.Redacted())
	}
	if host := hostPort(u.Host, defaultPort(u.Scheme)); !slices.Contains(f.allowed, host) {
		return fmt.Errorf("host %s is not among the allowed hosts (%s); add it if it is to be trusted", host, strings.Join(f.allowed, ", "))
	}
	return nil
}

func isLoopbackName(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}

// checkAddress checks each address before connecting, because an allowed name may resolve to any
// address.
func (f *fetcher) checkAddress(_, address string, _ syscall.RawConn) error {
	ap, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("address %s: %w", address, err)
	}
	if reason := forbidden(ap.Addr(), f.loopback); reason != "" {
		return fmt.Errorf("address %s is %s; keys are not fetched from there", ap.Addr(), reason)
	}
	return nil
}

// metadataServers expose secrets of a machine to all of its processes. Those with link-local
// addresses are not listed.
var metadataServers = []netip.Addr{
	netip.AddrFrom4([4]byte{100, 100, 100, 200}),                           // Alibaba Cloud
	netip.AddrFrom4([4]byte{168, 63, 129, 16}),                             // Azure
	netip.AddrFrom4([4]byte{192, 0, 0, 192}),                               // Oracle Cloud
	netip.AddrFrom16([16]byte{0xfd, 0x00, 0x0e, 0xc2, 14: 0x02, 15: 0x54}), // AWS
}

// nat64 is the prefix for IPv4 addresses that are reached over IPv6.
var nat64 = netip.PrefixFrom(netip.AddrFrom16([16]byte{0x00, 0x64, 0xff, 0x9b}), 96)

// forbidden returns the reason why keys must not be fetched from an address, or "" if they may.
func forbidden(ip netip.Addr, loopback bool) string {
	ip = ip.Unmap().WithZone("")
	if nat64.Contains(ip) {
		b := ip.As16()
		ip = netip.AddrFrom4([4]byte(b[12:]))
	}
	switch {
	case ip.IsLoopback() && !loopback:
		return "of this machine"
	case ip.IsUnspecified():
		return "unspecified"
	case ip.IsLinkLocalUnicast():
		return "link-local"
	case ip.IsMulticast():
		return "multicast"
	case slices.Contains(metadataServers, ip):
		return "a metadata server"
	}
	return ""
}

// get fetches a document of at most limit bytes.
func (f *fetcher) get(ctx context.Context, address string, limit int64) (body []byte, err error) {
	u, err := url.Parse(address)
	if err != nil {
		return nil, errors.New("the URL cannot be read") // the error could quote a password in the URL
	}
	if err := f.checkURL(u); err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, http.NoBody)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/json")
	resp, err := f.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }() // only read, so the error is irrelevant
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("get %s: the answer has status %d", u.Redacted(), resp.StatusCode)
	}
	body, err = io.ReadAll(io.LimitReader(resp.Body, limit+1))
	if err != nil {
		return nil, fmt.Errorf("get %s: %w", u.Redacted(), err)
	}
	if int64(len(body)) > limit {
		return nil, fmt.Errorf("get %s: the answer has more than %d bytes", u.Redacted(), limit)
	}
	return body, nil
}

// discover returns the URL of the keys from the discovery document of an issuer.
func (f *fetcher) discover(ctx context.Context, issuer string) (string, error) {
	body, err := f.get(ctx, strings.TrimSuffix(issuer, "/")+discoveryPath, maxDocument)
	if err != nil {
		return "", err
	}
	var doc struct {
		Issuer  string `json:"issuer"`
		JWKSURI string `json:"jwks_uri"`
	}
	if err := json.Unmarshal(body, &doc); err != nil {
		return "", fmt.Errorf("reading the discovery document of %s: %w", issuer, err)
	}
	if doc.Issuer != issuer {
		return "", fmt.Errorf("the discovery document of %s is that of issuer %q; write the issuer exactly as it calls itself", issuer, clip.Cut(doc.Issuer, maxText))
	}
	if doc.JWKSURI == "" {
		return "", fmt.Errorf("the discovery document of %s names no jwks_uri", issuer)
	}
	return doc.JWKSURI, nil
}

// keys fetches the key set from a URL. If the URL is empty, it uses the one in the discovery
// document of the issuer.
func (f *fetcher) keys(ctx context.Context, address, issuer string) (*keySet, error) {
	if address == "" {
		var err error
		if address, err = f.discover(ctx, issuer); err != nil {
			return nil, err
		}
	}
	body, err := f.get(ctx, address, maxKeySet)
	if err != nil {
		return nil, err
	}
	set, err := parseKeys(body, false)
	if err != nil {
		return nil, fmt.Errorf("reading the key set of issuer %s: %w", issuer, err)
	}
	return set, nil
}

// maxText is the maximum number of bytes of a peer's text that an error quotes.
const maxText = 200
