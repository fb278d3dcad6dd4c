// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package config

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"time"

	"github.com/cenkalti/backoff/v4"
	kubenetworkingv1 "k8s.io/api/networking/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/outrigger-mesh/outrigger/controlplane/config/field"
	"github.com/outrigger-mesh/outrigger/controlplane/config/schema"
	"github.com/outrigger-mesh/outrigger/controlplane/config/validate"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// The delays of retries after a conflict are about as long as a write takes.
const (
	initialConflictWait = 2 * time.Millisecond
	longestConflictWait = 100 * time.Millisecond
)

// The functions of this file are the rules for writes to every kind of store.

// CheckWrite returns a copy of an object with the defaults of its kind. It returns an
// error if the store does not serve the kind or the object is invalid.
func CheckWrite(verb string, s interface{ Schemas() []schema.Schema }, c *model.Config) (*model.Config, error) {
	if c == nil {
		return nil, fmt.Errorf("%s: %w: the object is nil", verb, ErrInvalid)
	}
	if _, err := servedSchema(verb, s, c.Key); err != nil {
		return nil, err
	}
	if errs, _ := validate.Object(c); len(errs) > 0 {
		return nil, fmt.Errorf("%s: %w", verb, &InvalidError{Key: c.Key, Faults: errs})
	}
	c = c.Clone()
	validate.ApplyDefaults(c.Spec)
	return c, nil
}

// CheckStatus returns a copy of the status of an object. It returns an error if the store
// does not serve the kind or the status does not have the kind's type. Nil removes a
// status.
func CheckStatus(verb string, s interface{ Schemas() []schema.Schema }, c *model.Config) (any, error) {
	if c == nil {
		return nil, fmt.Errorf("%s: %w: the object is nil", verb, ErrInvalid)
	}
	sch, err := servedSchema(verb, s, c.Key)
	if err != nil {
		return nil, err
	}
	if c.Status == nil {
		return nil, nil
	}
	if empty := sch.NewStatus(); reflect.TypeOf(c.Status) != reflect.TypeOf(empty) {
		text := fmt.Sprintf("is a %T: it must be a %T", c.Status, empty)
		if empty == nil {
			text = "is there: a " + sch.Name + " has none"
		}
		return nil, fmt.Errorf("%s: %w", verb, &InvalidError{Key: c.Key, Faults: []field.Error{{Path: "status", Text: text}}})
	}
	return model.CloneSpec(c.Status), nil
}

func servedSchema(verb string, s interface{ Schemas() []schema.Schema }, key model.Key) (schema.Schema, error) {
	for _, sch := range s.Schemas() {
		if sch.Kind == key.Kind {
			return sch, nil
		}
	}
	return schema.Schema{}, keyError(verb, key, ErrNoKind)
}

// CheckVersion implements optimistic concurrency: it returns an error if the object does
// not exist, or if resourceVersion is neither empty nor that of the stored object.
func CheckVersion(verb string, key model.Key, stored *model.Config, resourceVersion string) error {
	if err := CompareVersion(stored, resourceVersion); err != nil {
		return keyError(verb, key, err)
	}
	return nil
}

// CompareVersion is like [CheckVersion], but its error does not name the object.
func CompareVersion(stored *model.Config, resourceVersion string) error {
	switch {
	case stored == nil:
		return ErrNotFound
	case resourceVersion != "" && resourceVersion != stored.ResourceVersion:
		return ErrConflict
	}
	return nil
}

// Successor returns the state after next is written over stored: fields that a writer
// cannot set are kept. It fails with [ErrInvalid] if next changes an immutable field.
func Successor(stored, next *model.Config) (*model.Config, error) {
	if path, was, is := chosenOnce(stored.Spec, next.Spec); was != is {
		return nil, &InvalidError{Key: next.Key, Faults: []field.Error{{Path: path, Text: fmt.Sprintf(
			"is %s and was %s: it is immutable; delete the object and create a new one", field.Quote(is), field.Quote(was))}}}
	}
	out := next.Clone()
	out.UID, out.Created, out.Generation, out.Source = stored.UID, stored.Created, stored.Generation, stored.Source
	out.Status = stored.Status // shared, and never modified
	if !model.SameSpec(stored.Spec, next.Spec) {
		out.Generation++
	}
	return out, nil
}

// chosenOnce returns the immutable field of a kind, with its values before and after.
// API servers and resource definitions refuse to change it, too.
func chosenOnce(stored, next any) (path, was, is string) {
	switch next := next.(type) {
	case *gatewayv1.GatewayClassSpec:
		if stored, ok := stored.(*gatewayv1.GatewayClassSpec); ok {
			return "spec.controllerName", string(stored.ControllerName), string(next.ControllerName)
		}
	case *kubenetworkingv1.IngressClassSpec:
		if stored, ok := stored.(*kubenetworkingv1.IngressClassSpec); ok {
			return "spec.controller", stored.Controller, next.Controller
		}
	}
	return "", "", ""
}

// Creation returns the creation time of a new object: its own if it has one, else now.
// Like that of Kubernetes it is truncated to seconds, so that the order of objects is the
// same in every kind of store.
func Creation(c *model.Config) time.Time {
	if c.Created.IsZero() {
		return time.Now().UTC().Truncate(time.Second)
	}
	return c.Created.UTC().Truncate(time.Second)
}

// SameContent reports whether labels, annotations and specs of two objects are equal.
func SameContent(a, b *model.Config) bool {
	return a.Key == b.Key && maps.Equal(a.Labels, b.Labels) && maps.Equal(a.Annotations, b.Annotations) && model.SameSpec(a.Spec, b.Spec)
}

// PatchByUpdate implements Patch for a store whose Get returns its own writes.
func PatchByUpdate(ctx context.Context, s ReadWriter, key model.Key, change func(*model.Config) error) (string, error) {
	var version string
	err := RetryConflict(ctx, func() error {
		old := s.Get(key)
		if old == nil {
			return keyError("patch", key, ErrNotFound)
		}
		next := old.Clone()
		err := change(next)
		if err != nil {
			return keyError("patch", key, err)
		}
		next.Key, next.ResourceVersion = key, old.ResourceVersion
		version, err = s.Update(ctx, next)
		return err
	})
	return version, err
}

// RetryConflict calls write until it succeeds, fails with an error other than
// [ErrConflict], or ctx ends. One of several concurrent writers succeeds each time, so
// all succeed eventually.
func RetryConflict(ctx context.Context, write func() error) error {
	b := backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(initialConflictWait), backoff.WithMaxInterval(longestConflictWait), backoff.WithMaxElapsedTime(0))
	return backoff.Retry(func() error {
		err := write()
		if err != nil && !errors.Is(err, ErrConflict) {
			return backoff.Permanent(err)
		}
		return err
	}, backoff.WithContext(b, ctx))
}
