// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package probe

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
)

const (
	// maxBody is how much of the application's answer is kept: what the kubelet shows of it.
	maxBody = 10 << 10
	// maxRedirects is how many redirects are followed.
	maxRedirects = 10
	// maxHeaderBytes bounds the headers of an answer.
	maxHeaderBytes = 64 << 10
	// handshakeTimeout bounds the TLS handshake should ctx not.
	handshakeTimeout = 10 * time.Second
)

// HTTPRequest is a probe over HTTP or HTTPS. A certificate is not verified: the
// application's is for its clients, and the probe only asks for its health.
type HTTPRequest struct {
	// URL is an absolute http or https URL.
	URL string
	// Host is the value of the Host header. Empty: the URL's.
	Host string
	// Header holds the headers to send.
	Header http.Header
	// SourceIP is the address to connect from. Empty: the kernel chooses.
	SourceIP string
}

// HTTPResponse is the application's answer.
type HTTPResponse struct {
	// Code is the status code.
	Code int
	// Location is the target of a redirect that was not followed.
	Location string
	// Body is the beginning of the body, at most 10 KiB.
	Body []byte
}

// HTTP sends a GET request and returns the answer, whatever its status. Redirects
// are followed as long as they lead to the host that was asked first; the first
// other one is the answer.
func HTTP(ctx context.Context, r HTTPRequest) (*HTTPResponse, error) {
	dial, err := dialer(r.SourceIP)
	if err != nil {
		return nil, err
	}
	transport := &http.Transport{
		DialContext:            dial,
		DisableKeepAlives:      true,
		DisableCompression:     true,
		ForceAttemptHTTP2:      true,
		MaxResponseHeaderBytes: maxHeaderBytes,
		TLSClientConfig:        &tls.Config{InsecureSkipVerify: true}, // see HTTPRequest
		TLSHandshakeTimeout:    handshakeTimeout,
	}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, CheckRedirect: sameHost}

	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.URL, nil)
	if err != nil {
		return nil, fmt.Errorf("make a request for %s: %w", r.URL, err)
	}
	if r.Header != nil {
		req.Header = r.Header.Clone()
	}
	req.Host = r.Host
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }() // only read: nothing can be lost
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxBody))
	if err != nil {
		return nil, fmt.Errorf("read the answer of %s: %w", r.URL, err)
	}
	return &HTTPResponse{Code: resp.StatusCode, Location: resp.Header.Get("Location"), Body: body}, nil
}

// sameHost is the kubelet's rule for redirects.
func sameHost(req *http.Request, via []*http.Request) error {
	if req.URL.Hostname() != via[0].URL.Hostname() {
		return http.ErrUseLastResponse
	}
	if len(via) >= maxRedirects {
		return errors.New("stopped after 10 redirects")
	}
	return nil
}
