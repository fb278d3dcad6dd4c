// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package envoyconf

import (
	"slices"
	"strconv"
	"strings"

	xdscorev3 "github.com/cncf/xds/go/xds/core/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	luav3 "github.com/envoyproxy/go-control-plane/envoy/extensions/string_matcher/lua/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
)

// deniedNames are denied identities, as URIs. A TLS handshake with one of them fails, so that
// servers that speak first send them nothing. Network filters only act when the client has sent a
// byte.
type deniedNames struct{ exact, prefixes []string }

// verification returns the rules for the certificates of peers, nil without any, and whether they
// use the roots of the mesh.
func verification(common *tlsv3.CommonTlsContext) (rules *tlsv3.CertificateValidationContext, mesh bool) {
	combined := common.GetCombinedValidationContext()
	if combined == nil {
		return common.GetValidationContext(), false
	}
	return combined.GetDefaultValidationContext(), combined.GetValidationContextSdsSecretConfig().GetName() == SecretRoots
}

// guard changes the verification of peers so that it rejects the names, and reports whether it
// changed anything. Rules that accept every name are changed only if they use the roots of the mesh.
func (d *deniedNames) guard(common *tlsv3.CommonTlsContext) bool {
	context, mesh := verification(common)
	if d == nil || context == nil {
		return false
	}
	names := context.GetMatchTypedSubjectAltNames()
	if len(names) == 0 {
		if !mesh {
			return false
		}
		context.MatchTypedSubjectAltNames = []*tlsv3.SubjectAltNameMatcher{{SanType: tlsv3.SubjectAltNameMatcher_URI, Matcher: d.except("")}}
		return true
	}
	var out []*tlsv3.SubjectAltNameMatcher
	for _, name := range names {
		switch pattern := name.GetMatcher().GetMatchPattern().(type) {
		case *matcherv3.StringMatcher_Prefix:
			name = &tlsv3.SubjectAltNameMatcher{SanType: name.GetSanType(), Matcher: d.except(pattern.Prefix)}
		case *matcherv3.StringMatcher_Exact:
			if d.has(pattern.Exact) {
				continue
			}
		}
		out = append(out, name)
	}
	if len(out) == 0 {
		out = SubjectAltNames([]string{nobody})
	}
	context.MatchTypedSubjectAltNames = out
	return true
}

// has reports whether a URI is denied.
func (d *deniedNames) has(uri string) bool {
	_, exact := slices.BinarySearch(d.exact, uri)
	return exact || slices.ContainsFunc(d.prefixes, func(p string) bool { return strings.HasPrefix(uri, p) })
}

// except returns a matcher of values that have a prefix and are not denied. Envoy's patterns have
// no negation, so it uses Lua.
func (d *deniedNames) except(prefix string) *matcherv3.StringMatcher {
	var code strings.Builder
	list := func(name string, values []string, text func(string) string) {
		code.WriteString("local " + name + " = {\n")
		for _, v := range values {
			code.WriteString(text(strconv.Quote(v)) + ",\n")
		}
		code.WriteString("}\n")
	}
	list("exact", d.exact, func(v string) string { return "[" + v + "] = true" })
	list("prefixes", d.prefixes, func(v string) string { return v })
	code.WriteString("local accepted = " + strconv.Quote(prefix) + `
local function begins(text, prefix)
  return string.sub(text, 1, #prefix) == prefix
end
function envoy_match(text)
  if exact[text] or not begins(text, accepted) then
    return false
  end
  for _, prefix in ipairs(prefixes) do
    if begins(text, prefix) then
      return false
    end
  end
  return true
end
`)
	return &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Custom{Custom: &xdscorev3.TypedExtensionConfig{
		Name: "envoy.string_matcher.lua",
		TypedConfig: Pack(&luav3.Lua{SourceCode: &corev3.DataSource{
			Specifier: &corev3.DataSource_InlineString{InlineString: code.String()},
		}}),
	}}}
}
