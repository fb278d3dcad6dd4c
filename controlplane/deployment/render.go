// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package deployment

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/outrigger-mesh/outrigger/controlplane/gatewayapi"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// Names of Istio and of the Gateway API.
const (
	ManagedLabel = "gateway.istio.io/managed"
	ManagedValue = "istio.io-gateway-controller"

	classLabel            = "gateway.networking.k8s.io/gateway-class-name"
	serviceTypeAnnotation = "networking.istio.io/service-type"
	networkLabel          = "topology.istio.io/network"
	ownPrefix             = "gateway.networking.k8s.io/"
	readyPort             = 15021
	longestLabel          = 63
)

// Input is a Gateway and what its objects depend on.
type Input struct {
	Gateway *model.Config // with a *gatewayv1.GatewaySpec
	// Pod completes the Pod of a Deployment: containers and volumes are those of the proxy.
	Pod func(pod *corev1.Pod, namespace, deployment string) (*corev1.Pod, error)
	// Added are the listeners that ListenerSets add to the Gateway.
	Added []gatewayv1.Listener
	// HTTP3 adds the UDP ports of HTTP/3 to the Service.
	HTTP3 bool
	// Overlays is the data of the ConfigMap in spec.infrastructure.parametersRef, or nil.
	Overlays map[string]string
}

type object = map[string]any

// renderer renders the objects of one Gateway.
type renderer struct {
	Input

	spec                *gatewayv1.GatewaySpec
	name, account       string // of the Deployment, of the ServiceAccount
	labels, annotations map[string]string
}

// Render returns the objects of a Gateway, in the order in which they are written. An error says
// what is wrong with the Gateway or its ConfigMap, and the cure.
func Render(in Input) ([]*unstructured.Unstructured, error) {
	spec, ok := in.Gateway.Spec.(*gatewayv1.GatewaySpec)
	if !ok {
		return nil, fmt.Errorf("the Gateway has a spec of the type %T", in.Gateway.Spec)
	}
	if len(in.Gateway.Name) > longestLabel {
		return nil, fmt.Errorf("the name of the Gateway has %d letters; the label of its proxies allows %d: choose a shorter one", len(in.Gateway.Name), longestLabel)
	}
	if err := checkOverlays(in.Overlays); err != nil {
		return nil, err
	}
	r := &renderer{Input: in, spec: spec, name: gatewayapi.DeploymentName(in.Gateway, spec), account: gatewayapi.AccountName(in.Gateway, spec)}
	r.infrastructure()
	deployment, err := r.deployment()
	if err != nil {
		return nil, err
	}
	var out []*unstructured.Unstructured
	for _, k := range kinds() {
		base := object{}
		switch k.Kind {
		case "ServiceAccount":
		case "Deployment":
			base["spec"] = deployment
		case "Service":
			base["spec"] = r.service()
		default: // only with an overlay
			if _, ok := in.Overlays[k.overlay]; !ok {
				continue
			}
			base["spec"] = r.optional(k.Kind)
		}
		one, err := r.finish(k, base)
		if err != nil {
			return nil, err
		}
		out = append(out, one)
	}
	return out, nil
}

// infrastructure computes the labels and annotations of all objects: those of spec.infrastructure,
// or without any those of the Gateway.
func (r *renderer) infrastructure() {
	r.labels, r.annotations = maps.Clone(r.Gateway.Labels), maps.Clone(r.Gateway.Annotations)
	if infra := r.spec.Infrastructure; infra != nil {
		if infra.Labels != nil {
			r.labels = texts(infra.Labels)
		}
		if infra.Annotations != nil {
			r.annotations = texts(infra.Annotations)
		}
	}
	if r.labels == nil {
		r.labels = map[string]string{}
	}
	for _, name := range []string{
		"kubectl.kubernetes.io/last-applied-configuration", "gateway.istio.io/controller-version", gatewayapi.AccountAnnotation, gatewayapi.NameAnnotation,
	} {
		delete(r.annotations, name)
	}
}

func texts[K, V ~string](in map[K]V) map[string]string {
	out := map[string]string{}
	for key, value := range in {
		if !strings.HasPrefix(string(key), ownPrefix) { // these names belong to the controller
			out[string(key)] = string(value)
		}
	}
	return out
}

// own returns the labels that nobody can change.
func (r *renderer) own() map[string]string {
	return map[string]string{
		gatewayapi.NameLabel: r.Gateway.Name, classLabel: string(r.spec.GatewayClassName), ManagedLabel: ManagedValue,
	}
}

func (r *renderer) selector() object { return object{gatewayapi.NameLabel: r.Gateway.Name} }

