// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package mesh

import (
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// reservedPorts are the ports that agent and Envoy use on the address of a workload, except the
// configurable port for outbound HTTP.
var reservedPorts = map[int]string{
	adminPort:      "Envoy's admin port",
	debugPort:      "the agent's debug port",
	statusPort:     "the agent's status port",
	healthPort:     "Envoy's health port",
	dnsPort:        "the agent's DNS port",
	prometheusPort: "Envoy's metrics port",
}

// redirectPorts are the ports of Envoy for redirected connections.
var redirectPorts = map[int]string{
	15001: "Envoy's port for outbound connections",
	15006: "Envoy's port for inbound connections",
}

// listening is a set of ports on which one part of the mesh will listen.
type listening struct {
	address netip.Addr
	ports   []int
	line    int
	what    string // name of the listener, for messages
	cure    string
}

// ports lists all listeners, in the order of the mesh file.
func (m *meshFile) ports() []listening {
	const stop = "stop that program or "
	all := []listening{{
		m.controlAddress(),
		[]int{controlHTTPPort, controlSecurePort, controlMonitorPort},
		0, "the control plane",
		stop + "(if it is another outrigger up) give this mesh its own network, for example network: " + freeNetwork(),
	}}
	for _, w := range m.workloads {
		if w.port > 0 {
			all = append(all, listening{netip.AddrFrom4([4]byte{127, 0, 0, 1}), []int{w.port}, w.lineOf("port"), w.where, stop + "change port"})
		}
		if !w.address.IsValid() {
			continue
		}
		if w.servicePort > 0 {
			all = append(all, listening{w.address, []int{w.servicePort}, w.lineOf("servicePort"), w.where, stop + "change servicePort"})
		}
		own := []int{adminPort, debugPort, statusPort, healthPort, m.proxyPort, prometheusPort}
		all = append(all, listening{w.address, own, w.line, w.where + ": agent and Envoy", stop + "change address"})
	}
	return all
}

// checkPorts tries to listen on all ports. The meshes that run are announced in temp.
func (m *meshFile) checkPorts(temp string) []Problem {
	r := &reader{}
	other, process, err := RunningFile(temp, hostPort(m.controlAddress(), controlMonitorPort))
	switch {
	case err != nil || other == "": // no mesh of this user
	case other == m.file:
		r.add(0, "this mesh runs already, as process %s: end that with Ctrl-C or kill %s", process, process)
		return r.problems
	default:
		r.add(m.lines["network"], "network %s is that of another outrigger up, process %s with %s: end that, or give this mesh its own network, for example network: %s",
			m.network, process, other, freeNetwork())
	}
	for _, l := range m.ports() {
		if other != "" && m.network.Contains(l.address) {
			continue // its own network cures that, too
		}
		var used []int
		for _, port := range l.ports {
			switch err := tryListen(hostPort(l.address, port)); {
			case err == nil:
			case errors.Is(err, syscall.EADDRINUSE):
				used = append(used, port)
			case errors.Is(err, syscall.EACCES):
				r.add(l.line, "%s: port %s needs privileges: choose a port from 1024", l.what, hostPort(l.address, port))
			default:
				r.add(l.line, "%s: %v", l.what, err)
			}
		}
		if len(used) > 0 {
			r.add(l.line, "%s: %s in use by %s (ss -ltnp shows it): %s", l.what, portsOn(l.address, used), holder(l.address, used[0]), l.cure)
		}
	}
	slices.SortStableFunc(r.problems, func(a, b Problem) int { return a.Line - b.Line })
	return r.problems
}

// portsOn returns the beginning of a sentence about ports of an address.
func portsOn(address netip.Addr, ports []int) string {
	if len(ports) == 1 {
		return fmt.Sprintf("port %d on %s is", ports[0], address)
	}
	var list []string
	for _, port := range ports {
		list = append(list, itoa(port))
	}
	return fmt.Sprintf("ports %s on %s are", strings.Join(list, ", "), address)
}

// freeNetwork returns a network that no mesh uses, as far as its control plane shows.
func freeNetwork() string {
	for i := 2; i < 127; i++ {
		first := netip.AddrFrom4([4]byte{127, byte(i), 0, 1})
		if tryListen(hostPort(first, controlMonitorPort)) == nil {
			return netip.PrefixFrom(first, 24).Masked().String()
		}
	}
	return "127.2.0.0/24"
}

// holder names the program that listens on a port, by its user if that is another one.
func holder(address netip.Addr, port int) string {
	for _, l := range listeners() {
		if l.address.Port() == uint16(port) && (l.address.Addr() == address || l.address.Addr().IsUnspecified()) && l.user != os.Getuid() {
			return "a program of user " + userName(l.user)
		}
	}
	return "another program"
}

// listener is a listening TCP socket of this network namespace.
type listener struct {
	address netip.AddrPort
	user    int
}

// listeners returns the listening sockets, or none if the system does not tell.
func listeners() (list []listener) {
	for _, path := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		text, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(text)) {
			if l, ok := parseListener(line); ok {
				list = append(list, l)
			}
		}
	}
	return list
}

// parseListener reads a line of /proc/net/tcp. It returns false for sockets that do not listen. The
// addresses are words of the byte order of the machine, which is little-endian on all that Envoy runs on.
func parseListener(line string) (l listener, ok bool) {
	const local, state, user, listens = 1, 3, 7, "0A"
	fields := strings.Fields(line)
	if len(fields) <= user || fields[state] != listens {
		return l, false
	}
	host, port, _ := strings.Cut(fields[local], ":")
	raw, err := hex.DecodeString(host)
	number, portErr := strconv.ParseUint(port, 16, 16)
	id, userErr := strconv.Atoi(fields[user])
	if err != nil || portErr != nil || userErr != nil || len(raw)%4 != 0 {
		return l, false
	}
	for word := range slices.Chunk(raw, 4) {
		slices.Reverse(word)
	}
	address, ok := netip.AddrFromSlice(raw)
	return listener{netip.AddrPortFrom(address.Unmap(), uint16(number)), id}, ok
}

// userName returns the name of a user, or its number.
func userName(id int) string {
	if u, err := user.LookupId(itoa(id)); err == nil {
		return u.Username
	}
	return itoa(id)
}

// maxOthers is how many control planes of other users are named.
const maxOthers = 3

// OtherControls returns a line for each debug address where the control plane of a mesh of another user
// seems to listen: any program may have that port. It ends with the cure, in which ADDRESS is the address.
func OtherControls(cure string) (lines string) {
	n := 0
	for _, l := range listeners() {
		if l.address.Port() == controlMonitorPort && l.address.Addr().IsLoopback() && l.user != os.Getuid() && n < maxOthers {
			lines += fmt.Sprintf("\nA program of user %s listens at %s: if it is the control plane of outrigger up, %s", userName(l.user), l.address, strings.ReplaceAll(cure, "ADDRESS", l.address.String()))
			n++
		}
	}
	return lines
}

// tryListen returns an error if a port is not free.
func tryListen(address string) error {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	return l.Close()
}

func itoa(n int) string { return strconv.Itoa(n) }

func hostPort(a netip.Addr, port int) string { return net.JoinHostPort(a.String(), itoa(port)) }
