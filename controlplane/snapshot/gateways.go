// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package snapshot

import (
	"slices"
	"strings"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// InForce reports whether objects of a kind change what proxies get. A snapshot
// that looks at others does so for its problems only.
func InForce(kind model.Kind) bool {
	switch kind {
	case model.ServiceEntry, model.WorkloadEntry, model.VirtualService, model.DestinationRule, model.PeerAuthentication, model.Sidecar:
		return true
	}
	return false
}

func gatewayNames(objects []*model.Config) map[string]struct{} {
	names := make(map[string]struct{}, len(objects))
	for _, o := range objects {
		names[o.Namespace+"/"+o.Name] = struct{}{}
	}
	return names
}

// gateways checks that the gateways of a VirtualService exist.
func (c *checker) gateways(obj *model.Config, spec *networkingv1alpha3.VirtualService) {
	for i, name := range spec.GetGateways() {
		if name == "mesh" {
			continue
		}
		full := GatewayName(name, obj.Namespace)
		if _, ok := c.mesh.gateways[full]; !ok {
			c.dangling(obj, "spec.gateways[%d]: there is no Gateway %s, so the routes take no effect there; correct the name or create it", i, full)
		}
	}
}

// gatewaysOf are the names of the Gateways that a VirtualService applies to,
// each once.
func gatewaysOf(obj *model.Config, spec *networkingv1alpha3.VirtualService) []string {
	var names []string
	for _, name := range spec.GetGateways() {
		if name == "mesh" {
			continue
		}
		if full := GatewayName(name, obj.Namespace); !slices.Contains(names, full) {
			names = append(names, full)
		}
	}
	return names
}

// GatewayName gives namespace/name of what a VirtualService names: a name of
// its own namespace, ./name, namespace/name, or the old name.namespace.svc...
func GatewayName(name, namespace string) string {
	if of, rest, ok := strings.Cut(name, "/"); ok {
		if of == "." {
			of = namespace
		}
		return of + "/" + rest
	}
	if short, rest, ok := strings.Cut(name, "."); ok {
		of, _, _ := strings.Cut(rest, ".")
		return of + "/" + short
	}
	return namespace + "/" + name
}
