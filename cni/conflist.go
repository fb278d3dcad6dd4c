// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package cni

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
)

// network is a network configuration: a list of plugins, or one plugin. Fields that are unknown here
// keep their text.
type network struct {
	fields  map[string]json.RawMessage
	plugins []json.RawMessage
	single  bool // one plugin, not a list
}

// parseNetwork reads what a container runtime accepts.
func parseNetwork(text []byte) (*network, error) {
	n := &network{}
	if err := json.Unmarshal(text, &n.fields); err != nil {
		return nil, fmt.Errorf("it is not an object in JSON: %w", err)
	}
	var name string
	if json.Unmarshal(n.fields["name"], &name) != nil || name == "" {
		return nil, errors.New("it has no name")
	}
	list, isList := n.fields["plugins"]
	if n.single = !isList; n.single {
		n.plugins = []json.RawMessage{text}
	} else if err := json.Unmarshal(list, &n.plugins); err != nil {
		return nil, fmt.Errorf("plugins: %w", err)
	}
	if len(n.plugins) == 0 {
		return nil, errors.New("it has no plugins")
	}
	for i, p := range n.plugins {
		if typeOf(p) == "" {
			return nil, fmt.Errorf("plugin %d has no type", i)
		}
	}
	return n, nil
}

// typeOf returns the type of a plugin, which names its program.
func typeOf(plugin json.RawMessage) string {
	var p struct {
		Type string `json:"type"`
	}
	_ = json.Unmarshal(plugin, &p) // what is no object has no type
	return p.Type
}

func isOwn(plugin json.RawMessage) bool { return typeOf(plugin) == PluginName }

// insertPlugin returns a configuration with the entry of the plugin: where it is already, or else at
// the end of the list. A single plugin becomes a list. Without a difference it returns text.
func insertPlugin(text []byte, entry json.RawMessage) ([]byte, error) {
	n, err := parseNetwork(text)
	if err != nil {
		return nil, err
	}
	at := slices.IndexFunc(n.plugins, isOwn)
	others := slices.DeleteFunc(slices.Clone(n.plugins), isOwn)
	if !n.single && len(others) == len(n.plugins)-1 && sameJSON(n.plugins[at], entry) {
		return text, nil
	}
	if at < 0 || at > len(others) {
		at = len(others)
	}
	return n.encode(slices.Insert(others, at, entry))
}

// removePlugin returns a configuration without the plugin. Without a difference it returns text. It
// returns nil if no plugin remains.
func removePlugin(text []byte) ([]byte, error) {
	n, err := parseNetwork(text)
	if err != nil || !slices.ContainsFunc(n.plugins, isOwn) {
		return text, err
	}
	others := slices.DeleteFunc(n.plugins, isOwn)
	if len(others) == 0 {
		return nil, nil
	}
	return n.encode(others)
}

// encode returns a list of plugins with the other fields of the network.
func (n *network) encode(plugins []json.RawMessage) ([]byte, error) {
	fields := n.fields
	if n.single {
		fields = map[string]json.RawMessage{"name": n.fields["name"]}
		if version, ok := n.fields["cniVersion"]; ok {
			fields["cniVersion"] = version
		}
	}
	var err error
	if fields["plugins"], err = plain(plugins); err != nil {
		return nil, err
	}
	return plain(fields)
}

// plain encodes a value as others write configurations: with indentation, and < as it is.
func plain(value any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	err := e.Encode(value)
	return b.Bytes(), err
}

func sameJSON(a, b []byte) bool {
	var x, y any
	return json.Unmarshal(a, &x) == nil && json.Unmarshal(b, &y) == nil && reflect.DeepEqual(x, y)
}
