// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package decision

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	jwtv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/jwt_authn/v3"
	"github.com/go-jose/go-jose/v4"

	"github.com/outrigger-mesh/outrigger/controlplane/generate/envoyconf"
)

// skew is how far Envoy's clock may differ from that of an issuer.
const skew = time.Minute

// refusal says why a token is refused.
type refusal struct {
	status  int
	reason  string
	missing bool // no token was found
}

func refused(format string, args ...any) *refusal {
	return &refusal{status: http.StatusUnauthorized, reason: fmt.Sprintf(format, args...)}
}

// tokens validates the tokens of requests.
type tokens struct {
	filter    string
	providers map[string]*provider
	required  *jwtv3.JwtRequirement
	preflight bool // requests of browsers that ask for permission need no token
}

func newTokens(name string, config *jwtv3.JwtAuthentication) (*tokens, error) {
	out := &tokens{filter: name, providers: map[string]*provider{}, preflight: config.GetBypassCorsPreflight()}
	for name, p := range config.GetProviders() {
		made, err := newProvider(p)
		if err != nil {
			return nil, err
		}
		out.providers[name] = made
	}
	rules := config.GetRules()
	if len(rules) != 1 || rules[0].GetMatch().GetPrefix() != "" || len(rules[0].GetMatch().GetHeaders()) > 0 {
		return nil, errors.New("rules of tokens that depend on the request are not supported")
	}
	out.required = rules[0].GetRequires()
	return out, nil
}

// apply validates the tokens of a request.
func (t *tokens) apply(f *facts) *refusal {
	if t.preflight && strings.EqualFold(joined(f.header[":method"]), http.MethodOptions) && joined(f.header["origin"]) != "" && joined(f.header["access-control-request-method"]) != "" {
		return nil
	}
	if f.request.Refused {
		return refused("a token was refused when the request was sent")
	}
	if f.request.Claims == nil {
		return t.satisfies(t.required, f)
	}
	p := t.accepting(f.request.Claims)
	if p == nil {
		return refused("no issuer and audience are accepted that are those of the token")
	}
	payload, err := json.Marshal(f.request.Claims)
	if err != nil {
		return refused("the claims cannot be written: %v", err)
	}
	p.accept(f, maps.Clone(f.request.Claims), base64.RawURLEncoding.EncodeToString(payload))
	return nil
}

// accepting returns the provider for a token with the given claims, or nil if there is none.
func (t *tokens) accepting(claims map[string]any) *provider {
	issuer, _ := claims["iss"].(string)
	for _, name := range slices.Sorted(maps.Keys(t.providers)) {
		p := t.providers[name]
		if (p.GetIssuer() == "" || p.GetIssuer() == issuer) && p.hasAudience(claims["aud"]) {
			return p
		}
	}
	return nil
}

// satisfies checks a requirement, and returns nil if the request satisfies it.
func (t *tokens) satisfies(r *jwtv3.JwtRequirement, f *facts) *refusal {
	switch of := r.GetRequiresType().(type) {
	case *jwtv3.JwtRequirement_ProviderName:
		p := t.providers[of.ProviderName]
		if p == nil {
			return refused("no provider %s", of.ProviderName)
		}
		return p.apply(f)
	case *jwtv3.JwtRequirement_RequiresAll:
		for _, one := range of.RequiresAll.GetRequirements() {
			if no := t.satisfies(one, f); no != nil {
				return no
			}
		}
		return nil
	case *jwtv3.JwtRequirement_RequiresAny:
		var last *refusal
		optional := false
		for _, one := range of.RequiresAny.GetRequirements() {
			if one.GetAllowMissing() != nil {
				optional = true
				continue
			}
			no := t.satisfies(one, f)
			if no == nil {
				return nil
			}
			if last == nil || !no.missing {
				last = no
			}
		}
		if optional && (last == nil || last.missing) {
			return nil
		}
		return last
	case *jwtv3.JwtRequirement_AllowMissing:
		return nil
	default:
		return refused("the requirement %T is not supported", of)
	}
}

