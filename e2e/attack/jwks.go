// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"

	"github.com/go-jose/go-jose/v4"
)

// keyAttacks make the control plane fetch the keys of token issuers.
func keyAttacks() []attack {
	const area = "objects of a tenant"
	return []attack{
		{area, "RequestAuthentications with keys at loopback and metadata addresses, and at a server that redirects there and endlessly, and sends endless, slow, giant and secret answers", "only the server is asked; the keys of a good issuer are fetched, and changes of other objects applied; memory grows by less than 100 MB", badKeys},
	}
}

// keyMemory is the maximum memory, in bytes, that the keys of token issuers may cost.
const keyMemory = 100e6

// keySets returns the RequestAuthentications with keys at the given URLs.
func keySets(urls []string) string {
	var b strings.Builder
	for i, url := range urls {
		fmt.Fprintf(&b, "apiVersion: security.istio.io/v1\nkind: RequestAuthentication\nmetadata: {name: k%d, namespace: shop}\nspec: {jwtRules: [{issuer: i%d, jwksUri: %q, timeout: 1s}]}\n---\n", i, i, url)
	}
	return b.String()
}

// keyOrigin is a malicious server that also serves a good key set, and one with a symmetric key.
type keyOrigin struct {
	*origin
	good []byte
}

// ServeHTTP implements http.Handler.
func (o *keyOrigin) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/good":
		_, _ = w.Write(o.good) // the control plane may have ended
	case "/secret":
		_, _ = w.Write([]byte(`{"keys":[{"kty":"oct","k":"AAAA","kid":"symmetric"}]}`))
	default:
		o.origin.ServeHTTP(w, r)
	}
}

func badKeys(ctx context.Context, s *suite) (outcome, error) {
	canary, reached, err := newCanary(s)
	if err != nil {
		return outcome{}, err
	}
	defer func() { _ = canary.Close() }() // it is no longer used
	issuer, err := newIssuer()
	if err != nil {
		return outcome{}, err
	}
	l, err := net.Listen("tcp", s.address()+":0")
	if err != nil {
		return outcome{}, err
	}
	o := &keyOrigin{origin: &origin{address: l.Addr().String(), canary: canary.Addr().String(), done: make(chan struct{}), asked: map[string]bool{}}}
	if o.good, err = json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: issuer.key.Public(), KeyID: tokenKeyID}}}); err != nil {
		return outcome{}, err
	}
	server := &http.Server{Handler: o, ReadHeaderTimeout: patience}
	go func() { _ = server.Serve(l) }()   // it ends with Close
	defer func() { _ = server.Close() }() // it is no longer used
	defer close(o.done)
	bad := []string{"http://" + o.canary + "/keys", "http://169.254.169.254/latest/meta-data/", "http://" + o.address + "/secret"}
	for _, url := range o.paths() {
		if strings.HasPrefix(url, "http://") {
			bad = append(bad, strings.ReplaceAll(url, "ADDRESS", o.address))
		}
	}
	p, err := s.newPlane(ctx, map[string]string{"shop.yaml": shop()}, "OUTRIGGER_JWKS_ALLOWED_HOSTS="+o.address)
	if err != nil {
		return outcome{}, err
	}
	defer p.Stop()
	before, err := p.usage()
	if err != nil {
		return outcome{}, err
	}
	p.resetPeak()
	if err := p.write("keys.yaml", keySets(append(bad, "http://"+o.address+"/good"))); err != nil {
		return outcome{}, err
	}
	err = eventually(ctx, func() error {
		for _, url := range bad {
			if !strings.Contains(p.Output(), "the keys of "+url+" cannot be fetched") {
				return fmt.Errorf("the control plane does not say that it has no keys of %s", url)
			}
		}
		_, text, err := get(ctx, "http://"+p.ip+":15014/metrics")
		if err == nil && !strings.Contains(text, "\npilot_jwks_resolver_network_fetch_success_total 1\n") {
			err = errors.New("the keys of the good issuer were not fetched once")
		}
		return err
	})
	if err != nil {
		return outcome{}, err
	}
	if err := p.applies(ctx); err != nil {
		return outcome{}, fmt.Errorf("a change of another object is not applied: %w", err)
	}
	select {
	case <-reached:
		return outcome{}, errors.New("an address was reached that is not allowed")
	default:
	}
	after, err := p.usage()
	if err != nil {
		return outcome{}, err
	}
	c := costOf(before, after)
	out := outcome{cost: c, seen: fmt.Sprintf("%d of %d not served; %s", len(bad), len(bad), c.String())}
	if c.memory > keyMemory {
		return out, fmt.Errorf("memory grew by %.1f MB", float64(c.memory)/1e6)
	}
	return out, nil
}
