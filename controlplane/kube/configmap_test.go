// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package kube

import (
	"context"
	"fmt"
	"log/slog"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	ktesting "k8s.io/client-go/testing"
)

func configMap(name, text string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "mesh"}, Data: map[string]string{"mesh": text}}
}

// TestConfigMaps checks that each initial state, change, creation and deletion is reported once,
// and that other ConfigMaps of the namespace are ignored.
func TestConfigMaps(t *testing.T) {
	t.Parallel()
	api, server := newFake(t, configMap("own", "a"), configMap("other", "x"))
	told := make(chan struct{}, 100)
	c, err := NewConfigMaps(ConfigMapsConfig{
		Client: newClient(Config{}, api, api), Namespace: "mesh", Names: []string{"own", "shared"},
		OnChange: func() { told <- struct{}{} }, Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Read(t.Context()); err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(c.Get("own"), c.Get("shared"), c.Get("other")) != "map[mesh:a] map[] map[]" || c.Get("shared") != nil {
		t.Fatalf("Get() = %v and %v, want only own", c.Get("own"), c.Get("shared"))
	}
	watching := make(chan struct{}, 2)
	server.PrependWatchReactor("configmaps", func(action ktesting.Action) (bool, watch.Interface, error) {
		w, err := server.tracker.Watch(action.GetResource(), action.GetNamespace())
		watching <- struct{}{}
		return true, w, err
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	maps := api.configMaps("mesh")
	for range 2 { // the fake server has no history, so events before a watch are lost
		<-watching
	}
	for _, step := range []struct {
		do   func() error
		name string
		want string
	}{
		{func() error { _, err := maps.Update(ctx, configMap("own", "b"), metav1.UpdateOptions{}); return err }, "own", "map[mesh:b]"},
		{func() error { _, err := maps.Create(ctx, configMap("shared", "s"), metav1.CreateOptions{}); return err }, "shared", "map[mesh:s]"},
		{func() error { return maps.Delete(ctx, "own", metav1.DeleteOptions{}) }, "own", "map[]"},
	} {
		if err := step.do(); err != nil {
			t.Fatal(err)
		}
		for fmt.Sprint(c.Get(step.name)) != step.want {
			<-told
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestConfigMapFaults checks that a ConfigMap without read permission counts as missing, and that
// Read waits while the API server does not respond.
func TestConfigMapFaults(t *testing.T) {
	t.Parallel()
	api, server := newFake(t, configMap("own", "a"))
	resource := schema.GroupResource{Resource: "configmaps"}
	faults := []error{apierrors.NewServerTimeout(resource, "get", 1), apierrors.NewForbidden(resource, "own", nil)}
	server.PrependReactor("get", "configmaps", func(ktesting.Action) (bool, runtime.Object, error) {
		err := faults[0]
		faults = faults[1:]
		return true, nil, err
	})
	c, err := NewConfigMaps(ConfigMapsConfig{
		Client: newClient(Config{}, api, api), Namespace: "mesh", Names: []string{"own"}, OnChange: func() {}, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Read(t.Context()); err != nil || c.Get("own") != nil || len(faults) != 0 {
		t.Errorf("read %v, error %v with %d faults left; want none", c.Get("own"), err, len(faults))
	}
	faults = []error{apierrors.NewServerTimeout(resource, "get", 1)}
	ctx, cancel := context.WithCancel(t.Context())
	server.PrependReactor("get", "configmaps", func(ktesting.Action) (bool, runtime.Object, error) {
		cancel()
		return false, nil, nil
	})
	if err := c.Read(ctx); err == nil {
		t.Error("Read returned no error with an API server that does not respond")
	}
}
