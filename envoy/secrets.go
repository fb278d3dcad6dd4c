// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package envoy

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"
)

// adminMaxDump is the maximum number of bytes read from a part of the configuration dump: 1,000
// certificates with their intermediates have about 5 MB.
const adminMaxDump = 64 << 20

// Secret is the public part of a secret that Envoy uses, in PEM. Fields of other kinds are empty.
type Secret struct {
	Name  string
	Chain []byte // of a certificate
	Roots []byte // that peers are verified with
	CRL   []byte // revoked certificates of peers

	Updated time.Time // when Envoy received it
}

// Secrets calls fn with each secret that Envoy uses and has received from a server, one after the
// other. Of secrets in files that Envoy reads itself it has only the name.
func (a *Admin) Secrets(ctx context.Context, fn func(Secret)) error {
	return a.dump(ctx, "resource=dynamic_active_secrets", func(raw json.RawMessage) error { return readSecret(raw, fn) })
}

// dump calls fn with each element of a part of the configuration dump.
func (a *Admin) dump(ctx context.Context, query string, fn func(json.RawMessage) error) error {
	resp, err := a.ask(ctx, http.MethodGet, "/config_dump", query)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }() // read-only: closing cannot lose data
	if err := readDump(io.LimitReader(resp.Body, adminMaxDump), fn); err != nil {
		return fmt.Errorf("read the secrets of envoy's admin port: %w", err)
	}
	return nil
}

// readDump reads {"configs": [element, …]}, one element after the other.
func readDump(body io.Reader, fn func(json.RawMessage) error) error {
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
	for d.More() {
		var raw json.RawMessage
		if err := d.Decode(&raw); err != nil {
			return err
		}
		if err := fn(raw); err != nil {
			return err
		}
	}
	return nil
}

func readSecret(raw json.RawMessage, fn func(Secret)) error {
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
	var one struct {
		Name    string    `json:"name"`
		Updated time.Time `json:"last_updated"`
		Secret  struct {
			Certificate struct {
				Chain source `json:"certificate_chain"`
			} `json:"tls_certificate"`
			Validation struct {
				Roots source `json:"trusted_ca"`
				CRL   source `json:"crl"`
			} `json:"validation_context"`
		} `json:"secret"`
	}
	if err := json.Unmarshal(raw, &one); err != nil {
		return err
	}
	s := one.Secret
	fn(Secret{Name: one.Name, Updated: one.Updated, Chain: text(s.Certificate.Chain), Roots: text(s.Validation.Roots), CRL: text(s.Validation.CRL)})
	return nil
}

// The fields that name a File.
const (
	FileChain = "certificate_chain"
	FileRoots = "trusted_ca"
	FileCRL   = "crl"
)

// File is a file with certificates, or with revoked ones, that Envoy reads itself. It reads the file when
// it loads the listener or cluster that names it, not when the file changes.
type File struct {
	Field  string
	Path   string
	Loaded time.Time
	// Roots is the name of a secret: with each change of it Envoy reads the file again. It is empty if there
	// is none.
	Roots string
}

// Files calls fn with each file that Envoy reads itself, once for each place that names it.
func (a *Admin) Files(ctx context.Context, fn func(File)) error {
	const sockets = "&mask=last_updated,cluster.transport_socket,cluster.transport_socket_matches"
	for _, query := range []string{"static_clusters" + sockets, "dynamic_active_clusters" + sockets, "static_listeners", "dynamic_listeners"} {
		if err := a.dump(ctx, "resource="+query, func(raw json.RawMessage) error { return readFiles(raw, fn) }); err != nil {
			return err
		}
	}
	return nil
}

func readFiles(raw json.RawMessage, fn func(File)) error {
	if !bytes.Contains(raw, []byte(`"filename"`)) {
		return nil // as nearly always: the element may be large
	}
	var value any
	if err := json.Unmarshal(raw, &value); err != nil {
		return err
	}
	findFiles(value, File{}, fn)
	return nil
}

// findFiles calls fn with the files below a value. What is known of them is in at.
func findFiles(value any, at File, fn func(File)) {
	switch v := value.(type) {
	case []any:
		for _, e := range v {
			findFiles(e, at, fn)
		}
	case map[string]any:
		if text, ok := v["last_updated"].(string); ok {
			at.Loaded, _ = time.Parse(time.RFC3339, text) // zero: it is not known
		}
		if secret, ok := v["validation_context_sds_secret_config"].(map[string]any); ok {
			at.Roots, _ = secret["name"].(string)
		}
		for field, e := range v {
			source, _ := e.(map[string]any)
			switch path, ok := source["filename"].(string); {
			case field == "error_state" || field == "draining_state": // not used, or by old connections only
			case !ok:
				findFiles(e, at, fn)
			case field == FileChain, field == FileRoots, field == FileCRL:
				fn(File{Field: field, Path: path, Loaded: at.Loaded, Roots: at.Roots})
			}
		}
	}
}
