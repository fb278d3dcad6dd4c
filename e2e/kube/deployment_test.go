// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package kube

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// TestDeployment deploys the proxies of a Gateway with the rights of examples/kubernetes, and
// changes it:
//   - account, Deployment and Service, owned by the Gateway;
//   - other ports; labels and a ConfigMap of spec.infrastructure;
//   - changed or removed objects are repaired, additions of others stay;
//   - the address of the load balancer makes the Gateway programmed;
//   - when a Gateway names its own Service, the deployed objects are deleted.
func TestDeployment(t *testing.T) {
	t.Parallel()
	m := newGatewayMesh(t)
	m.control()
	ctx := t.Context()
	m.apply(gateway("shop", "istio"))
	o := m.deployed("the objects of a Gateway", "shop-istio", nil)
	g, err := m.gateways().Get(ctx, "shop", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, meta := range []metav1.ObjectMeta{o.account.ObjectMeta, o.deployment.ObjectMeta, o.service.ObjectMeta} {
		if len(meta.OwnerReferences) != 1 || meta.OwnerReferences[0].UID != g.GetUID() || meta.OwnerReferences[0].Kind != "Gateway" {
			t.Errorf("the owners are %v, want the Gateway", meta.OwnerReferences)
		}
		if meta.Labels["gateway.networking.k8s.io/gateway-name"] != "shop" || meta.Labels["gateway.istio.io/managed"] != "istio.io-gateway-controller" ||
			meta.Labels["gateway.networking.k8s.io/gateway-class-name"] != "istio" {
			t.Errorf("the labels are %v", meta.Labels)
		}
	}
	pod := o.deployment.Spec.Template
	if pod.Spec.ServiceAccountName != "shop-istio" || pod.Labels["sidecar.istio.io/inject"] != "false" || pod.Annotations["istio.io/rev"] != "default" ||
		pod.Spec.Containers[0].Name != "istio-proxy" || pod.Labels["gateway.networking.k8s.io/gateway-name"] != "shop" {
		t.Errorf("the Pod is %v", pod)
	}
	if err := errors.Join(
		want("the type", o.service.Spec.Type, corev1.ServiceTypeLoadBalancer),
		want("the ports", ports(o.service), "status-port 15021 tcp, http 80 http"),
		want("the selector", o.service.Spec.Selector["gateway.networking.k8s.io/gateway-name"], "shop"),
	); err != nil {
		t.Error(err)
	}
	within(t, m.gateways(), "shop", "Programmed", "AddressNotAssigned")
	o.service.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.7"}}
	if _, err := m.Admin().CoreV1().Services("edge").UpdateStatus(ctx, o.service, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	within(t, m.gateways(), "shop", "Programmed", "True")
	m.ports()
	m.drift()
	m.infrastructure()
	m.manual()
}

func (m *gatewayMesh) ports() {
	m.t.Helper()
	m.apply(strings.Replace(gateway("shop", "istio"), "[{name: http,",
		"[{name: https, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: cert}]}}, {name: also, port: 443, protocol: HTTPS, hostname: a.test, tls: {certificateRefs: [{name: cert}]}}, {name: web.http,", 1))
	m.deployed("other ports", "shop-istio", func(o objects) error {
		return want("the ports", ports(o.service), "status-port 15021 tcp, https 443 https, web-http 80 http")
	})
}

func (m *gatewayMesh) drift() {
	m.t.Helper()
	ctx, admin := m.t.Context(), m.Admin()
	patch := `{"spec":{"replicas":2,"template":{"spec":{"containers":[{"name":"istio-proxy","image":"evil"}]}}},"metadata":{"annotations":{"note":"stays"}}}`
	if _, err := admin.AppsV1().Deployments("edge").Patch(ctx, "shop-istio", types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{FieldManager: "somebody"}); err != nil {
		m.t.Fatal(err)
	}
	patch = `{"spec":{"selector":{"gateway.networking.k8s.io/gateway-name":"another"}}}`
	if _, err := admin.CoreV1().Services("edge").Patch(ctx, "shop-istio", types.MergePatchType, []byte(patch), metav1.PatchOptions{FieldManager: "somebody"}); err != nil {
		m.t.Fatal(err)
	}
	if err := admin.CoreV1().ServiceAccounts("edge").Delete(ctx, "shop-istio", metav1.DeleteOptions{}); err != nil {
		m.t.Fatal(err)
	}
	m.deployed("what somebody changed", "shop-istio", func(o objects) error {
		return errors.Join(
			want("image is evil", o.deployment.Spec.Template.Spec.Containers[0].Image == "evil", false),
			want("replicas of somebody", *o.deployment.Spec.Replicas, 2),
			want("the annotation", o.deployment.Annotations["note"], "stays"),
			want("the selector", o.service.Spec.Selector["gateway.networking.k8s.io/gateway-name"], "shop"),
		)
	})
	if err := admin.CoreV1().Services("edge").Delete(ctx, "shop-istio", metav1.DeleteOptions{}); err != nil {
		m.t.Fatal(err)
	}
	m.deployed("a removed Service", "shop-istio", nil)
}

const parameters = `---
apiVersion: v1
kind: ConfigMap
metadata: {name: large, namespace: edge}
data:
  deployment: |
    metadata: {annotations: {team: edge}}
    spec:
      replicas: 4
      template:
        spec:
          nodeSelector: {disk: fast}
          containers: [{name: istio-proxy, resources: {requests: {cpu: 222m}}}]
  service: |
    spec: {externalTrafficPolicy: Local}
  horizontalPodAutoscaler: |
    spec: {minReplicas: 2, maxReplicas: 5}
  podDisruptionBudget: |
    spec: {minAvailable: 1}
`

func (m *gatewayMesh) infrastructure() {
	m.t.Helper()
	ctx, admin := m.t.Context(), m.Admin()
	m.apply(gateway("shop", "istio", "infrastructure:", "  labels: {team: a}", "  annotations: {note: b}", "  parametersRef: {group: \"\", kind: ConfigMap, name: large}"))
	within(m.t, m.gateways(), "shop", "Accepted", "InvalidParameters: spec.infrastructure.parametersRef: there is no ConfigMap large")
	m.apply(parameters)
	m.deployed("a ConfigMap", "shop-istio", func(o objects) error {
		c := o.deployment.Spec.Template.Spec.Containers[0]
		return errors.Join(
			want("replicas", *o.deployment.Spec.Replicas, 4),
			want("CPU", c.Resources.Requests.Cpu().String(), "222m"),
			want("memory of the default", c.Resources.Requests.Memory().String(), "128Mi"),
			want("node", o.deployment.Spec.Template.Spec.NodeSelector["disk"], "fast"),
			want("policy", o.service.Spec.ExternalTrafficPolicy, corev1.ServiceExternalTrafficPolicyLocal),
			want("annotation", o.deployment.Annotations["team"], "edge"),
			want("label of the Pod", o.deployment.Spec.Template.Labels["team"], "a"),
			want("annotation of the Pod", o.deployment.Spec.Template.Annotations["note"], "b"),
			want("label of the account", o.account.Labels["team"], "a"),
			want("annotation of the Service", o.service.Annotations["note"], "b"),
		)
	})
	within(m.t, m.gateways(), "shop", "Accepted", "True")
	soon(m.t, "what scales it", func() error {
		h, err := admin.AutoscalingV2().HorizontalPodAutoscalers("edge").Get(ctx, "shop-istio", metav1.GetOptions{})
		p, err2 := admin.PolicyV1().PodDisruptionBudgets("edge").Get(ctx, "shop-istio", metav1.GetOptions{})
		if err := errors.Join(err, err2); err != nil {
			return err
		}
		return errors.Join(want("most replicas", h.Spec.MaxReplicas, 5), want("target", h.Spec.ScaleTargetRef.Name, "shop-istio"),
			want("selector", p.Spec.Selector.MatchLabels["gateway.networking.k8s.io/gateway-name"], "shop"))
	})
	wrong := strings.Replace(parameters, "metadata: {annotations: {team: edge}}", "metadata: {name: another}", 1)
	m.apply(wrong)
	within(m.t, m.gateways(), "shop", "Accepted", "the key deployment in the ConfigMap of spec.infrastructure.parametersRef sets metadata.name")
	m.apply(strings.Replace(parameters, "nodeSelector: {disk: fast}", "nodeSelector: 7", 1))
	within(m.t, m.gateways(), "shop", "Accepted", "InvalidParameters: the proxies cannot be deployed: write the Deployment shop-istio: ")
	if o, err := m.read("shop-istio"); err != nil || *o.deployment.Spec.Replicas != 4 {
		m.t.Errorf("a wrong ConfigMap changed the Deployment: %v, error %v", o.deployment, err)
	}
	m.apply(gateway("shop", "istio", "infrastructure:", "  labels: {}"))
	soon(m.t, "the end of what scales it", func() error {
		if _, err := admin.AutoscalingV2().HorizontalPodAutoscalers("edge").Get(ctx, "shop-istio", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("there is an autoscaler, error %w", err)
		}
		return nil
	})
}

func (m *gatewayMesh) manual() {
	m.t.Helper()
	m.apply(gateway("shop", "istio", "addresses: [{type: Hostname, value: shop-istio.edge.svc.cluster.local}]"))
	m.apply(gateway("after", "istio")) // deployed after the change above was seen
	m.deployed("the next Gateway", "after-istio", nil)
	m.deployed("what the Gateway names itself", "shop-istio", nil)
	m.apply("apiVersion: v1\nkind: Service\nmetadata: {name: own, namespace: edge}\nspec: {selector: {app: own}, ports: [{name: http, port: 80}]}\n" +
		gateway("shop", "istio", "addresses: [{type: Hostname, value: own}]"))
	soon(m.t, "the end of what was deployed", func() error {
		o, err := m.read("shop-istio")
		if !apierrors.IsNotFound(err) || o.deployment.GetName()+o.service.GetName() != "" {
			return fmt.Errorf("there are the Deployment %q and the Service %q, error %w", o.deployment.GetName(), o.service.GetName(), err)
		}
		return nil
	})
	if _, err := m.Admin().CoreV1().Services("edge").Get(m.t.Context(), "own", metav1.GetOptions{}); err != nil {
		m.t.Errorf("the user's own Service: %v", err)
	}
}
