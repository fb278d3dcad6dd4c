// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package credentials

import (
	"encoding/json"
	"fmt"
	"log/slog"
)

// keyDocker is the key of a Secret of the type kubernetes.io/dockerconfigjson.
const keyDocker = ".dockerconfigjson"

// PullSecret is a docker config in JSON, with which images are pulled. Logs and errors never
// contain it.
type PullSecret []byte

// String implements fmt.Stringer.
func (PullSecret) String() string { return "[pull secret]" }

// GoString implements fmt.GoStringer.
func (PullSecret) GoString() string { return "[pull secret]" }

// Format implements fmt.Formatter, because some verbs would print the bytes.
func (p PullSecret) Format(s fmt.State, _ rune) {
	_, _ = s.Write([]byte(p.String())) // the error of a fmt.State is not used
}

// LogValue implements slog.LogValuer.
func (p PullSecret) LogValue() slog.Value { return slog.StringValue(p.String()) }

// MarshalText keeps the secret out of JSON and other text encodings.
func (p PullSecret) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

func (c *Credential) parseDocker(data map[string][]byte) error {
	text := data[keyDocker]
	if len(text) == 0 {
		c.noDocker = c.fault(fmt.Errorf("it contains no %s, but %s", keyDocker, present(data)))
		return nil
	}
	var config struct {
		Auths map[string]json.RawMessage `json:"auths"`
	}
	if json.Unmarshal(text, &config) != nil { // the error may quote a value
		return fmt.Errorf("%s is not the JSON of a docker config: it must be an object with auths", keyDocker)
	}
	if config.Auths == nil {
		return fmt.Errorf("%s has no auths: write the registries there, as docker login does", keyDocker)
	}
	c.Docker = &Docker{JSON: text}
	return nil
}

// Docker contains the docker config with which images are pulled.
type Docker struct{ JSON PullSecret }

// Format implements fmt.Formatter.
func (d Docker) Format(s fmt.State, _ rune) {
	_, _ = s.Write([]byte(d.JSON.String())) // as above
}

// DockerOf returns the docker config that a reference denotes.
func DockerOf(s Source, ref Reference) (*Docker, error) {
	c, err := s.Get(ref.Namespace, ref.Name)
	if err != nil {
		return nil, err
	}
	if c.Docker == nil {
		return nil, c.noDocker
	}
	return c.Docker, nil
}
