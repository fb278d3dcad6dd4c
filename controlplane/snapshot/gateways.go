// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package snapshot

import (
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
		full := gatewayName(name, obj.Namespace)
		if _, ok := c.mesh.gateways[full]; !ok {
			c.dangling(obj, "spec.gateways[%d]: there is no Gateway %s, so the routes take no effect there; correct the name or create it", i, full)
		}
	}
}

// gatewayName gives namespace/name of what a VirtualService names: a name of
// its own namespace, ./name, namespace/name, or the old name.namespace.svc...
func gatewayName(name, namespace string) string {
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