func (r *renderer) deployment() (object, error) {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Labels:      map[string]string{"service.istio.io/canonical-name": r.name, "service.istio.io/canonical-revision": "latest"},
			Annotations: map[string]string{},
		},
		Spec: corev1.PodSpec{ServiceAccountName: r.account},
	}
	maps.Copy(pod.Labels, r.labels)
	maps.Copy(pod.Labels, r.own())
	pod.Labels["sidecar.istio.io/inject"] = "false" // the proxy is already there
	maps.Copy(pod.Annotations, map[string]string{"prometheus.io/path": "/stats/prometheus", "prometheus.io/port": "15020", "prometheus.io/scrape": "true"})
	maps.Copy(pod.Annotations, r.annotations)
	pod, err := r.Pod(pod, r.Gateway.Namespace, r.name)
	if err != nil {
		return nil, err
	}
	if network := r.labels[networkLabel]; network != "" {
		for i := range pod.Spec.Containers {
			c := &pod.Spec.Containers[i]
			c.Env = append(c.Env, corev1.EnvVar{Name: "ISTIO_META_REQUESTED_NETWORK_VIEW", Value: network})
		}
	}
	template, err := fields(struct {
		Metadata metav1.ObjectMeta `json:"metadata"`
		Spec     corev1.PodSpec    `json:"spec"`
	}{pod.ObjectMeta, pod.Spec})
	if err != nil {
		return nil, err
	}
	return object{"selector": object{"matchLabels": r.selector()}, "template": template}, nil
}

// fields returns a value as JSON has it.
func fields(v any) (object, error) {
	doc, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	var out object
	return out, json.Unmarshal(doc, &out)
}

func (r *renderer) service() object {
	kind := cmp.Or(r.Gateway.Annotations[serviceTypeAnnotation], string(corev1.ServiceTypeLoadBalancer))
	spec := object{"type": kind, "ipFamilyPolicy": string(corev1.IPFamilyPolicyPreferDualStack), "selector": r.selector(), "ports": r.ports()}
	if len(r.spec.Addresses) > 0 && kind == string(corev1.ServiceTypeLoadBalancer) {
		spec["loadBalancerIP"] = r.spec.Addresses[0].Value
	}
	return spec
}

// ports returns the ports of the Service: one for each port of listeners, named after the first
// listener, and one for the probes of load balancers.
func (r *renderer) ports() []any {
	var out []any
	numbers, names := map[int64]bool{}, map[string]bool{}
	add := func(name string, number int64, protocol string) {
		if numbers[number] {
			return
		}
		name = strings.Trim(name[:min(len(name), longestLabel)], "-")
		if names[name] { // names differ after the 63rd letter, or in a dot
			end := fmt.Sprintf("-%d", number)
			name = name[:min(len(name), longestLabel-len(end))] + end
		}
		numbers[number], names[name] = true, true
		out = append(out, object{"name": name, "port": number, "protocol": "TCP", "appProtocol": protocol})
	}
	add("status-port", readyPort, "tcp")
	quic := map[int64]bool{}
	for _, l := range append(slices.Clip(r.spec.Listeners), r.Added...) {
		if number := int64(l.Port); r.HTTP3 && l.Protocol == gatewayv1.HTTPSProtocolType && !quic[number] {
			quic[number] = true
			out = append(out, object{"name": fmt.Sprintf("http3-%d", number), "port": number, "protocol": "UDP"})
		}
		switch l.Protocol {
		case gatewayv1.HTTPProtocolType, gatewayv1.HTTPSProtocolType, gatewayv1.TLSProtocolType, gatewayv1.TCPProtocolType:
			add(strings.ReplaceAll(string(l.Name), ".", "-"), int64(l.Port), strings.ToLower(string(l.Protocol)))
		}
	}
	return out
}

// optional returns the spec of an object that an overlay completes.
func (r *renderer) optional(kind string) object {
	if kind == "HorizontalPodAutoscaler" {
		return object{"maxReplicas": int64(1), "scaleTargetRef": object{"apiVersion": "apps/v1", "kind": "Deployment", "name": r.name}}
	}
	return object{"selector": object{"matchLabels": r.selector()}}
}

// finish applies the overlay of an object, and then sets what no overlay can change.
func (r *renderer) finish(k kind, base object) (*unstructured.Unstructured, error) {
	u := &unstructured.Unstructured{Object: base}
	u.SetGroupVersionKind(k.GroupVersionKind)
	labels := maps.Clone(r.labels)
	maps.Copy(labels, r.own())
	u.SetLabels(labels)
	u.SetAnnotations(r.annotations)
	if doc, ok := r.Overlays[k.overlay]; ok {
		merged, err := k.merge(base, doc)
		if err != nil {
			return nil, err
		}
		u.Object = merged
		u.SetGroupVersionKind(k.GroupVersionKind)
		labels = u.GetLabels()
		if labels == nil {
			labels = map[string]string{}
		}
		maps.Copy(labels, r.own())
		u.SetLabels(labels)
	}
	u.SetNamespace(r.Gateway.Namespace)
	u.SetName(r.name)
	if k.Kind == "ServiceAccount" {
		u.SetName(r.account)
	}
	u.SetOwnerReferences([]metav1.OwnerReference{{
		APIVersion: apiVersion(r.Gateway), Kind: "Gateway", Name: r.Gateway.Name, UID: uid(r.Gateway),
	}})
	return u, nil
}
