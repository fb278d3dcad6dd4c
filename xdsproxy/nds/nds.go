// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package nds

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/outrigger-mesh/outrigger/xdsproxy/wire"
)

// TypeURL is the type of the single resource that contains the name table.
const TypeURL = "type.googleapis.com/istio.networking.nds.v1.NameTable"

// Kubernetes is the registry of names with short forms: the agent answers reviews and reviews.shop
// for reviews.shop.svc.cluster.local.
const Kubernetes = "Kubernetes"

// Fields of the messages NameTable, its map entry, and NameInfo.
const (
	fieldTable protowire.Number = 1

	fieldKey   protowire.Number = 1
	fieldValue protowire.Number = 2

	fieldIPs       protowire.Number = 1
	fieldRegistry  protowire.Number = 2
	fieldShortname protowire.Number = 3
	fieldNamespace protowire.Number = 4
	fieldAltHosts  protowire.Number = 5
)

// Table maps host names to addresses. It must not be modified after it has been passed on.
type Table struct {
	// Hosts are keyed by the full name, with or without a trailing dot. The first label may be "*".
	Hosts map[string]Host `json:"table"`
}

// Host is the entry of one host.
type Host struct {
	// IPs are the host's addresses, of both families.
	IPs []string `json:"ips,omitempty"`
	// Registry is the source of the host, for example [Kubernetes].
	Registry string `json:"registry,omitempty"`
	// Shortname is the name of the Kubernetes service, or pod.service for a pod of a headless
	// service. If empty, the host has no short forms.
	Shortname string `json:"shortname,omitempty"`
	// Namespace is the namespace of the Kubernetes service.
	Namespace string `json:"namespace,omitempty"`
	// AltHosts are additional names of the host. Old control planes send them.
	AltHosts []string `json:"alt_hosts,omitempty"`
}

// Marshal encodes the table. Equal tables result in equal bytes: hosts are sorted, and their
// addresses keep their order.
func (t *Table) Marshal() []byte {
	var out, entry, value []byte
	for _, name := range slices.Sorted(maps.Keys(t.Hosts)) {
		value = t.Hosts[name].append(value[:0])
		entry = wire.Append(entry[:0], fieldKey, name)
		entry = wire.Append(entry, fieldValue, value)
		out = wire.Append(out, fieldTable, entry)
	}
	return out
}

func (h Host) append(b []byte) []byte {
	for _, ip := range h.IPs {
		b = wire.Append(b, fieldIPs, ip)
	}
	for _, f := range []struct {
		number protowire.Number
		value  string
	}{{fieldRegistry, h.Registry}, {fieldShortname, h.Shortname}, {fieldNamespace, h.Namespace}} {
		if f.value != "" {
			b = wire.Append(b, f.number, f.value)
		}
	}
	for _, name := range h.AltHosts {
		b = wire.Append(b, fieldAltHosts, name)
	}
	return b
}

// Unmarshal decodes a table. It ignores unknown fields. The result shares no memory with the input.
func Unmarshal(b []byte) (*Table, error) {
	t := &Table{Hosts: map[string]Host{}}
	err := fields(b, func(number protowire.Number, field []byte) error {
		if number != fieldTable {
			return nil
		}
		name, host, err := readEntry(field)
		if err != nil {
			return err
		}
		t.Hosts[name] = host // the last of duplicate entries wins
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read name table: %w", err)
	}
	return t, nil
}

func readEntry(b []byte) (name string, host Host, err error) {
	err = fields(b, func(number protowire.Number, field []byte) error {
		switch number {
		case fieldKey:
			return readString(&name, field, "name of a host")
		case fieldValue:
			return host.read(field)
		}
		return nil
	})
	return name, host, err
}

func (h *Host) read(b []byte) error {
	return fields(b, func(number protowire.Number, field []byte) error {
		switch number {
		case fieldIPs:
			return readStrings(&h.IPs, field, "address")
		case fieldRegistry:
			return readString(&h.Registry, field, "registry")
		case fieldShortname:
			return readString(&h.Shortname, field, "short name")
		case fieldNamespace:
			return readString(&h.Namespace, field, "namespace")
		case fieldAltHosts:
			return readStrings(&h.AltHosts, field, "other name")
		}
		return nil
	})
}

var (
	errMalformed = errors.New("the bytes are not a protobuf message")
	errUTF8      = errors.New("it is not UTF-8")
)

func readString(to *string, field []byte, what string) error {
	if !utf8.Valid(field) {
		return fmt.Errorf("%s: %w", what, errUTF8)
	}
	*to = string(field)
	return nil
}

func readStrings(to *[]string, field []byte, what string) error {
	var s string
	if err := readString(&s, field, what); err != nil {
		return err
	}
	*to = append(*to, s)
	return nil
}

// fields calls visit for each length-delimited field of a message. This version defines no other
// fields.
func fields(b []byte, visit func(protowire.Number, []byte) error) error {
	return wire.EachBytes(b, errMalformed, visit)
}
