// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package kube

import (
	"maps"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/outrigger-mesh/outrigger/controlplane/kube"
)

// TestDeploymentApply creates and changes objects. What somebody else created between a read and the
// write stays as it is.
func TestDeploymentApply(t *testing.T) {
	t.Parallel()
	m := newGatewayMesh(t)
	ctx := t.Context()
	client, err := kube.New(kube.Config{Kubeconfig: m.kubeconfig})
	if err != nil {
		t.Fatal(err)
	}
	d, err := kube.NewDeployments(kube.DeploymentsConfig{Client: client, Selector: "a", OnTags: func() {}})
	if err != nil {
		t.Fatal(err)
	}
	account := func(name string, labels map[string]string) *unstructured.Unstructured {
		u := &unstructured.Unstructured{}
		u.SetGroupVersionKind(schema.GroupVersionKind{Version: "v1", Kind: "ServiceAccount"})
		u.SetNamespace("edge")
		u.SetName(name)
		u.SetLabels(labels)
		return u
	}
	accounts := m.Admin().CoreV1().ServiceAccounts("edge")
	before, err := accounts.Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "theirs"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Apply(ctx, account("theirs", map[string]string{"a": "1"})); !apierrors.IsAlreadyExists(err) {
		t.Errorf("an object of somebody else: error %v, want that it exists", err)
	}
	if after, err := accounts.Get(ctx, "theirs", metav1.GetOptions{}); err != nil || after.ResourceVersion != before.ResourceVersion {
		t.Errorf("the object of somebody else was changed: %v, error %v", after, err)
	}

	if _, err := d.Apply(ctx, account("ours", map[string]string{"a": "1", "b": "2"})); err != nil {
		t.Fatal(err)
	}
	now, err := accounts.Get(ctx, "ours", metav1.GetOptions{})
	if err != nil || len(now.ManagedFields) != 1 || now.ManagedFields[0].Operation != metav1.ManagedFieldsOperationApply {
		t.Fatalf("the managed fields are %v, error %v, want those of one apply", now.ManagedFields, err)
	}
	next := account("ours", map[string]string{"b": "3"})
	next.SetResourceVersion(now.ResourceVersion)
	written, err := d.Apply(ctx, next)
	if err != nil {
		t.Fatal(err)
	}
	live, err := d.Get(ctx, next.GroupVersionKind(), "edge", "ours")
	if err != nil || !maps.Equal(live.GetLabels(), map[string]string{"b": "3"}) {
		t.Errorf("the labels are %v, error %v, want b=3 only", live.GetLabels(), err)
	}
	if kube.Fingerprint(written) == "" || written.GetUID() != live.GetUID() {
		t.Errorf("the object that was written is %v, want its metadata and fingerprint", written)
	}
}
