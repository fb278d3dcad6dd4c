// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inject

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestResourceAttributes reads the variable of injected pods. Kubernetes replaces $(POD_NAME), so that
// this variable must come first.
func TestResourceAttributes(t *testing.T) {
	t.Parallel()
	const asks = "{extensionProviders: [{name: o, opentelemetry: {service: s.ns, port: 1, serviceAttributeEnrichment: OTEL_SEMANTIC_CONVENTIONS}}]}"
	type m = map[string]string
	for name, tc := range map[string]struct {
		mesh                string
		labels, annotations m
		image               string
		more                bool
		want                string
	}{
		"not asked for":     {image: "a:1"},
		"tag":               {mesh: asks, image: "registry:5000/a/b:1.2", want: "service.namespace=shop,service.version=1.2,service.instance.id=shop.$(POD_NAME).app"},
		"digest":            {mesh: asks, image: "b@sha256:ab", want: "service.namespace=shop,service.version=sha256:ab,service.instance.id=shop.$(POD_NAME).app"},
		"tag and digest":    {mesh: asks, image: "b:1@sha256:ab", want: "service.namespace=shop,service.version=1@sha256:ab,service.instance.id=shop.$(POD_NAME).app"},
		"neither":           {mesh: asks, image: "registry:5000/b", want: "service.namespace=shop,service.instance.id=shop.$(POD_NAME).app"},
		"second container":  {mesh: asks, image: "b:1", more: true, want: "service.namespace=shop,service.instance.id=shop.$(POD_NAME).app"},
		"label":             {mesh: asks, image: "b:1", labels: m{"app.kubernetes.io/version": "v2"}, want: "service.namespace=shop,service.version=v2,service.instance.id=shop.$(POD_NAME).app"},
		"annotations":       {mesh: asks, image: "b:1", annotations: m{"resource.opentelemetry.io/service.namespace": "n", "resource.opentelemetry.io/service.version": "v", "resource.opentelemetry.io/service.instance.id": "i"}, want: "service.namespace=n,service.version=v,service.instance.id=i"},
		"wrong annotation":  {mesh: asks, image: "b:1", annotations: m{"resource.opentelemetry.io/service.version": "a,b"}, want: "service.namespace=shop,service.version=1,service.instance.id=shop.$(POD_NAME).app"},
		"of proxyMetadata":  {mesh: "{defaultConfig: {proxyMetadata: {OTEL_RESOURCE_ATTRIBUTES: a=b}}, " + asks[1:], image: "b", want: "a=b"},
		"of another choice": {mesh: "{extensionProviders: [{name: o, opentelemetry: {service: s.ns, port: 1}}]}", image: "b"},
	} {
		pod := podWith(tc.labels, tc.annotations)
		if pod.Spec.Containers[0].Image = tc.image; tc.more {
			pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: "second", Image: "c:1"})
		}
		result, err := newInjector(t, "", "", tc.mesh).Inject(Request{Pod: pod, Namespace: "shop"})
		if err != nil {
			t.Fatal(err)
		}
		got, at, named := "", -1, -1
		for _, c := range slices.Concat(result.Pod.Spec.InitContainers, result.Pod.Spec.Containers) {
			for i, v := range c.Env {
				switch {
				case c.Name == proxyName && v.Name == "OTEL_RESOURCE_ATTRIBUTES":
					got, at = v.Value, i
				case c.Name == proxyName && v.Name == "POD_NAME":
					named = i
				}
			}
		}
		if got != tc.want || got != "" && named > at {
			t.Errorf("%s: got %q after POD_NAME: %t, want %q", name, got, named < at, tc.want)
		}
	}
	const custom = "defaultTemplates: [mine]\ntemplates: {mine: \"metadata: {annotations: {attributes: \\\"{{ otelResourceAttributes .MeshConfig .ObjectMeta.Annotations .ObjectMeta.Labels .DeploymentMeta.Namespace .Spec.Containers }}\\\"}}\"}"
	result, err := newInjector(t, custom, "", asks).Inject(Request{Pod: podWith(nil, nil), Namespace: "shop"})
	if err != nil {
		t.Fatal(err)
	}
	if got := result.Pod.Annotations["attributes"]; !strings.HasPrefix(got, "service.namespace=shop,") {
		t.Errorf("a custom template has %q, want the attributes of the pod", got)
	}
}
