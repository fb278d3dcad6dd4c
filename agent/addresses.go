// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package agent

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"
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
	name     string
	loopback bool
	ips      []string
}

// How long a machine that boots may take to get an address, and the interval of checks.
const (
	addressWait  = 30 * time.Second
	addressEvery = 100 * time.Millisecond
)

// awaitAddress returns a function that returns the interfaces. While none of them has an address but
// one other than the loopback interface is up, it waits, until ctx is done or addressWait is over: an
// address that a proxy lacks at its start is missing until it is restarted.
func awaitAddress(ctx context.Context, log *slog.Logger, read func() []networkInterface) func() []networkInterface {
	return func() []networkInterface {
		interfaces := read()
		if !addressComes(interfaces) {
			return interfaces
		}
		log.Info("no network interface has an address yet; waiting for one", "duration", addressWait)
		ctx, cancel := context.WithTimeout(ctx, addressWait)
		defer cancel()
		every := time.NewTicker(addressEvery)
		defer every.Stop()
		for addressComes(interfaces) {
			select {
			case <-ctx.Done():
				log.Warn("no network interface has an address; the proxy serves this machine only, until it is restarted")
				return interfaces
			case <-every.C:
				interfaces = read()
			}
		}
		return interfaces
	}
}

// addressComes reports whether an interface that others can reach may still get its first address.
func addressComes(interfaces []networkInterface) bool {
	return slices.ContainsFunc(interfaces, func(i networkInterface) bool { return !i.loopback }) &&
		!slices.ContainsFunc(interfaces, func(i networkInterface) bool { return len(i.ips) > 0 })
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
		n := networkInterface{name: i.Name, loopback: i.Flags&net.FlagLoopback != 0}
		for _, addr := range addrs {
			if ipNet, ok := addr.(*net.IPNet); ok && !ipNet.IP.IsLoopback() && !ipNet.IP.IsLinkLocalUnicast() && !ipNet.IP.IsLinkLocalMulticast() {
				n.ips = append(n.ips, ipNet.IP.String())
			}
		}
		up = append(up, n)
	}
	return up
}
