// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"net"
	"slices"
	"strconv"
	"strings"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
	securityv1beta1 "istio.io/api/security/v1beta1"

	"github.com/outrigger-mesh/outrigger/controlplane/generate"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
)

// origins tells which objects have a part in the resources of one kind of proxy.
// It goes by the names of the resources, which say of which host, port and
// subset they are, and asks the snapshot as the generator does: nothing is kept
// for it, it costs when somebody asks.
type origins struct {
	mesh      *snapshot.Mesh
	namespace string
	labels    map[string]string
	sidecar   *snapshot.Sidecar
	// services are those that the proxy sees, by host.
	services map[string]*model.Service
	hosts    map[string]*hostOrigin
	// routes are those of all hosts, once they were asked for.
	routes []model.Key
	// isEntry reports whether there is such a WorkloadEntry.
	isEntry func(model.Key) bool
}

// hostOrigin are the objects behind the resources of one host.
type hostOrigin struct {
	clusters, routes []model.Key
	rule             *snapshot.DestinationRule // nil for none
	endpoints        map[string][]model.Key    // by subset
}

func newOrigins(mesh *snapshot.Mesh, proxy *model.Proxy, isEntry func(model.Key) bool) *origins {
	o := &origins{
		mesh: mesh, namespace: proxy.Namespace, labels: proxy.Labels, sidecar: mesh.Sidecars.For(proxy.Namespace, proxy.Labels),
		services: map[string]*model.Service{}, hosts: map[string]*hostOrigin{}, isEntry: isEntry,
	}
	for _, svc := range mesh.Services.Visible(proxy.Namespace, o.sidecar) {
		o.services[svc.Hostname] = svc
	}
	return o
}

// of gives the objects that have a part in a resource; it is not to be written to.
func (o *origins) of(typeURL, name string) []model.Key {
	switch typeURL {
	case generate.TypeCluster, generate.TypeEndpoint:
		host, subset, outbound := hostOfCluster(name)
		switch {
		case !outbound && strings.HasPrefix(name, "inbound|"):
			return o.inbound()
		case !outbound:
			return nil
		case typeURL == generate.TypeEndpoint:
			return o.endpoints(host, subset)
		}
		return o.host(host).clusters
	case generate.TypeListener:
		if host := o.dialed(name); host != "" {
			return o.host(host).routes
		}
		if o.takes(name) {
			return o.inbound()
		}
	case generate.TypeVirtualHost:
		return o.host(hostOfVirtualHost(name)).routes
	case generate.TypeRoute:
		if host, _, outbound := hostOfCluster(name); outbound {
			return o.host(host).routes
		}
		if !strings.HasSuffix(name, ".vhds") { // its hosts are resources of their own
			return o.allRoutes()
		}
	}
	return nil
}

// hostOfCluster gives host and subset of "outbound|port|subset|host".
func hostOfCluster(name string) (host, subset string, ok bool) {
	parts := strings.SplitN(name, "|", 4)
	if len(parts) != 4 || parts[0] != "outbound" {
		return "", "", false
	}
	return parts[3], parts[2], true
}

// hostOfVirtualHost gives the host of "routes/host:port".
func hostOfVirtualHost(name string) string {
	host, _, err := net.SplitHostPort(name[strings.LastIndex(name, "/")+1:])
	if err != nil {
		return ""
	}
	return host
}

// dialed gives the host of a listener that an application dials by a name,
// "host:port"; empty for one with an address.
func (o *origins) dialed(name string) string {
	host, _, err := net.SplitHostPort(name)
	if err != nil {
		return ""
	}
	domain := o.mesh.Domain
	for _, suffix := range []string{"", "." + o.namespace + ".svc." + domain, ".svc." + domain, "." + domain} {
		if o.services[host+suffix] != nil {
			return host + suffix
		}
	}
	return host
}

// takes reports whether a listener, "address_port" or the path of a socket, is
// one that the Sidecar asks for.
func (o *origins) takes(listener string) bool {
	port := listener[strings.LastIndex(listener, "_")+1:]
	return strings.HasPrefix(listener, "/") || slices.ContainsFunc(o.sidecar.Ingress(), func(l *networkingv1alpha3.IstioIngressListener) bool {
		return strconv.FormatUint(uint64(l.GetPort().GetNumber()), 10) == port
	})
}

