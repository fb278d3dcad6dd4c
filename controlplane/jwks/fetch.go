// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package jwks

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
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/clip"
	"github.com/outrigger-mesh/outrigger/internal/specialaddr"
	"github.com/outrigger-mesh/outrigger/internal/tlspolicy"
)

const (
	discoveryPath = "/.well-known/openid-configuration"
	// maxDocument is the maximum size of a fetched document in bytes.
	maxDocument  = 256 << 10
	maxRedirects = 3
	// defaultTimeout is the time limit of a fetch.
	defaultTimeout = 10 * time.Second
	// maxText is the maximum number of bytes of a peer's text that an error quotes.
	maxText = 200
)

// Source says where keys are.
type Source struct {
	URL string // of the key set; empty means the one in the discovery document of the issuer
	// Issuer is the issuer of tokens. It may be empty if URL is not.
	Issuer string
}

// String returns the issuer, or else the URL.
func (s Source) String() string {
	if s.Issuer != "" {
		return s.Issuer
	}
	return s.URL
}

// start returns the URL that is requested first, without the path of a discovery document.
func (s Source) start() (*url.URL, error) {
	address := s.URL
	if address == "" {
		address = s.Issuer
	}
	u, err := url.Parse(address)
	if err != nil || u.Scheme == "" {
		return nil, errors.New("there are neither keys nor a URL to fetch them from, and the issuer is not a URL to discover them by")
	}
	return u, nil
}

// FetchConfig configures how keys are fetched from a URL. The zero value is for an issuer on the
// public Internet that serves its own keys.
type FetchConfig struct {
	// AllowedHosts are the hosts that may be contacted, as host or host:port (default port 443).
	// Empty means only the host of the issuer.
	AllowedHosts []string
	// AnyHost allows all hosts, and plain HTTP if the first URL is one of plain HTTP.
	AnyHost bool
	// Allowed are the special addresses that may be contacted.
	Allowed specialaddr.Allowed
	// AllowLoopback allows loopback addresses, and plain HTTP to them.
	AllowLoopback bool
	// RootCAs returns the certificates that verify the servers; nil means the system roots.
	RootCAs func() (*x509.CertPool, error)
	// Transport sends the requests instead of HTTP with checked addresses; nil except in tests.
	Transport http.RoundTripper
	// TLS restricts the connections to the servers.
	TLS tlspolicy.Policy
	// Timeout limits a whole fetch; zero means 10 s.
	Timeout time.Duration
}

// fetcher gets documents from allowed hosts.
type fetcher struct {
	cfg     FetchConfig
	source  Source
	allowed []string // host:port
	plain   bool     // plain HTTP is allowed
}

func newFetcher(cfg FetchConfig, source Source) (*fetcher, error) {
	if cfg.Timeout <= 0 {
		cfg.Timeout = defaultTimeout
	}
	f := &fetcher{cfg: cfg, source: source}
	for _, h := range cfg.AllowedHosts {
		if strings.ContainsAny(h, "/@*? ") || h == "" {
			return nil, fmt.Errorf("allowed host %q is not a host or host:port", h)
		}
		f.allowed = append(f.allowed, hostPort(h, "443"))
	}
	if u, err := url.Parse(source.Issuer); len(cfg.AllowedHosts) == 0 && err == nil && u.Host != "" {
		f.allowed = []string{HostPort(u)}
	}
	u, err := source.start()
	if err != nil {
		return nil, err
	}
	f.plain = cfg.AnyHost && u.Scheme == "http"
	return f, f.checkURL(u)
}

// client returns the client of one fetch.
func (f *fetcher) client() (*http.Client, error) {
	var roots *x509.CertPool
	if f.cfg.RootCAs != nil {
		var err error
		if roots, err = f.cfg.RootCAs(); err != nil {
			return nil, err
		}
	}
	transport := f.cfg.Transport
	if transport == nil {
		transport = &http.Transport{
			// No proxy: with one, the dialed address could not be checked.
			Proxy:                  nil,
			DialContext:            f.dial,
			TLSClientConfig:        f.cfg.TLS.Restrict(&tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots}),
			ForceAttemptHTTP2:      true,
			DisableKeepAlives:      true, // the next fetch is minutes away
			DisableCompression:     true,
			MaxResponseHeaderBytes: 64 << 10,
		}
	}
	return &http.Client{
		Transport: transport,
		CheckRedirect: func(req *http.Request, via []*http.Request) error {
			if len(via) > maxRedirects {
				return fmt.Errorf("there are more than %d redirects", maxRedirects)
			}
			return f.checkURL(req.URL)
		},
	}, nil
}

// dial connects to a host. It checks each address before connecting, because an allowed name may
// resolve to any address.
func (f *fetcher) dial(ctx context.Context, network, address string) (net.Conn, error) {
	d := net.Dialer{Control: func(_, resolved string, _ syscall.RawConn) error {
		ap, err := netip.ParseAddrPort(resolved)
		if err == nil && f.cfg.AllowLoopback && ap.Addr().Unmap().IsLoopback() {
			return nil
		}
		return f.cfg.Allowed.Check(address, resolved)
	}}
	return d.DialContext(ctx, network, address)
}

func defaultPort(scheme string) string {
	if scheme == "http" {
		return "80"
	}
	return "443"
}

// HostPort returns the host of a URL with its port, as AllowedHosts may contain it.
func HostPort(u *url.URL) string { return hostPort(u.Host, defaultPort(u.Scheme)) }

