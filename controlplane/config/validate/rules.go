// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package validate

import "github.com/outrigger-mesh/outrigger/controlplane/model"

// kindRules checks the spec of each kind, all rules at once. It is never written
// to.
var kindRules = map[model.Kind]func(*checker, *model.Config){
	model.AuthorizationPolicy:   validateAuthorizationPolicy,
	model.BackendTLSPolicy:      validateGatewayAPI,
	model.DestinationRule:       validateDestinationRule,
	model.EnvoyFilter:           validateEnvoyFilter,
	model.Gateway:               validateGateway,
	model.GatewayClass:          validateGatewayAPI,
	model.GRPCRoute:             validateGatewayAPI,
	model.HTTPRoute:             validateGatewayAPI,
	model.Ingress:               validateIngress,
	model.IngressClass:          validateIngressClass,
	model.KubernetesGateway:     validateGatewayAPI,
	model.PeerAuthentication:    validatePeerAuthentication,
	model.ProxyConfig:           validateProxyConfig,
	model.ReferenceGrant:        validateGatewayAPI,
	model.RequestAuthentication: validateRequestAuthentication,
	model.ServiceEntry:          validateServiceEntry,
	model.Sidecar:               validateSidecar,
	model.ListenerSet:           validateGatewayAPI,
	model.TCPRoute:              validateGatewayAPI,
	model.Telemetry:             validateTelemetry,
	model.TLSRoute:              validateGatewayAPI,
	model.TrafficExtension:      validateTrafficExtension,
	model.UDPRoute:              validateGatewayAPI,
	model.VirtualService:        validateVirtualService,
	model.WasmPlugin:            validateWasmPlugin,
	model.WorkloadEntry:         validateWorkloadEntry,
	model.WorkloadGroup:         validateWorkloadGroup,
}
