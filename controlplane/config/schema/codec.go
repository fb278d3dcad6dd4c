// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package schema

import (
	"encoding/json"
	"fmt"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// DecodeStatus reads a status that a store or another control plane
// wrote. Fields that are not known here are left out.
func (s Schema) DecodeStatus(raw []byte) (any, error) {
	status := s.NewStatus()
	if status == nil {
		return nil, fmt.Errorf("a %s has no status", s.Name)
	}
	return status, decodeInto(raw, status)
}

// DecodeSpec reads a spec that was checked before, as it comes from a store.
// Fields that are not known here are left out.
func (s Schema) DecodeSpec(raw []byte) (any, error) {
	spec := s.NewSpec()
	return spec, decodeInto(raw, spec)
}

func decodeInto(raw []byte, into any) error {
	if m, ok := into.(proto.Message); ok {
		return protojson.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(raw, m)
	}
	return json.Unmarshal(raw, into)
}
