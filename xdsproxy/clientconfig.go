// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package xdsproxy

import (
	"encoding/json"
	"errors"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/outrigger-mesh/outrigger/xdsproxy/wire"
)

// clientConfigType is the type of a control plane's report about the proxies that it
// serves. It is the only message of Envoy that is shown to users, so it is decoded field
// by field, without Envoy's types.
const clientConfigType = "type.googleapis.com/envoy.service.status.v3.ClientConfig"

// clientConfig contains the fields of that message that control planes set, with the
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

// statusNames are the values of ConfigStatus; the first is omitted in JSON.
var statusNames = [...]string{"", "SYNCED", "NOT_SENT", "STALE", "ERROR"}

var errNoClientConfig = errors.New("the bytes are not a ClientConfig")

// readClientConfig decodes a ClientConfig.
func readClientConfig(b []byte) (clientConfig, error) {
	c := clientConfig{Type: clientConfigType}
	err := wire.EachBytes(b, errNoClientConfig, func(n protowire.Number, v []byte) error {
		switch n {
		case configNode:
			return wire.EachBytes(v, errNoClientConfig, c.setNode)
		case configGeneric:
			c.Configs = append(c.Configs, genericConfig{})
			return wire.Each(v, errNoClientConfig, c.Configs[len(c.Configs)-1].set)
		}
		return nil
	})
	return c, err
}

func (c *clientConfig) setNode(n protowire.Number, v []byte) (err error) {
	switch n {
	case nodeID:
		c.Node.ID = string(v)
	case nodeMetadata:
		var s structpb.Struct
		if err := proto.Unmarshal(v, &s); err != nil {
			return err
		}
		c.Node.Metadata, err = s.MarshalJSON()
	}
	return err
}

func (g *genericConfig) set(f wire.Field) error {
	switch f.Number {
	case genericTypeURL:
		g.TypeURL = string(f.Data)
	case genericName:
		g.Name = string(f.Data)
	case genericVersion:
		g.Version = string(f.Data)
	case genericStatus:
		if f.Bits < uint64(len(statusNames)) {
			g.Status = statusNames[f.Bits]
		}
	}
	return nil
}
