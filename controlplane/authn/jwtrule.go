// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package authn

import (
	"fmt"
	"net/url"

	"google.golang.org/protobuf/encoding/protojson"
	securityv1beta1 "istio.io/api/security/v1beta1"

	"github.com/outrigger-mesh/outrigger/controlplane/jwks"
)

// ParseJWTRule parses the value of JWT_RULE: the JSON of a JWTRule of RequestAuthentication. Keys
// come from jwks, from the file in a jwksUri of the form file:///path, from an https jwksUri, or
// from the URL in the discovery document of the issuer. The hosts of the jwksUri and of the issuer
// are allowed, because the author of the rule named them. The caller must set the trust domain.
func ParseJWTRule(text string) (JWTConfig, error) {
	var rule securityv1beta1.JWTRule
	// Fields that only Envoy uses (fromHeaders ...) may belong to a newer API version.
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal([]byte(text), &rule); err != nil {
		return JWTConfig{}, fmt.Errorf("reading JWT_RULE: %w", err)
	}
	cfg := JWTConfig{Issuer: rule.GetIssuer(), Audiences: rule.GetAudiences(), JWKS: []byte(rule.GetJwks())}
	if rule.GetJwksUri() == "" {
		return cfg, nil
	}
	if rule.GetJwks() != "" {
		return JWTConfig{}, fmt.Errorf("reading JWT_RULE: both jwks and jwksUri are set; leave one out")
	}
	u, err := url.Parse(rule.GetJwksUri())
	if err != nil {
		return JWTConfig{}, fmt.Errorf("reading JWT_RULE: jwksUri cannot be read as a URL")
	}
	switch {
	case u.Scheme == "file" && u.Host == "" && u.Path != "":
		cfg.JWKSFile = u.Path
	case u.Scheme == "https" || u.Scheme == "http":
		cfg.JWKSURL = rule.GetJwksUri()
		cfg.Fetch.AllowedHosts = []string{jwks.HostPort(u)}
		if i, err := url.Parse(rule.GetIssuer()); err == nil && i.Host != "" {
			cfg.Fetch.AllowedHosts = append(cfg.Fetch.AllowedHosts, jwks.HostPort(i))
		}
	default:
		return JWTConfig{}, fmt.Errorf("reading JWT_RULE: jwksUri %q is not supported; use https, file:///path, or put the keys in jwks", u.Redacted())
	}
	return cfg, nil
}
