// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package snapshot

import (
	"fmt"
	"strconv"

	"github.com/cespare/xxhash/v2"
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
	// Version changes if and only if the spec changes.
	Version string
}

// AuthorizationPolicies is the index of AuthorizationPolicies by workload.
type AuthorizationPolicies struct {
	index    policyIndex[*AuthorizationPolicy]
	all      []*model.Config
	problems []model.Problem
}

func (a *AuthorizationPolicies) objects() []*model.Config {
	if a == nil {
		return nil
	}
	return a.all
}

func newAuthorizationPolicies(_ *AuthorizationPolicies, objs []*model.Config, set settings) *AuthorizationPolicies {
	a := &AuthorizationPolicies{index: policyIndex[*AuthorizationPolicy]{root: set.root}, all: objs}
	for _, obj := range objs {
		spec, ok := obj.Spec.(*securityv1beta1.AuthorizationPolicy)
		if !ok {
			continue
		}
		p := &AuthorizationPolicy{Config: obj, Spec: spec}
		p.DryRun, _ = strconv.ParseBool(obj.Annotations[dryRunAnnotation]) // an invalid value does not switch a policy off
		if text, err := (proto.MarshalOptions{Deterministic: true}).Marshal(spec); err == nil {
			p.Version = strconv.FormatUint(xxhash.Sum64(text), 16)
		}
		a.index.add(obj.Namespace, spec, p, func(format string, args ...any) {
			a.problems = append(a.problems, model.Problem{Object: obj.Key, Source: obj.Source, Reason: fmt.Sprintf(format, args...)})
		})
	}
	return a
}

// For returns the policies of a workload: those of the root namespace, then those of its own.
func (a *AuthorizationPolicies) For(namespace string, labels map[string]string) []*AuthorizationPolicy {
	return a.index.of(namespace, labels)
}
