// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package authn

import (
	"fmt"
	"net/url"
	"os"

	"google.golang.org/protobuf/encoding/protojson"
	securityv1beta1 "istio.io/api/security/v1beta1"
)

// ParseJWTRule reads the value of JWT_RULE: the JSON of a JWTRule of
// RequestAuthentication. Keys are taken from jwks, or from the file that a
// jwksUri of the form file:///path names. The caller sets the trust domain.
func ParseJWTRule(text string) (JWTConfig, error) {
	var rule securityv1beta1.JWTRule
	// Fields that only matter to Envoy (fromHeaders ...) may be of a newer API.
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal([]byte(text), &rule); err != nil {
		return JWTConfig{}, fmt.Errorf("reading JWT_RULE: %w", err)
	}
	cfg := JWTConfig{Issuer: rule.GetIssuer(), Audiences: rule.GetAudiences(), JWKS: []byte(rule.GetJwks())}
	switch {
	case rule.GetJwks() != "" && rule.GetJwksUri() != "":
		return JWTConfig{}, fmt.Errorf("reading JWT_RULE: both jwks and jwksUri are set; leave one out")
	case rule.GetJwks() != "":
		return cfg, nil
	case rule.GetJwksUri() == "":
		return JWTConfig{}, fmt.Errorf("reading JWT_RULE: neither jwks nor jwksUri is set; put the public keys of the issuer in jwks")
	}
	u, err := url.Parse(rule.GetJwksUri())
	if err != nil {
		return JWTConfig{}, fmt.Errorf("reading JWT_RULE: jwksUri: %w", err)
	}
	if u.Scheme != "file" || u.Host != "" || u.Path == "" {
		return JWTConfig{}, fmt.Errorf("reading JWT_RULE: jwksUri %q is not served; only file:///path is, or put the keys in jwks", u.Redacted())
	}
	if cfg.JWKS, err = os.ReadFile(u.Path); err != nil {
		return JWTConfig{}, fmt.Errorf("reading JWT_RULE: keys of the issuer: %w", err)
	}
	return cfg, nil
}
