// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package snapshot

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strconv"

	"google.golang.org/protobuf/proto"
	securityv1beta1 "istio.io/api/security/v1beta1"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// dryRunAnnotation makes a policy report what it would deny, without denying it.
const dryRunAnnotation = "istio.io/dry-run"

// AuthorizationPolicy is one AuthorizationPolicy object.
type AuthorizationPolicy struct {
	Config *model.Config
	Spec   *securityv1beta1.AuthorizationPolicy
	// DryRun is true for a policy that only reports what it would deny.
	DryRun bool
	// Key differs between two policies, or versions of one, that may result in different filters or
	// problems. It cannot be forged: proxies with equal keys share filters.
	Key string
}

// AuthorizationPolicies is the index of AuthorizationPolicies by workload.
type AuthorizationPolicies struct {
	index    policyIndex[*AuthorizationPolicy]
	byKey    map[model.Key]*AuthorizationPolicy
	all      []*model.Config
	problems []model.Problem
}

func (a *AuthorizationPolicies) objects() []*model.Config {
	if a == nil {
		return nil
	}
	return a.all
}

func newAuthorizationPolicies(old *AuthorizationPolicies, objs []*model.Config, set settings) *AuthorizationPolicies {
	a := &AuthorizationPolicies{index: policyIndex[*AuthorizationPolicy]{root: set.root}, byKey: make(map[model.Key]*AuthorizationPolicy, len(objs)), all: objs}
	for _, obj := range objs {
		spec, ok := obj.Spec.(*securityv1beta1.AuthorizationPolicy)
		if !ok {
			continue
		}
		p := old.get(obj)
		if p == nil {
			p = &AuthorizationPolicy{Config: obj, Spec: spec}
			p.DryRun, _ = strconv.ParseBool(obj.Annotations[dryRunAnnotation]) // an invalid value does not switch a policy off
			p.Key = policyKey(obj, p.DryRun)
		}
		a.byKey[obj.Key] = p
		a.index.add(obj.Namespace, spec, p, func(format string, args ...any) {
			a.problems = append(a.problems, model.Problem{Object: obj.Key, Source: obj.Source, Reason: fmt.Sprintf(format, args...)})
		})
	}
	return a
}

// get returns the policy of an object, or nil if the object is new or has changed.
func (a *AuthorizationPolicies) get(obj *model.Config) *AuthorizationPolicy {
	if a == nil || a.byKey[obj.Key] == nil || a.byKey[obj.Key].Config != obj {
		return nil
	}
	return a.byKey[obj.Key]
}

// For returns the policies of a workload: those of the root namespace, those of its own, and those that
// name one of the given services.
func (a *AuthorizationPolicies) For(namespace string, labels map[string]string, services []model.Key) []*AuthorizationPolicy {
	return a.index.of(namespace, labels, services)
}

// NameServices reports whether some policies name a Service or ServiceEntry.
func (a *AuthorizationPolicies) NameServices() bool { return len(a.index.services) > 0 }

// policyKey returns a digest of everything that the filters of a policy depend on.
func policyKey(obj *model.Config, dryRun bool) string {
	h := sha256.New()
	// Writing to a hash never fails.
	_, _ = fmt.Fprintf(h, "%q %q %q %t ", obj.Namespace, obj.Name, obj.Source, dryRun)
	text, err := proto.MarshalOptions{Deterministic: true}.Marshal(obj.Spec.(proto.Message))
	if err != nil { // a text is not UTF-8
		text = fmt.Appendf(nil, "%q", obj.Spec)
	}
	_, _ = h.Write(text)
	return string(h.Sum(nil)[:16])
}

// WithPolicies returns the snapshot that has the given AuthorizationPolicies, besides those of m with
// other names.
func (m *Mesh) WithPolicies(proposed []*model.Config) *Mesh {
	replaced := map[model.Key]bool{}
	for _, c := range proposed {
		replaced[c.Key] = true
	}
	list := slices.Clone(proposed)
	for _, c := range m.AuthorizationPolicies.objects() {
		if !replaced[c.Key] {
			list = append(list, c)
		}
	}
	next := *m
	next.AuthorizationPolicies = newAuthorizationPolicies(m.AuthorizationPolicies, canonical(list), m.settings())
	return &next
}
