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

// Writers of one object wait for each other about as long as a write takes.
const (
	initialConflictWait = 2 * time.Millisecond
	longestConflictWait = 100 * time.Millisecond
)

// The functions of this file are the rules that hold for writes to every
// kind of store.

// CheckWrite returns a copy of an object as it may be written to a store, with the
// defaults of its kind, or the reason why not: a kind that the store does not serve, or an object that is
// not valid.
func CheckWrite(verb string, s interface{ Schemas() []schema.Schema }, c *model.Config) (*model.Config, error) {
	if c == nil {
		return nil, fmt.Errorf("%s: %w: there is no object", verb, ErrInvalid)
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

// CheckStatus returns a copy of the status of an object, as it may be written to
// a store, or the reason why not: a kind that the store does not serve, or a
// status that is not of the kind's type. Nil removes a status.
func CheckStatus(verb string, s interface{ Schemas() []schema.Schema }, c *model.Config) (any, error) {
	if c == nil {
		return nil, fmt.Errorf("%s: %w: there is no object", verb, ErrInvalid)
	}
	sch, err := servedSchema(verb, s, c.Key)
	if err != nil {
		return nil, err
	}
	if c.Status == nil {
		return nil, nil
	}
	if empty := sch.NewStatus(); reflect.TypeOf(c.Status) != reflect.TypeOf(empty) {
		text := fmt.Sprintf("is a %T: it has to be a %T", c.Status, empty)
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

// CheckVersion is the rule of optimistic concurrency: an object has to be
// there, and its resource version has to be the one that was read, unless that
// is empty.
func CheckVersion(verb string, key model.Key, stored *model.Config, resourceVersion string) error {
	if err := CompareVersion(stored, resourceVersion); err != nil {
		return keyError(verb, key, err)
	}
	return nil
}

// CompareVersion is [CheckVersion] without the object in its error.
func CompareVersion(stored *model.Config, resourceVersion string) error {
	switch {
	case stored == nil:
		return ErrNotFound
	case resourceVersion != "" && resourceVersion != stored.ResourceVersion:
		return ErrConflict
	}
	return nil
}

// Successor returns the state that follows stored when next is written over it:
// what a writer may not choose stays. It fails with [ErrInvalid] when next
// changes a field that can only be chosen once.
func Successor(stored, next *model.Config) (*model.Config, error) {
	if path, was, is := chosenOnce(stored.Spec, next.Spec); was != is {
		return nil, &InvalidError{Key: next.Key, Faults: []field.Error{{Path: path, Text: fmt.Sprintf(
			"is %s and was %s: it can never change; delete the object and create it anew", field.Quote(is), field.Quote(was))}}}
	}
	out := next.Clone()
	out.UID, out.Created, out.Generation, out.Source = stored.UID, stored.Created, stored.Generation, stored.Source
	out.Status = stored.Status // nobody writes to it
	if !model.SameSpec(stored.Spec, next.Spec) {
		out.Generation++
	}
	return out, nil
}

// chosenOnce returns the field of a kind that never changes, before and after.
// Both API servers and definitions refuse a change of it.
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

// Creation returns the creation time of a new object: that which it has, else now.
// It is to the second, as Kubernetes keeps it, so that the order of objects is
// the same in every kind of store.
func Creation(c *model.Config) time.Time {
	if c.Created.IsZero() {
		return time.Now().UTC().Truncate(time.Second)
	}
	return c.Created.UTC().Truncate(time.Second)
}

// SameContent reports whether two objects say the same: labels, annotations
// and spec.
func SameContent(a, b *model.Config) bool {
	return a.Key == b.Key && maps.Equal(a.Labels, b.Labels) && maps.Equal(a.Annotations, b.Annotations) && model.SameSpec(a.Spec, b.Spec)
}

// PatchByUpdate is Patch for a store whose Get shows its own writes.
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

// RetryConflict calls write until it fails with something else than
// [ErrConflict], or ctx ends: of those who write the same object, one gets
// through each time, so that everybody does in the end.
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