// inbound are the objects behind the inbound listeners and clusters, but for
// PeerAuthentications.
func (o *origins) inbound() []model.Key {
	if o.sidecar == nil || len(o.sidecar.Ingress()) == 0 {
		return nil
	}
	return []model.Key{o.sidecar.Config.Key}
}

func (o *origins) host(host string) *hostOrigin {
	if h := o.hosts[host]; h != nil {
		return h
	}
	h := &hostOrigin{endpoints: map[string][]model.Key{}}
	o.hosts[host] = h
	if svc := o.services[host]; svc != nil {
		h.routes = append(h.routes, svc.Source)
		h.clusters = append(h.clusters, svc.Source)
		if h.rule = o.mesh.DestinationRules.For(svc.ServiceKey, o.namespace, o.labels); h.rule != nil {
			for _, c := range h.rule.From {
				h.clusters = append(h.clusters, c.Key)
			}
		}
		h.clusters = append(h.clusters, o.entries(o.mesh.NamedEndpoints.Of(svc.ServiceKey), nil)...) // Envoy resolves their names
	}
	if vs := o.mesh.VirtualServices.For(host, o.namespace); host != "" && vs != nil {
		h.routes = append(h.routes, vs.Config.Key)
	}
	return h
}

// endpoints are the objects behind the endpoints of a subset of a host.
func (o *origins) endpoints(host, subset string) []model.Key {
	h, svc := o.host(host), o.services[host]
	if keys, ok := h.endpoints[subset]; ok || svc == nil {
		return keys
	}
	var labels map[string]string
	if h.rule != nil {
		labels = h.rule.Subset(subset).GetLabels()
	}
	h.endpoints[subset] = slices.Concat(h.clusters, o.entries(o.mesh.Endpoints.Of(svc.ServiceKey), labels))
	return h.endpoints[subset]
}

// entries are the WorkloadEntry objects among the endpoints of a service that
// have some labels.
func (o *origins) entries(set *snapshot.EndpointSet, labels map[string]string) []model.Key {
	if set == nil {
		return nil
	}
	var out []model.Key
	seen := map[model.Key]bool{}
	for _, e := range set.List {
		key := model.Key{Kind: model.WorkloadEntry, Namespace: e.Namespace, Name: e.Workload}
		if e.Workload == "" || seen[key] || !model.Selects(labels, e.Labels) {
			continue
		}
		if seen[key] = true; o.isEntry(key) {
			out = append(out, key)
		}
	}
	return out
}

// allRoutes are the objects behind a route configuration that holds all hosts.
func (o *origins) allRoutes() []model.Key {
	if o.routes != nil {
		return o.routes
	}
	seen := map[model.Key]bool{}
	add := func(keys []model.Key) {
		for _, key := range keys {
			if !seen[key] {
				seen[key] = true
				o.routes = append(o.routes, key)
			}
		}
	}
	for host := range o.services {
		add(o.host(host).routes)
	}
	for _, vs := range o.mesh.VirtualServices.All {
		for _, host := range vs.Hosts {
			add(o.host(host).routes)
		}
	}
	return o.routes
}

// peerAuthentications gives those that say which connections a workload takes:
// of the mesh, of its namespace and its own, in this order; of several of one
// kind the oldest counts. The list is in canonical order.
func peerAuthentications(list []*model.Config, root, namespace string, labels map[string]string) []model.Key {
	var found [3]*model.Config
	for _, c := range list {
		spec, ok := c.Spec.(*securityv1beta1.PeerAuthentication)
		if !ok {
			continue
		}
		selector := spec.GetSelector().GetMatchLabels()
		at := -1
		switch {
		case c.Namespace == root && len(selector) == 0:
			at = 0
		case c.Namespace != namespace || c.Namespace == root:
		case len(selector) == 0:
			at = 1
		case model.Selects(selector, labels):
			at = 2
		}
		if at >= 0 && found[at] == nil {
			found[at] = c
		}
	}
	var out []model.Key
	for _, c := range found {
		if c != nil {
			out = append(out, c.Key)
		}
	}
	return out
}
