// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package mesh

import (
	"errors"
	"net"
	"net/netip"
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
		stop + "(if it is another outrigger up) give this mesh its own network, for example network: 127.2.0.0/24",
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

// checkPorts tries to listen on all ports.
func (m *meshFile) checkPorts() []Problem {
	r := &reader{}
	for _, l := range m.ports() {
		var used []string
		for _, port := range l.ports {
			switch err := tryListen(hostPort(l.address, port)); {
			case err == nil:
			case errors.Is(err, syscall.EADDRINUSE):
				used = append(used, itoa(port))
			case errors.Is(err, syscall.EACCES):
				r.add(l.line, "%s: port %s needs privileges: choose a port from 1024", l.what, hostPort(l.address, port))
			default:
				r.add(l.line, "%s: %v", l.what, err)
			}
		}
		switch len(used) {
		case 0:
		case 1:
			r.add(l.line, "%s: port %s on %s is in use by another program (ss -ltnp shows it): %s", l.what, used[0], l.address, l.cure)
		default:
			r.add(l.line, "%s: ports %s on %s are in use by another program (ss -ltnp shows it): %s",
				l.what, strings.Join(used, ", "), l.address, l.cure)
		}
	}
	slices.SortStableFunc(r.problems, func(a, b Problem) int { return a.Line - b.Line })
	return r.problems
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
