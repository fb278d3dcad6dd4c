// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package model

import (
	"encoding/json"
	"hash/fnv"

	"google.golang.org/protobuf/proto"
)

// SpecGeneration returns the generation of an object. For a store without generations it
// returns a hash of the spec: objects with the same number have the same spec. The
// number can be represented in JSON.
func (c *Config) SpecGeneration() int64 {
	if c.Generation != 0 || c.Spec == nil {
		return c.Generation
	}
	var raw []byte
	var err error
	if message, ok := c.Spec.(proto.Message); ok {
		raw, err = proto.MarshalOptions{Deterministic: true}.Marshal(message)
	} else {
		raw, err = json.Marshal(c.Spec)
	}
	if err != nil {
		return 0 // text that is not UTF-8, which no store returns
	}
	h := fnv.New64a()
	_, _ = h.Write(raw) // never fails
	return int64(h.Sum64()>>12) | 1
}
