// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	kubeschema "k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/outrigger-mesh/outrigger/controlplane/config"
	"github.com/outrigger-mesh/outrigger/controlplane/config/codec"
	"github.com/outrigger-mesh/outrigger/controlplane/config/field"
	"github.com/outrigger-mesh/outrigger/controlplane/config/schema"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// strictly is the prefix of the API server's list of unknown fields.
const strictly = "strict decoding error: "

// fieldManager is the name of this program in managedFields.
const fieldManager = "outrigger"

// resource returns the client and the schema for an object. Until the definitions were read, it
// uses the recommended version.
func (s *ConfigStore) resource(verb string, key model.Key) (dynamic.ResourceInterface, schema.Schema, error) {
	k, ok := schema.Of(key.Kind)
	if !ok || !s.Serves(key.Kind) {
		return nil, k, fmt.Errorf("%s %s: %w", verb, key, config.ErrNoKind)
	}
	version := k.Versions[0]
	s.mu.Lock()
	f, listed := s.kinds[key.Kind], s.listed
	s.mu.Unlock()
	switch {
	case f != nil:
		version = f.version
	case listed:
		return nil, k, fmt.Errorf("%s %s: the cluster has no definition %s.%s; install it: %w", verb, key, k.Plural, k.Group, config.ErrNoKind)
	}
	client := s.cfg.Client.objects.Resource(kubeschema.GroupVersionResource{Group: k.Group, Version: version, Resource: k.Plural})
	if k.Cluster {
		return client, k, nil
	}
	return client.Namespace(key.Namespace), k, nil
}

// Create adds an object; see [config.Store].
func (s *ConfigStore) Create(ctx context.Context, c *model.Config) (string, error) {
	if _, err := config.CheckWrite("create", s, c); err != nil {
		return "", err
	}
	client, k, err := s.resource("create", c.Key)
	if err != nil {
		return "", err
	}
	u := &unstructured.Unstructured{Object: map[string]any{}}
	u.SetAPIVersion(k.APIVersion())
	if k.Accepts(c.APIVersion) {
		u.SetAPIVersion(c.APIVersion)
	}
	if version := s.followedVersion(c.Kind); version != "" {
		u.SetAPIVersion(k.Group + "/" + version)
	}
	u.SetKind(k.Name)
	u.SetName(c.Name)
	u.SetNamespace(c.Namespace)
	if err := put(u, c); err != nil {
		return "", fmt.Errorf("create %s: %w", c.Key, err)
	}
	out, err := client.Create(ctx, u, metav1.CreateOptions{FieldManager: fieldManager, FieldValidation: metav1.FieldValidationStrict})
	if err != nil {
		return "", apiFault("create", c.Key, err)
	}
	return out.GetResourceVersion(), nil
}

func (s *ConfigStore) followedVersion(kind model.Kind) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f := s.kinds[kind]; f != nil {
		return f.version
	}
	return ""
}

// Update replaces labels, annotations and spec; see [config.Store].
func (s *ConfigStore) Update(ctx context.Context, c *model.Config) (string, error) {
	if _, err := config.CheckWrite("update", s, c); err != nil {
		return "", err
	}
	// A field that the cluster's definition does not know is an error instead of being dropped
	// silently.
	return s.replace(ctx, "update", c, overwrite{
		validation: metav1.FieldValidationStrict,
		change:     func(u *unstructured.Unstructured) error { return put(u, c) },
	})
}

// UpdateStatus replaces the status; see [config.Store].
func (s *ConfigStore) UpdateStatus(ctx context.Context, c *model.Config) (string, error) {
	raw := []byte("null")
	if c.Status != nil {
		var err error
		if raw, err = codec.EncodeSpec(c.Status); err != nil {
			return "", fmt.Errorf("update the status of %s: %w", c.Key, err)
		}
	}
	var status any
	if err := json.Unmarshal(raw, &status); err != nil {
		return "", fmt.Errorf("update the status of %s: %w", c.Key, err)
	}
	// An older definition may lack fields of the status.
	return s.replace(ctx, "update the status of", c, overwrite{
		validation: metav1.FieldValidationIgnore, subresources: []string{"status"},
		change: func(u *unstructured.Unstructured) error {
			u.Object["status"] = status
			return nil
		},
	})
}

// overwrite is a modification of an existing object.
type overwrite struct {
	change func(*unstructured.Unstructured) error
	// validation is how the API server handles unknown fields.
	validation   string
	subresources []string // empty means the object itself
}

