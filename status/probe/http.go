// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package probe

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

const (
	// MaxBody is the number of bytes of a response's body that are used, like the kubelet's limit.
	MaxBody = 10 << 10
	// maxRedirects is the maximum number of redirects.
	maxRedirects = 10
	// handshakeTimeout limits the TLS handshake if ctx has no earlier deadline.
	handshakeTimeout = 10 * time.Second
	// idleTimeout is how long an idle connection is kept, if connections are kept.
	idleTimeout = 90 * time.Second
	// pingAfter and pingTimeout detect dead HTTP/2 connections.
	pingAfter   = 30 * time.Second
	pingTimeout = 15 * time.Second
)

// ClientConfig configures a Client. The zero value behaves like the kubelet.
type ClientConfig struct {
	// SourceIP is the source address. If empty, the kernel chooses.
	SourceIP string
	// HTTP1Only disables HTTP/2 over TLS.
	HTTP1Only bool
	// KeepAlive keeps connections open for the next probe.
	KeepAlive bool
}

// Client sends probes over HTTP and HTTPS. It does not verify certificates: the application's
// certificate is intended for its own clients, and a probe only checks the application's health.
type Client struct {
	transport *http.Transport
}

// NewClient returns a Client. It opens no connection.
func NewClient(cfg ClientConfig) (*Client, error) {
	dial, err := dialer(cfg.SourceIP)
	if err != nil {
		return nil, err
	}
	// As in the kubelet, the headers of a response are limited only by Go's default.
	return &Client{transport: &http.Transport{
		DialContext:         dial,
		DisableKeepAlives:   !cfg.KeepAlive,
		DisableCompression:  true,
		ForceAttemptHTTP2:   !cfg.HTTP1Only,
		HTTP2:               &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingTimeout},
		IdleConnTimeout:     idleTimeout,
		TLSClientConfig:     &tls.Config{InsecureSkipVerify: true}, // see Client
		TLSHandshakeTimeout: handshakeTimeout,
	}}, nil
}

// HTTPRequest is a probe over HTTP or HTTPS.
type HTTPRequest struct {
	URL *url.URL
	// Host is the value of the Host header. If empty, it is the URL's host.
	Host string
	// Header contains all headers to send. No others are added, not even a User-Agent.
	Header http.Header
	// Follow decides whether to follow a redirect to the original host. nil means that it is
	// followed.
	Follow func(to *url.URL) bool
}

// Get sends a GET request and returns the response with any status. It follows redirects to the
// original host. A redirect to another host is returned as the response. The caller closes the
// body.
func (c *Client) Get(ctx context.Context, r HTTPRequest) (*http.Response, error) {
	header := r.Header.Clone()
	if header == nil {
		header = http.Header{}
	}
	if _, given := header["User-Agent"]; !given {
		header["User-Agent"] = []string{""} // prevents Go from adding its own
	}
	client := &http.Client{Transport: c.transport, CheckRedirect: func(req *http.Request, via []*http.Request) error {
		switch {
		case req.URL.Hostname() != via[0].URL.Hostname(), r.Follow != nil && !r.Follow(req.URL):
			return http.ErrUseLastResponse
		case len(via) >= maxRedirects:
			return errors.New("stopped after 10 redirects")
		}
		return nil
	}}
	req := &http.Request{Method: http.MethodGet, URL: r.URL, Host: r.Host, Header: header}
	return client.Do(req.WithContext(ctx))
}

// URL returns the URL to which the kubelet would send a probe with this path. The path may contain
// a query and escapes; a host in it is ignored.
func URL(scheme, host string, port int, path string) *url.URL {
	u, err := url.Parse(path)
	if err != nil || u.Opaque != "" {
		u = &url.URL{Path: path}
	}
	u.Scheme, u.Host, u.User = scheme, net.JoinHostPort(host, strconv.Itoa(port)), nil
	if !strings.HasPrefix(u.Path, "/") {
		// Change the escaped form as well. Otherwise it would no longer match.
		u.Path = "/" + u.Path
		if u.RawPath != "" {
			u.RawPath = "/" + u.RawPath
		}
	}
	return u
}

// IsPlain reports whether an error means that a server responded in plaintext to a TLS handshake.
func IsPlain(err error) bool {
	var where *url.Error
	return errors.As(err, &where) && strings.Contains(where.Err.Error(), "server gave HTTP response to HTTPS client")
}
