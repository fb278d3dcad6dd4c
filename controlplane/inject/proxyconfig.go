// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inject

import (
	"fmt"

	"google.golang.org/protobuf/proto"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	networkingv1beta1 "istio.io/api/networking/v1beta1"
	corev1 "k8s.io/api/core/v1"

	"github.com/outrigger-mesh/outrigger/bootstrap/meshconfig"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// proxyConfig returns the ProxyConfig of a pod. Later ones override earlier ones: the mesh config,
// the object without a selector in the root namespace and the one in the pod's namespace, the
// annotation, and the object in the pod's namespace that selects the pod.
func (in *Injector) proxyConfig(pod *corev1.Pod, namespace string) (*meshv1alpha1.ProxyConfig, error) {
	proxy := in.Mesh.GetDefaultConfig()
	if proxy == nil {
		proxy = meshconfig.DefaultProxyConfig()
	}
	var selected *networkingv1beta1.ProxyConfig
	if in.ProxyConfigs != nil {
		root := in.Mesh.GetRootNamespace()
		everywhere, _ := oldest(in.ProxyConfigs(root), nil)
		own, selecting := oldest(in.ProxyConfigs(namespace), pod.Labels)
		if proxy, selected = overlaid(proxy, everywhere), selecting; namespace != root {
			proxy = overlaid(proxy, own)
		}
	}
	if doc, ok := pod.Annotations[nameProxyConfig]; ok {
		var err error
		if proxy, err = meshconfig.ApplyProxyConfig(proxy, doc); err != nil {
			return nil, fmt.Errorf("annotation %s: %w", nameProxyConfig, err)
		}
	}
	return overlaid(proxy, selected), nil
}

// oldest returns the first ProxyConfig object without a selector, and the first one that selects the
// labels; nil if there is none.
func oldest(objects []*model.Config, labels map[string]string) (common, selecting *networkingv1beta1.ProxyConfig) {
	for _, c := range objects {
		spec, ok := c.Spec.(*networkingv1beta1.ProxyConfig)
		selector := spec.GetSelector().GetMatchLabels()
		switch {
		case !ok:
		case len(selector) == 0 && common == nil:
			common = spec
		case len(selector) > 0 && selecting == nil && model.Selects(selector, labels):
			selecting = spec
		}
	}
	return common, selecting
}

// overlaid returns a ProxyConfig with the settings of an object, which may be nil.
func overlaid(proxy *meshv1alpha1.ProxyConfig, object *networkingv1beta1.ProxyConfig) *meshv1alpha1.ProxyConfig {
	if object == nil {
		return proxy
	}
	out := proto.CloneOf(proxy)
	if n := object.GetConcurrency(); n != nil {
		out.Concurrency = n
	}
	if image := object.GetImage(); image != nil {
		out.Image = image
	}
	if len(object.GetEnvironmentVariables()) > 0 {
		out.ProxyMetadata = with(out.GetProxyMetadata(), object.GetEnvironmentVariables())
	}
	return out
}
