// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package revisions

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/outrigger-mesh/outrigger/controlplane/config/codec"
	"github.com/outrigger-mesh/outrigger/controlplane/config/schema"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/report"
)

// Source has the objects of which a log keeps the versions. It must be safe for concurrent use.
type Source interface {
	// Key returns the key of the object whose version a change affects; ok is false if the log keeps
	// no versions of it.
	Key(changed model.Key) (key model.Key, ok bool)
	// Keys returns the keys of all objects.
	Keys() []model.Key
	// Get returns the object of a key, or nil if it does not exist.
	Get(key model.Key) *Present
}

// Present is an object as it is now.
type Present struct {
	// Object is a pointer. The same pointer means that nothing has changed.
	Object    any
	Source    string
	Created   time.Time
	Endpoints *int
	// Always is true for what exists at all times: it was not created when a log sees it first.
	Always bool
	// Encode returns what a version contains, in one line.
	Encode func() ([]byte, error)
}

// is reports whether two objects are the same. Both may be nil.
func (p *Present) is(o *Present) bool {
	return p == o || p != nil && o != nil && p.Object == o.Object
}

// encode returns the content of an object and its revision.
func (p *Present) encode() (text []byte, revision string, err error) {
	if text, err = p.Encode(); err != nil {
		return nil, "", err
	}
	if len(text) > maxObject {
		return nil, "", fmt.Errorf("it has %d bytes, more than %d", len(text), maxObject)
	}
	return text, revisionOf(text), nil
}

func revisionOf(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8])
}

// registered is the annotation of WorkloadEntries that a control plane wrote for a machine.
const registered = "istio.io/autoRegistrationGroup"

// Store is a store of configuration objects.
type Store interface {
	Schemas() []schema.Schema
	Get(key model.Key) *model.Config
	List(kind model.Kind, namespace string) []*model.Config
}

// Objects returns the objects of a store as a source, without those of machines that come and go:
// they must not displace what users write.
func Objects(store Store) Source { return objects{store} }

type objects struct{ store Store }

// Key implements [Source].
func (o objects) Key(changed model.Key) (model.Key, bool) {
	_, ok := schema.Of(changed.Kind)
	return changed, ok
}

// Keys implements [Source].
func (o objects) Keys() (keys []model.Key) {
	for _, s := range o.store.Schemas() {
		for _, c := range o.store.List(s.Kind, "") {
			keys = append(keys, c.Key)
		}
	}
	return keys
}

// Get implements [Source].
func (o objects) Get(key model.Key) *Present {
	c := o.store.Get(key)
	if c == nil || c.Annotations[registered] != "" {
		return nil
	}
	return &Present{Object: c, Source: c.Source, Created: c.Created, Encode: func() ([]byte, error) {
		return codec.EncodeJSON(&model.Config{Key: c.Key, APIVersion: c.APIVersion, Labels: c.Labels, Annotations: c.Annotations, Spec: c.Spec})
	}}
}

// Object returns the object of a version.
func Object(v report.Version) (*model.Config, error) {
	c, err := codec.DecodeStored(v.Object)
	if err != nil {
		return nil, fmt.Errorf("read version %s of %s: %w", v.Revision, keyOf(v.Ref), err)
	}
	c.Created, c.Source = v.Created, v.Source
	return c, nil
}
