// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package debug

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/outrigger-mesh/outrigger/bootstrap/node"
	"github.com/outrigger-mesh/outrigger/certs"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/report"
)

// target is the workload that a request is sent to.
type target struct {
	stream  *Stream
	others  int // proxies that serve the same service
	address netip.Addr
	port    uint32 // of the workload; 0 if it is not known
	host    string
	// plaintext is true if the proxy of the client connects without a certificate, and sent is where it
	// sends the request.
	plaintext bool
	sent      report.Destination
	// service is that with the name, and servicePort its port; nil for the name of a proxy.
	service     *model.Service
	servicePort uint32
}

// client is who sends a request.
type client struct {
	identity string     // empty for a client without a certificate
	address  netip.Addr // the zero value if it is not known
	stream   *Stream    // of the client's proxy; nil if none is known
}

// target finds the workload with the name of a proxy or of a service.
func (d debugger) target(name string) (target, error) {
	if name == "" {
		return target{}, errors.New("the destination of the request is missing: name a service or a proxy, as in --to catalog.shop")
	}
	port := uint32(0)
	if text := d.query.Get("port"); text != "" {
		n, err := strconv.ParseUint(text, 10, 16)
		if err != nil || n == 0 {
			return target{}, fmt.Errorf("the port %q is not a number from 1 to 65535", text)
		}
		port = uint32(n)
	}
	proxies := d.followers()
	if st := named(proxies, name); st != nil {
		return d.ofProxy(st, port), nil
	}
	svc, err := d.service(name)
	if err != nil {
		return target{}, err
	}
	if svc != nil {
		return d.ofService(svc, port, proxies)
	}
	st, err := beginning(proxies, name)
	if err != nil {
		return target{}, err
	}
	return d.ofProxy(st, port), nil
}

// followers returns the streams of proxies that the caller sees.
func (d debugger) followers() []*Stream {
	return slices.DeleteFunc(d.visible(), func(st *Stream) bool { return st.Objects })
}

func named(proxies []*Stream, name string) *Stream {
	if i := slices.IndexFunc(proxies, func(st *Stream) bool { return st.Proxy.ID == name }); i >= 0 {
		return proxies[i]
	}
	return nil
}

// beginning returns the only proxy whose name begins with a text.
func beginning(proxies []*Stream, name string) (*Stream, error) {
	var found []*Stream
	var names []string
	for _, st := range proxies {
		if strings.HasPrefix(st.Proxy.ID, name) && !slices.Contains(names, st.Proxy.ID) {
			found, names = append(found, st), append(names, st.Proxy.ID)
		}
	}
	switch {
	case len(found) == 0:
		return nil, fmt.Errorf("%q is %w: no service and no connected proxy has this name; outrigger status lists the proxies", name, errUnknown)
	case len(found) > 1:
		return nil, fmt.Errorf("%q is the beginning of several proxies: %s", name, strings.Join(names[:min(len(names), 10)], ", "))
	}
	return found[0], nil
}

// ofProxy returns a proxy as a target. The port is one of the workload.
func (d debugger) ofProxy(st *Stream, port uint32) target {
	out := target{stream: st, port: port, address: firstAddress(st.Proxy)}
	for _, svc := range d.mesh.Services.Sorted {
		for _, e := range d.endpoints(svc) {
			if slices.Contains(st.Proxy.IPs, e.Address) && (port == 0 || port == e.Port) {
				out.host = cmp.Or(out.host, svc.Hostname)
			}
		}
	}
	return out
}

func firstAddress(p *model.Proxy) netip.Addr {
	if len(p.IPs) == 0 {
		return netip.Addr{}
	}
	a, err := netip.ParseAddr(p.IPs[0])
	if err != nil {
		return netip.Addr{}
	}
	return a
}

func (d debugger) endpoints(svc *model.Service) []*model.Endpoint {
	if set := d.mesh.Endpoints.Of(svc.ServiceKey); set != nil {
		return set.List
	}
	return nil
}

// service returns the service with a host name, or with the name and namespace of its beginning. It
// returns nil if there is none.
func (d debugger) service(name string) (*model.Service, error) {
	var found []*model.Service
	for _, svc := range d.mesh.Services.Sorted {
		if !d.asker.all && svc.Namespace != d.asker.namespace {
			continue
		}
		if svc.Hostname == name {
			return svc, nil
		}
		if strings.HasPrefix(svc.Hostname, name+".") {
			found = append(found, svc)
		}
	}
	switch len(found) {
	case 0:
		return nil, nil
	case 1:
		return found[0], nil
	}
	var names []string
	for _, svc := range found[:min(len(found), 10)] {
		names = append(names, svc.Hostname)
	}
	return nil, fmt.Errorf("%q is the beginning of several services: %s", name, strings.Join(names, ", "))
}

