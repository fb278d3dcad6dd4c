// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package validate

import (
	"maps"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/controlplane/config/schema"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
)

// TestSupportedTable compares the table of fields with the descriptors: each name must exist, and
// the table must contain exactly the messages that are reachable.
func TestSupportedTable(t *testing.T) {
	t.Parallel()
	reached := map[protoreflect.FullName]bool{}
	var visit func(protoreflect.MessageDescriptor)
	visit = func(md protoreflect.MessageDescriptor) {
		name := md.FullName()
		if reached[name] || strings.HasPrefix(string(name), "google.protobuf.") {
			return
		}
		reached[name] = true
		served, known := supportedFields(name)
		if !known {
			t.Errorf("%s is reachable but not in the table", name)
		}
		for _, f := range served {
			fd := md.Fields().ByJSONName(f)
			if fd == nil {
				t.Errorf("%s does not have the field %s", name, f)
				continue
			}
			if fd.IsMap() {
				fd = fd.MapValue()
			}
			if fd.Message() != nil {
				visit(fd.Message())
			}
		}
	}
	for _, s := range schema.All() {
		if m, ok := s.NewSpec().(proto.Message); ok && supportedTable[m.ProtoReflect().Descriptor().FullName()] != "" {
			visit(m.ProtoReflect().Descriptor())
		}
	}
	for name := range maps.Keys(supportedTable) {
		if !reached[name] {
			t.Errorf("%s is in the table but not reachable", name)
		}
	}
}

func TestValidateForeignObjects(t *testing.T) {
	t.Parallel()
	key := model.Key{Kind: model.Sidecar, Namespace: "a", Name: "b"}
	for name, c := range map[string]*model.Config{
		"unknown kind":  {Key: model.Key{Kind: "Gatewy", Namespace: "a", Name: "b"}, Spec: &networkingv1alpha3.Gateway{}},
		"no spec":       {Key: key},
		"another spec":  {Key: key, Spec: &networkingv1alpha3.Gateway{}},
		"no name":       {Key: model.Key{Kind: model.WorkloadEntry}, Spec: &networkingv1alpha3.WorkloadEntry{Address: "10.0.0.1"}},
		"nil list item": {Key: key, Spec: &networkingv1alpha3.Sidecar{Ingress: []*networkingv1alpha3.IstioIngressListener{nil}}},
	} {
		if errs, _ := Object(c); len(errs) == 0 {
			t.Errorf("Object accepted %s", name)
		}
	}
}