// replace modifies an object of the API server with optimistic concurrency control.
func (s *ConfigStore) replace(ctx context.Context, verb string, c *model.Config, w overwrite) (string, error) {
	client, _, err := s.resource(verb, c.Key)
	if err != nil {
		return "", err
	}
	var version string
	write := func() error {
		u, err := client.Get(ctx, c.Name, metav1.GetOptions{})
		if err != nil {
			return apiFault(verb, c.Key, err)
		}
		if c.ResourceVersion != "" && c.ResourceVersion != u.GetResourceVersion() {
			return fmt.Errorf("%s %s: %w", verb, c.Key, config.ErrConflict)
		}
		// The API server compares the version that was read, so that no concurrent change is lost.
		if err := w.change(u); err != nil {
			return fmt.Errorf("%s %s: %w", verb, c.Key, err)
		}
		out, err := client.Update(ctx, u, metav1.UpdateOptions{FieldManager: fieldManager, FieldValidation: w.validation}, w.subresources...)
		if err != nil {
			return apiFault(verb, c.Key, err)
		}
		version = out.GetResourceVersion()
		return nil
	}
	if c.ResourceVersion != "" {
		err = write()
	} else {
		err = config.RetryConflict(ctx, write)
	}
	return version, err
}

// Patch modifies the latest state of an object; see [config.Store].
func (s *ConfigStore) Patch(ctx context.Context, key model.Key, change func(*model.Config) error) (string, error) {
	client, k, err := s.resource("patch", key)
	if err != nil {
		return "", err
	}
	var version string
	err = config.RetryConflict(ctx, func() error {
		u, err := client.Get(ctx, key.Name, metav1.GetOptions{})
		if err != nil {
			return apiFault("patch", key, err)
		}
		c, err := stored(k, u)
		if err != nil {
			return fmt.Errorf("patch %s: the stored object cannot be read: %w", key, err)
		}
		if err := change(c); err != nil {
			return fmt.Errorf("patch %s: %w", key, err)
		}
		c.Key, c.ResourceVersion = key, u.GetResourceVersion()
		version, err = s.Update(ctx, c)
		return err
	})
	return version, err
}

// Delete removes an object; see [config.Store].
func (s *ConfigStore) Delete(ctx context.Context, key model.Key, resourceVersion string) error {
	client, _, err := s.resource("delete", key)
	if err != nil {
		return err
	}
	var options metav1.DeleteOptions
	if resourceVersion != "" {
		options.Preconditions = &metav1.Preconditions{ResourceVersion: &resourceVersion}
	}
	if err := client.Delete(ctx, key.Name, options); err != nil {
		return apiFault("delete", key, err)
	}
	return nil
}

// apiFault converts an error of the API server to the corresponding error of a store.
func apiFault(verb string, key model.Key, err error) error {
	meaning := func(is error) error { return fmt.Errorf("%s %s: %w", verb, key, is) }
	switch {
	case apierrors.IsNotFound(err):
		// A missing namespace results in the same reason.
		if text := err.Error(); strings.Contains(text, "namespaces ") {
			return fmt.Errorf("%s %s: the namespace does not exist, create it first: %w", verb, key, config.ErrNotFound)
		}
		return meaning(config.ErrNotFound)
	case apierrors.IsAlreadyExists(err):
		return meaning(config.ErrExists)
	case apierrors.IsConflict(err):
		return meaning(config.ErrConflict)
	case apierrors.IsBadRequest(err) && strings.Contains(err.Error(), strictly):
		_, fields, _ := strings.Cut(err.Error(), strictly)
		return fmt.Errorf("%s: %w", verb, &config.InvalidError{Key: key, Faults: []field.Error{{Text: fmt.Sprintf(
			"the cluster's definition does not have all of its fields, and would drop them: %s; install a newer definition, or remove the fields", fields)}}})
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err):
		return fmt.Errorf("%s: %w", verb, &config.InvalidError{Key: key, Faults: causes(err)})
	}
	return fmt.Errorf("%s %s: %w", verb, key, err)
}

// causes returns the fields that the API server rejects.
func causes(err error) []field.Error {
	var list []field.Error
	if status, ok := err.(apierrors.APIStatus); ok && status.Status().Details != nil {
		for _, c := range status.Status().Details.Causes {
			list = append(list, field.Error{Path: c.Field, Text: c.Message})
		}
	}
	if len(list) == 0 {
		list = []field.Error{{Text: err.Error()}}
	}
	return list
}
