// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package kube

import (
	"os"
	"strings"
	"testing"
)

// TestRegistryWithoutRights starts a control plane without permission to read Services: it reports
// the missing right, is not ready, so that no proxy loses endpoints, and continues once the right
// is granted.
func TestRegistryWithoutRights(t *testing.T) {
	t.Parallel()
	c := New(t, Options{})
	ctx := testContext(t)
	w := writer{t, c.Admin()}
	kubeconfig := installOnly(t, c, "rbac.yaml")
	plane := newControl(t, kubeconfig, nil)
	w.must(plane.launch())
	says := func(text string) func() bool {
		return func() bool {
			log, err := os.ReadFile(plane.Log())
			return err == nil && strings.Contains(string(log), text)
		}
	}
	eventually(t, ctx, "the missing right is named", says("endpointslices.discovery.k8s.io is forbidden"))
	if err := plane.probe(ctx); err == nil {
		t.Error("a control plane that has not read the services is ready")
	}
	rules, err := os.ReadFile("../../examples/kubernetes/rbac-services.yaml")
	w.must(err)
	w.must(c.Apply(ctx, rules))
	w.must(plane.Wait(ctx))
	if !says("objects of the cluster can be read again")() {
		t.Error("it does not say that it can read")
	}
}
