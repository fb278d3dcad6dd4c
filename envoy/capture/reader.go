// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package capture

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/user"
	"strconv"
	"strings"
	"unicode"
)

// system is what settings depend on besides flags and environment.
type system struct {
	addresses   func() ([]net.Addr, error)
	lookupUser  func(name string) (*user.User, error)
	lookupGroup func(name string) (*user.Group, error)
	// resolvConf returns the content of /etc/resolv.conf.
	resolvConf func() ([]byte, error)
}

// thisSystem returns the system that the program runs on.
func thisSystem() system {
	return system{net.InterfaceAddrs, user.Lookup, user.LookupGroup, func() ([]byte, error) { return os.ReadFile("/etc/resolv.conf") }}
}

// reader reads values and keeps the first error.
type reader struct {
	system   system
	env      map[string]string
	warnings []string
	err      error
}

func (r *reader) fail(err error) {
	if r.err == nil {
		r.err = err
	}
}

// maxWords is how many values one list may have: rules are checked one after the other.
const maxWords = 1000

// words returns the values of a comma-separated list.
func (r *reader) words(place, list string) (words []string) {
	for word := range strings.SplitSeq(list, ",") {
		if word = strings.TrimSpace(word); word != "" {
			words = append(words, word)
		}
	}
	if len(words) > maxWords {
		r.fail(fmt.Errorf("%s has %d values: %d are possible; use ranges", place, len(words), maxWords))
		return nil
	}
	return words
}

func (r *reader) port(place, text string) uint16 {
	n, err := strconv.ParseUint(strings.TrimSpace(text), 10, 16)
	if err != nil || n == 0 {
		r.fail(fmt.Errorf("%s is %q: it must be a port from 1 to 65535", place, text))
	}
	return uint16(n)
}

func (r *reader) ports(place, list string) (ports []uint16) {
	for _, word := range r.words(place, list) {
		ports = append(ports, r.port(place, word))
	}
	return ports
}

func (r *reader) number(place, text string) uint32 {
	n, err := strconv.ParseUint(strings.TrimSpace(text), 0, 32)
	if err != nil {
		r.fail(fmt.Errorf("%s is %q: it must be a number from 0 to %d", place, text, uint32(1<<32-1)))
	}
	return uint32(n)
}

// ranges returns CIDRs; a single address is a range, too. Like istio-iptables, it leaves out what is
// none.
func (r *reader) ranges(place, list string) (ranges []netip.Prefix) {
	if strings.TrimSpace(list) == "*" {
		r.fail(fmt.Errorf("%s is \"*\": it must be CIDRs; to capture nothing outbound, leave --istio-service-cidr empty", place))
		return nil
	}
	for _, word := range r.words(place, list) {
		p, err := netip.ParsePrefix(word)
		if err != nil {
			var a netip.Addr
			if a, err = netip.ParseAddr(word); err == nil {
				p = single(a.WithZone(""))
			}
		}
		if err != nil || p.Addr().Is4In6() {
			r.warnings = append(r.warnings, fmt.Sprintf("%s has %q, which is ignored: it must be a CIDR such as 10.0.0.0/8", place, word))
			continue
		}
		ranges = append(ranges, p.Masked())
	}
	return ranges
}

// maxInterface is the length of the longest name of an interface.
const maxInterface = 15

func (r *reader) interfaces(place, list string) []string {
	words := r.words(place, list)
	for _, word := range words {
		if len(word) > maxInterface || strings.ContainsFunc(word, unicode.IsSpace) || strings.ContainsAny(word, "\x00\"'\\/") || word == "+" {
			r.fail(fmt.Errorf("%s has %q: it must be the name of an interface, such as eth0", place, word))
		}
	}
	return words
}

// ids returns the numbers of users or groups that are given by number or name.
func (r *reader) ids(place, list, owner string) (ids []uint32) {
	for _, word := range r.words(place, list) {
		id := word
		if _, err := strconv.ParseUint(word, 10, 32); err != nil {
			var lookupErr error
			if owner == ownerUser {
				var u *user.User
				if u, lookupErr = r.system.lookupUser(word); lookupErr == nil {
					id = u.Uid
				}
			} else {
				var g *user.Group
				if g, lookupErr = r.system.lookupGroup(word); lookupErr == nil {
					id = g.Gid
				}
			}
			if lookupErr != nil {
				r.fail(fmt.Errorf("%s has %q: %w; use a number", place, word, lookupErr))
				continue
			}
		}
		ids = append(ids, r.number(place, id))
	}
	return ids
}

// owners reads the users and groups of agent and Envoy.
func (r *reader) owners(s *Settings, f *Flags) {
	uids := f.uids
	if uids == "" {
		name := r.env[envUser]
		if name == "" {
			name = "istio-proxy"
		}
		uids = defaultProxyID
		if u, err := r.system.lookupUser(name); err == nil {
			uids = u.Uid
		} else if _, err := strconv.ParseUint(name, 10, 32); err == nil {
			uids = name
		}
	}
	gids := f.gids
	if gids == "" {
		gids = uids
	}
	s.UIDs, s.GIDs = r.ids("--proxy-uid", uids, ownerUser), r.ids("--proxy-gid", gids, ownerGroup)
}

func (r *reader) loopback(text string) netip.Prefix {
	if text == "" {
		return netip.MustParsePrefix("127.0.0.1/32")
	}
	p, err := netip.ParsePrefix(text)
	if err != nil || !p.Addr().Is4() || !p.Addr().IsLoopback() || p.Bits() < 8 {
		r.fail(fmt.Errorf("%s is %q: it must be a CIDR within 127.0.0.0/8", envLoopback, text))
	}
	return p.Masked()
}

// hasIPv6 reports whether IPv6 is captured: if the first address that others can reach is IPv6, or
// with two families if there is any.
func (r *reader) hasIPv6(dual bool) bool {
	addresses, err := r.system.addresses()
	if err != nil {
		r.fail(fmt.Errorf("listing the addresses of the interfaces: %w", err))
		return false
	}
	for _, address := range addresses {
		network, ok := address.(*net.IPNet)
		if !ok || !network.IP.IsGlobalUnicast() {
			continue
		}
		if six := network.IP.To4() == nil; six || !dual {
			return six
		}
	}
	return false
}

// maxResolvers is how many resolvers of the system are used; the C library uses three.
const maxResolvers = 32

// resolvers returns the addresses of /etc/resolv.conf.
func (r *reader) resolvers() (addresses []netip.Addr) {
	text, err := r.system.resolvConf()
	if err != nil {
		r.fail(fmt.Errorf("finding the resolvers, because DNS is captured: %w; --capture-all-dns does not need them", err))
		return nil
	}
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) < 2 || fields[0] != "nameserver" || len(addresses) == maxResolvers {
			continue
		}
		if a, err := netip.ParseAddr(fields[1]); err == nil {
			addresses = append(addresses, a.Unmap().WithZone(""))
		}
	}
	return addresses
}
