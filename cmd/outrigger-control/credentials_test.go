// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

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
		env    credentialEnvironment
		served bool
		says   string
	}{
		"none":             {},
		"files":            {env: credentialEnvironment{source: "fs://" + dir, readers: []string{"edge/gateway"}}, served: true},
		"files for nobody": {env: credentialEnvironment{source: "fs://" + dir}, says: "OUTRIGGER_CREDENTIAL_READERS is not set"},
		"no cluster":       {env: credentialEnvironment{source: "k8s://"}, says: "no cluster is used"},
		"relative":         {env: credentialEnvironment{source: "fs://a", readers: []string{"a/b"}}, says: `is "fs://a", it must be fs:///directory or k8s://`},
		"other":            {env: credentialEnvironment{source: "vault://x"}, says: "it must be fs:///directory or k8s://"},
	} {
		s := &server{log: slog.New(slog.DiscardHandler)}
		config, err := s.newCredentials(c.env, newRegistry())
		if c.says != "" {
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%s: error %v, want one with %q", name, err, c.says)
			}
			continue
		}
		if err != nil || (config.Source != nil) != c.served || (config.Authorize != nil) != c.served || (s.credentials != nil) != c.served {
			t.Errorf("%s: %+v, %v", name, config, err)
		}
	}
}

func TestCredentialReaders(t *testing.T) {
	t.Parallel()
	env := credentialEnvironment{readers: []string{"edge/gateway", "open/*"}}
	for account, want := range map[string]bool{"edge/gateway": true, "edge/other": false, "open/any": true, "opened/any": false, "other/gateway": false} {
		namespace, name, _ := strings.Cut(account, "/")
		err := env.authorize(t.Context(), &authn.Caller{ID: certs.ID{TrustDomain: "t", Namespace: namespace, ServiceAccount: name}})
		if (err == nil) != want {
			t.Errorf("%s: %v", account, err)
		}
	}
	for _, list := range []string{"gateway", "a/", "/b", "a/b/c"} {
		_, err := environmentFrom(func(name string) string {
			if name == "OUTRIGGER_CREDENTIAL_READERS" {
				return list
			}
			return ""
		})
		if err == nil || !strings.Contains(err.Error(), "namespace/account") {
			t.Errorf("%q: %v", list, err)
		}
	}
}
