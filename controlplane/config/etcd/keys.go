// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package etcd

import (
	"fmt"
	"strings"

	"github.com/outrigger-mesh/outrigger/controlplane/config"
	"github.com/outrigger-mesh/outrigger/controlplane/config/schema"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// noNamespace stands for the namespace of objects that have none. No
// namespace can be called so.
const noNamespace = "-"

// pathOf returns the key in etcd of an object, behind the prefix. It fails for
// what no object can be called.
func pathOf(key model.Key) (string, error) {
	sch, ok := schema.Of(key.Kind)
	if !ok {
		return "", config.ErrNoKind
	}
	namespace := key.Namespace
	if sch.Cluster {
		namespace = noNamespace
	}
	path := strings.Join([]string{sch.Group, sch.Plural, namespace, key.Name}, "/")
	if back, err := keyOf(path); err != nil || back != key {
		return "", config.ErrNotFound
	}
	return path, nil
}

// keyOf returns the object that belongs to a key in etcd, behind the prefix.
func keyOf(path string) (model.Key, error) {
	parts := strings.Split(path, "/")
	if len(parts) != 4 || parts[2] == "" || parts[3] == "" {
		return model.Key{}, fmt.Errorf("the key is not that of an object: the form is group/plural/namespace/name; remove it")
	}
	sch, ok := schema.Named(parts[1] + "." + parts[0])
	switch {
	case !ok || sch.Group != parts[0] || sch.Plural != parts[1]:
		return model.Key{}, errUnknownKind{parts[1] + "." + parts[0]}
	case sch.Cluster != (parts[2] == noNamespace):
		return model.Key{}, fmt.Errorf("the key has the namespace %q: objects of a kind without namespace have %q there, and no others; remove it", parts[2], noNamespace)
	case sch.Cluster:
		return model.Key{Kind: sch.Kind, Name: parts[3]}, nil
	}
	return model.Key{Kind: sch.Kind, Namespace: parts[2], Name: parts[3]}, nil
}

// errUnknownKind is what a newer version left, or nothing of ours.
type errUnknownKind struct{ name string }

func (e errUnknownKind) Error() string {
	return fmt.Sprintf("this version does not know the kind %s: the object is ignored", e.name)
}
