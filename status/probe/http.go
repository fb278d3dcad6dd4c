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
	// MaxBody is how much of an answer's body counts: what the kubelet shows of it.
	MaxBody = 10 << 10
	// maxRedirects is how many redirects are followed.
	maxRedirects = 10
	// handshakeTimeout bounds the TLS handshake should ctx not.
	handshakeTimeout = 10 * time.Second
	// idleTimeout is how long a connection is kept, if it is.
	idleTimeout = 90 * time.Second
	// pingAfter and pingTimeout find an HTTP/2 connection that is dead.
	pingAfter   = 30 * time.Second
	pingTimeout = 15 * time.Second
)

// ClientConfig says how a Client connects. Its zero value is what the kubelet does.
type ClientConfig struct {
	// SourceIP is the address to connect from. Empty: the kernel chooses.
	SourceIP string
	// HTTP1Only does not offer HTTP/2 over TLS.
	HTTP1Only bool
	// KeepAlive keeps connections for the next probe.
	KeepAlive bool
}

// Client sends probes over HTTP and HTTPS. A certificate is not verified: the
// application's is for its clients, and the probe only asks for its health.
type Client struct {
	transport *http.Transport
}

// NewClient makes a Client. It opens no connection.
func NewClient(cfg ClientConfig) (*Client, error) {
	dial, err := dialer(cfg.SourceIP)
	if err != nil {
		return nil, err
	}
	// There is no limit to an answer's headers but Go's, as in the kubelet.
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
	// Host is the value of the Host header. Empty: the URL's.
	Host string
	// Header holds the headers to send; there are no others, not even a User-Agent.
	Header http.Header
	// Follow has the last word on a redirect to the host that was asked first.
	// nil: it is followed.
	Follow func(to *url.URL) bool
}

// Get returns the answer to a GET request, whatever its status. Redirects are
// followed as long as they lead to the host that was asked first; the first
// other one is the answer. The caller closes the body.
func (c *Client) Get(ctx context.Context, r HTTPRequest) (*http.Response, error) {
	header := r.Header.Clone()
	if header == nil {
		header = http.Header{}
	}
	if _, given := header["User-Agent"]; !given {
		header["User-Agent"] = []string{""} // else Go would add its own
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

// URL returns where the kubelet would send a probe that names this path: it may
// hold a query and escapes, and a host in it never counts.
func URL(scheme, host string, port int, path string) *url.URL {
	u, err := url.Parse(path)
	if err != nil || u.Opaque != "" {
		u = &url.URL{Path: path}
	}
	u.Scheme, u.Host, u.User = scheme, net.JoinHostPort(host, strconv.Itoa(port)), nil
	if !strings.HasPrefix(u.Path, "/") {
		// The same for the escaped form: without it, it would no longer fit.
		u.Path = "/" + u.Path
		if u.RawPath != "" {
			u.RawPath = "/" + u.RawPath
		}
	}
	return u
}

// IsPlain tells whether an error says that a server which was asked over TLS
// answered without.
func IsPlain(err error) bool {
	var where *url.Error
	return errors.As(err, &where) && strings.Contains(where.Err.Error(), "server gave HTTP response to HTTPS client")
}
