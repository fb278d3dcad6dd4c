// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package authorization

import (
	"strings"
	"testing"

	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	"google.golang.org/protobuf/encoding/protojson"
	securityv1beta1 "istio.io/api/security/v1beta1"
)

func TestShareAmbiguous(t *testing.T) {
	t.Parallel()
	c := &converter{refuses: true, headers: &headerBudget{left: maxHeaderSize}}
	rule := func(methods []string, paths ...string) *rbacv3.Policy {
		return c.policy(&securityv1beta1.Rule{To: []*securityv1beta1.Rule_To{{Operation: &securityv1beta1.Operation{Methods: methods, Paths: paths}}}})
	}
	get := []string{"GET"}
	rules := &rbacv3.RBAC{Policies: map[string]*rbacv3.Policy{
		"a": rule(nil, "/a"), "b": rule(nil, "/b", "/c"), "c": rule(get, "/d", "/e"), "d": rule(get, "/f"), "e": rule(nil), "f": rule([]string{"PUT"}, "/g"),
	}}
	shareAmbiguous(rules)
	for name, want := range map[string]int{"a": 1, "b": 0, "c": 1, "d": 0, "e": 0, "f": 1} {
		text, err := protojson.Marshal(rules.GetPolicies()[name])
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Count(string(text), "[46][1-9a-f]"); got != want {
			t.Errorf("the rule %s has %d matchers of ambiguous paths, want %d: %s", name, got, want, text)
		}
	}
}
