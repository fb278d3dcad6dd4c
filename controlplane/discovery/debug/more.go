// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package debug

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	configcodec "github.com/outrigger-mesh/outrigger/controlplane/config/codec"
	"github.com/outrigger-mesh/outrigger/controlplane/config/schema"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// adsz lists the streams with what they ask for. With push=true, which is for
// those who see all of the mesh, everything is sent again.
func (d debugger) adsz() (answerOf, error) {
	if d.query.Get("push") == "true" {
		push := d.cfg.Push
		switch {
		case !d.asker.all:
			return answerOf{}, fmt.Errorf("%w: a push is for callers of the namespace %s, not %s", errForbidden, rootOf(d.mesh), d.asker.name)
		case push == nil:
			return answerOf{}, errors.New("this control plane cannot push")
		}
		push()
		return answerOf{json: map[string]any{"pushed": len(d.source.Streams())}}, nil
	}
	type connection struct {
		ID        string            `json:"connectionId"`
		Connected time.Time         `json:"connectedAt"`
		Addresses []string          `json:"addresses"`
		Labels    map[string]string `json:"labels,omitempty"`
		Watches   map[string]int    `json:"watches"`
	}
	list := []connection{}
	for _, st := range d.visible() {
		c := connection{ID: st.ID, Connected: st.Connected, Addresses: st.Proxy.IPs, Labels: st.Proxy.Labels, Watches: map[string]int{}}
		for _, p := range st.Types {
			if p.Sent == 0 {
				continue
			}
			c.Watches[p.Name] = 0
			if i := slices.Index(xds.Types, p.TypeURL); i >= 0 && st.Given != nil {
				c.Watches[p.Name] = len(st.Given[i].Resources)
			}
		}
		list = append(list, c)
	}
	return answerOf{json: map[string]any{"totalClients": len(list), "clients": list}}, nil
}

// resourcesz returns the names of the resources that a proxy is given, by type.
func (d debugger) resourcesz() (answerOf, error) {
	st, err := d.subject()
	if err != nil {
		return answerOf{}, err
	}
	given, out := d.givenTo(st), map[string][]string{}
	for i, typeURL := range xds.Types {
		names := []string{}
		for _, r := range given[i].Resources {
			names = append(names, r.Name)
		}
		out[st.nameOf(typeURL)] = names
	}
	return answerOf{json: out}, nil
}

// sidecarz returns the Sidecar object that a proxy has, and what it sees.
func (d debugger) sidecarz() (answerOf, error) {
	p, err := d.proxy()
	if err != nil {
		return answerOf{}, err
	}
	type scope struct {
		Sidecar  string   `json:"sidecar,omitempty"`
		Services []string `json:"services"`
	}
	out, sidecar := scope{Services: []string{}}, d.mesh.Sidecars.For(p.Namespace, p.Labels)
	if sidecar != nil {
		out.Sidecar = sidecar.Config.Namespace + "/" + sidecar.Config.Name
	}
	for _, svc := range d.mesh.Services.Visible(p.Namespace, sidecar) {
		out.Services = append(out.Services, svc.Hostname)
	}
	return answerOf{json: out}, nil
}

// instancesz gives, for each proxy, the ports of services that it serves: those
// whose endpoints have one of its addresses.
func (d debugger) instancesz() (answerOf, error) {
	type instance struct {
		Service string          `json:"service"`
		Port    uint32          `json:"servicePort"`
		At      *model.Endpoint `json:"endpoint"`
	}
	byAddress := map[string][]instance{}
	for _, svc := range d.mesh.Services.Sorted {
		set := d.mesh.Endpoints.Of(svc.ServiceKey)
		if set == nil {
			continue
		}
		for _, e := range set.List {
			byAddress[e.Address] = append(byAddress[e.Address], instance{svc.Hostname, e.ServicePort, e})
		}
	}
	out := map[string][]instance{}
	for _, st := range d.visible() {
		list := []instance{}
		for _, ip := range st.Proxy.IPs {
			list = append(list, byAddress[ip]...)
		}
		out[st.Proxy.ID] = list
	}
	return answerOf{json: out}, nil
}

