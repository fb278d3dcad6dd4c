// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package chart

import (
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
)

// typed returns the objects of a kind.
func typed[T any](t *testing.T, objects map[string]*unstructured.Unstructured, kind string) []T {
	t.Helper()
	var out []T
	for _, o := range objects {
		if o.GetKind() != kind {
			continue
		}
		var one T
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &one); err != nil {
			t.Fatal(err)
		}
		out = append(out, one)
	}
	return out
}

// consistent checks the references between objects: selectors, names and ports. The API server does
// not check them.
func consistent(t *testing.T, objects map[string]*unstructured.Unstructured) {
	t.Helper()
	deployments := typed[appsv1.Deployment](t, objects, "Deployment")
	if len(deployments) != 1 {
		t.Fatalf("there are %d Deployments", len(deployments))
	}
	d := deployments[0]
	selects := func(what string, s *metav1.LabelSelector) {
		t.Helper()
		selector, err := metav1.LabelSelectorAsSelector(s)
		if err != nil || selector.Empty() || !selector.Matches(labels.Set(d.Spec.Template.Labels)) {
			t.Errorf("%s selects %s, and the pods have %v (%v)", what, selector, d.Spec.Template.Labels, err)
		}
	}
	ports := map[string]bool{}
	for _, p := range d.Spec.Template.Spec.Containers[0].Ports {
		ports[p.Name] = true
	}
	open := map[string]bool{}
	policies := typed[networkingv1.NetworkPolicy](t, objects, "NetworkPolicy")
	for _, p := range policies {
		selects("the NetworkPolicy", &p.Spec.PodSelector)
		for _, port := range p.Spec.Ingress[0].Ports {
			open[port.Port.StrVal] = true
		}
	}
	for port := range ports {
		if len(policies) > 0 && !open[port] {
			t.Errorf("the NetworkPolicy closes the port %s", port)
		}
	}
	for port := range open {
		if !ports[port] {
			t.Errorf("the NetworkPolicy opens the port %s, which nothing has", port)
		}
	}
	for _, b := range typed[policyv1.PodDisruptionBudget](t, objects, "PodDisruptionBudget") {
		selects("the PodDisruptionBudget", b.Spec.Selector)
	}
	scalers := typed[autoscalingv2.HorizontalPodAutoscaler](t, objects, "HorizontalPodAutoscaler")
	for _, h := range scalers {
		if h.Spec.ScaleTargetRef.Name != d.Name || h.Spec.ScaleTargetRef.Kind != "Deployment" || *h.Spec.MinReplicas > h.Spec.MaxReplicas {
			t.Errorf("the autoscaler scales %v", h.Spec)
		}
	}
	if one := d.Spec.Replicas == nil; one != (len(scalers) > 0) {
		t.Errorf("%d autoscalers and the Deployment set the number of replicas", len(scalers))
	}
	served := map[string]map[int32]bool{}
	for _, s := range typed[corev1.Service](t, objects, "Service") {
		selects("the Service "+s.Name, &metav1.LabelSelector{MatchLabels: s.Spec.Selector})
		served[s.Name] = map[int32]bool{}
		for _, p := range s.Spec.Ports {
			served[s.Name][p.Port] = true
			if !ports[p.TargetPort.StrVal] {
				t.Errorf("the Service %s leads to the port %s, which nothing has", s.Name, p.TargetPort.StrVal)
			}
		}
	}
	rightsOf(t, objects, d.Spec.Template.Spec.ServiceAccountName, d.Namespace)
	for _, s := range typed[appsv1.DaemonSet](t, objects, "DaemonSet") {
		rightsOf(t, objects, s.Spec.Template.Spec.ServiceAccountName, s.Namespace)
		own, err := metav1.LabelSelectorAsSelector(s.Spec.Selector)
		if err != nil || !own.Matches(labels.Set(s.Spec.Template.Labels)) || own.Matches(labels.Set(d.Spec.Template.Labels)) {
			t.Errorf("the DaemonSet selects %s (%v)", own, err)
		}
		if control := labels.SelectorFromSet(d.Spec.Selector.MatchLabels); control.Matches(labels.Set(s.Spec.Template.Labels)) {
			t.Errorf("the selector of the control plane selects the DaemonSet's pods: %s", control)
		}
	}
	for _, client := range webhookClients(t, objects) {
		if s := client.Service; s != nil && (s.Namespace != d.Namespace || !served[s.Name][*s.Port]) {
			t.Errorf("a webhook is at %s/%s:%d, which is not served", s.Namespace, s.Name, *s.Port)
		}
		if len(client.CABundle) > 0 {
			t.Error("the chart sets roots of a webhook: the control plane alone writes them")
		}
	}
}

// rightsOf checks that the account exists, and that each role belongs to the account of its name.
func rightsOf(t *testing.T, objects map[string]*unstructured.Unstructured, account, namespace string) {
	t.Helper()
	if objects["ServiceAccount "+account] == nil {
		t.Errorf("the account %q is missing", account)
	}
	check := func(role rbacv1.RoleRef, subjects []rbacv1.Subject) {
		t.Helper()
		if objects[role.Kind+" "+role.Name] == nil || len(subjects) != 1 || subjects[0].Namespace != namespace ||
			subjects[0].Name != strings.TrimSuffix(role.Name, "-"+namespace) || objects["ServiceAccount "+subjects[0].Name] == nil {
			t.Errorf("a binding binds %v to %v", role, subjects)
		}
	}
	for _, b := range typed[rbacv1.RoleBinding](t, objects, "RoleBinding") {
		check(b.RoleRef, b.Subjects)
	}
	for _, b := range typed[rbacv1.ClusterRoleBinding](t, objects, "ClusterRoleBinding") {
		check(b.RoleRef, b.Subjects)
	}
}

// webhookClients returns the addresses of the webhooks.
func webhookClients(t *testing.T, objects map[string]*unstructured.Unstructured) []admissionv1.WebhookClientConfig {
	t.Helper()
	var out []admissionv1.WebhookClientConfig
	for _, c := range typed[admissionv1.MutatingWebhookConfiguration](t, objects, "MutatingWebhookConfiguration") {
		for _, h := range c.Webhooks {
			out = append(out, h.ClientConfig)
		}
	}
	for _, c := range typed[admissionv1.ValidatingWebhookConfiguration](t, objects, "ValidatingWebhookConfiguration") {
		for _, h := range c.Webhooks {
			out = append(out, h.ClientConfig)
		}
	}
	return out
}
