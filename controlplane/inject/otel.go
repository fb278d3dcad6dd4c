// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inject

import (
	"strings"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
)

// resourceAttributes returns OTEL_RESOURCE_ATTRIBUTES, from which Envoy describes the workload in
// spans, as OpenTelemetry's conventions for Kubernetes say. It is empty unless a provider of the mesh
// config asks for them.
func (j *job) resourceAttributes() string {
	asked := false
	for _, p := range j.mesh.GetExtensionProviders() {
		asked = asked || p.GetOpentelemetry().GetServiceAttributeEnrichment() == meshv1alpha1.MeshConfig_ExtensionProvider_OTEL_SEMANTIC_CONVENTIONS
	}
	if !asked {
		return ""
	}
	const annotation = "resource.opentelemetry.io/"
	var pairs []string
	add := func(name string, sources ...string) {
		for _, value := range append([]string{j.pod.Annotations[annotation+name]}, sources...) {
			if value != "" && !strings.ContainsAny(value, ",=") { // Envoy would drop all attributes
				pairs = append(pairs, name+"="+value)
				return
			}
		}
	}
	version, instance := "", ""
	if apps := j.apps(); len(apps) > 0 {
		instance = j.owner.namespace + ".$(POD_NAME)." + apps[0]
		for i := range j.pod.Spec.Containers {
			if c := &j.pod.Spec.Containers[i]; len(apps) == 1 && c.Name == apps[0] {
				version = imageVersion(c.Image)
			}
		}
	}
	add("service.namespace", j.owner.namespace)
	add("service.version", j.pod.Labels["app.kubernetes.io/version"], version)
	add("service.instance.id", instance)
	return strings.Join(pairs, ",")
}

// imageVersion returns the tag and the digest of an image, as tag@digest if it has both.
func imageVersion(image string) string {
	name, digest, _ := strings.Cut(image, "@")
	_, tag, _ := strings.Cut(name[strings.LastIndex(name, "/")+1:], ":")
	if tag != "" && digest != "" {
		return tag + "@" + digest
	}
	return tag + digest
}