// endpointz returns the endpoints of all services.
func (d debugger) endpointz() (answerOf, error) {
	type service struct {
		Service   string            `json:"svc"`
		Namespace string            `json:"namespace"`
		Endpoints []*model.Endpoint `json:"ep"`
	}
	list := []service{}
	for _, svc := range d.mesh.Services.Sorted {
		s := service{Service: svc.Hostname, Namespace: svc.Namespace, Endpoints: []*model.Endpoint{}}
		if set := d.mesh.Endpoints.Of(svc.ServiceKey); set != nil {
			s.Endpoints = append(s.Endpoints, set.List...)
		}
		if set := d.mesh.NamedEndpoints.Of(svc.ServiceKey); set != nil {
			s.Endpoints = append(s.Endpoints, set.List...)
		}
		list = append(list, s)
	}
	return answerOf{json: list}, nil
}

// configz returns the objects of the stores, of one kind or of all.
func (d debugger) configz() (answerOf, error) {
	list, kind := []json.RawMessage{}, d.query.Get("kind")
	objects := d.cfg.Objects
	if objects == nil {
		return answerOf{json: list}, nil
	}
	known := kind == ""
	for _, sch := range objects.Schemas() {
		if kind != "" && string(sch.Kind) != kind {
			continue
		}
		known = true
		for _, c := range objects.List(sch.Kind, "") {
			raw, err := configcodec.EncodeJSON(c)
			if err != nil {
				return answerOf{}, fmt.Errorf("write %s: %w", c.Key, err)
			}
			list = append(list, raw)
		}
	}
	if !known {
		return answerOf{}, fmt.Errorf("%w: the kind %q is unknown: write it as in VirtualService", errUnknown, kind)
	}
	return answerOf{json: list}, nil
}

// clusterz returns the Kubernetes clusters, in the form that istioctl reads.
func (d debugger) clusterz() (answerOf, error) {
	list := []ClusterState{}
	if d.cfg.Clusters != nil {
		list = append(list, d.cfg.Clusters()...)
	}
	return answerOf{json: list}, nil
}

// pushContext returns the newest snapshot in numbers.
func (d debugger) pushContext() (answerOf, error) {
	m := d.mesh
	return answerOf{json: map[string]any{
		"sequence": m.Sequence, "domain": m.Domain, "services": len(m.Services.Sorted), "virtualServices": len(m.VirtualServices.All),
		"problems": model.CountProblems(m.Problems), "proxies": len(d.source.Streams()), "rejectedResources": d.source.RejectedResources(),
	}}, nil
}

// syncedVersions is what istioctl's wait reads: the generation of an object that
// a proxy has acknowledged, by type; empty for an older one.
type syncedVersions struct {
	Proxy    string `json:"proxy,omitempty"`
	Cluster  string `json:"cluster_acked,omitempty"`
	Listener string `json:"listener_acked,omitempty"`
	Route    string `json:"route_acked,omitempty"`
	Endpoint string `json:"endpoint_acked,omitempty"`
}

// distribution returns the version of an object that each proxy has acknowledged.
func (d debugger) distribution() (answerOf, error) {
	parts := strings.Split(d.query.Get("resource"), "/")
	if len(parts) != 3 {
		return answerOf{}, errors.New("name an object, as in ?resource=VirtualService/shop/catalog")
	}
	cfg := d.cfg
	sch, ok := schema.Named(parts[0])
	if !ok {
		return answerOf{}, fmt.Errorf("%w: the kind %q is unknown", errUnknown, parts[0])
	}
	key := model.Key{Kind: sch.Kind, Namespace: parts[1], Name: parts[2]}
	c := cfg.object(key)
	if c == nil || cfg.Changed == nil {
		return answerOf{}, fmt.Errorf("%w: there is no %s", errUnknown, key)
	}
	sequence, _, _ := cfg.Changed(key)
	version := strconv.FormatInt(c.SpecGeneration(), 10)
	list := []syncedVersions{}
	proxies, missing := d.source.Missing(sequence)
	for _, id := range proxies {
		v := syncedVersions{Proxy: id}
		if !missing[id] {
			v.Cluster, v.Listener, v.Route, v.Endpoint = version, version, version, version
		}
		list = append(list, v)
	}
	return answerOf{json: list}, nil
}
