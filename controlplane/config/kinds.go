// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package config

import (
	"slices"
	"strings"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
	securityv1beta1 "istio.io/api/security/v1beta1"

	"google.golang.org/protobuf/proto"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// The API groups of the kinds that are served.
const (
	groupNetworking = "networking.istio.io"
	groupSecurity   = "security.istio.io"
)

// kindSpec is all that the package knows about one kind.
type kindSpec struct {
	kind  model.Kind
	group string
	// versions are accepted; the first is the one to recommend.
	versions []string
	// message gives an empty spec.
	message func() proto.Message
	// validate checks a spec of exactly that message type, all rules at
	// once. It may assume that only supported fields are set.
	validate func(*checker, *model.Config)
}

// servedKinds is the one table of kinds, in the order in which messages name
// them.
func servedKinds() []kindSpec {
	networking := []string{"v1", "v1beta1", "v1alpha3"}
	return []kindSpec{
		{
			kind: model.VirtualService, group: groupNetworking, versions: networking,
			message:  func() proto.Message { return new(networkingv1alpha3.VirtualService) },
			validate: validateVirtualService,
		},
		{
			kind: model.DestinationRule, group: groupNetworking, versions: networking,
			message:  func() proto.Message { return new(networkingv1alpha3.DestinationRule) },
			validate: validateDestinationRule,
		},
		{
			kind: model.ServiceEntry, group: groupNetworking, versions: networking,
			message:  func() proto.Message { return new(networkingv1alpha3.ServiceEntry) },
			validate: validateServiceEntry,
		},
		{
			kind: model.WorkloadEntry, group: groupNetworking, versions: networking,
			message:  func() proto.Message { return new(networkingv1alpha3.WorkloadEntry) },
			validate: validateWorkloadEntry,
		},
		{
			kind: model.Sidecar, group: groupNetworking, versions: networking,
			message:  func() proto.Message { return new(networkingv1alpha3.Sidecar) },
			validate: validateSidecar,
		},
		{
			kind: model.PeerAuthentication, group: groupSecurity, versions: []string{"v1", "v1beta1"},
			message:  func() proto.Message { return new(securityv1beta1.PeerAuthentication) },
			validate: validatePeerAuthentication,
		},
	}
}

// findKind gives the entry of a kind that is served.
func findKind(kind model.Kind) (kindSpec, bool) {
	for _, k := range servedKinds() {
		if k.kind == kind {
			return k, true
		}
	}
	return kindSpec{}, false
}

// kindNames lists the kinds that are served, for messages.
func kindNames() string {
	var names []string
	for _, k := range servedKinds() {
		names = append(names, string(k.kind))
	}
	return strings.Join(names, ", ")
}

// knownKind reports whether a kind belongs to Istio or to the Gateway API,
// served or not.
func knownKind(kind model.Kind) bool {
	if _, ok := findKind(kind); ok {
		return true
	}
	switch kind {
	case "AuthorizationPolicy", "RequestAuthentication",
		"Gateway", "EnvoyFilter", "ProxyConfig", "WorkloadGroup",
		"WasmPlugin", "Telemetry",
		"GatewayClass", "HTTPRoute", "GRPCRoute", "TCPRoute", "TLSRoute", "UDPRoute", "ReferenceGrant":
		return true
	}
	return false
}

// apiVersionFault says what is wrong with the apiVersion of an object of a
// kind that is served; empty means nothing.
func (k kindSpec) apiVersionFault(apiVersion string) string {
	group, version, _ := strings.Cut(apiVersion, "/")
	if group == k.group && slices.Contains(k.versions, version) {
		return ""
	}
	want, others := k.group+"/"+k.versions[0], strings.Join(k.versions[1:], " and ")
	if apiVersion == "" {
		return "apiVersion is missing: write apiVersion: " + want
	}
	return "apiVersion " + quote(apiVersion) + " is not one of a " + string(k.kind) + ": write " + want +
		" (or the older " + others + ")"
}
