// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package debug

import (
	"net"
	"slices"
	"strings"

	"github.com/outrigger-mesh/outrigger/bootstrap/node"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// origins tells which objects have a part in the resources of one kind of proxy.
// It goes by the names of the resources, which say of which host, port and
// subset they are, and asks the snapshot as the generator does: nothing is kept
// for it, it costs when somebody asks. What differs between proxies of one kind,
// such as what they take themselves, is in own.
type origins struct {
	mesh *snapshot.Mesh
	// proxy is one of the kind.
	proxy   *model.Proxy
	sidecar *snapshot.Sidecar // nil for gateways
	// services are those that the proxy sees, by host and by port.
	services map[string]*model.Service
	byPort   map[uint32][]*model.Service
	hosts    map[string]*hostOrigin
	servers  []edgeServer // of a gateway
	// named are the answers for listeners and routes.
	named map[string][]model.Key
	// stored reports whether a store has an object: others were made of objects.
	stored func(model.Key) bool
}

// hostOrigin are the objects behind the resources of one host.
type hostOrigin struct {
	clusters, routes []model.Key
	rule             *snapshot.DestinationRule // nil for none
	endpoints        map[string][]model.Key    // by subset
}

// sidecarOf returns the Sidecar object of a proxy, nil for none: gateways have none.
func sidecarOf(mesh *snapshot.Mesh, proxy *model.Proxy) *snapshot.Sidecar {
	if proxy.Role == node.Router {
		return nil
	}
	return mesh.Sidecars.For(proxy.Namespace, proxy.Labels)
}

// newOrigins makes the origins of a kind of proxy. Scoped is that of
// [DebugConfig.ScopeGateways].
func newOrigins(mesh *snapshot.Mesh, proxy *model.Proxy, scoped bool, stored func(model.Key) bool) *origins {
	o := &origins{
		mesh: mesh, proxy: proxy, sidecar: sidecarOf(mesh, proxy), stored: stored,
		services: map[string]*model.Service{}, byPort: map[uint32][]*model.Service{},
		hosts: map[string]*hostOrigin{}, named: map[string][]model.Key{},
	}
	for _, svc := range mesh.Services.Visible(proxy.Namespace, o.sidecar) {
		o.services[svc.Hostname] = svc
		for _, p := range svc.Ports {
			o.byPort[p.Number] = append(o.byPort[p.Number], svc)
		}
	}
	if proxy.Role == node.Router {
		o.servers = edgeServers(mesh, proxy, scoped)
	}
	return o
}

// of returns the objects that have a part in a resource; it is not to be written to.
func (o *origins) of(typeURL, name string) []model.Key {
	switch typeURL {
	case xds.TypeCluster, xds.TypeEndpoint:
		host, subset, ok := hostOfCluster(name)
		if !ok {
			return nil
		}
		keys := o.host(host).clusters
		if typeURL == xds.TypeEndpoint {
			keys = o.endpoints(host, subset)
		}
		if strings.HasPrefix(name, sniPrefix) {
			return joined(keys, o.automatic())
		}
		return keys
	case xds.TypeListener:
		return o.remember("lds "+name, func() []model.Key { return o.listener(name) })
	case xds.TypeRoute:
		return o.remember("rds "+name, func() []model.Key { return o.route(name) })
	case xds.TypeVirtualHost:
		route, _, _ := strings.Cut(name, vhdsMark)
		if o.servers != nil {
			return o.edgeRoute(route, hostOfVirtualHost(name))
		}
		return o.host(hostOfVirtualHost(name)).routes
	case xds.TypeExtension:
		if plugin := o.mesh.WasmPlugins.Get(name); plugin != nil {
			return []model.Key{plugin.Config.Key}
		}
	}
	return nil
}

func (o *origins) remember(name string, find func() []model.Key) []model.Key {
	keys, known := o.named[name]
	if !known {
		keys = find()
		o.named[name] = keys
	}
	return keys
}

// joined joins lists of objects, each object once, in the order in which they come.
func joined(lists ...[]model.Key) []model.Key {
	var out []model.Key
	seen := map[model.Key]bool{}
	for _, list := range lists {
		for _, key := range list {
			if !seen[key] {
				seen[key] = true
				out = append(out, key)
			}
		}
	}
	return out
}

// How the names of resources begin, and what marks routes whose hosts are apart.
const (
	outboundPrefix = "outbound|"
	inboundPrefix  = "inbound|"
	sniPrefix      = "outbound_."
	vhdsSuffix     = ".vhds"
	vhdsMark       = vhdsSuffix + "/"
)

// hostOfCluster returns host and subset of "outbound|port|subset|host", or of
// "outbound_.port_.subset_.host", which is the name that mutual TLS asks for.
func hostOfCluster(name string) (host, subset string, ok bool) {
	separator := "|"
	if strings.HasPrefix(name, sniPrefix) {
		separator = "_."
	}
	parts := strings.SplitN(name, separator, 4)
	if len(parts) != 4 || parts[0] != "outbound" {
		return "", "", false
	}
	return parts[3], parts[2], true
}

// hostOfVirtualHost returns the host of "routes/host:port".
func hostOfVirtualHost(name string) string {
	host, _, err := net.SplitHostPort(name[strings.LastIndex(name, "/")+1:])
	if err != nil {
		return ""
	}
	return host
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
		if h.rule = o.mesh.DestinationRules.For(svc.ServiceKey, o.proxy.Namespace, o.proxy.Labels); h.rule != nil {
			h.clusters = joined(h.clusters, o.ofRule(h.rule))
		}
		h.clusters = append(h.clusters, o.entries(o.mesh.NamedEndpoints.Of(svc.ServiceKey), nil)...) // Envoy resolves their names
	}
	if vs := o.rules(host); vs != nil && len(vs.Spec.GetHttp()) > 0 {
		h.routes = joined(h.routes, o.ofRoutes(vs))
	}
	return h
}

