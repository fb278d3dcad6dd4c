// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package snapshot

import (
	"encoding/json"
	"fmt"

	"github.com/go-jose/go-jose/v4"
	securityv1beta1 "istio.io/api/security/v1beta1"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// RequestAuthentication is one RequestAuthentication object.
type RequestAuthentication struct {
	Config *model.Config
	Rules  []TokenRule
	// Key differs between two objects, or versions of one, that may result in different filters. It
	// cannot be forged: proxies with equal keys share filters.
	Key string
}

// TokenRule says which tokens of one issuer are valid.
type TokenRule struct {
	*securityv1beta1.JWTRule
	// Keys are the JSON Web Keys that verify the tokens: public and symmetric ones. Without keys, no
	// token is valid.
	Keys []string
}

// RequestAuthentications is the index of RequestAuthentications by workload.
type RequestAuthentications struct {
	index    policyIndex[*RequestAuthentication]
	all      []*model.Config
	problems []model.Problem
}

func (a *RequestAuthentications) objects() []*model.Config {
	if a == nil {
		return nil
	}
	return a.all
}

func newRequestAuthentications(_ *RequestAuthentications, objs []*model.Config, set settings) *RequestAuthentications {
	a := &RequestAuthentications{index: policyIndex[*RequestAuthentication]{root: set.root}, all: objs}
	for _, obj := range objs {
		spec, ok := obj.Spec.(*securityv1beta1.RequestAuthentication)
		if !ok {
			continue
		}
		report := func(format string, args ...any) {
			a.problems = append(a.problems, model.Problem{Object: obj.Key, Source: obj.Source, Reason: fmt.Sprintf(format, args...)})
		}
		p := &RequestAuthentication{Config: obj, Key: policyKey(obj, false)}
		for i, rule := range spec.GetJwtRules() {
			if rule.GetIssuer() == "" {
				continue // it would accept the tokens of every issuer; validation has reported it
			}
			p.Rules = append(p.Rules, tokenRule(rule, func(reason string) { report("spec.jwtRules[%d]: %s", i, reason) }))
		}
		a.index.add(obj.Namespace, spec, p, report)
	}
	return a
}

// tokenRule returns a rule with its keys. It reports a rule without keys.
func tokenRule(rule *securityv1beta1.JWTRule, report func(reason string)) TokenRule {
	out := TokenRule{JWTRule: rule}
	if rule.GetJwks() == "" {
		report("keys by URI are not fetched in this version: tokens of this issuer are refused; write the keys in jwks")
		return out
	}
	if out.Keys = verificationKeys(rule.GetJwks()); len(out.Keys) == 0 {
		report("jwks contains no key that is supported: tokens of this issuer are refused; write a JSON Web Key Set with its public keys")
	}
	return out
}

// verificationKeys returns the keys of a JSON text that can verify signatures, without private
// parts. The text is a key set or one key.
func verificationKeys(text string) []string {
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal([]byte(text), &set); err != nil {
		return nil
	}
	if set.Keys == nil {
		set.Keys = []json.RawMessage{json.RawMessage(text)}
	}
	var out []string
	for _, raw := range set.Keys {
		var key jose.JSONWebKey
		if json.Unmarshal(raw, &key) != nil {
			continue // harms no other key
		}
		if _, symmetric := key.Key.([]byte); !symmetric && !key.IsPublic() {
			key = key.Public()
		}
		if !key.Valid() || key.Use == "enc" {
			continue
		}
		if b, err := json.Marshal(key); err == nil {
			out = append(out, string(b))
		}
	}
	return out
}

// For returns the objects of a workload: those of the root namespace, then those of its own.
func (a *RequestAuthentications) For(namespace string, labels map[string]string) []*RequestAuthentication {
	return a.index.of(namespace, labels)
}
