// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package envoy

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
)

// adminMaxSecrets is the maximum number of bytes read from the list of secrets: 1,000 certificates with
// their intermediates have about 5 MB.
const adminMaxSecrets = 64 << 20

// Secret is the public part of a secret that Envoy uses, in PEM. Fields of other kinds are empty.
type Secret struct {
	Name  string
	Chain []byte // of a certificate
	Roots []byte // that peers are verified with
	CRL   []byte // revoked certificates of peers
}

// Secrets calls fn with each secret that Envoy uses and has received from a server, one after the
// other. Of secrets in files that Envoy reads itself it has only the name.
func (a *Admin) Secrets(ctx context.Context, fn func(Secret)) error {
	resp, err := a.ask(ctx, http.MethodGet, "/config_dump", "resource=dynamic_active_secrets")
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }() // read-only: closing cannot lose data
	if err := readSecrets(io.LimitReader(resp.Body, adminMaxSecrets), fn); err != nil {
		return fmt.Errorf("read the secrets of envoy's admin port: %w", err)
	}
	return nil
}

// readSecrets reads {"configs": [secret, …]}, one secret after the other.
func readSecrets(body io.Reader, fn func(Secret)) error {
	d := json.NewDecoder(body)
	for depth := 0; depth < 2; { // the object, and the list in it
		token, err := d.Token()
		if err != nil {
			return err
		}
		switch token {
		case json.Delim('{'), json.Delim('['):
			depth++
		case json.Delim('}'):
			return nil // there is no list
		}
	}
	type source struct {
		Bytes []byte `json:"inline_bytes"`
		Text  string `json:"inline_string"`
	}
	text := func(s source) []byte {
		if len(s.Bytes) > 0 {
			return s.Bytes
		}
		return []byte(s.Text)
	}
	for d.More() {
		var one struct {
			Name   string `json:"name"`
			Secret struct {
				Certificate struct {
					Chain source `json:"certificate_chain"`
				} `json:"tls_certificate"`
				Validation struct {
					Roots source `json:"trusted_ca"`
					CRL   source `json:"crl"`
				} `json:"validation_context"`
			} `json:"secret"`
		}
		if err := d.Decode(&one); err != nil {
			return err
		}
		s := one.Secret
		fn(Secret{Name: one.Name, Chain: text(s.Certificate.Chain), Roots: text(s.Validation.Roots), CRL: text(s.Validation.CRL)})
	}
	return nil
}
