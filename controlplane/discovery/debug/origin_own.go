// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package debug

import (
	"bytes"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
	securityv1beta1 "istio.io/api/security/v1beta1"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// own tells which objects have a part in what one proxy takes itself: its inbound
// listeners and clusters, and the plugins of its listeners.
type own struct {
	*origins
	proxy   *model.Proxy
	peers   []model.Key // its PeerAuthentications
	served  []snapshot.Instance
	plugins []*snapshot.WasmPlugin
}

func (o *origins) own(proxy *model.Proxy, peers []*model.Config) *own {
	w := &own{origins: o, proxy: proxy, plugins: o.mesh.WasmPlugins.For(proxy.Namespace, proxy.Labels)}
	if o.servers == nil {
		w.served = o.mesh.Instances.At(proxy.IPs)
		w.peers = peerAuthentications(peers, rootOf(o.mesh), proxy.Namespace, proxy.OwnLabels())
	}
	return w
}

// of returns the objects that have a part in a resource, beside those of
// [origins.of].
func (w *own) of(typeURL string, r *xds.Resource) []model.Key {
	switch typeURL {
	case xds.TypeCluster:
		if name, ok := strings.CutPrefix(r.Name, inboundPrefix); ok {
			port, _, _ := strings.Cut(name, "|")
			return w.inbound(port)
		}
	case xds.TypeListener:
		return joined(w.listener(r.Name), w.named(r))
	}
	return nil
}

// listener are the objects behind a listener through which the workload is
// reached.
func (w *own) listener(name string) []model.Key {
	const served = "xds.istio.io/grpc/lds/inbound/" // by applications without proxy
	if w.servers != nil {
		return nil
	}
	if address, ok := strings.CutPrefix(name, served); ok {
		return joined(w.inbound(address[strings.LastIndex(address, ":")+1:]), w.peers)
	}
	if name == "virtualInbound" {
		return joined(w.inbound(""), w.peers)
	}
	for _, l := range w.sidecar.Ingress() {
		if path, unix := strings.CutPrefix(l.GetBind(), "unix://"); unix && path == name {
			return joined(w.inbound(""), w.peers)
		}
		address, port, ok := splitListener(name)
		bound := !intercepts(w.proxy) || l.GetCaptureMode() == networkingv1alpha3.CaptureMode_NONE
		if !ok || !bound || port != l.GetPort().GetNumber() {
			continue
		}
		if bind := l.GetBind(); bind == address || bind == "" && len(w.proxy.IPs) > 0 && w.proxy.IPs[0] == address {
			return joined(w.inbound(""), w.peers)
		}
	}
	return nil
}

// inbound are the objects that say at which ports the workload is reached, or at
// one of them: the Sidecar, otherwise the services that it is an endpoint of.
func (w *own) inbound(port string) []model.Key {
	if len(w.sidecar.Ingress()) > 0 {
		return []model.Key{w.sidecar.Config.Key}
	}
	var out []model.Key
	for _, i := range w.served {
		if port == "" || decimal(i.Endpoint.Port) == port {
			out = append(out, i.Service.Source)
		}
	}
	return joined(out)
}

// named are the plugins that a listener names: in Envoy's message of a filter the
// name is the first field.
func (w *own) named(r *xds.Resource) []model.Key {
	var out []model.Key
	for _, plugin := range w.plugins {
		field := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), plugin.Name)
		if bytes.Contains(r.Any, field) {
			out = append(out, plugin.Config.Key)
		}
	}
	return out
}

// peerAuthentications returns those that say which connections a workload takes:
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
