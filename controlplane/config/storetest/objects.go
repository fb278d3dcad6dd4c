// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package storetest

import (
	"fmt"
	"math/rand/v2"
	"strings"

	"google.golang.org/protobuf/types/known/structpb"
	metav1alpha1 "istio.io/api/meta/v1alpha1"

	extensionsv1alpha1 "istio.io/api/extensions/v1alpha1"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/outrigger-mesh/outrigger/controlplane/config/validate"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// counter is the annotation that concurrent writers increment.
const counter = "outrigger.example/count"

func key(kind model.Kind, namespace, name string) model.Key {
	return model.Key{Kind: kind, Namespace: namespace, Name: name}
}

// workload returns a small object of a protobuf kind.
func workload(namespace, name, address string) *model.Config {
	return &model.Config{
		Key:  key(model.WorkloadEntry, namespace, name),
		Spec: &networkingv1alpha3.WorkloadEntry{Address: address},
	}
}

func address(c *model.Config) string { return c.Spec.(*networkingv1alpha3.WorkloadEntry).GetAddress() }

// readdress returns a copy with a different address.
func readdress(c *model.Config, address string) *model.Config {
	c = c.Clone()
	c.Spec.(*networkingv1alpha3.WorkloadEntry).Address = address
	return c
}

func gatewayClass(name string) *model.Config {
	return &model.Config{
		Key:  key(model.GatewayClass, "", name),
		Spec: &gatewayv1.GatewayClassSpec{ControllerName: "outrigger.example/controller"},
	}
}

func istioGateway(namespace, name string) *model.Config {
	return &model.Config{
		Key: key(model.Gateway, namespace, name),
		Spec: &networkingv1alpha3.Gateway{
			Selector: map[string]string{"app": "edge"},
			Servers: []*networkingv1alpha3.Server{{
				Port:  &networkingv1alpha3.Port{Number: 80, Name: "http", Protocol: "HTTP"},
				Hosts: []string{"shop.example"},
			}},
		},
	}
}

func kubernetesGateway(namespace, name string) *model.Config {
	return &model.Config{
		Key: key(model.KubernetesGateway, namespace, name),
		Spec: &gatewayv1.GatewaySpec{
			GatewayClassName: "outrigger",
			Listeners:        []gatewayv1.Listener{{Name: "http", Port: 80, Protocol: gatewayv1.HTTPProtocolType}},
		},
	}
}

func httpRoute(namespace, name string, hostnames ...gatewayv1.Hostname) *model.Config {
	port := gatewayv1.PortNumber(8080)
	return &model.Config{
		Key: key(model.HTTPRoute, namespace, name),
		Spec: &gatewayv1.HTTPRouteSpec{
			CommonRouteSpec: gatewayv1.CommonRouteSpec{ParentRefs: []gatewayv1.ParentReference{{Name: "edge"}}},
			Hostnames:       hostnames,
			Rules: []gatewayv1.HTTPRouteRule{{
				BackendRefs: []gatewayv1.HTTPBackendRef{{BackendRef: gatewayv1.BackendRef{
					BackendObjectReference: gatewayv1.BackendObjectReference{Name: "shop", Port: &port},
				}}},
			}},
		},
	}
}

// defaulted returns an object with the defaults that a store sets.
func defaulted(c *model.Config) *model.Config {
	c = c.Clone()
	validate.ApplyDefaults(c.Spec)
	return c
}

// routeStatus returns a status of an HTTPRoute.
func routeStatus(reason string) *gatewayv1.HTTPRouteStatus {
	return &gatewayv1.HTTPRouteStatus{RouteStatus: gatewayv1.RouteStatus{Parents: []gatewayv1.RouteParentStatus{{
		ParentRef: gatewayv1.ParentReference{Name: "edge"}, ControllerName: "outrigger.example/controller",
		Conditions: []metav1.Condition{{
			Type: "Accepted", Status: metav1.ConditionTrue, Reason: reason, Message: "it is served",
			LastTransitionTime: metav1.Unix(1_700_000_000, 0),
		}},
	}}}}
}

// istioStatus returns a status of Istio's kinds.
func istioStatus(reason string) *metav1alpha1.IstioStatus {
	return &metav1alpha1.IstioStatus{Conditions: []*metav1alpha1.IstioCondition{{Type: "Reconciled", Status: "True", Reason: reason}}}
}

func reason(c *model.Config) string {
	s, ok := c.Status.(*metav1alpha1.IstioStatus)
	if !ok || len(s.GetConditions()) == 0 {
		return ""
	}
	return s.GetConditions()[0].GetReason()
}

// big returns an incompressible object of at least size bytes.
func big(namespace, name string, size int) *model.Config {
	r := rand.New(rand.NewPCG(1, 2))
	var b strings.Builder
	for b.Len() < size {
		fmt.Fprintf(&b, "%016x line of a filter's configuration: ü\n", r.Uint64())
	}
	return &model.Config{
		Key: key(model.WasmPlugin, namespace, name),
		Spec: &extensionsv1alpha1.WasmPlugin{
			Url: "oci://registry.example/filter:1",
			PluginConfig: &structpb.Struct{Fields: map[string]*structpb.Value{
				"rules": structpb.NewStringValue(b.String()),
			}},
		},
	}
}
