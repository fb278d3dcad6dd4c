// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package controlplane_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/controlplane/config/schema"
	"github.com/outrigger-mesh/outrigger/controlplane/config/validate"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
)

// TestKindsInForce checks that validation warns of exactly the kinds that snapshots do not use. The
// tools tell users that objects of a kind that is not in force change nothing.
func TestKindsInForce(t *testing.T) {
	t.Parallel()
	helps := []model.Kind{model.ProxyConfig, model.WorkloadGroup, model.UDPRoute} // used elsewhere, or only by the conversion
	for _, sch := range schema.All() {
		if slices.Contains(helps, sch.Kind) {
			continue
		}
		_, warnings := validate.Object(&model.Config{Key: model.Key{Kind: sch.Kind, Namespace: "default", Name: "x"}, Spec: sch.NewSpec()})
		inert := false
		for _, w := range warnings {
			inert = inert || w.Path == "" && strings.Contains(w.Error(), "has no effect in this version")
		}
		if inert == snapshot.InForce(sch.Kind) {
			t.Errorf("%s: validation warns that it has no effect: %t, but it is in force: %t", sch.Kind, inert, snapshot.InForce(sch.Kind))
		}
	}
}