// hostPort normalizes a host for comparison.
func hostPort(host, port string) string {
	h, p, err := net.SplitHostPort(host)
	if err != nil {
		h, p = host, port
		if in, ok := strings.CutPrefix(host, "["); ok && strings.HasSuffix(in, "]") {
			h = strings.TrimSuffix(in, "]")
		}
	}
	return net.JoinHostPort(strings.ToLower(h), p)
}

// checkURL returns an error if a URL must not be requested.
func (f *fetcher) checkURL(u *url.URL) error {
	switch {
	case u.User != nil:
		return fmt.Errorf("%s contains a password; keys are public: remove it", u.Redacted())
	case u.Host == "":
		return fmt.Errorf("%q names no host", u.Redacted())
	case u.Scheme == "http" && (f.plain || f.cfg.AllowLoopback && isLoopbackName(u.Hostname())):
	case u.Scheme != "https":
		return fmt.Errorf("%s is not https; keys sent in plaintext can be replaced in transit", u.Redacted())
	}
	if host := HostPort(u); !f.cfg.AnyHost && !slices.Contains(f.allowed, host) {
		return fmt.Errorf("host %s is not among the allowed hosts (%s); add it if it is trusted", host, strings.Join(f.allowed, ", "))
	}
	return nil
}

func isLoopbackName(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}

// document is a fetched document.
type document struct {
	body []byte
	// maxAge is how long the server lets it be reused; zero if the server does not say it.
	maxAge time.Duration
}

// get fetches a document.
func (f *fetcher) get(ctx context.Context, client *http.Client, address string) (*document, error) {
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
	req.Header.Set("Accept", "application/json, application/jwk-set+json")
	resp, err := client.Do(req)
	if err != nil {
		return nil, f.explain(u, err)
	}
	defer func() { _ = resp.Body.Close() }() // only read, so the error is irrelevant
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("get %s: the response has status %d", u.Redacted(), resp.StatusCode)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxDocument+1))
	if err != nil {
		return nil, f.explain(u, err)
	}
	if len(body) > maxDocument {
		return nil, fmt.Errorf("get %s: the response has more than %d bytes", u.Redacted(), maxDocument)
	}
	return &document{body, maxAge(resp.Header)}, nil
}

// explain returns the error of a request without what differs from attempt to attempt.
func (f *fetcher) explain(u *url.URL, err error) error {
	var timeout interface{ Timeout() bool }
	var name *net.DNSError
	var op *net.OpError
	var outer *url.Error
	var invalid x509.CertificateInvalidError
	if errors.As(err, &outer) {
		err = outer.Err // the rest repeats the URL
	}
	switch {
	case errors.As(err, &name):
		err = fmt.Errorf("the name %s cannot be resolved", name.Name)
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		err = fmt.Errorf("there is no complete response within %s", f.cfg.Timeout)
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		err = errors.New("its certificate has expired or is not yet valid")
	case errors.As(err, &op) && op.Addr != nil:
		err = fmt.Errorf("%s: %w", op.Addr, op.Err)
	}
	return fmt.Errorf("get %s: %w", u.Redacted(), err)
}

// maxAge returns the time for which an answer may be reused (RFC 9111), or zero if the header does
// not say it.
func maxAge(h http.Header) time.Duration {
	for _, line := range h.Values("Cache-Control") {
		for directive := range strings.SplitSeq(line, ",") {
			name, value, _ := strings.Cut(strings.TrimSpace(directive), "=")
			seconds, err := strconv.ParseUint(strings.Trim(value, `"`), 10, 31)
			if strings.EqualFold(name, "max-age") && err == nil {
				return time.Duration(seconds) * time.Second
			}
		}
	}
	return 0
}

// discover returns the URL of the keys from the discovery document of the issuer.
func (f *fetcher) discover(ctx context.Context, client *http.Client) (string, error) {
	issuer := f.source.Issuer
	answer, err := f.get(ctx, client, strings.TrimSuffix(issuer, "/")+discoveryPath)
	if err != nil {
		return "", err
	}
	var doc struct {
		Issuer  string `json:"issuer"`
		JWKSURI string `json:"jwks_uri"`
	}
	if err := json.Unmarshal(answer.body, &doc); err != nil {
		return "", fmt.Errorf("reading the discovery document of %s: %w", issuer, err)
	}
	if doc.Issuer != issuer {
		return "", fmt.Errorf("the discovery document of %s is that of issuer %q; write the issuer exactly as in that document", issuer, clip.Cut(doc.Issuer, maxText))
	}
	if doc.JWKSURI == "" {
		return "", fmt.Errorf("the discovery document of %s names no jwks_uri", issuer)
	}
	return doc.JWKSURI, nil
}

// fetched is a fetched key set.
type fetched struct {
	set    *Set
	maxAge time.Duration // of the answer, as in document
}

// fetch fetches the key set.
func (f *fetcher) fetch(ctx context.Context) (*fetched, error) {
	ctx, cancel := context.WithTimeout(ctx, f.cfg.Timeout)
	defer cancel()
	client, err := f.client()
	if err != nil {
		return nil, err
	}
	address := f.source.URL
	if address == "" {
		if address, err = f.discover(ctx, client); err != nil {
			return nil, err
		}
	}
	answer, err := f.get(ctx, client, address)
	if err != nil {
		return nil, err
	}
	set, err := Parse(answer.body, false)
	if err != nil {
		return nil, fmt.Errorf("reading the key set of %s: %w", f.source, err)
	}
	return &fetched{set, answer.maxAge}, nil
}
