// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inject

import (
	"fmt"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	"sigs.k8s.io/yaml"

	"github.com/outrigger-mesh/outrigger/internal/aliases"
)

// checkTemplate returns an error if a custom template cannot be parsed.
func checkTemplate(name, source string) error {
	return (&job{}).functions(nil, nil).Check(name, []byte(source))
}

// custom renders a custom template. Its data have the names of Istio; messages are maps with the
// names of their Go fields, because templates do not call methods.
func (j *job) custom(name, source string) (map[string]any, error) {
	mode := "passthrough"
	if j.mesh.GetInboundTrafficPolicy().GetMode() == meshv1alpha1.MeshConfig_InboundTrafficPolicy_LOCALHOST {
		mode = "localhost"
	}
	proxy, mesh := viewOf(j.proxy.ProtoReflect()), viewOf(j.mesh.ProtoReflect())
	doc, err := j.functions(proxy, mesh).Render(name, []byte(source), map[string]any{
		"TypeMeta":       map[string]string{"APIVersion": j.owner.apiVersion, "Kind": j.owner.kind},
		"DeploymentMeta": map[string]string{"Name": j.owner.name, "Namespace": j.owner.namespace},
		"ObjectMeta":     j.pod.ObjectMeta,
		"Spec":           j.pod.Spec,
		"ProxyConfig":    proxy,
		"MeshConfig":     mesh,
		"Values":         j.values.all,
		"Revision":       j.revision,
		"NativeSidecars": j.native,
		"ProxyImage":     j.hubImage(string(j.values.Global.Proxy.Image), j.proxy.GetImage().GetImageType()),
		"ProxyInitImage": j.hubImage(string(j.values.Global.ProxyInit.Image), ""),
		"ProxyUID":       j.user, "ProxyGID": j.group,
		"InboundTrafficPolicyMode": mode,
		"CompliancePolicy":         string(j.compliance),
	})
	if err != nil {
		return nil, err
	}
	if err := aliases.Check(doc); err != nil { // a pod can have written them
		return nil, fmt.Errorf("template %s: its output: %w", name, err)
	}
	var fields map[string]any
	if err := yaml.Unmarshal(doc, &fields); err != nil {
		return nil, fmt.Errorf("template %s: its output is not the YAML of a pod: %w", name, err)
	}
	return fields, nil
}