// rules returns the VirtualService of a host, nil for none.
func (o *origins) rules(host string) *snapshot.VirtualService {
	if host == "" {
		return nil
	}
	return o.mesh.VirtualServices.ForSidecar(host, o.proxy.Namespace, o.sidecar)
}

func (o *origins) ofRule(rule *snapshot.DestinationRule) (out []model.Key) {
	for _, c := range rule.From {
		out = append(out, o.written(c)...)
	}
	return out
}

// ofRoutes are the objects that users wrote the routes of a VirtualService into:
// itself, and those to which it delegates.
func (o *origins) ofRoutes(vs *snapshot.VirtualService) []model.Key {
	out := o.written(vs.Config)
	var last *model.Config
	for i := range vs.Spec.GetHttp() {
		if from := vs.Origin(i).Config; from != vs.Config && from != last {
			last = from
			out = joined(out, o.written(from))
		}
	}
	return out
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
		if seen[key] = true; o.stored(key) {
			out = append(out, key)
		}
	}
	return out
}

// How objects are named that were made of others, and what they say of those: the
// names and the annotation are Istio's.
const (
	parentsAnnotation = "internal.istio.io/parents"
	ingressMark       = "-istio-autogenerated-k8s-ingress-"
	madeOfIngress     = "-istio-autogenerated-k8s-ingress"
)

// written returns the objects that users wrote: an object of a store itself, and
// what one was made of that was converted.
func (o *origins) written(c *model.Config) []model.Key {
	if o.stored(c.Key) {
		return []model.Key{c.Key}
	}
	var out []model.Key
	if parents := c.Annotations[parentsAnnotation]; parents != "" {
		for _, text := range strings.Split(parents, ",") {
			if key, ok := parentOf(text); ok {
				out = append(out, key)
			}
		}
		return joined(out) // listeners of one Gateway are several parents
	}
	names := []string{c.Name}
	if strings.HasSuffix(c.Name, madeOfIngress) { // of all Ingresses with the host
		names = gatewayNames(c)
	}
	for _, name := range names {
		if i := strings.LastIndex(name, ingressMark); i > 0 {
			out = append(out, model.Key{Kind: model.Ingress, Namespace: name[i+len(ingressMark):], Name: name[:i]})
		}
	}
	if len(out) == 0 {
		return []model.Key{c.Key}
	}
	return out
}

// parentOf reads "Kind/name.namespace" and "Gateway/name/listener.namespace".
func parentOf(text string) (model.Key, bool) {
	kind, rest, ok := strings.Cut(text, "/")
	dot := strings.LastIndex(rest, ".")
	if !ok || dot < 0 {
		return model.Key{}, false
	}
	name, _, _ := strings.Cut(rest[:dot], "/")
	key := model.Key{Kind: model.Kind(kind), Namespace: rest[dot+1:], Name: name}
	if key.Kind == model.Gateway {
		key.Kind = model.KubernetesGateway // no other is a parent
	}
	return key, key.Name != ""
}
