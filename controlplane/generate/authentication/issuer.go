// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package authentication

import (
	"cmp"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	jwtv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/jwt_authn/v3"

	"github.com/outrigger-mesh/outrigger/controlplane/generate/envoyconf"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
)

// place is a part of a request that may contain a token.
type place struct {
	kind placeKind
	name string // a header name is in lower case
}

type placeKind int

const (
	inHeader placeKind = iota
	inParam
	inCookie
)

// issuer is a rule with the places of its tokens.
type issuer struct {
	rule    snapshot.TokenRule
	headers []*jwtv3.JwtHeader
	// places are sorted and without duplicates. Without places, no request can contain a token.
	places []place
}

// newIssuer returns the issuer of a rule. Without places in the rule, a token is expected in the
// header Authorization or in the parameter access_token.
func newIssuer(rule snapshot.TokenRule) issuer {
	i := issuer{rule: rule}
	if len(rule.GetFromHeaders())+len(rule.GetFromParams())+len(rule.GetFromCookies()) == 0 {
		i.headers = []*jwtv3.JwtHeader{{Name: "Authorization", ValuePrefix: "Bearer "}}
		i.places = []place{{inHeader, "authorization"}, {inParam, "access_token"}}
		return i
	}
	for _, h := range rule.GetFromHeaders() {
		header := &jwtv3.JwtHeader{Name: h.GetName(), ValuePrefix: h.GetPrefix()}
		if header.Validate() == nil { // Envoy would reject the listener, and no request has such a header
			i.headers = append(i.headers, header)
			i.places = append(i.places, place{inHeader, strings.ToLower(h.GetName())})
		}
	}
	for _, name := range rule.GetFromParams() {
		i.places = append(i.places, place{inParam, name})
	}
	for _, name := range rule.GetFromCookies() {
		i.places = append(i.places, place{inCookie, name})
	}
	slices.SortFunc(i.places, func(a, b place) int {
		return cmp.Or(cmp.Compare(a.kind, b.kind), strings.Compare(a.name, b.name))
	})
	i.places = slices.Compact(i.places)
	return i
}

// nobodysKey is a public key whose private key nobody has: its x is the SHA-256 hash of
// "no private key 0".
const nobodysKey = `{"kty":"EC","crv":"P-256","kid":"none","x":"zhotkln3RNu0lgUeS_koHQ05iVhMqEOQYwU-IkbiJIE","y":"cISFQRxavcBJANbApbDcUufPHVf40gWcdxCSuzsH75U"}`

// keySet returns the key set of the issuer. Envoy ignores keys that it does not support, but rejects
// a listener with a set that has no others. Therefore, every set contains a key that is supported
// and verifies nothing.
func (i issuer) keySet() string {
	return `{"keys":[` + strings.Join(append(slices.Clone(i.rule.Keys), nobodysKey), ",") + `]}`
}

// provider returns the provider that validates the tokens of the issuer and outputs their claims.
func (i issuer) provider() *jwtv3.JwtProvider {
	out := i.validation()
	out.FromHeaders = i.headers
	for _, p := range i.places {
		out.add(p)
	}
	out.Forward = i.rule.GetForwardOriginalToken()
	out.ForwardPayloadHeader = i.payloadHeader()
	out.ClaimToHeaders = i.claimHeaders()
	out.PayloadInMetadata = envoyconf.TokenPayload
	out.ClearRouteCache = true // routes may depend on claims
	out.NormalizePayloadInMetadata = &jwtv3.JwtProvider_NormalizePayload{
		SpaceDelimitedClaims: append([]string{"scope", "permission"}, i.rule.GetSpaceDelimitedClaims()...),
	}
	return out.JwtProvider
}

// check returns the provider that only validates the tokens at a place.
func (i issuer) check(p place) *jwtv3.JwtProvider {
	out := i.validation()
	out.Forward = true
	for _, h := range i.headers {
		if p.kind == inHeader && strings.EqualFold(h.GetName(), p.name) {
			out.FromHeaders = append(out.FromHeaders, h)
		}
	}
	out.add(p)
	return out.JwtProvider
}

// provider is a provider that is being built.
type provider struct{ *jwtv3.JwtProvider }

func (i issuer) validation() provider {
	return provider{&jwtv3.JwtProvider{
		Issuer: i.rule.GetIssuer(), Audiences: i.rule.GetAudiences(),
		JwksSourceSpecifier: &jwtv3.JwtProvider_LocalJwks{LocalJwks: &corev3.DataSource{
			Specifier: &corev3.DataSource_InlineString{InlineString: i.keySet()},
		}},
	}}
}

// add adds a place that is not a header.
func (p provider) add(at place) {
	switch at.kind {
	case inParam:
		p.FromParams = append(p.FromParams, at.name)
	case inCookie:
		p.FromCookies = append(p.FromCookies, at.name)
	case inHeader:
	}
}

// payloadHeader returns the header that the payload is written to, or "".
func (i issuer) payloadHeader() string {
	if h := i.rule.GetOutputPayloadToHeader(); writable(h) {
		return h
	}
	return ""
}

func (i issuer) claimHeaders() []*jwtv3.JwtClaimToHeader {
	var out []*jwtv3.JwtClaimToHeader
	for _, c := range i.rule.GetOutputClaimToHeaders() {
		header := &jwtv3.JwtClaimToHeader{HeaderName: c.GetHeader(), ClaimName: c.GetClaim()}
		if c.GetClaim() != "" && writable(c.GetHeader()) && header.Validate() == nil {
			out = append(out, header)
		}
	}
	return out
}

// writable reports whether claims can be written to a header. Validation reports other names.
func writable(name string) bool {
	return name != "" && name[0] != ':' && !strings.EqualFold(name, "host")
}
