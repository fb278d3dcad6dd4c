// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package mcpserver

import (
	"testing"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/config/validate"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
)

const machineType = "networking.istio.io/v1alpha3/WorkloadEntry"

// objects is a list of objects of one kind.
type objects []*model.Config

func (o objects) List(model.Kind, string) []*model.Config { return o }

func entry(name, address string) *model.Config {
	return &model.Config{
		Key:  model.Key{Kind: model.WorkloadEntry, Namespace: "shop", Name: name},
		Spec: &networkingv1alpha3.WorkloadEntry{Address: address},
	}
}

// TestSharedSets returns one set to all readers until the kind changes, and drops
// it with the last reader.
func TestSharedSets(t *testing.T) {
	t.Parallel()
	list := objects{entry("b", "10.0.0.2"), entry("a", "10.0.0.1")}
	s := New(Config{Objects: list})
	s.Opened()
	s.Opened()
	mesh := &snapshot.Mesh{}
	first := s.Resources(mesh, machineType)
	if len(first.Resources) != 2 || first.Resources[0].Name != "shop/a" {
		t.Fatalf("resources %v, want shop/a and shop/b", first.Resources)
	}
	list[1] = entry("a", "10.0.0.3")
	s.Changed(model.NewChange(model.Key{Kind: model.ServiceEntry, Namespace: "shop", Name: "x"}))
	if got := s.Resources(mesh, machineType); got != first {
		t.Error("a change of another kind rebuilds the set")
	}
	s.Changed(model.NewChange(list[1].Key))
	second := s.Resources(mesh, machineType)
	if second == first || second.Get("shop/b") != first.Get("shop/b") || second.Get("shop/a").Hash == first.Get("shop/a").Hash {
		t.Error("want a new set in which only shop/a differs")
	}
	s.Closed()
	if got := s.Resources(mesh, machineType); got != second {
		t.Error("the set is dropped while there is a reader")
	}
	if s.Closed(); len(s.sets) != 0 {
		t.Errorf("%d sets without a reader", len(s.sets))
	}
}

// TestSyntheticEntriesAreValid checks the objects made of services.
func TestSyntheticEntriesAreValid(t *testing.T) {
	t.Parallel()
	ports := []model.Port{{Name: "http", Number: 80, Protocol: model.ProtocolHTTP}}
	list := syntheticEntries(&snapshot.Services{Sorted: []*model.Service{
		{ServiceKey: model.ServiceKey{Hostname: "own.test", Namespace: "shop"}, Ports: ports, Registry: model.RegistryExternal},
		{ServiceKey: model.ServiceKey{Hostname: "web.shop.svc.cluster.local", Namespace: "shop"}, Ports: ports, Registry: model.RegistryKubernetes},
	}})
	if len(list) != 1 || list[0].Name != "synthetic-web" {
		t.Fatalf("entries %v, want synthetic-web alone", list)
	}
	if errs, _ := validate.Object(list[0]); len(errs) > 0 {
		t.Errorf("%s is not valid: %v", list[0].Key, errs)
	}
}
