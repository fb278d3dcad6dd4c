// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package server

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/certs"
	"github.com/outrigger-mesh/outrigger/controlplane/authn"
)

func TestCredentials(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, c := range map[string]struct {
		cfg    CredentialsConfig
		served bool
		says   string
	}{
		"none":                  {},
		"files":                 {cfg: CredentialsConfig{Source: "fs://" + dir, Readers: []string{"edge/gateway"}}, served: true},
		"files without readers": {cfg: CredentialsConfig{Source: "fs://" + dir}, says: "OUTRIGGER_CREDENTIAL_READERS is not set"},
		"no cluster":            {cfg: CredentialsConfig{Source: "k8s://"}, says: "no cluster is used"},
		"relative":              {cfg: CredentialsConfig{Source: "fs://a", Readers: []string{"a/b"}}, says: `is "fs://a"; it must be fs:///directory or k8s://`},
		"other":                 {cfg: CredentialsConfig{Source: "vault://x"}, says: "it must be fs:///directory or k8s://"},
	} {
		s := &Server{log: slog.New(slog.DiscardHandler)}
		config, err := s.newCredentials(c.cfg, newRegistry())
		if c.says != "" {
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%s: got error %v, want one with %q", name, err, c.says)
			}
			continue
		}
		if err != nil || (config.Source != nil) != c.served || (config.Authorize != nil) != c.served || (s.objects.credentials != nil) != c.served {
			t.Errorf("%s: got %+v, error %v", name, config, err)
		}
	}
}

func TestCredentialReaders(t *testing.T) {
	t.Parallel()
	cfg := CredentialsConfig{Readers: []string{"edge/gateway", "open/*"}}
	for account, want := range map[string]bool{"edge/gateway": true, "edge/other": false, "open/any": true, "opened/any": false, "other/gateway": false} {
		namespace, name, _ := strings.Cut(account, "/")
		err := cfg.authorize(t.Context(), &authn.Caller{ID: certs.ID{TrustDomain: "t", Namespace: namespace, ServiceAccount: name}})
		if (err == nil) != want {
			t.Errorf("%s: got error %v, want access: %v", account, err, want)
		}
	}
}
