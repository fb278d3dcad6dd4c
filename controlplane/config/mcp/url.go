// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package mcp

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"maps"
	"net"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/outrigger-mesh/outrigger/internal/tlspolicy"
)

// options is what the URL of a store says.
type options struct {
	// name is the URL; it holds no secret.
	name string
	// address is host:port.
	address string
	// delta asks for changes instead of full states.
	delta bool
	// newest asks for the newest version of Istio's kinds.
	newest bool
	// tls says whether the server is spoken to over TLS.
	tls bool
	// ca, cert and key are paths of PEM files: the authorities of the server,
	// by default those of the system, and what shows who the client is.
	// serverName is the name in the server's certificate, by default the host.
	ca, cert, key, serverName string
	policy                    tlspolicy.Policy // of TLS, which the program sets
	// token is the path of a file.
	token string
}

// parse reads xds://host:port[?delta=&versions=&tls=&ca=&cert=&key=&servername=&token=].
func parse(u *url.URL) (options, error) {
	o := options{name: u.Redacted()}
	fail := func(format string, args ...any) (options, error) {
		return options{}, fmt.Errorf("config source %q %s", u.Redacted(), fmt.Sprintf(format, args...))
	}
	switch {
	case u.User != nil:
		return fail("names a user: the server authenticates its callers by a certificate (cert=, key=) or a token (token=, the path of a file)")
	case u.Fragment != "":
		return fail("ends with #%s, which has no meaning: remove it", u.Fragment)
	case u.Path != "" && u.Path != "/":
		return fail("has the path %q, which has no meaning: write xds://%s", u.Path, u.Host)
	}
	host, port := u.Hostname(), u.Port()
	if host == "" || port == "" {
		return fail("must name a host and a port: write xds://host:15012 with ca= or tls=true, or the plaintext port of a server that serves there")
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return fail("has the port %q: it must be a number from 1 to 65535", port)
	}
	o.address = net.JoinHostPort(host, port)
	if err := o.parseQuery(u.RawQuery); err != nil {
		return fail("%v", err)
	}
	return o, nil
}

func (o *options) parseQuery(raw string) error {
	query, err := url.ParseQuery(raw)
	if err != nil {
		return fmt.Errorf("has a malformed query: %w", err)
	}
	overTLS, delta, versions := "", "", ""
	fields := map[string]*string{
		"ca": &o.ca, "cert": &o.cert, "key": &o.key, "servername": &o.serverName, "token": &o.token,
		"tls": &overTLS, "delta": &delta, "versions": &versions,
	}
	for _, name := range slices.Sorted(maps.Keys(query)) {
		field, values := fields[name], query[name]
		switch {
		case field == nil:
			return fmt.Errorf("has the unknown parameter %q: the parameters are %s", name, strings.Join(slices.Sorted(maps.Keys(fields)), ", "))
		case len(values) > 1:
			return fmt.Errorf("has the parameter %s %d times: write it once", name, len(values))
		case values[0] == "":
			return fmt.Errorf("has the parameter %s without a value: write one, or remove it", name)
		}
		*field = values[0]
	}
	o.tls = overTLS == "true" || o.ca != "" || o.cert != "" || o.key != "" || o.serverName != ""
	o.delta, o.newest = delta == "true", versions == "v1"
	switch {
	case overTLS != "" && overTLS != "true":
		return fmt.Errorf("has tls=%s: write tls=true, or remove it", overTLS)
	case delta != "" && delta != "true" && delta != "false":
		return fmt.Errorf("has delta=%s: write delta=true, or remove it", delta)
	case versions != "" && versions != "v1":
		return fmt.Errorf("has versions=%s: write versions=v1 for a control plane that keeps Istio's kinds as v1, or remove it", versions)
	case (o.cert == "") != (o.key == ""):
		return fmt.Errorf("has only one of cert= and key=: a client certificate needs both")
	case o.token != "" && !o.tls:
		return fmt.Errorf("names a token but no TLS, so the token could be read in transit: add tls=true, or ca= with the server's authorities")
	}
	return nil
}

// tlsConfig reads the files of TLS.
func (o options) tlsConfig() (*tls.Config, error) {
	cfg := o.policy.Restrict(&tls.Config{MinVersion: tls.VersionTLS12, ServerName: o.serverName})
	if o.ca != "" {
		pem, err := os.ReadFile(o.ca)
		if err != nil {
			return nil, fmt.Errorf("read the authorities of the server's certificate (ca=): %w", err)
		}
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("read the authorities of the server's certificate (ca=): %s contains no certificate: write PEM", o.ca)
		}
	}
	if o.cert != "" {
		pair, err := tls.LoadX509KeyPair(o.cert, o.key)
		if err != nil {
			return nil, fmt.Errorf("read the client certificate (cert= %s, key= %s): %w", o.cert, o.key, err)
		}
		cfg.Certificates = []tls.Certificate{pair}
	}
	return cfg, nil
}

// bearer reads the token.
func (o options) bearer() (string, error) {
	raw, err := os.ReadFile(o.token)
	if err != nil {
		return "", fmt.Errorf("read the token (token=): %w", err)
	}
	token := strings.TrimSpace(string(raw))
	if token == "" || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", fmt.Errorf("read the token (token=): %s contains no token: write one line of printable characters", o.token)
	}
	return token, nil
}
