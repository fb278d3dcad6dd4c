// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package kube

import (
	"encoding/json"
	"maps"
	"net/netip"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// defaultGatewayPort is the default port of a gateway between networks.
const defaultGatewayPort = 15443

// outside is how a Service is reached from outside of its cluster.
type outside struct {
	// addresses are IPs and names.
	addresses []string
	// nodes selects the nodes whose addresses are also used, at nodePorts, which are keyed by
	// service port; nil selects none, an empty selector all.
	nodes     map[string]string
	nodePorts map[uint32]uint32
	// network is the network for which the service is a gateway at port; may be empty.
	network string
	port    uint32
}

// readOutside sets outside from a Service.
func (r *serviceRecord) readOutside(o *corev1.Service) {
	out := &r.outside
	add := func(text string) {
		if ip, err := netip.ParseAddr(text); err == nil {
			text = ip.String()
		}
		if text != "" && !slices.Contains(out.addresses, text) {
			out.addresses = append(out.addresses, text)
		}
	}
	for _, ip := range o.Spec.ExternalIPs {
		add(ip)
	}
	switch o.Spec.Type {
	case corev1.ServiceTypeLoadBalancer:
		for _, ingress := range o.Status.LoadBalancer.Ingress {
			add(ingress.IP)
			add(ingress.Hostname)
		}
		r.service.AwaitsAddress = len(out.addresses) == 0
	case corev1.ServiceTypeNodePort:
		text, given := o.Annotations[nodeSelector]
		if !given {
			break
		}
		if err := json.Unmarshal([]byte(text), &out.nodes); err != nil || out.nodes == nil {
			out.nodes = nil
			r.warn("the annotation %s is not a map of labels and selects no node: write one such as {\"kubernetes.io/role\": \"edge\"}, or {} for all nodes", nodeSelector)
			break
		}
		out.nodePorts = map[uint32]uint32{}
		for _, p := range o.Spec.Ports {
			if p.NodePort > 0 && p.Port > 0 {
				out.nodePorts[uint32(p.Port)] = uint32(p.NodePort)
			}
		}
	}
	if out.network = o.Labels[networkLabel]; out.network == "" {
		return
	}
	out.port = defaultGatewayPort
	if text := o.Labels[gatewayPortLabel]; text != "" {
		port, err := strconv.ParseUint(text, 10, 16)
		if err != nil || port == 0 {
			r.warn("the label %s is %q, which is not a port, so %d is used: write a number from 1 to 65535", gatewayPortLabel, text, defaultGatewayPort)
		} else {
			out.port = uint32(port)
		}
	}
	for _, address := range out.addresses {
		if _, err := netip.ParseAddr(address); err != nil {
			r.warn("the gateway of the network %q has the name %q, which proxies cannot resolve, so it is ignored: assign an IP address to the load balancer", out.network, address)
		}
	}
}

// chooses reports whether the service is reached through the node, which may be nil.
func (o *outside) chooses(node *nodeRecord) bool {
	return o.nodes != nil && node != nil && len(node.external) > 0 && model.Selects(o.nodes, node.labels)
}

// reached returns the addresses at which a service accepts requests from outside.
func (m *member) reached(r *serviceRecord) []string {
	if r.outside.nodes == nil {
		return r.outside.addresses
	}
	out := slices.Clip(r.outside.addresses)
	for _, name := range slices.Sorted(maps.Keys(m.nodes)) {
		if node := m.nodes[name]; r.outside.chooses(node) {
			out = append(out, node.external...)
		}
	}
	return out
}

// gateways returns the gateways of a network that a service provides.
func (m *member) gateways(r *serviceRecord) (out []model.NetworkGateway) {
	if r.outside.network == "" {
		return nil
	}
	port := r.outside.port
	if at, ok := r.outside.nodePorts[port]; ok {
		port = at
	}
	for _, address := range m.reached(r) {
		if _, err := netip.ParseAddr(address); err == nil {
			out = append(out, model.NetworkGateway{Network: r.outside.network, Cluster: m.id, Address: address, Port: port})
		}
	}
	return out
}

// withClusters returns a copy of a service with its addresses in each of the clusters that have it.
func withClusters(s *model.Service, n types.NamespacedName, in []*member) *model.Service {
	out := *s
	altered := len(in) > 1
	out.ClusterAddresses, out.ExternalAddresses, out.ExternalPorts = map[string][]string{}, map[string][]string{}, map[string]map[uint32]uint32{}
	for _, m := range in {
		record := m.services[n]
		if len(record.service.Addresses) > 0 {
			out.ClusterAddresses[m.id] = record.service.Addresses
		}
		if addresses := m.reached(record); len(addresses) > 0 {
			out.ExternalAddresses[m.id], altered = addresses, true
		}
		if len(record.outside.nodePorts) > 0 {
			out.ExternalPorts[m.id], altered = record.outside.nodePorts, true
		}
	}
	if !altered {
		return s
	}
	if len(in) == 1 {
		out.ClusterAddresses = nil
	}
	return &out
}
