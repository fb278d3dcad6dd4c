// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package deployment

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	"sigs.k8s.io/yaml"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/internal/aliases"
)

// kind is a kind of objects that are deployed.
type kind struct {
	schema.GroupVersionKind

	overlay string // key in the ConfigMap of parametersRef
	example any    // which lists are merged, and by which key
}

// kinds returns the kinds of objects, in the order in which they are written.
func kinds() []kind {
	return []kind{
		{corev1.SchemeGroupVersion.WithKind("ServiceAccount"), "serviceAccount", corev1.ServiceAccount{}},
		{appsv1.SchemeGroupVersion.WithKind("Deployment"), "deployment", appsv1.Deployment{}},
		{corev1.SchemeGroupVersion.WithKind("Service"), "service", corev1.Service{}},
		{autoscalingv2.SchemeGroupVersion.WithKind("HorizontalPodAutoscaler"), "horizontalPodAutoscaler", autoscalingv2.HorizontalPodAutoscaler{}},
		{policyv1.SchemeGroupVersion.WithKind("PodDisruptionBudget"), "podDisruptionBudget", policyv1.PodDisruptionBudget{}},
	}
}

// checkOverlays returns an error for keys that no object has.
func checkOverlays(overlays map[string]string) error {
	var known []string
	for _, k := range kinds() {
		known = append(known, k.overlay)
	}
	for _, key := range slices.Sorted(maps.Keys(overlays)) {
		if !slices.Contains(known, key) {
			return fmt.Errorf("the ConfigMap of spec.infrastructure.parametersRef has the key %q: write one of %s", key, strings.Join(known, ", "))
		}
	}
	return nil
}

// merge applies an overlay, a strategic merge patch in YAML, to an object. An overlay cannot change
// which object it is.
func (k kind) merge(base object, doc string) (object, error) {
	fault := func(reason string, args ...any) error {
		return fmt.Errorf("the key %s in the ConfigMap of spec.infrastructure.parametersRef "+reason, append([]any{k.overlay}, args...)...)
	}
	var patch object
	if err := aliases.Check([]byte(doc)); err != nil {
		return nil, fault("is refused: %w", err)
	}
	if err := yaml.Unmarshal([]byte(doc), &patch); err != nil {
		return nil, fault("is not the YAML of a %s: %w", k.Kind, err)
	}
	if meta, ok := patch["metadata"].(object); ok {
		for field := range meta {
			if field != "labels" && field != "annotations" {
				return nil, fault("sets metadata.%s: only labels and annotations can be set", field)
			}
		}
	} else if patch["metadata"] != nil {
		return nil, fault("has metadata that is not a map")
	}
	lookup, err := strategicpatch.NewPatchMetaFromStruct(k.example)
	if err != nil {
		return nil, err
	}
	merged, err := strategicpatch.StrategicMergeMapPatchUsingLookupPatchMeta(runtime.DeepCopyJSON(base), patch, lookup)
	if err != nil {
		return nil, fault("cannot be merged with the %s: %w", k.Kind, err)
	}
	return merged, nil
}

type owner = metav1.OwnerReference

// apiVersion returns the version in which the cluster serves a Gateway.
func apiVersion(gateway *model.Config) string {
	return cmp.Or(gateway.APIVersion, gatewayv1.GroupVersion.String())
}

func uid(gateway *model.Config) types.UID { return types.UID(gateway.UID) }
