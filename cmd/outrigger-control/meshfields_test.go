// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"fmt"
	"slices"
	"testing"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/outrigger-mesh/outrigger/bootstrap/meshconfig"
)

func TestWithoutEffect(t *testing.T) {
	t.Parallel()
	if names := withoutEffect(meshconfig.Default()); names != nil {
		t.Errorf("the defaults are told of: %v", names)
	}
	mesh, err := meshconfig.Parse([]byte("accessLogFile: /dev/stdout\noutboundTrafficPolicy: {mode: REGISTRY_ONLY}\ningressClass: mine\nenablePrometheusMerge: false\n"))
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(withoutEffect(mesh)); got != "[enablePrometheusMerge ingressClass outboundTrafficPolicy]" {
		t.Errorf("told of %s", got)
	}
	fields := (&meshv1alpha1.MeshConfig{}).ProtoReflect().Descriptor().Fields()
	for _, name := range servedMeshFields {
		if fields.ByJSONName(name) == nil {
			t.Errorf("MeshConfig has no field %s", name)
		}
	}
	if !slices.IsSorted(servedMeshFields) {
		t.Error("the fields are not sorted")
	}
}
