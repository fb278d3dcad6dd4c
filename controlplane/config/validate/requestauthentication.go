// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package validate

import (
	"encoding/json"
	"net/netip"
	"net/url"
	"regexp"
	"strings"

	"github.com/go-jose/go-jose/v4"
	securityv1beta1 "istio.io/api/security/v1beta1"

	"github.com/outrigger-mesh/outrigger/controlplane/config/field"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

func validateRequestAuthentication(c *checker, cfg *model.Config) {
	ra, ok := cfg.Spec.(*securityv1beta1.RequestAuthentication)
	if !ok {
		return
	}
	c.targets(targets{selector: ra.GetSelector(), ref: ra.GetTargetRef(), refs: ra.GetTargetRefs()})
	const most = 4096
	if n := len(ra.GetJwtRules()); n > most {
		c.errorf("spec.jwtRules", "has %d entries: at most %d are allowed", n, most)
	}
	for i, r := range ra.GetJwtRules() {
		c.jwtRule(r, field.Index("spec.jwtRules", i))
	}
}

// claimHeader is what Istio takes as the name of a header that gets a claim.
var claimHeader = regexp.MustCompile(`^[-_A-Za-z0-9]+$`)

func (c *checker) jwtRule(r *securityv1beta1.JWTRule, path string) {
	if r.GetIssuer() == "" {
		c.errorf(path+".issuer", "is missing: write the issuer of the tokens, as in their claim iss")
	}
	for _, a := range []attribute{
		{name: "audiences", values: r.GetAudiences()},
		{name: "fromParams", values: r.GetFromParams()},
		{name: "fromCookies", values: r.GetFromCookies()},
		{name: "spaceDelimitedClaims", values: r.GetSpaceDelimitedClaims()},
	} {
		for i, v := range a.values {
			if v == "" {
				c.errorf(field.Index(path+"."+a.name, i), "is empty: write a value, or remove it")
			}
		}
	}
	const most = 64
	if n := len(r.GetSpaceDelimitedClaims()); n > most {
		c.errorf(path+".spaceDelimitedClaims", "has %d entries: at most %d are allowed", n, most)
	}
	c.keys(r, path)
	for i, h := range r.GetFromHeaders() {
		at := field.Index(path+".fromHeaders", i) + ".name"
		if h.GetName() == "" {
			c.errorf(at, "is missing: write the header that carries the token, such as Authorization")
		} else if !headerName.MatchString(h.GetName()) {
			c.warnf(at, "is %s, which is not the name of a header: no request carries a token there; write a name such as Authorization", field.Quote(h.GetName()))
		}
	}
	switch h := r.GetOutputPayloadToHeader(); {
	case h == "":
	case !headerName.MatchString(h):
		c.errorf(path+".outputPayloadToHeader", "is %s: it is not the name of a header", field.Quote(h))
	case strings.EqualFold(h, "host"):
		c.errorf(path+".outputPayloadToHeader", "is %s: requests are routed by this header; write another one", field.Quote(h))
	}
	for i, o := range r.GetOutputClaimToHeaders() {
		at := field.Index(path+".outputClaimToHeaders", i)
		if o.GetClaim() == "" {
			c.errorf(at+".claim", "is missing: write the claim that is copied to the header")
		}
		switch h := o.GetHeader(); {
		case h == "":
			c.errorf(at+".header", "is missing: write the header that receives the claim")
		case !claimHeader.MatchString(h):
			c.errorf(at+".header", "is %s: write letters, digits, \"-\" and \"_\"", field.Quote(h))
		case strings.EqualFold(h, "host"):
			c.errorf(at+".header", "is %s: requests are routed by this header; write another one", field.Quote(h))
		}
	}
	c.duration(r.GetTimeout(), path+".timeout")
}

// privateMember matches the private part of a key (RFC 7518, section 6).
var privateMember = regexp.MustCompile(`"d"\s*:\s*"`)

// keys checks where the keys of an issuer come from. Neither field means that
// its OpenID discovery document says so.
func (c *checker) keys(r *securityv1beta1.JWTRule, path string) {
	uri, inline := r.GetJwksUri(), r.GetJwks()
	if uri != "" && inline != "" {
		c.errorf(path+".jwks", "is set beside jwksUri: remove one of them")
	}
	const most = 2048
	if u, err := url.Parse(uri); uri != "" && (err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "") {
		c.errorf(path+".jwksUri", "is %s: write a URL with http:// or https:// and a host", field.Quote(uri))
	} else if len(uri) > most {
		c.errorf(path+".jwksUri", "has %d characters: at most %d are allowed", len(uri), most)
	} else if uri != "" && u.Scheme == "http" && !ownMachine(u.Hostname()) {
		c.warnf(path+".jwksUri", "is a URL without TLS: anyone who changes the response in transit can forge tokens; write one with https://")
	}
	if inline == "" {
		return
	}
	// The text may be a private key by mistake: no message repeats it.
	var set jose.JSONWebKeySet
	var one jose.JSONWebKey
	if err := json.Unmarshal([]byte(inline), &set); err != nil && privateMember.MatchString(inline) && json.Valid([]byte(inline)) {
		c.warnf(path+".jwks", "contains a private key that cannot be read, so it verifies no token: write the public part only, and replace the key")
		return
	} else if err != nil {
		c.errorf(path+".jwks", "is not a JSON Web Key Set: write {\"keys\": [...]} as in RFC 7517")
		return
	}
	if len(set.Keys) == 0 {
		if err := json.Unmarshal([]byte(inline), &one); err == nil {
			set.Keys = []jose.JSONWebKey{one}
		}
	}
	if len(set.Keys) == 0 {
		c.warnf(path+".jwks", "contains no supported key, so no token is valid")
	}
	for _, k := range set.Keys {
		if _, symmetric := k.Key.([]byte); !symmetric && !k.IsPublic() {
			c.warnf(path+".jwks", "contains a private key: write the public part only, and replace the key")
		}
	}
}

// ownMachine reports whether a host is the machine itself.
func ownMachine(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}
