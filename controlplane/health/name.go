// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package health

import (
	"fmt"
	"hash/fnv"
	"strings"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// maxName is the length of the name of a Kubernetes object.
const maxName = 253

// RegisteredNames returns the names that registration chooses for the entry of a proxy
// of a group: with its network first, which not all proxies name, then without.
// A proxy that names no group has none.
func RegisteredNames(proxy *model.Proxy) []string {
	if proxy.AutoRegisterGroup == "" || len(proxy.IPs) == 0 {
		return nil
	}
	name := registeredName(proxy.AutoRegisterGroup, proxy.IPs[0], "")
	if proxy.Network == "" {
		return []string{name}
	}
	return []string{registeredName(proxy.AutoRegisterGroup, proxy.IPs[0], proxy.Network), name}
}

// registeredName returns the name of Istio, <group>-<address>[-<network>], of which
// the end counts if it is too long. One that cannot be the name of an object is
// made one, and ends with a hash, so that it is no other's.
func registeredName(group, address, network string) string {
	if ip, ok := canonical(address); ok {
		address = ip
	}
	whole := group + "-" + strings.ReplaceAll(address, ":", "-")
	if network != "" {
		whole += "-" + network
	}
	name := whole[max(len(whole)-maxName, 0):]
	clean := sanitized(name)
	if clean == name {
		return name
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(whole)) // a hash takes everything
	end := fmt.Sprintf("-%08x", h.Sum32())
	return strings.TrimPrefix(sanitized(clean[max(len(clean)+len(end)-maxName, 0):])+end, "-")
}

// sanitized makes a DNS subdomain of a text, as the names of objects are.
func sanitized(text string) string {
	text = strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '.', r == '-':
			return r
		case r >= 'A' && r <= 'Z':
			return r - 'A' + 'a'
		}
		return '-'
	}, text)
	var parts []string
	for part := range strings.SplitSeq(text, ".") {
		if part = strings.Trim(part, "-"); part != "" {
			parts = append(parts, part)
		}
	}
	return strings.Join(parts, ".")
}
