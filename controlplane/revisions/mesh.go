// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package revisions

import (
	"bytes"
	"encoding/json"
	"fmt"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/report"
	"github.com/outrigger-mesh/outrigger/internal/redact"
)

// MeshKey and NetworksKey are the keys of the mesh config and of the networks in a log.
var (
	MeshKey     = model.Key{Kind: model.MeshConfigKind, Name: report.MeshName}
	NetworksKey = model.Key{Kind: model.MeshConfigKind, Name: report.NetworksName}
)

// MeshSettings are the settings in force for all of a mesh, and where each is written.
type MeshSettings struct {
	Mesh                       *meshv1alpha1.MeshConfig
	Networks                   *meshv1alpha1.MeshNetworks // nil if there are none
	MeshSource, NetworksSource string
}

// WithMesh adds the mesh config and the networks to a source. They change only with all objects.
func WithMesh(of Source, current func() MeshSettings) Source { return withMesh{of, current} }

type withMesh struct {
	Source
	current func() MeshSettings
}

// Keys implements [Source].
func (m withMesh) Keys() []model.Key { return append(m.Source.Keys(), MeshKey, NetworksKey) }

// Get implements [Source].
func (m withMesh) Get(key model.Key) *Present {
	switch now := m.current(); {
	case key == MeshKey:
		return &Present{Object: now.Mesh, Source: now.MeshSource, Always: true, Encode: func() ([]byte, error) { return encodeMesh(now.Mesh) }}
	case key != NetworksKey:
		return m.Source.Get(key)
	case now.Networks == nil:
		return nil
	default:
		return &Present{Object: now.Networks, Source: now.NetworksSource, Encode: func() ([]byte, error) { return encodeMesh(now.Networks) }}
	}
}

// encodeMesh returns settings as JSON, without secrets.
func encodeMesh(settings proto.Message) ([]byte, error) {
	text, err := protojson.Marshal(settings)
	if err != nil {
		return nil, err
	}
	var value any
	in := json.NewDecoder(bytes.NewReader(text))
	in.UseNumber()
	if err := in.Decode(&value); err != nil {
		return nil, err
	}
	return json.Marshal(redact.JSON(value)) // sorted, so that equal settings have the same revision
}

// Mesh returns the mesh config of a version of [MeshKey]. Secrets in it are replaced.
func Mesh(v report.Version) (*meshv1alpha1.MeshConfig, error) {
	return decodeMesh(v, &meshv1alpha1.MeshConfig{})
}

// Networks returns the networks of a version of [NetworksKey].
func Networks(v report.Version) (*meshv1alpha1.MeshNetworks, error) {
	return decodeMesh(v, &meshv1alpha1.MeshNetworks{})
}

func decodeMesh[T proto.Message](v report.Version, into T) (T, error) {
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(v.Object, into); err != nil {
		return into, fmt.Errorf("read version %s of the mesh config: %w", v.Revision, err)
	}
	return into, nil
}
