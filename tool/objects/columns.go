// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package objects

import (
	"fmt"
	"strconv"
	"strings"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
	securityv1beta1 "istio.io/api/security/v1beta1"
	kubenetworkingv1 "k8s.io/api/networking/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// column is a column of a table.
type column struct {
	title string
	value func(*model.Config) string
}

// columnsOf returns the columns of a kind after the name, with all values in a cell, or few. They match the
// printer columns in the definitions of the kinds.
func columnsOf(kind model.Kind, all bool) []column {
	old := column{"AGE", func(c *model.Config) string { return age(c.Created) }}
	switch kind {
	case model.VirtualService:
		return []column{
			of("GATEWAYS", func(s *networkingv1alpha3.VirtualService) string { return few(s.GetGateways(), all) }),
			of("HOSTS", func(s *networkingv1alpha3.VirtualService) string { return few(s.GetHosts(), all) }), old,
		}
	case model.DestinationRule:
		return []column{of("HOST", (*networkingv1alpha3.DestinationRule).GetHost), old}
	case model.ServiceEntry:
		return []column{
			of("HOSTS", func(s *networkingv1alpha3.ServiceEntry) string { return few(s.GetHosts(), all) }),
			of("LOCATION", func(s *networkingv1alpha3.ServiceEntry) string { return s.GetLocation().String() }),
			of("RESOLUTION", func(s *networkingv1alpha3.ServiceEntry) string { return s.GetResolution().String() }), old,
		}
	case model.WorkloadEntry:
		return []column{of("ADDRESS", (*networkingv1alpha3.WorkloadEntry).GetAddress), old}
	case model.Gateway:
		return []column{of("SERVERS", func(s *networkingv1alpha3.Gateway) string { return strconv.Itoa(len(s.GetServers())) }), old}
	case model.PeerAuthentication:
		return []column{of("MODE", func(s *securityv1beta1.PeerAuthentication) string { return s.GetMtls().GetMode().String() }), old}
	case model.AuthorizationPolicy:
		return []column{of("ACTION", func(s *securityv1beta1.AuthorizationPolicy) string { return s.GetAction().String() }), old}
	case model.GatewayClass:
		return []column{of("CONTROLLER", func(s *gatewayv1.GatewayClassSpec) string { return string(s.ControllerName) }), old}
	case model.KubernetesGateway:
		return []column{of("CLASS", func(s *gatewayv1.GatewaySpec) string { return string(s.GatewayClassName) }), old}
	case model.HTTPRoute:
		return []column{of("HOSTNAMES", func(s *gatewayv1.HTTPRouteSpec) string { return hostnames(s.Hostnames, all) }), old}
	case model.GRPCRoute:
		return []column{of("HOSTNAMES", func(s *gatewayv1.GRPCRouteSpec) string { return hostnames(s.Hostnames, all) }), old}
	case model.Ingress:
		return []column{of("HOSTS", func(s *kubenetworkingv1.IngressSpec) string {
			var hosts []string
			for _, r := range s.Rules {
				hosts = append(hosts, r.Host)
			}
			return few(hosts, all)
		}), old}
	}
	return []column{old}
}

// of returns a column whose value is read from the spec.
func of[T any](title string, text func(*T) string) column {
	return column{title, func(c *model.Config) string {
		spec, ok := c.Spec.(*T)
		if !ok {
			return "-"
		}
		if t := text(spec); t != "" {
			return t
		}
		return "-"
	}}
}

func hostnames(list []gatewayv1.Hostname, all bool) string {
	texts := make([]string, len(list))
	for i, h := range list {
		texts[i] = string(h)
	}
	return few(texts, all)
}

// mostShown is the maximum number of values in a cell of a table that fits a terminal.
const mostShown = 3

func few(list []string, all bool) string {
	if !all && len(list) > mostShown {
		return fmt.Sprintf("%s +%d more", strings.Join(list[:mostShown], ","), len(list)-mostShown)
	}
	return strings.Join(list, ",")
}
