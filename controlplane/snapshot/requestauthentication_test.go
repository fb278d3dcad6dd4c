// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package snapshot

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	securityv1beta1 "istio.io/api/security/v1beta1"

	"github.com/outrigger-mesh/outrigger/controlplane/jwks"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

func authenticationOf(namespace, name string, rules ...*securityv1beta1.JWTRule) *model.Config {
	return &model.Config{
		Key:    model.Key{Kind: model.RequestAuthentication, Namespace: namespace, Name: name},
		Source: namespace + "/" + name, Spec: &securityv1beta1.RequestAuthentication{JwtRules: rules},
	}
}

// tokenWorld is a mesh with RequestAuthentications.
type tokenWorld struct {
	mesh    *Mesh
	objects []*model.Config
	keys    *jwks.Sets
}

// build builds the next snapshot after a change of some objects.
func (w *tokenWorld) build(changed ...*model.Config) {
	change := model.NewChange()
	for _, c := range changed {
		change.Keys[c.Key] = struct{}{}
	}
	w.mesh = Build(w.mesh, Input{Keys: w.keys, List: func(kind model.Kind) []*model.Config {
		if kind == model.RequestAuthentication {
			return w.objects
		}
		return nil
	}}, change)
}

// state returns the rules and problems of a namespace as text, and the keys of objects.
func (w *tokenWorld) state() (text string, keys []string) {
	var parts []string
	for _, object := range w.mesh.RequestAuthentications.For("shop", nil, nil) {
		keys = append(keys, object.Key)
		for _, rule := range object.Rules {
			parts = append(parts, rule.GetIssuer()+"="+strings.Join(rule.Keys, "+"))
		}
	}
	for _, p := range w.mesh.Problems {
		parts = append(parts, p.Reason)
	}
	return strings.Join(parts, " "), keys
}

// TestFetchedKeys builds snapshots while keys are being fetched.
func TestFetchedKeys(t *testing.T) {
	t.Parallel()
	first, second := jwks.Source{URL: "https://first/keys"}, jwks.Source{URL: "https://second/keys"}
	found := jwks.Source{Issuer: "https://b"}
	rules := func(url string) *model.Config {
		return authenticationOf("shop", "users", &securityv1beta1.JWTRule{Issuer: "a", JwksUri: url}, &securityv1beta1.JWTRule{Issuer: "https://b"})
	}
	w := &tokenWorld{}
	var before []string
	expect := func(name, want string, differs bool) {
		t.Helper()
		text, keys := w.state()
		if text != want {
			t.Errorf("%s: got %s, want %s", name, text, want)
		}
		if slices.Equal(keys, before) == differs {
			t.Errorf("%s: filters differ: %t, want %t", name, !differs, differs)
		}
		before = keys
	}
	one := rules(first.URL)
	w.objects = []*model.Config{one}
	w.build(one)
	expect("nothing is fetched", "a= https://b=", true)
	sources := w.mesh.RequestAuthentications.KeySources()
	if len(sources) != 2 || sources[0].Source != first || sources[1].Source != found || !slices.Equal(sources[0].Objects, []model.Key{one.Key}) {
		t.Errorf("sources: got %+v", sources)
	}
	w.keys = jwks.NewSets(map[jwks.Source]jwks.Keys{first: {List: []string{"1"}}, found: {Problem: "no route"}})
	w.build(one)
	expect("one is fetched", "a=1 https://b= spec.jwtRules[1]: no route", true)
	index := w.mesh.RequestAuthentications
	w.build(one)
	if w.mesh.RequestAuthentications != index {
		t.Error("the index was rebuilt although objects and keys are equal")
	}
	w.keys = jwks.NewSets(map[jwks.Source]jwks.Keys{first: {List: []string{"1"}, Problem: "old"}, found: {List: []string{"2"}}})
	w.build()
	if w.mesh.RequestAuthentications != index {
		t.Error("the index was rebuilt with keys that no change refers to")
	}
	w.build(one)
	expect("both are fetched", "a=1 https://b=2 spec.jwtRules[0]: old", true)
	w.keys = jwks.NewSets(map[jwks.Source]jwks.Keys{first: {List: []string{"1"}}, found: {List: []string{"2"}}})
	w.build(one)
	expect("only the problem changes", "a=1 https://b=2", false)

	moved := rules(second.URL)
	w.objects = []*model.Config{moved}
	w.build(moved)
	expect("another URL, not fetched yet", "a=1 https://b=2", true)
	w.keys = jwks.NewSets(map[jwks.Source]jwks.Keys{second: {Problem: "status 500"}, found: {List: []string{"2"}}})
	w.build(moved)
	expect("another URL that fails", "a= https://b=2 spec.jwtRules[0]: status 500", true)
	w.keys = jwks.NewSets(map[jwks.Source]jwks.Keys{second: {List: []string{"3", "4"}}, found: {List: []string{"2"}}})
	w.build(moved)
	expect("another URL that is fetched", "a=3+4 https://b=2", true)
}

// TestKeySources checks which keys must be fetched: each source once, for all objects that refer to
// it, and within limits.
func TestKeySources(t *testing.T) {
	t.Parallel()
	rule := func(url string, timeout time.Duration) *securityv1beta1.JWTRule {
		return &securityv1beta1.JWTRule{Issuer: "a", JwksUri: url, Timeout: durationpb.New(timeout)}
	}
	sources := KeySources([]*model.Config{
		authenticationOf("a", "x", rule("https://k", time.Second), rule("https://k", 3*time.Second), &securityv1beta1.JWTRule{Issuer: "b", Jwks: "{}"}),
		authenticationOf("b", "y", rule("https://k", 2*time.Second), &securityv1beta1.JWTRule{JwksUri: "https://no-issuer"}, rule("https://user:password@k", 0)),
	})
	if len(sources) != 1 || sources[0].Timeout != 3*time.Second || len(sources[0].Objects) != 2 {
		t.Errorf("sources: got %+v, want one with the shortest timeout and two objects", sources)
	}
	short := KeySources([]*model.Config{
		authenticationOf("a", "x", rule("https://k", time.Millisecond)),
		authenticationOf("b", "y", &securityv1beta1.JWTRule{Issuer: "a", JwksUri: "https://k"}),
	})
	if len(short) != 1 || short[0].Timeout != jwks.RuleTimeout {
		t.Errorf("a rule of another namespace changed the default timeout: %+v", short)
	}

	w := &tokenWorld{}
	for _, namespace := range []string{"a", "b", "shop"} {
		var many []*securityv1beta1.JWTRule
		for i := range maxNamespaceSources + 1 {
			many = append(many, rule(fmt.Sprintf("https://%s/%d", namespace, i), 0))
		}
		w.objects = append(w.objects, authenticationOf(namespace, "many", many...))
	}
	w.build(w.objects...)
	if n := len(w.mesh.RequestAuthentications.KeySources()); n != jwks.MaxSources {
		t.Errorf("%d sources, want %d", n, jwks.MaxSources)
	}
	refused := map[string]int{}
	for _, p := range w.mesh.RequestAuthentications.problems {
		if strings.Contains(p.Reason, "at most") {
			refused[p.Object.Namespace]++
		}
	}
	if refused["a"] != 1 || refused["b"] != 1 || refused["shop"] != maxNamespaceSources+1 {
		t.Errorf("rules without a source: got %v", refused)
	}
}