// ofService returns a workload of a service as a target.
func (d debugger) ofService(svc *model.Service, port uint32, proxies []*Stream) (target, error) {
	var ports []uint32
	for _, p := range svc.Ports {
		ports = append(ports, p.Number)
	}
	if port == 0 && len(ports) == 1 {
		port = ports[0]
	}
	if !slices.Contains(ports, port) {
		return target{}, fmt.Errorf("the service %s has the ports %s: choose one with --port", svc.Hostname, numbers(ports))
	}
	out := target{host: svc.Hostname, service: svc, servicePort: port}
	for _, e := range d.endpoints(svc) {
		i := slices.IndexFunc(proxies, func(st *Stream) bool { return slices.Contains(st.Proxy.IPs, e.Address) })
		if i < 0 || e.ServicePort != port {
			continue
		}
		if out.stream != nil {
			out.others++
			continue
		}
		out.stream, out.port = proxies[i], e.Port
		out.address, _ = netip.ParseAddr(e.Address) // an address of the proxy is one
	}
	if out.stream == nil {
		return out, fmt.Errorf("the service %s is %w: none of its workloads has a proxy that is connected", svc.Hostname, errUnknown)
	}
	return out, nil
}

// located names the client and the workload of a logged request by its addresses, where the question does
// not name them.
func (d debugger) located() debugger {
	local, err := netip.ParseAddrPort(d.query.Get("local"))
	if err != nil {
		return d
	}
	with := func(a netip.Addr) *Stream {
		proxies := d.followers()
		if i := slices.IndexFunc(proxies, func(st *Stream) bool { return slices.Contains(st.Proxy.IPs, a.Unmap().String()) }); i >= 0 {
			return proxies[i]
		}
		return nil
	}
	q, at := maps.Clone(d.query), with(local.Addr())
	d.query = q
	inbound := at != nil && (q.Get("to") == "" || q.Get("from") == "" && at.Proxy.Role == node.Router)
	switch host, port, err := net.SplitHostPort(q.Get("host")); {
	case inbound:
		q.Set("to", at.Proxy.ID)
		q.Set("port", strconv.Itoa(int(local.Port())))
	case q.Get("to") == "" && err == nil:
		q.Set("to", host)
		q.Set("port", port)
	case q.Get("to") == "":
		q.Set("to", q.Get("host"))
	}
	remote, err := netip.ParseAddrPort(q.Get("remote"))
	switch st := with(remote.Addr()); {
	case q.Get("from") != "":
	case err == nil && st != nil:
		q.Set("from", st.Proxy.ID)
		if !inbound {
			q.Del("address") // that of the application
		}
	case inbound:
		q.Set("from", "none")
	}
	return d
}

const scheme = "spiffe://"

// client finds who sends a request: "none", an identity, a service account, or a workload.
func (d debugger) client(name string) (client, error) {
	switch {
	case name == "":
		return client{}, errors.New("the client of the request is missing: name a workload, a service account, an identity or none, as in --from shop/frontend")
	case name == "none":
		return client{}, nil
	case strings.Contains(name, "/"):
		id := strings.TrimPrefix(name, scheme)
		if namespace, account, _ := strings.Cut(name, "/"); id == name && !strings.Contains(account, "/") {
			workload := certs.ID{TrustDomain: cmp.Or(d.mesh.Config.GetTrustDomain(), "cluster.local"), Namespace: namespace, ServiceAccount: account}
			if err := workload.Validate(); err != nil {
				return client{}, fmt.Errorf("%q is not a service account: write NAMESPACE/NAME: %w", name, err)
			}
			return client{identity: workload.String()}, nil
		}
		return client{identity: scheme + id}, nil
	}
	proxies := d.followers()
	st := named(proxies, name)
	if st == nil {
		svc, err := d.service(name)
		if err != nil {
			return client{}, err
		}
		if c, ok := d.workloadOf(svc); ok {
			return c, nil
		}
		if st, err = beginning(proxies, name); err != nil {
			return client{}, fmt.Errorf("%w; a service account is written NAMESPACE/NAME", err)
		}
	}
	return client{identity: d.identityOf(st), address: firstAddress(st.Proxy), stream: st}, nil
}

// workloadOf returns a workload of a service as a client. It returns false if there is none with an
// identity.
func (d debugger) workloadOf(svc *model.Service) (client, bool) {
	if svc == nil {
		return client{}, false
	}
	for _, e := range d.endpoints(svc) {
		if e.ServiceAccount == "" {
			continue
		}
		id := certs.ID{TrustDomain: cmp.Or(d.mesh.Config.GetTrustDomain(), "cluster.local"), Namespace: e.Namespace, ServiceAccount: e.ServiceAccount}
		address, err := netip.ParseAddr(e.Address)
		if err == nil {
			out := client{identity: id.String(), address: address}
			proxies := d.followers()
			if i := slices.IndexFunc(proxies, func(st *Stream) bool { return slices.Contains(st.Proxy.IPs, e.Address) }); i >= 0 {
				out.stream = proxies[i]
			}
			return out, true
		}
	}
	return client{}, false
}
