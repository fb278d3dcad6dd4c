// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"net/netip"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// intercepts reports whether the traffic of the workload is redirected to the proxy, so that the
// proxy listens at all addresses.
func (s *target) intercepts() bool {
	return s.proxy.Interception == model.InterceptionRedirect || s.proxy.Interception == model.InterceptionTProxy
}

// families are the IP families of a proxy's addresses.
type families struct{ four, six bool }

func familiesOf(proxy *model.Proxy) families {
	var f families
	for _, ip := range proxy.IPs {
		addr, err := netip.ParseAddr(ip)
		if err != nil {
			continue
		}
		if addr.Unmap().Is4() {
			f.four = true
		} else {
			f.six = true
		}
	}
	return f
}

// wildcards returns the wildcard addresses of a proxy. The first one is used in listener names;
// the others are additional addresses.
func (f families) wildcards() []string {
	switch {
	case f.four && f.six:
		return []string{"0.0.0.0", "::"}
	case f.six:
		return []string{"::"}
	}
	return []string{"0.0.0.0"}
}

// String returns a part of cache keys.
func (f families) String() string {
	switch {
	case f.four && f.six:
		return "46"
	case f.six:
		return "6"
	}
	return "4"
}

// sees returns a key of the properties of a proxy, other than its namespace, that determine how it
// sees addresses.
func sees(proxy *model.Proxy) string {
	key := proxy.ClusterID + "/" + familiesOf(proxy).String()
	if proxy.AutoAllocate {
		key += "/auto"
	}
	if proxy.Role == "sidecar" && proxy.Interception != model.InterceptionNone && !proxy.Proxyless {
		key += "/redirected"
	}
	return key
}
