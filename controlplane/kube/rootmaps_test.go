// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package kube

import (
	"context"
	"log/slog"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	ktesting "k8s.io/client-go/testing"
)

// TestRootMaps checks that ConfigMaps are read only while they are named, and that one that is
// missing or forbidden says so.
func TestRootMaps(t *testing.T) {
	t.Parallel()
	there := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "there", Namespace: "ns"}, Data: map[string]string{"ca.crt": "rubbish"}}
	api, server := newFake(t, there)
	server.PrependReactor("list", "configmaps", func(action ktesting.Action) (bool, runtime.Object, error) {
		if action.GetNamespace() == "closed" {
			return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "configmaps"}, "", nil)
		}
		if l, ok := action.(ktesting.ListAction); !ok || !strings.HasPrefix(l.GetListRestrictions().Fields.String(), "metadata.name=") {
			t.Errorf("all ConfigMaps are listed: %v", action)
		}
		return false, nil, nil
	})
	r, err := NewRootMaps(newClient(Config{}, api, api), slog.New(slog.NewTextHandler(t.Output(), nil)), nil)
	if err != nil {
		t.Fatal(err)
	}
	r.most = 3
	told := make(chan struct{}, 100)
	r.OnChange(func(string, string) { told <- struct{}{} })
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	says := func(namespace, name, want string) {
		t.Helper()
		for {
			if _, err := r.Get(namespace, name); err != nil && strings.Contains(err.Error(), want) {
				return
			}
			<-told
		}
	}
	names := []types.NamespacedName{{Namespace: "ns", Name: "there"}, {Namespace: "empty", Name: "gone"}, {Namespace: "closed", Name: "it"}}
	r.Follow(names)
	says("ns", "there", "ca.crt: ")
	says("empty", "gone", "there is no ConfigMap empty/gone")
	says("closed", "it", "grant the service account")
	r.Follow(names[1:])
	says("ns", "there", "still being read")
	r.Follow(append([]types.NamespacedName{{Namespace: "a", Name: "first"}, {Namespace: "a", Name: "second"}}, names[1:]...))
	says("a", "first", "there is no ConfigMap a/first")
	says("a", "second", "more than 3 ConfigMaps")
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
