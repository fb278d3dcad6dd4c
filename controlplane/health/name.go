// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package health

import (
	"fmt"
	"hash/fnv"
	"strings"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// maxName is the maximum length of a Kubernetes object name.
const maxName = 253

// RegisteredNames returns the possible names of the registered entry of a proxy: first with its
// network, which not all proxies report, then without. It returns none for a proxy without a
// group.
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

// registeredName returns the name that Istio uses, <group>-<address>[-<network>]. If the name is
// too long, its beginning is cut off. A name that is invalid for an object is sanitized and gets a
// hash suffix to stay unique.
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
	_, _ = h.Write([]byte(whole)) // writing to a hash never fails
	end := fmt.Sprintf("-%08x", h.Sum32())
	return strings.TrimPrefix(sanitized(clean[max(len(clean)+len(end)-maxName, 0):])+end, "-")
}

// sanitized converts text to a DNS subdomain, the format of object names.
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
