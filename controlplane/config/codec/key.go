// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package codec

import (
	"github.com/outrigger-mesh/outrigger/controlplane/config/schema"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"go.yaml.in/yaml/v3"
)

// KeyOf returns the key of an object, or an empty key if it has none.
func KeyOf(n *yaml.Node) model.Key {
	if n.Kind != yaml.MappingNode {
		return model.Key{}
	}
	b := &builder{}
	h := b.head(n)
	sch, ok := schema.For(h.apiVersion, h.kind)
	if !ok {
		return model.Key{}
	}
	m := b.metadata(h.metadata, n, sch.Cluster, schema.DefaultNamespace)
	if m.name == "" {
		return model.Key{}
	}
	return model.Key{Kind: sch.Kind, Namespace: m.namespace, Name: m.name}
}
