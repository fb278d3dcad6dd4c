// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package snapshot

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"

	"github.com/go-jose/go-jose/v4"
	securityv1beta1 "istio.io/api/security/v1beta1"

	"github.com/outrigger-mesh/outrigger/controlplane/jwks"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/internal/clip"
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
	byKey    map[model.Key]*RequestAuthentication
	all      []*model.Config
	keys     *jwks.Sets // that the rules were built with
	sources  []jwks.Wanted
	problems []model.Problem
}

func (a *RequestAuthentications) objects() []*model.Config {
	if a == nil {
		return nil
	}
	return a.all
}

// KeySources returns the sources of the keys that are to be fetched.
func (a *RequestAuthentications) KeySources() []jwks.Wanted { return a.sources }

// KeySources returns the sources of keys that RequestAuthentications name, before there is a
// snapshot.
func KeySources(objs []*model.Config) []jwks.Wanted {
	return newRequestAuthentications(nil, canonical(objs), settings{}, nil).sources
}

// rebuildRequestAuthentications is like rebuild, and also takes changed keys into account.
func rebuildRequestAuthentications(old *RequestAuthentications, st step) *RequestAuthentications {
	known := old
	if old != nil && old.keys != st.in.Keys && st.change.Touches(model.RequestAuthentication) {
		known = nil
	}
	return rebuild(known, st, model.RequestAuthentication, func(_ *RequestAuthentications, objs []*model.Config, set settings) *RequestAuthentications {
		return newRequestAuthentications(old, objs, set, st.in.Keys)
	})
}

func newRequestAuthentications(old *RequestAuthentications, objs []*model.Config, set settings, keys *jwks.Sets) *RequestAuthentications {
	a := &RequestAuthentications{
		index: policyIndex[*RequestAuthentication]{root: set.root}, byKey: make(map[model.Key]*RequestAuthentication, len(objs)), all: objs, keys: keys,
	}
	wanted := keySources{places: map[jwks.Source]int{}, namespaces: map[string]int{}}
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
			out := TokenRule{JWTRule: rule}
			problem := ""
			if rule.GetJwks() != "" {
				out.Keys, problem = inlineKeys(rule)
			} else {
				if out.Keys, problem = fetchedKeys(obj, rule, &wanted, keys); problem == "" && len(out.Keys) == 0 {
					out.Keys = old.keysOf(obj.Key, rule.GetIssuer())
				}
				p.Key += keysDigest(out.Keys)
			}
			if problem != "" {
				report("spec.jwtRules[%d]: %s", i, problem)
			}
			p.Rules = append(p.Rules, out)
		}
		a.byKey[obj.Key] = p
		a.index.add(obj.Namespace, spec, p, report)
	}
	a.sources = wanted.list
	return a
}

// inlineKeys returns the keys in a rule. Without keys it returns a problem.
func inlineKeys(rule *securityv1beta1.JWTRule) (keys []string, problem string) {
	if keys = verificationKeys(rule.GetJwks()); len(keys) == 0 {
		return nil, "jwks contains no key that is supported: tokens of this issuer are refused; write a JSON Web Key Set with its public keys"
	}
	return keys, ""
}

// keysOf returns the keys that verified the tokens of an issuer before its rule changed. They stay in
// use until it is known whether there are other ones, because valid tokens would be refused meanwhile.
func (a *RequestAuthentications) keysOf(object model.Key, issuer string) []string {
	if a == nil || a.byKey[object] == nil {
		return nil
	}
	for _, rule := range a.byKey[object].Rules {
		if rule.GetIssuer() == issuer {
			return rule.Keys
		}
	}
	return nil
}

// keysDigest returns a digest of keys, which has a fixed length.
func keysDigest(keys []string) string {
	h := sha256.New()
	for _, key := range keys {
		_, _ = fmt.Fprintf(h, "%q ", key) // writing to a hash never fails
	}
	return string(h.Sum(nil)[:16])
}

// fetchedKeys returns the fetched keys of a rule, and adds their source to those that are wanted. It
// returns neither keys nor a problem if they are being fetched for the first time. A problem does not
// mean that there are no keys.
func fetchedKeys(obj *model.Config, rule *securityv1beta1.JWTRule, wanted *keySources, sets *jwks.Sets) (keys []string, problem string) {
	source, err := jwks.RuleSource(rule.GetJwksUri(), rule.GetIssuer())
	if err != nil {
		return nil, fmt.Sprintf("tokens of this issuer are refused: %s; write jwksUri or jwks", clip.Text(err.Error(), 400))
	}
	if !wanted.add(source, rule, obj) {
		return nil, fmt.Sprintf("tokens of this issuer are refused: keys are fetched from at most %d URLs, and from at most %d for one namespace; remove other rules, or write the keys in jwks", jwks.MaxSources, maxNamespaceSources)
	}
	found := sets.Of(source)
	return found.List, found.Problem
}

// maxNamespaceSources is the maximum number of key sources that the objects of one namespace may
// add.
const maxNamespaceSources = jwks.MaxSources / 2

// keySources are the sources of keys, those of older objects first.
type keySources struct {
	list       []jwks.Wanted
	places     map[jwks.Source]int // in list
	namespaces map[string]int      // number of sources that were added by namespace
}

// add adds a source that a rule of an object names. It reports false if there are too many.
func (k *keySources) add(source jwks.Source, rule *securityv1beta1.JWTRule, obj *model.Config) bool {
	at, known := k.places[source]
	if !known {
		if len(k.list) == jwks.MaxSources || k.namespaces[obj.Namespace] == maxNamespaceSources {
			return false
		}
		at = len(k.list)
		k.places[source] = at
		k.namespaces[obj.Namespace]++
		k.list = append(k.list, jwks.Wanted{Source: source})
	}
	w := &k.list[at]
	// The longest timeout counts, so that no rule shortens the default of another.
	timeout := rule.GetTimeout().AsDuration()
	if timeout <= 0 {
		timeout = jwks.RuleTimeout
	}
	w.Timeout = max(w.Timeout, timeout)
	if n := len(w.Objects); n == 0 || w.Objects[n-1] != obj.Key { // an object may name it twice
		w.Objects = append(w.Objects, obj.Key)
	}
	return true
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

// For returns the objects of a workload: those of the root namespace, those of its own, and those that
// name one of the given services.
func (a *RequestAuthentications) For(namespace string, labels map[string]string, services []model.Key) []*RequestAuthentication {
	return a.index.of(namespace, labels, services)
}

// KeySourcesOf returns the sources of the fetched keys with which a proxy validates tokens.
func (m *Mesh) KeySourcesOf(proxy *model.Proxy) (sources []jwks.Source) {
	var services []model.Key
	if m.RequestAuthentications.NameServices() {
		for _, i := range m.Instances.At(proxy.IPs) {
			services = append(services, i.Service.Source)
		}
	}
	for _, object := range m.RequestAuthentications.For(proxy.Namespace, proxy.OwnLabels(), services) {
		for _, rule := range object.Rules {
			if rule.GetJwks() != "" {
				continue
			}
			if source, err := jwks.RuleSource(rule.GetJwksUri(), rule.GetIssuer()); err == nil {
				sources = append(sources, source)
			}
		}
	}
	return sources
}

// NameServices reports whether some objects name a Service or ServiceEntry.
func (a *RequestAuthentications) NameServices() bool { return len(a.index.services) > 0 }
