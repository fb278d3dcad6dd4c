// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package agent

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
)

// proxyAddresses returns the addresses of the proxy, at least one. It leaves out those
// of excluded interfaces, except INSTANCE_IP. If there is an address to bind to, the
// host's other addresses belong to others.
func proxyAddresses(src sources, exclude string, warn func(string, ...any)) ([]string, error) {
	var ips []string
	for name, ip := range map[string]string{"INSTANCE_IP": src.Environ.Workload.InstanceIP, "OUTRIGGER_BIND_ADDRESS": src.Environ.BindAddress} {
		if _, err := netip.ParseAddr(ip); ip != "" && err != nil {
			return nil, fmt.Errorf("environment variable %s is %q; it must be an IP address", name, ip)
		}
	}
	add := func(ip string) {
		for _, known := range ips {
			if known == ip {
				return
			}
		}
		if ip != "" {
			ips = append(ips, ip)
		}
	}
	add(src.Environ.Workload.InstanceIP)
	if src.Environ.BindAddress != "" {
		add(src.Environ.BindAddress)
		return ips, nil
	}
	interfaces := src.interfaces()
	excluded := map[string]bool{}
	for name := range strings.SplitSeq(exclude, ",") {
		if name = strings.TrimSpace(name); name == "" {
			continue
		}
		excluded[name] = true
		if !slices.ContainsFunc(interfaces, func(i networkInterface) bool { return i.name == name }) {
			warn("annotation %s names %q: there is no such interface, or it is down", annotationExcludeInterfaces, name)
		}
	}
	for _, i := range interfaces {
		if !excluded[i.name] {
			for _, ip := range i.ips {
				add(ip)
			}
		}
	}
	if len(ips) == 0 {
		return []string{"127.0.0.1", "::1"}, nil
	}
	return ips, nil
}

// networkInterface is an interface with its addresses, except loopback and link-local
// ones.
type networkInterface struct {
	name string
	ips  []string
}

// hostInterfaces returns the interfaces that are up.
func hostInterfaces() []networkInterface {
	// Without interfaces there are no addresses; INSTANCE_IP may suffice.
	interfaces, _ := net.Interfaces()
	return addressesOf(interfaces, func(i net.Interface) ([]net.Addr, error) { return i.Addrs() })
}

func addressesOf(interfaces []net.Interface, of func(net.Interface) ([]net.Addr, error)) []networkInterface {
	var up []networkInterface
	for _, i := range interfaces {
		if i.Flags&net.FlagUp == 0 {
			continue
		}
		addrs, err := of(i)
		if err != nil {
			continue // the interface was removed meanwhile
		}
		n := networkInterface{name: i.Name}
		for _, addr := range addrs {
			if ipNet, ok := addr.(*net.IPNet); ok && !ipNet.IP.IsLoopback() && !ipNet.IP.IsLinkLocalUnicast() && !ipNet.IP.IsLinkLocalMulticast() {
				n.ips = append(n.ips, ipNet.IP.String())
			}
		}
		up = append(up, n)
	}
	return up
}
