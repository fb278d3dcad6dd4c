// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package meshconfig

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
)

// ParseNetworks parses MeshNetworks in YAML (or JSON) and validates them. The error lists all
// problems; each line names the field, its value and the cure. An empty document has no networks.
func ParseNetworks(doc []byte) (*meshv1alpha1.MeshNetworks, error) {
	fields, err := decode(doc)
	if err != nil {
		return nil, fmt.Errorf("mesh networks: %w", err)
	}
	networks := &meshv1alpha1.MeshNetworks{}
	if err := overlay(networks.ProtoReflect(), fields, ""); err != nil {
		return nil, fmt.Errorf("mesh networks: %w", err)
	}
	if err := validateNetworks(networks); err != nil {
		return nil, fmt.Errorf("mesh networks: %w", err)
	}
	return networks, nil
}

func validateNetworks(networks *meshv1alpha1.MeshNetworks) error {
	var errs []error
	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	for _, name := range slices.Sorted(maps.Keys(networks.GetNetworks())) {
		network := networks.GetNetworks()[name]
		if name == "" {
			fail("networks has an entry without a name; write one such as network1")
		}
		for i, e := range network.GetEndpoints() {
			at := fmt.Sprintf("networks.%s.endpoints[%d]", name, i)
			_, cidr := e.GetNe().(*meshv1alpha1.Network_NetworkEndpoints_FromCidr)
			switch {
			case cidr:
				if _, err := netip.ParsePrefix(e.GetFromCidr()); err != nil {
					fail("%s.fromCidr is %q; it must be a range of addresses such as 10.0.0.0/8", at, e.GetFromCidr())
				}
			case e.GetFromRegistry() == "":
				fail("%s is empty; it must have fromCidr, or fromRegistry with the name of a cluster", at)
			}
		}
		for i, g := range network.GetGateways() {
			at := fmt.Sprintf("networks.%s.gateways[%d]", name, i)
			_, address := g.GetGw().(*meshv1alpha1.Network_IstioNetworkGateway_Address)
			switch {
			case address:
				if _, err := netip.ParseAddr(g.GetAddress()); err != nil && !isDomain(g.GetAddress()) {
					fail("%s.address is %q; it must be an IP address or a DNS name", at, g.GetAddress())
				}
			case !isDomain(g.GetRegistryServiceName()):
				fail("%s.registryServiceName is %q; it must be the name of a service such as istio-eastwestgateway.istio-system.svc.cluster.local; or write an address", at, g.GetRegistryServiceName())
			}
			if g.GetPort() < 1 || g.GetPort() > 65535 {
				fail("%s.port is %d; it must be from 1 to 65535", at, g.GetPort())
			}
		}
	}
	return errors.Join(errs...)
}
