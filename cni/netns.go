// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package cni

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"github.com/outrigger-mesh/outrigger/envoy/capture"
)

// netns knows the network namespaces in a directory by the addresses in them. It enters a namespace
// once to learn its addresses, and once more for each pod that has one of them.
type netns struct {
	dir       string
	addresses func(path string) ([]netip.Addr, error) // of a namespace

	known  map[string]known // by file
	paths  map[netip.Addr][]string
	closed error // why a namespace could not be entered, or nil
}

type known struct {
	info      fs.FileInfo
	addresses []netip.Addr
}

func newNetns(dir string) netns { return netns{dir: dir, addresses: addressesIn} }

// addressesIn returns the addresses of a network namespace.
func addressesIn(path string) (list []netip.Addr, err error) {
	err = capture.InNamespace(path, func() error {
		addresses, err := net.InterfaceAddrs()
		for _, a := range addresses {
			if prefix, err := netip.ParsePrefix(a.String()); err == nil {
				list = append(list, prefix.Addr().Unmap())
			}
		}
		return err
	})
	if errors.Is(err, os.ErrPermission) {
		err = fmt.Errorf("%w; it needs the capability SYS_ADMIN", err)
	}
	return list, err
}

// read reads the directory, and enters the namespaces that are new or had no addresses of a network plugin.
func (n *netns) read() error {
	entries, err := os.ReadDir(n.dir)
	if err != nil {
		return err
	}
	next := make(map[string]known, len(entries))
	n.paths, n.closed = map[netip.Addr][]string{}, nil
	for _, e := range entries {
		path := filepath.Join(n.dir, e.Name())
		info, err := os.Stat(path)
		if err != nil {
			continue // it is gone
		}
		k, ok := n.known[path]
		if !ok || !os.SameFile(k.info, info) {
			all, err := n.addresses(path)
			if errors.Is(err, os.ErrPermission) {
				n.closed = err
			}
			k = known{info, slices.DeleteFunc(all, netip.Addr.IsLoopback)}
		}
		if slices.ContainsFunc(k.addresses, global) { // else it is not set up yet, or gone
			next[path] = k
		}
		for _, a := range k.addresses {
			n.paths[a] = append(n.paths[a], path)
		}
	}
	n.known = next
	return nil
}

// global reports whether an address is not one that an interface sets itself before the network plugin
// sets that of the pod.
func global(a netip.Addr) bool { return !a.IsLinkLocalUnicast() }

// find returns the network namespace that has all addresses of a pod, or "" if there is none.
func (n *netns) find(p *pod) (string, error) {
	var found string
	for _, path := range n.paths[p.address()] {
		if now, err := n.addresses(path); err != nil || !p.has(now) {
			delete(n.known, path) // it is gone, or its addresses changed
			continue
		}
		if found != "" {
			return "", fmt.Errorf("%s and %s both have its address: delete the pod", found, path)
		}
		found = path
	}
	if found == "" {
		return "", n.closed
	}
	return found, nil
}

// address returns the first address of a pod, or the zero address if it has none.
func (p *pod) address() netip.Addr {
	if len(p.Status.PodIPs) == 0 {
		return netip.Addr{}
	}
	a, _ := netip.ParseAddr(p.Status.PodIPs[0].IP) // no namespace has the zero address
	return a.Unmap()
}

// has reports whether all addresses of the pod are among those of a network namespace.
func (p *pod) has(addresses []netip.Addr) bool {
	for _, of := range p.Status.PodIPs {
		if ip, err := netip.ParseAddr(of.IP); err != nil || !slices.Contains(addresses, ip.Unmap()) {
			return false
		}
	}
	return len(p.Status.PodIPs) > 0
}
