// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Bool is a boolean that is encoded in JSON as the string "true" or "false".
type Bool bool

// MarshalJSON implements json.Marshaler.
func (b Bool) MarshalJSON() ([]byte, error) {
	return strconv.AppendQuote(nil, strconv.FormatBool(bool(b))), nil
}

// UnmarshalJSON implements json.Unmarshaler. It also accepts a JSON boolean.
func (b *Bool) UnmarshalJSON(data []byte) error {
	s := string(data)
	if strings.HasPrefix(s, `"`) {
		if err := json.Unmarshal(data, &s); err != nil {
			return err
		}
	}
	if s == "null" || s == "" {
		*b = false
		return nil
	}
	v, err := strconv.ParseBool(s)
	if err != nil {
		return fmt.Errorf("%q is not a boolean, write true or false", s)
	}
	*b = Bool(v)
	return nil
}

// List is a list of strings that is encoded in JSON as one comma-separated string.
type List []string

// MarshalJSON implements json.Marshaler.
func (l List) MarshalJSON() ([]byte, error) { return json.Marshal(strings.Join(l, ",")) }

// UnmarshalJSON implements json.Unmarshaler. It also accepts a JSON array.
func (l *List) UnmarshalJSON(data []byte) error {
	if len(data) > 0 && data[0] == '[' {
		var items []string
		if err := json.Unmarshal(data, &items); err != nil {
			return err
		}
		*l = slices.DeleteFunc(items, func(s string) bool { return s == "" })
		return nil
	}
	var s string
	if err := json.Unmarshal(data, &s); err != nil {
		return errors.New("the value must be one string with commas")
	}
	*l = strings.FieldsFunc(s, func(r rune) bool { return r == ',' })
	return nil
}

// Port is a port number; 0 means none.
type Port uint16

// UnmarshalJSON implements json.Unmarshaler. It also accepts a string.
func (p *Port) UnmarshalJSON(data []byte) error {
	s := string(data)
	if strings.HasPrefix(s, `"`) {
		if err := json.Unmarshal(data, &s); err != nil {
			return err
		}
	}
	if s == "null" || s == "" {
		*p = 0
		return nil
	}
	v, err := strconv.ParseUint(s, 10, 16)
	if err != nil {
		return fmt.Errorf("%q is not a port, write a number from 0 to 65535", s)
	}
	*p = Port(v)
	return nil
}

// PodPort is a port that a container of the pod declares.
type PodPort struct {
	Name          string `json:"name,omitempty"`
	ContainerPort int    `json:"containerPort,omitempty"`
	Protocol      string `json:"protocol,omitempty"`
}

// PodPorts are the declared ports of a pod. In JSON they are a string that contains a JSON array.
type PodPorts []PodPort

// MarshalJSON implements json.Marshaler.
func (p PodPorts) MarshalJSON() ([]byte, error) {
	inner, err := json.Marshal([]PodPort(p))
	if err != nil {
		return nil, err
	}
	return json.Marshal(string(inner))
}

// UnmarshalJSON implements json.Unmarshaler. It also accepts a JSON array.
func (p *PodPorts) UnmarshalJSON(data []byte) error {
	inner := data
	if len(data) > 0 && data[0] == '"' {
		var s string
		if err := json.Unmarshal(data, &s); err != nil {
			return err
		}
		inner = []byte(s)
	}
	*p = nil
	if len(inner) == 0 {
		return nil
	}
	var ports []PodPort
	if err := json.Unmarshal(inner, &ports); err != nil {
		return fmt.Errorf("the value must be a JSON array of {name, containerPort, protocol}: %w", err)
	}
	*p = ports
	return nil
}
