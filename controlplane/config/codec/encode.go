// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package codec

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/outrigger-mesh/outrigger/controlplane/config/schema"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// errNoKind means that no kind of the schema is meant.
var errNoKind = errors.New("the kind is not known")

// document is an object as a file has it.
type document struct {
	APIVersion string          `json:"apiVersion"`
	Kind       string          `json:"kind"`
	Metadata   documentMeta    `json:"metadata"`
	Spec       json.RawMessage `json:"spec"`
	Status     json.RawMessage `json:"status,omitempty"`
}

type documentMeta struct {
	Name              string            `json:"name"`
	Namespace         string            `json:"namespace,omitempty"`
	Labels            map[string]string `json:"labels,omitempty"`
	Annotations       map[string]string `json:"annotations,omitempty"`
	UID               string            `json:"uid,omitempty"`
	ResourceVersion   string            `json:"resourceVersion,omitempty"`
	Generation        int64             `json:"generation,omitempty"`
	CreationTimestamp *time.Time        `json:"creationTimestamp,omitempty"`
}

// EncodeJSON returns an object in one line of JSON, in the form in which
// Kubernetes writes it, with all that the store knows of it.
func EncodeJSON(c *model.Config) ([]byte, error) {
	sch, ok := schema.Of(c.Kind)
	if !ok {
		return nil, fmt.Errorf("encode %s: %w", c.Key, errNoKind)
	}
	doc := document{
		APIVersion: sch.APIVersion(), Kind: sch.Name,
		Metadata: documentMeta{
			Name: c.Name, Namespace: c.Namespace, Labels: c.Labels, Annotations: c.Annotations,
			UID: c.UID, ResourceVersion: c.ResourceVersion, Generation: c.Generation,
		},
	}
	if sch.Accepts(c.APIVersion) {
		doc.APIVersion = c.APIVersion
	}
	if !c.Created.IsZero() {
		created := c.Created.UTC()
		doc.Metadata.CreationTimestamp = &created
	}
	var err error
	if doc.Spec, err = EncodeSpec(c.Spec); err != nil {
		return nil, fmt.Errorf("encode %s: %w", c.Key, err)
	}
	if c.Status != nil {
		if doc.Status, err = EncodeSpec(c.Status); err != nil {
			return nil, fmt.Errorf("encode the status of %s: %w", c.Key, err)
		}
	}
	return json.Marshal(doc)
}

// EncodeYAML returns an object as YAML, in the form in which users write it.
func EncodeYAML(c *model.Config) ([]byte, error) {
	raw, err := EncodeJSON(c)
	if err != nil {
		return nil, err
	}
	n := jsonNode(raw)
	if n == nil {
		return nil, fmt.Errorf("encode %s: %w", c.Key, errNotJSON)
	}
	out, err := yamlText(n)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", c.Key, err)
	}
	return out, nil
}

// EncodeSpec returns a spec or a status as JSON.
func EncodeSpec(spec any) ([]byte, error) {
	m, ok := spec.(proto.Message)
	if !ok {
		return json.Marshal(spec)
	}
	raw, err := protojson.Marshal(m)
	if err != nil {
		return nil, err
	}
	return wholeNumbers(m.ProtoReflect(), raw)
}

// DecodeStored reads one object that [EncodeJSON] wrote. It is not checked
// again, so that a newer version's rules never hide what is stored.
func DecodeStored(raw []byte) (*model.Config, error) {
	var doc document
	if err := json.Unmarshal(raw, &doc); err != nil {
		return nil, fmt.Errorf("read a stored object: %w", err)
	}
	sch, ok := schema.For(doc.APIVersion, doc.Kind)
	if !ok || !sch.Accepts(doc.APIVersion) {
		return nil, fmt.Errorf("read a stored object: %s %s: %w", doc.APIVersion, doc.Kind, errNoKind)
	}
	c := &model.Config{
		Key:        model.Key{Kind: sch.Kind, Namespace: doc.Metadata.Namespace, Name: doc.Metadata.Name},
		APIVersion: doc.APIVersion, Labels: doc.Metadata.Labels, Annotations: doc.Metadata.Annotations,
		UID: doc.Metadata.UID, ResourceVersion: doc.Metadata.ResourceVersion, Generation: doc.Metadata.Generation,
	}
	if doc.Metadata.CreationTimestamp != nil {
		c.Created = doc.Metadata.CreationTimestamp.UTC().Truncate(time.Second)
	}
	var err error
	if c.Spec, err = sch.DecodeSpec(doc.Spec); err != nil {
		return nil, fmt.Errorf("read the stored spec of %s: %w", c.Key, err)
	}
	if len(doc.Status) > 0 {
		if c.Status, err = sch.DecodeStatus(doc.Status); err != nil {
			return nil, fmt.Errorf("read the stored status of %s: %w", c.Key, err)
		}
	}
	return c, nil
}