// provider validates the tokens of an issuer.
type provider struct {
	*jwtv3.JwtProvider
	keys []jose.JSONWebKey
}

func newProvider(config *jwtv3.JwtProvider) (*provider, error) {
	set := struct {
		Keys []json.RawMessage `json:"keys"`
	}{}
	if err := json.Unmarshal([]byte(config.GetLocalJwks().GetInlineString()), &set); err != nil {
		return nil, fmt.Errorf("read the keys of the issuer %q: %w", config.GetIssuer(), err)
	}
	out := &provider{JwtProvider: config}
	for _, raw := range set.Keys {
		var key jose.JSONWebKey
		if json.Unmarshal(raw, &key) == nil { // Envoy ignores the others, too
			out.keys = append(out.keys, key)
		}
	}
	return out, nil
}

// found is a token and the function that removes it from the request.
type found struct {
	text   string
	remove func(*facts)
}

// apply validates all tokens at the places of the provider, and stores the payload of the first one.
func (p *provider) apply(f *facts) *refusal {
	list := p.find(f)
	if len(list) == 0 {
		return &refusal{status: http.StatusUnauthorized, reason: "no token", missing: true}
	}
	var claims map[string]any
	for _, token := range slices.Backward(list) {
		var no *refusal
		if claims, no = p.validate(token.text, f.request.Now); no != nil {
			return no
		}
	}
	for _, token := range list {
		if !p.GetForward() {
			token.remove(f)
		}
	}
	p.accept(f, claims, strings.Split(list[0].text, ".")[1])
	return nil
}

// accept outputs the claims of a token, and its encoded payload.
func (p *provider) accept(f *facts, claims map[string]any, payload string) {
	if h := p.GetForwardPayloadHeader(); h != "" {
		f.header[lower(h)] = []string{payload}
	}
	for _, c := range p.GetClaimToHeaders() {
		if text, ok := claimText(claims, strings.Split(c.GetClaimName(), ".")); ok {
			f.header[lower(c.GetHeaderName())] = []string{text}
		}
	}
	if key := p.GetPayloadInMetadata(); key != "" {
		for _, name := range p.GetNormalizePayloadInMetadata().GetSpaceDelimitedClaims() {
			if text, ok := claims[name].(string); ok {
				words := []any{}
				for word := range strings.FieldsSeq(text) {
					words = append(words, word)
				}
				claims[name] = words
			}
		}
		f.set(envoyconf.TokenFilter, key, claims)
	}
}

// claimText returns a claim as it is written to a header.
func claimText(claims map[string]any, path []string) (string, bool) {
	var value any = claims
	for _, key := range path {
		of, ok := value.(map[string]any)
		if !ok {
			return "", false
		}
		value = of[key]
	}
	switch v := value.(type) {
	case nil:
		return "", false
	case map[string]any, []any:
		text, err := json.Marshal(v)
		return base64.StdEncoding.EncodeToString(text), err == nil
	case string:
		return v, true
	default:
		return fmt.Sprint(v), true
	}
}

// find returns the tokens at the places of the provider, in the order of the names of places. Envoy
// reads a header that is sent several times as one value.
func (p *provider) find(f *facts) []found {
	var out []found
	for _, h := range slices.SortedFunc(slices.Values(p.GetFromHeaders()), func(a, b *jwtv3.JwtHeader) int {
		return strings.Compare(lower(a.GetName())+a.GetValuePrefix(), lower(b.GetName())+b.GetValuePrefix())
	}) {
		name := lower(h.GetName())
		_, text, ok := strings.Cut(joined(f.header[name]), h.GetValuePrefix())
		if ok && len(f.header[name]) > 0 {
			out = append(out, found{tokenIn(text), func(f *facts) { delete(f.header, name) }})
		}
	}
	path, query, _ := strings.Cut(f.path, "?")
	params, _ := url.ParseQuery(query) // what cannot be parsed has no token
	for _, name := range slices.Sorted(slices.Values(p.GetFromParams())) {
		if values := params[name]; len(values) > 0 {
			out = append(out, found{values[0], func(f *facts) {
				params.Del(name)
				f.path = strings.TrimSuffix(path+"?"+params.Encode(), "?")
			}})
		}
	}
	for _, name := range slices.Sorted(slices.Values(p.GetFromCookies())) {
		request := http.Request{Header: http.Header{"Cookie": f.header["cookie"]}}
		if c, err := request.Cookie(name); err == nil {
			out = append(out, found{c.Value, func(*facts) {}})
		}
	}
	return out
}

