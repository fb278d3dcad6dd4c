// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package kube

import (
	"os"
	"strings"
	"testing"
)

// TestRegistryWithoutRights starts a control plane that may not read Services: it
// says what is missing, is not ready, so that nobody loses endpoints, and goes on
// by itself once it may.
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
