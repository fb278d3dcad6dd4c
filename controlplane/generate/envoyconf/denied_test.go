// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package envoyconf

import (
	"fmt"
	"strings"
	"testing"

	luav3 "github.com/envoyproxy/go-control-plane/envoy/extensions/string_matcher/lua/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
)

// TestDeniedNames checks the validation of certificates with denied names: exact names are
// removed, a prefix becomes a prefix with exceptions, and rules for any certificate stay unless
// the roots are those of the mesh.
func TestDeniedNames(t *testing.T) {
	t.Parallel()
	const web, api = "spiffe://cluster.local/ns/shop/sa/web", "spiffe://cluster.local/ns/shop/sa/api"
	d := &deniedNames{exact: []string{web}, prefixes: []string{"spiffe://cluster.local/ns/old/"}}
	prefix := []*tlsv3.SubjectAltNameMatcher{{SanType: tlsv3.SubjectAltNameMatcher_URI, Matcher: Prefixed("spiffe://cluster.local/")}}
	for name, tc := range map[string]struct {
		names   []*tlsv3.SubjectAltNameMatcher
		roots   string
		want    string
		changed bool
	}{
		"a prefix":                      {prefix, SecretRoots, "lua spiffe://cluster.local/", true},
		"exact names":                   {SubjectAltNames([]string{web, api}), "other", api, true},
		"a name in a denied namespace":  {SubjectAltNames([]string{"spiffe://cluster.local/ns/old/sa/x", api}), "other", api, true},
		"no name is left":               {SubjectAltNames([]string{web}), "other", nobody, true},
		"anybody of the mesh":           {nil, SecretRoots, "lua ", true},
		"anybody, of another authority": {nil, "other", "", false},
		"exact names, roots in place":   {SubjectAltNames([]string{web, api}), "", api, true},
		"anybody, roots in place":       {nil, "", "", false},
	} {
		rules := &tlsv3.CommonTlsContext_CombinedCertificateValidationContext{
			DefaultValidationContext:         &tlsv3.CertificateValidationContext{MatchTypedSubjectAltNames: tc.names},
			ValidationContextSdsSecretConfig: &tlsv3.SdsSecretConfig{Name: tc.roots},
		}
		common := &tlsv3.CommonTlsContext{ValidationContextType: &tlsv3.CommonTlsContext_CombinedValidationContext{CombinedValidationContext: rules}}
		if tc.roots == "" {
			common.ValidationContextType = &tlsv3.CommonTlsContext_ValidationContext{ValidationContext: rules.GetDefaultValidationContext()}
		}
		if got := d.guard(common); got != tc.changed {
			t.Errorf("%s: changed %t", name, got)
		}
		var got []string
		for _, m := range rules.GetDefaultValidationContext().GetMatchTypedSubjectAltNames() {
			text := m.GetMatcher().GetExact()
			if custom := m.GetMatcher().GetCustom(); custom != nil {
				lua := &luav3.Lua{}
				if err := custom.GetTypedConfig().UnmarshalTo(lua); err != nil {
					t.Fatal(err)
				}
				code := lua.GetSourceCode().GetInlineString()
				for _, part := range []string{fmt.Sprintf("[%q] = true", web), `"spiffe://cluster.local/ns/old/"`} {
					if !strings.Contains(code, part) {
						t.Errorf("%s: the code lacks %s:\n%s", name, part, code)
					}
				}
				_, rest, _ := strings.Cut(code, "local accepted = \"")
				accepted, _, _ := strings.Cut(rest, "\"")
				text = "lua " + accepted
			}
			got = append(got, text)
		}
		if strings.Join(got, " | ") != tc.want {
			t.Errorf("%s: the names are %q, want %q", name, got, tc.want)
		}
	}
	if (*deniedNames)(nil).guard(&tlsv3.CommonTlsContext{}) {
		t.Error("an empty list changes something")
	}
}