// tokenIn returns the part of a value from the first character that a token may contain.
func tokenIn(value string) string {
	return value[max(0, strings.IndexFunc(value, func(r rune) bool {
		return '0' <= r && r <= '9' || 'a' <= r|0x20 && r|0x20 <= 'z' || strings.ContainsRune("-_.", r)
	})):]
}

// algorithms are those that Envoy supports.
func algorithms() []jose.SignatureAlgorithm {
	return []jose.SignatureAlgorithm{
		jose.ES256, jose.ES384, jose.ES512, jose.RS256, jose.RS384, jose.RS512, jose.PS256, jose.PS384, jose.PS512,
		jose.HS256, jose.HS384, jose.HS512, jose.EdDSA,
	}
}

// validate returns the claims of a token.
func (p *provider) validate(text string, now time.Time) (map[string]any, *refusal) {
	signed, err := jose.ParseSignedCompact(text, algorithms())
	if err != nil {
		return nil, refused("the text is not a token with a signature that is supported")
	}
	claims := map[string]any{}
	if err := json.Unmarshal(signed.UnsafePayloadWithoutVerification(), &claims); err != nil {
		return nil, refused("the payload of the token is not a JSON object")
	}
	if issuer, _ := claims["iss"].(string); p.GetIssuer() != "" && issuer != p.GetIssuer() {
		return nil, refused("the issuer %q is unexpected", issuer)
	}
	if at, ok := claims["nbf"].(float64); ok && float64(now.Add(skew).Unix()) < at {
		return nil, refused("the token is not valid yet")
	}
	if at, ok := claims["exp"].(float64); ok && float64(now.Add(-skew).Unix()) > at {
		return nil, refused("the token has expired")
	}
	if !p.hasAudience(claims["aud"]) {
		return nil, &refusal{status: http.StatusForbidden, reason: "the token is for another audience"}
	}
	header := signed.Signatures[0].Header
	if !slices.ContainsFunc(p.keys, func(key jose.JSONWebKey) bool {
		if key.KeyID != "" && header.KeyID != "" && key.KeyID != header.KeyID || key.Algorithm != "" && key.Algorithm != header.Algorithm {
			return false
		}
		_, err := signed.Verify(key)
		return err == nil
	}) {
		return nil, refused("no key of the issuer %q verifies the signature of the token", p.GetIssuer())
	}
	return claims, nil
}

func (p *provider) hasAudience(value any) bool {
	if len(p.GetAudiences()) == 0 {
		return true
	}
	bare := func(s string) string {
		s = strings.TrimPrefix(strings.TrimPrefix(s, "https://"), "http://")
		return strings.TrimSuffix(s, "/")
	}
	wanted := map[string]bool{}
	for _, a := range p.GetAudiences() {
		wanted[bare(a)] = true
	}
	list, ok := value.([]any)
	if !ok {
		list = []any{value}
	}
	return slices.ContainsFunc(list, func(v any) bool { s, ok := v.(string); return ok && wanted[bare(s)] })
}

// clone copies the headers of a request, which filters change.
func clone(header map[string][]string) map[string][]string {
	out := make(map[string][]string, len(header)+3)
	maps.Copy(out, header)
	return out
}
