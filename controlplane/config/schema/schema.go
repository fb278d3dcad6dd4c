// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package schema

import (
	"cmp"
	"reflect"
	"slices"
	"strings"

	extensionsv1alpha1 "istio.io/api/extensions/v1alpha1"
	metav1alpha1 "istio.io/api/meta/v1alpha1"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
	networkingv1beta1 "istio.io/api/networking/v1beta1"
	securityv1beta1 "istio.io/api/security/v1beta1"
	telemetryv1alpha1 "istio.io/api/telemetry/v1alpha1"
	kubenetworkingv1 "k8s.io/api/networking/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/outrigger-mesh/outrigger/controlplane/config/field"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// The API groups of the kinds.
const (
	groupNetworking     = "networking.istio.io"
	groupSecurity       = "security.istio.io"
	groupTelemetry      = "telemetry.istio.io"
	groupExtensions     = "extensions.istio.io"
	GroupGateway        = "gateway.networking.k8s.io"
	groupKubeNetworking = "networking.k8s.io"
)

// Schema is all that is known about one kind of object.
type Schema struct {
	Kind model.Kind
	// Name is the kind as it is written in YAML. It differs from Kind for the
	// Gateway of the Gateway API only.
	Name  string
	Group string
	// Plural is the name in URLs and on the command line, Short a shorter one.
	Plural, Short string
	// Versions are accepted; the first is the one to recommend.
	Versions []string
	// Aliases are accepted too; nobody keeps objects in them any more.
	Aliases []string
	// Cluster means that objects have no namespace.
	Cluster bool
	// spec and status are empty values; status is nil for kinds without.
	spec, status any
}

// NewSpec returns an empty spec: a pointer to the message or struct.
func (s Schema) NewSpec() any { return reflect.New(reflect.TypeOf(s.spec).Elem()).Interface() }

// NewStatus returns an empty status, nil when the kind has none.
func (s Schema) NewStatus() any {
	if s.status == nil {
		return nil
	}
	return reflect.New(reflect.TypeOf(s.status).Elem()).Interface()
}

// APIVersion returns the recommended group and version.
func (s Schema) APIVersion() string { return s.Group + "/" + s.Versions[0] }

// Accepts reports whether a group and version, such as
// "networking.istio.io/v1beta1", is one of the kind.
func (s Schema) Accepts(apiVersion string) bool {
	group, version, _ := strings.Cut(apiVersion, "/")
	return group == s.Group && (slices.Contains(s.Versions, version) || slices.Contains(s.Aliases, version))
}

// HasType reports whether a spec is of the kind's type.
func (s Schema) HasType(spec any) bool { return reflect.TypeOf(spec) == reflect.TypeOf(s.spec) }

var (
	istioStatus        = (*metav1alpha1.IstioStatus)(nil)
	networkingVersions = []string{"v1", "v1beta1", "v1alpha3"}
	securityVersions   = []string{"v1", "v1beta1"}
	gatewayVersions    = []string{"v1", "v1beta1"}
	// Its types were those of v1beta1 from the day that there was the latter.
	gatewayAliases = []string{"v1alpha2"}
)

// schemas is the one table of kinds, in the order of Kind. It is never
// written to.
var schemas = sortedSchemas(
	Schema{
		Kind: model.AuthorizationPolicy, Group: groupSecurity, Plural: "authorizationpolicies", Short: "ap",
		Versions: securityVersions, spec: (*securityv1beta1.AuthorizationPolicy)(nil), status: istioStatus,
	},
	Schema{
		Kind: model.BackendTLSPolicy, Group: GroupGateway, Plural: "backendtlspolicies", Short: "btlspolicy",
		Versions: []string{"v1", "v1alpha3"}, spec: (*gatewayv1.BackendTLSPolicySpec)(nil), status: (*gatewayv1.PolicyStatus)(nil),
	},
	Schema{
		Kind: model.DestinationRule, Group: groupNetworking, Plural: "destinationrules", Short: "dr",
		Versions: networkingVersions, spec: (*networkingv1alpha3.DestinationRule)(nil), status: istioStatus,
	},
	Schema{
		Kind: model.EnvoyFilter, Group: groupNetworking, Plural: "envoyfilters",
		Versions: []string{"v1alpha3"}, spec: (*networkingv1alpha3.EnvoyFilter)(nil), status: istioStatus,
	},
	Schema{
		Kind: model.Gateway, Group: groupNetworking, Plural: "gateways", Short: "gw",
		Versions: networkingVersions, spec: (*networkingv1alpha3.Gateway)(nil), status: istioStatus,
	},
	Schema{
		Kind: model.GatewayClass, Group: GroupGateway, Plural: "gatewayclasses", Short: "gc", Cluster: true,
		Versions: gatewayVersions, Aliases: gatewayAliases, spec: (*gatewayv1.GatewayClassSpec)(nil), status: (*gatewayv1.GatewayClassStatus)(nil),
	},
	Schema{
		Kind: model.GRPCRoute, Group: GroupGateway, Plural: "grpcroutes",
		Versions: []string{"v1", "v1alpha2"}, spec: (*gatewayv1.GRPCRouteSpec)(nil), status: (*gatewayv1.GRPCRouteStatus)(nil),
	},
	Schema{
		Kind: model.HTTPRoute, Group: GroupGateway, Plural: "httproutes",
		Versions: gatewayVersions, Aliases: gatewayAliases, spec: (*gatewayv1.HTTPRouteSpec)(nil), status: (*gatewayv1.HTTPRouteStatus)(nil),
	},
	Schema{
		Kind: model.Ingress, Group: groupKubeNetworking, Plural: "ingresses", Short: "ing",
		Versions: []string{"v1"}, spec: (*kubenetworkingv1.IngressSpec)(nil), status: (*kubenetworkingv1.IngressStatus)(nil),
	},
	Schema{
		Kind: model.IngressClass, Group: groupKubeNetworking, Plural: "ingressclasses", Cluster: true,
		Versions: []string{"v1"}, spec: (*kubenetworkingv1.IngressClassSpec)(nil),
	},
	Schema{
		Kind: model.KubernetesGateway, Name: "Gateway", Group: GroupGateway, Plural: "gateways", Short: "gtw",
		Versions: gatewayVersions, Aliases: gatewayAliases, spec: (*gatewayv1.GatewaySpec)(nil), status: (*gatewayv1.GatewayStatus)(nil),
	},
	Schema{
		Kind: model.PeerAuthentication, Group: groupSecurity, Plural: "peerauthentications", Short: "pa",
		Versions: securityVersions, spec: (*securityv1beta1.PeerAuthentication)(nil), status: istioStatus,
	},
	Schema{
		Kind: model.ProxyConfig, Group: groupNetworking, Plural: "proxyconfigs",
		Versions: []string{"v1beta1"}, spec: (*networkingv1beta1.ProxyConfig)(nil), status: istioStatus,
	},
	Schema{
		Kind: model.ReferenceGrant, Group: GroupGateway, Plural: "referencegrants", Short: "refgrant",
		Versions: gatewayVersions, Aliases: gatewayAliases, spec: (*gatewayv1.ReferenceGrantSpec)(nil),
	},
	Schema{
		Kind: model.RequestAuthentication, Group: groupSecurity, Plural: "requestauthentications", Short: "ra",
		Versions: securityVersions, spec: (*securityv1beta1.RequestAuthentication)(nil), status: istioStatus,
	},
	Schema{
		Kind: model.ServiceEntry, Group: groupNetworking, Plural: "serviceentries", Short: "se",
		Versions: networkingVersions, spec: (*networkingv1alpha3.ServiceEntry)(nil), status: istioStatus,
	},
	Schema{
		Kind: model.Sidecar, Group: groupNetworking, Plural: "sidecars",
		Versions: networkingVersions, spec: (*networkingv1alpha3.Sidecar)(nil), status: istioStatus,
	},
	Schema{
		Kind: model.ListenerSet, Group: GroupGateway, Plural: "listenersets", Short: "lset",
		Versions: []string{"v1"}, spec: (*gatewayv1.ListenerSetSpec)(nil), status: (*gatewayv1.ListenerSetStatus)(nil),
	},
	Schema{
		Kind: model.TCPRoute, Group: GroupGateway, Plural: "tcproutes",
		Versions: []string{"v1", "v1alpha2"}, spec: (*gatewayv1.TCPRouteSpec)(nil), status: (*gatewayv1.TCPRouteStatus)(nil),
	},
	Schema{
		Kind: model.Telemetry, Group: groupTelemetry, Plural: "telemetries", Short: "telemetry",
		Versions: []string{"v1", "v1alpha1"}, spec: (*telemetryv1alpha1.Telemetry)(nil), status: istioStatus,
	},
	Schema{
		Kind: model.TLSRoute, Group: GroupGateway, Plural: "tlsroutes",
		Versions: []string{"v1", "v1alpha3", "v1alpha2"}, spec: (*gatewayv1.TLSRouteSpec)(nil), status: (*gatewayv1.TLSRouteStatus)(nil),
	},
	Schema{
		Kind: model.TrafficExtension, Group: groupExtensions, Plural: "trafficextensions",
		Versions: []string{"v1alpha1"}, spec: (*extensionsv1alpha1.TrafficExtension)(nil), status: istioStatus,
	},
	Schema{
		Kind: model.UDPRoute, Group: GroupGateway, Plural: "udproutes",
		Versions: []string{"v1", "v1alpha2"}, spec: (*gatewayv1.UDPRouteSpec)(nil), status: (*gatewayv1.UDPRouteStatus)(nil),
	},
	Schema{
		Kind: model.VirtualService, Group: groupNetworking, Plural: "virtualservices", Short: "vs",
		Versions: networkingVersions, spec: (*networkingv1alpha3.VirtualService)(nil), status: istioStatus,
	},
	Schema{
		Kind: model.WasmPlugin, Group: groupExtensions, Plural: "wasmplugins",
		Versions: []string{"v1alpha1"}, spec: (*extensionsv1alpha1.WasmPlugin)(nil), status: istioStatus,
	},
	Schema{
		Kind: model.WorkloadEntry, Group: groupNetworking, Plural: "workloadentries", Short: "we",
		Versions: networkingVersions, spec: (*networkingv1alpha3.WorkloadEntry)(nil), status: istioStatus,
	},
	Schema{
		Kind: model.WorkloadGroup, Group: groupNetworking, Plural: "workloadgroups", Short: "wg",
		Versions: networkingVersions, spec: (*networkingv1alpha3.WorkloadGroup)(nil), status: istioStatus,
	},
)

func sortedSchemas(list ...Schema) []Schema {
	for i := range list {
		list[i].Name = cmp.Or(list[i].Name, string(list[i].Kind))
	}
	slices.SortFunc(list, func(a, b Schema) int { return strings.Compare(string(a.Kind), string(b.Kind)) })
	return list
}

// All returns every kind that exists, in the order of Kind. Callers must
// not write to the slice.
func All() []Schema { return schemas }

// Of returns what is known about a kind.
func Of(kind model.Kind) (Schema, bool) {
	i, ok := slices.BinarySearchFunc(schemas, kind, func(s Schema, k model.Kind) int { return strings.Compare(string(s.Kind), string(k)) })
	if !ok {
		return Schema{}, false
	}
	return schemas[i], true
}

// For returns the kind that YAML writes as apiVersion and kind. Without a
// kind of that group it returns the one of any group, so that the fault is the
// apiVersion.
func For(apiVersion, name string) (Schema, bool) {
	group, _, _ := strings.Cut(apiVersion, "/")
	at := -1
	for i, s := range schemas {
		if s.Name == name && (at < 0 || s.Group == group) {
			at = i
		}
	}
	if at < 0 {
		return Schema{}, false
	}
	return schemas[at], true
}

// OfMesh reports whether all kinds of the API group in an apiVersion are for the mesh. Those of
// install.istio.io are for an installer.
func OfMesh(apiVersion string) bool {
	group, _, _ := strings.Cut(apiVersion, "/")
	return group == GroupGateway || strings.HasSuffix(group, ".istio.io") && group != "install.istio.io"
}

// Named returns the kind that a person names on a command line: kind,
// plural or short name, large or small letters, with or without the group
// behind a dot (virtualservice, vs, gateways.gateway.networking.k8s.io).
func Named(name string) (Schema, bool) {
	name, group, hasGroup := strings.Cut(strings.ToLower(name), ".")
	for _, s := range schemas {
		if hasGroup && s.Group != group && !strings.HasSuffix(group, "."+s.Group) {
			continue
		}
		if name == strings.ToLower(s.Name) || name == s.Plural || s.Short != "" && name == s.Short {
			return s, true
		}
	}
	return Schema{}, false
}

// Names lists the kinds, for messages.
func Names() string {
	var names []string
	for _, s := range schemas {
		if !slices.Contains(names, s.Name) {
			names = append(names, s.Name)
		}
	}
	return strings.Join(names, ", ")
}

// APIVersionFault returns what is wrong with apiVersion; empty means nothing.
func (s Schema) APIVersionFault(apiVersion string) string {
	switch {
	case s.Accepts(apiVersion):
		return ""
	case apiVersion == "":
		return "apiVersion is missing: write apiVersion: " + s.APIVersion()
	}
	others := ""
	if len(s.Versions) > 1 {
		others = " (or the older " + strings.Join(s.Versions[1:], " and ") + ")"
	}
	return "apiVersion " + field.Quote(apiVersion) + " is not one of a " + s.Name + ": write " + s.APIVersion() + others
}

// DefaultNamespace is that of objects that name none.
const DefaultNamespace = "default"
