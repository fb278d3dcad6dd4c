// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package mesh

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
)

const (
	pollInterval = 15 * time.Millisecond
	askTimeout   = 2 * time.Second
)

// newClient returns an HTTP client for requests to the mesh's own processes, without proxy or
// keepalive.
func newClient() *http.Client {
	return &http.Client{
		Timeout: askTimeout,
		Transport: &http.Transport{
			DisableKeepAlives: true,
			TLSClientConfig:   &tls.Config{MinVersion: tls.VersionTLS12},
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// poll calls yes repeatedly until it returns true or ctx is done.
func poll(ctx context.Context, yes func(context.Context) bool) error {
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for !yes(ctx) {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
	return ctx.Err()
}

// answers returns a function that reports whether a GET request is answered with a status from 200
// to most.
func answers(client *http.Client, url string, most int) func(context.Context) bool {
	return func(ctx context.Context) bool {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return false
		}
		resp, err := client.Do(req)
		if err != nil {
			return false
		}
		_ = resp.Body.Close() // the body is not used
		return resp.StatusCode >= http.StatusOK && resp.StatusCode <= most
	}
}

// listens returns a function that reports whether an address accepts connections, with the function
// that makes them.
func listens(address string, dial func(ctx context.Context, network, address string) (net.Conn, error)) func(context.Context) bool {
	return func(ctx context.Context) bool {
		ctx, cancel := context.WithTimeout(ctx, askTimeout)
		defer cancel()
		conn, err := dial(ctx, "tcp", address)
		if err != nil {
			return false
		}
		_ = conn.Close() // nothing was sent
		return true
	}
}

// certificate is what an Envoy reports about its certificate.
type certificate struct {
	identity string
	expires  time.Time
}

// envoyCerts is the part of Envoy's /certs response that is used.
type envoyCerts struct {
	Certificates []struct {
		CertChain []struct {
			SubjectAltNames []struct {
				URI string `json:"uri"`
			} `json:"subject_alt_names"`
			ExpirationTime time.Time `json:"expiration_time"`
		} `json:"cert_chain"`
	} `json:"certificates"`
}

// askCertificate requests an Envoy's certificate with its SPIFFE identity. ok is false if it has
// none yet.
func askCertificate(ctx context.Context, client *http.Client, admin string) (c certificate, ok bool, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+admin+"/certs", nil)
	if err != nil {
		return c, false, fmt.Errorf("request certificates: %w", err)
	}
	resp, err := client.Do(req)
	if err != nil {
		return c, false, fmt.Errorf("request certificates: %w", err)
	}
	defer func() { _ = resp.Body.Close() }() // the body has been read
	var all envoyCerts
	if err := json.NewDecoder(io.LimitReader(resp.Body, 16<<20)).Decode(&all); err != nil {
		return c, false, fmt.Errorf("read the certificates of %s: %w", admin, err)
	}
	for _, entry := range all.Certificates {
		for _, cert := range entry.CertChain {
			for _, name := range cert.SubjectAltNames {
				if strings.HasPrefix(name.URI, "spiffe://") {
					return certificate{name.URI, cert.ExpirationTime}, true, nil
				}
			}
		}
	}
	return c, false, nil
}
