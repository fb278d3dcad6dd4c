// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package kube

import (
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// TestFingerprint checks that the fingerprint changes with each field that others can write, so
// that the controller of Gateways restores its own values.
func TestFingerprint(t *testing.T) {
	t.Parallel()
	of := func(change func(o map[string]any)) string {
		o := map[string]any{
			"apiVersion": "v1", "kind": "ServiceAccount", "metadata": map[string]any{"name": "gateway", "uid": "1", "resourceVersion": "1"},
			"imagePullSecrets": []any{map[string]any{"name": "registry"}},
		}
		change(o)
		out, err := stripped(&unstructured.Unstructured{Object: o})
		if err != nil {
			t.Fatal(err)
		}
		return Fingerprint(out)
	}
	before := of(func(map[string]any) {})
	for name, change := range map[string]func(o map[string]any){
		"spec":                         func(o map[string]any) { o["spec"] = map[string]any{"replicas": int64(2)} },
		"imagePullSecrets":             func(o map[string]any) { delete(o, "imagePullSecrets") },
		"automountServiceAccountToken": func(o map[string]any) { o["automountServiceAccountToken"] = true },
		"labels":                       func(o map[string]any) { o["metadata"].(map[string]any)["labels"] = map[string]any{"a": "b"} },
	} {
		if of(change) == before {
			t.Errorf("a change of %s does not change the fingerprint", name)
		}
	}
	if of(func(o map[string]any) {
		o["status"] = map[string]any{"replicas": int64(2)}
		o["metadata"].(map[string]any)["resourceVersion"] = "2"
	}) != before {
		t.Error("a change of the status changes the fingerprint")
	}
}
