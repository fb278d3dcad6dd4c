// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package patch

import (
	"encoding/json"
	"errors"
	"fmt"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

// maxBootstrap is the size of the JSON of the patches of a bootstrap, which becomes an argument of
// Envoy, in bytes.
const maxBootstrap = 120 << 10

// Bootstrap returns the patches of bootstraps as one, in JSON. The agent makes Envoy merge it over the
// bootstrap of the proxy, which the control plane does not know.
func (p Patches) Bootstrap(empty *structpb.Struct) Outcome[*structpb.Struct] {
	return apply(empty, Place{}, p, BootstrapKinds, func(r *run, s *structpb.Struct) bool {
		b := &bootstrapv3.Bootstrap{}
		for _, one := range r.of(bootstrap) {
			proto.Merge(b, one.value)
			r.hit(one)
		}
		text, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(b)
		if err == nil {
			err = protojson.Unmarshal(text, s)
		}
		if err != nil {
			s.Fields = nil // impossible: it was read from JSON
		}
		return true
	}, func(s *structpb.Struct) error {
		text, err := json.Marshal(s.AsMap())
		switch {
		case err != nil:
			return err
		case s.Fields == nil:
			return errors.New("it has no fields, or they cannot be written as JSON: correct the value")
		case len(text) > maxBootstrap:
			return fmt.Errorf("the patches of a bootstrap have %d bytes as JSON: at most %d are allowed", len(text), maxBootstrap)
		}
		return nil
	})
}
