// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package storetest

import (
	"errors"
	"strings"
	"testing"
	"time"

	kubenetworkingv1 "k8s.io/api/networking/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/outrigger-mesh/outrigger/controlplane/config"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// testChosenOnce checks that fields that API servers never let change are immutable in every store,
// so that objects can be copied from any store to any other.
func testChosenOnce(t *testing.T, s *suite) {
	l := s.start(t)
	class := l.create(gatewayClass("a"))
	ingress := l.create(&model.Config{
		Key:  key(model.IngressClass, "", "a"),
		Spec: &kubenetworkingv1.IngressClassSpec{Controller: "outrigger.example/controller"},
	})
	described := class.Clone()
	description := "for the edge"
	described.Spec.(*gatewayv1.GatewayClassSpec).Description = &description
	class = l.update(described)

	refused := func(what, field string, err error) {
		t.Helper()
		var invalid *config.InvalidError
		if !errors.As(err, &invalid) || config.StatusCode(err) != 422 || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: got error %v, want one about %s", what, err, field)
		}
	}
	other := class.Clone()
	other.Spec.(*gatewayv1.GatewayClassSpec).ControllerName = "outrigger.example/other"
	_, err := l.Update(t.Context(), other)
	refused("update of a GatewayClass", "spec.controllerName", err)
	other = ingress.Clone()
	other.Spec.(*kubenetworkingv1.IngressClassSpec).Controller = "outrigger.example/other"
	_, err = l.Update(t.Context(), other)
	refused("update of an IngressClass", "spec.controller", err)
	_, err = l.Patch(t.Context(), class.Key, func(c *model.Config) error {
		c.Spec.(*gatewayv1.GatewayClassSpec).ControllerName = "outrigger.example/other"
		return nil
	})
	refused("patch of a GatewayClass", "spec.controllerName", err)
	if got := l.Get(class.Key); got.ResourceVersion != class.ResourceVersion {
		t.Errorf("a rejected change was written: %v", got)
	}
}

// testWholeSeconds checks that every store truncates creation times to seconds, so that the order
// of objects is the same in each.
func testWholeSeconds(t *testing.T, s *suite) {
	l := s.start(t)
	fine := workload("shop", "a", "10.0.0.1")
	fine.Created = time.Date(2024, 1, 2, 3, 4, 5, 678, time.UTC)
	for _, c := range []*model.Config{fine, workload("shop", "b", "10.0.0.1")} {
		if got := l.create(c).Created; got.IsZero() || got.Nanosecond() != 0 {
			t.Errorf("creation time of %s: got %v, want whole seconds", c.Key, got)
		}
	}
}
