// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package kube

import (
	"context"
	"maps"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	kubeschema "k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"

	"github.com/outrigger-mesh/outrigger/controlplane/config/schema"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// injectors is the resource of the webhook configurations whose labels are the tags of revisions.
var injectors = kubeschema.GroupVersionResource{Group: "admissionregistration.k8s.io", Version: "v1", Resource: "mutatingwebhookconfigurations"}

// ours reports whether an object is for this revision. A Gateway of the Gateway API can also name a
// tag of it; the store keeps it in case that a tag changes. The caller holds mu.
func (s *ConfigStore) ours(k schema.Schema, u *unstructured.Unstructured) bool {
	rev := u.GetLabels()[revisionLabel]
	if rev == "" || rev == s.cfg.Revision {
		delete(s.tagged, keyOf(k, u))
		return true
	}
	if k.Kind != model.KubernetesGateway {
		return false
	}
	s.tagged[keyOf(k, u)] = tagged{k, u}
	for _, tag := range s.tags {
		if tag == rev {
			return true
		}
	}
	return false
}

// tagged is an object with the label of another revision, or of a tag.
type tagged struct {
	schema schema.Schema
	object *unstructured.Unstructured
}

// retag replaces the tags, by the webhook configurations that have them, and reads the objects again
// that name one.
func (s *ConfigStore) retag(change func(tags map[string]string)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(s.tags)
	next := map[model.Key]*model.Config{}
	for key, t := range maps.Clone(s.tagged) {
		next[key] = s.read(t.schema, t.object)
	}
	s.Apply(next)
	s.tagsKnown = true
	s.settle()
}

// followTags follows the tags of this revision until ctx is done. Without the right to, there are
// none.
func (s *ConfigStore) followTags(ctx context.Context) {
	said := false // one reflector calls
	resource := selecting{s.cfg.Client.objects.Resource(injectors), revisionLabel + "=" + s.cfg.Revision + "," + tagLabel}
	lw := observed(resource, func(err error) {
		if !apierrors.IsForbidden(err) {
			return
		}
		if !said {
			said = true
			s.log.Info("the tags of this revision cannot be read: Gateways of the Gateway API must name the revision itself", "source", s.cfg.Name, "err", err)
		}
		s.retag(func(map[string]string) {})
	})
	expected := &unstructured.Unstructured{}
	expected.SetAPIVersion(injectors.GroupVersion().String())
	expected.SetKind("MutatingWebhookConfiguration")
	cache.NewReflectorWithOptions(lw, expected, tagSink{s}, cache.ReflectorOptions{Name: injectors.Resource}).RunWithContext(ctx)
}

// selecting lists and watches objects with labels.
type selecting struct {
	listerWatcher
	labels string
}

// List implements listerWatcher.
func (s selecting) List(ctx context.Context, o metav1.ListOptions) (*unstructured.UnstructuredList, error) {
	o.LabelSelector = s.labels
	return s.listerWatcher.List(ctx, o)
}

// Watch implements listerWatcher.
func (s selecting) Watch(ctx context.Context, o metav1.ListOptions) (watchInterface, error) {
	o.LabelSelector = s.labels
	return s.listerWatcher.Watch(ctx, o)
}

// tagSink receives the webhook configurations with tags.
type tagSink struct{ store *ConfigStore }

func (t tagSink) Add(o any) error { return t.Update(o) }
func (t tagSink) Resync() error   { return nil }
func (t tagSink) Update(o any) error {
	t.store.retag(func(tags map[string]string) { putTag(tags, o) })
	return nil
}

func (t tagSink) Delete(o any) error {
	if unknown, ok := o.(cache.DeletedFinalStateUnknown); ok {
		o = unknown.Obj
	}
	call(func(u *unstructured.Unstructured) {
		t.store.retag(func(tags map[string]string) { delete(tags, u.GetName()) })
	}, o)
	return nil
}

// Replace processes a complete list.
func (t tagSink) Replace(list []any, _ string) error {
	t.store.retag(func(tags map[string]string) {
		clear(tags)
		for _, o := range list {
			putTag(tags, o)
		}
	})
	return nil
}

func putTag(tags map[string]string, o any) {
	call(func(u *unstructured.Unstructured) { tags[u.GetName()] = u.GetLabels()[tagLabel] }, o)
}
