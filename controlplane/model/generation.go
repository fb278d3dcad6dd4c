// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package model

import (
	"encoding/json"
	"hash/fnv"

	"google.golang.org/protobuf/proto"
)

// SpecGeneration returns the generation of an object, and for a store that counts
// none a number made of the spec: two objects with the same number have the same
// spec. It fits into a number of JSON.
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
		return 0 // text that is not UTF-8, which no store gives
	}
	h := fnv.New64a()
	_, _ = h.Write(raw) // a hash takes everything
	return int64(h.Sum64()>>12) | 1
}
