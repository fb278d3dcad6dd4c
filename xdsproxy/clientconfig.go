// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package xdsproxy

import (
	"encoding/json"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

// clientConfigType is what a control plane tells of the proxies that it
// serves. It is the one message of Envoy's that users get to see here, so it
// is read field by field rather than with the types of all of Envoy.
const clientConfigType = "type.googleapis.com/envoy.service.status.v3.ClientConfig"

// clientConfig is that message, as far as control planes fill it in, with the
// names of protobuf's JSON.
type clientConfig struct {
	Type string `json:"@type"`
	Node struct {
		ID       string          `json:"id,omitempty"`
		Metadata json.RawMessage `json:"metadata,omitempty"`
	} `json:"node"`
	Configs []genericConfig `json:"genericXdsConfigs,omitempty"`
}

type genericConfig struct {
	TypeURL string `json:"typeUrl,omitempty"`
	Name    string `json:"name,omitempty"`
	Version string `json:"versionInfo,omitempty"`
	Status  string `json:"configStatus,omitempty"`
}

// The fields of ClientConfig, of its node, and of GenericXdsConfig.
const (
	configNode    protowire.Number = 1
	configGeneric protowire.Number = 3

	nodeID       protowire.Number = 1
	nodeMetadata protowire.Number = 3

	genericTypeURL protowire.Number = 1
	genericName    protowire.Number = 2
	genericVersion protowire.Number = 3
	genericStatus  protowire.Number = 6
)

// statusNames are the values of ConfigStatus; the first is not written.
var statusNames = [...]string{"", "SYNCED", "NOT_SENT", "STALE", "ERROR"}

// readClientConfig reports false if the bytes are no such message.
func readClientConfig(b []byte) (c clientConfig, ok bool) {
	c.Type = clientConfigType
	ok = eachValue(b, func(n protowire.Number, v []byte, _ uint64) bool {
		switch n {
		case configNode:
			return eachValue(v, func(n protowire.Number, v []byte, _ uint64) bool {
				switch n {
				case nodeID:
					c.Node.ID = string(v)
				case nodeMetadata:
					var s structpb.Struct
					if proto.Unmarshal(v, &s) != nil {
						return false
					}
					text, err := s.MarshalJSON()
					c.Node.Metadata = text
					return err == nil
				}
				return true
			})
		case configGeneric:
			c.Configs = append(c.Configs, genericConfig{})
			return eachValue(v, c.Configs[len(c.Configs)-1].set)
		}
		return true
	})
	return c, ok
}

func (g *genericConfig) set(n protowire.Number, v []byte, bits uint64) bool {
	switch n {
	case genericTypeURL:
		g.TypeURL = string(v)
	case genericName:
		g.Name = string(v)
	case genericVersion:
		g.Version = string(v)
	case genericStatus:
		if bits < uint64(len(statusNames)) {
			g.Status = statusNames[bits]
		}
	}
	return true
}

// eachValue calls fn for every field, with the bytes of one that has a length,
// or the number of a varint. It reports false if the bytes are no message, or
// fn said so.
func eachValue(b []byte, fn func(n protowire.Number, v []byte, bits uint64) bool) bool {
	for len(b) > 0 {
		n, kind, size := protowire.ConsumeTag(b)
		if size < 0 {
			return false
		}
		b = b[size:]
		var v []byte
		var bits uint64
		switch kind {
		case protowire.BytesType:
			v, size = protowire.ConsumeBytes(b)
		case protowire.VarintType:
			bits, size = protowire.ConsumeVarint(b)
		default:
			size = protowire.ConsumeFieldValue(n, kind, b)
		}
		if size < 0 || !fn(n, v, bits) {
			return false
		}
		b = b[size:]
	}
	return true
}
