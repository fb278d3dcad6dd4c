// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package install

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

const (
	// manager is the value of the label app.kubernetes.io/managed-by.
	manager      = "outrigger"
	managedBy    = "app.kubernetes.io/managed-by"
	partOf       = "app.kubernetes.io/part-of"
	instance     = "app.kubernetes.io/instance"
	revisionKey  = "istio.io/rev"
	namespaceKey = "outrigger.dev/installed-in" // the namespace, also of objects that have none
)

// release is an installation: a control plane of a revision in a namespace.
type release struct {
	Revision  string // empty means default
	Namespace string
}

func (r release) suffix() string {
	if r.Revision == "" || r.Revision == "default" {
		return ""
	}
	return "-" + r.Revision
}

func (r release) name() string       { return "outrigger" + r.suffix() }
func (r release) deployment() string { return "outrigger-control" + r.suffix() }

// selector selects the objects of the release.
func (r release) selector() string {
	return managedBy + "=" + manager + "," + instance + "=" + r.name() + "," + namespaceKey + "=" + r.Namespace
}

// mark adds the label by which the object is found later. Kinds belong to all releases, and have the
// label partOf only.
func (r release) mark(o *unstructured.Unstructured) {
	if o.GetKind() == kindOfKinds {
		return
	}
	labels := o.GetLabels()
	if labels == nil {
		labels = map[string]string{}
	}
	labels[namespaceKey] = r.Namespace
	o.SetLabels(labels)
}

const kindOfKinds = "CustomResourceDefinition"

// resource is a kind of object of the chart.
type resource struct {
	kind, version, plural string // version with the group
	namespaced            bool
}

// resources are the kinds of the chart's objects in the order in which they are applied; they are
// deleted in the opposite order. Rights come before the program that needs them, and webhooks last:
// nothing waits for a control plane that is not there.
func resources() []resource {
	return []resource{
		{kindOfKinds, "apiextensions.k8s.io/v1", "customresourcedefinitions", false},
		{"NetworkPolicy", "networking.k8s.io/v1", "networkpolicies", true},
		{"PodDisruptionBudget", "policy/v1", "poddisruptionbudgets", true},
		{"ServiceAccount", "v1", "serviceaccounts", true},
		{"ConfigMap", "v1", "configmaps", true},
		{"ClusterRole", "rbac.authorization.k8s.io/v1", "clusterroles", false},
		{"ClusterRoleBinding", "rbac.authorization.k8s.io/v1", "clusterrolebindings", false},
		{"Role", "rbac.authorization.k8s.io/v1", "roles", true},
		{"RoleBinding", "rbac.authorization.k8s.io/v1", "rolebindings", true},
		{"Service", "v1", "services", true},
		{"DaemonSet", "apps/v1", "daemonsets", true},
		{"Deployment", "apps/v1", "deployments", true},
		{"HorizontalPodAutoscaler", "autoscaling/v2", "horizontalpodautoscalers", true},
		{"MutatingWebhookConfiguration", "admissionregistration.k8s.io/v1", "mutatingwebhookconfigurations", false},
		{"ValidatingWebhookConfiguration", "admissionregistration.k8s.io/v1", "validatingwebhookconfigurations", false},
	}
}

func rank(o *unstructured.Unstructured) int {
	return slices.IndexFunc(resources(), func(r resource) bool {
		return r.kind == o.GetKind() && r.version == o.GetAPIVersion()
	})
}

func resourceOf(o *unstructured.Unstructured) (resource, error) {
	i := rank(o)
	if i < 0 || o.GetName() == "" {
		return resource{}, fmt.Errorf("the chart has an object that outrigger install does not know: %s %s %q", o.GetAPIVersion(), o.GetKind(), o.GetName())
	}
	return resources()[i], nil
}
