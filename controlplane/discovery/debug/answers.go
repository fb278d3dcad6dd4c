// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package debug

import (
	"fmt"
	"strconv"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	statusv3 "github.com/envoyproxy/go-control-plane/envoy/service/status/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/outrigger-mesh/outrigger/controlplane/report"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
	"github.com/outrigger-mesh/outrigger/xdsproxy/nds"
)

// asJSON is a message that is written as protobuf's JSON has it.
type asJSON struct{ proto.Message }

// MarshalJSON implements [json.Marshaler].
func (m asJSON) MarshalJSON() ([]byte, error) { return protojson.Marshal(m.Message) }

// syncStatus is how far a proxy is: the nonces of what it was sent, and took.
type syncStatus struct {
	ClusterID     string `json:"cluster_id,omitempty"`
	Proxy         string `json:"proxy"`
	ProxyType     string `json:"proxy_type"`
	AgentVersion  string `json:"istio_version,omitempty"` // as the proxy claims
	ClusterSent   string `json:"cluster_sent,omitempty"`
	ClusterAcked  string `json:"cluster_acked,omitempty"`
	ListenerSent  string `json:"listener_sent,omitempty"`
	ListenerAcked string `json:"listener_acked,omitempty"`
	RouteSent     string `json:"route_sent,omitempty"`
	RouteAcked    string `json:"route_acked,omitempty"`
	EndpointSent  string `json:"endpoint_sent,omitempty"`
	EndpointAcked string `json:"endpoint_acked,omitempty"`
	PluginSent    string `json:"extensionconfig_sent,omitempty"`
	PluginAcked   string `json:"extensionconfig_acked,omitempty"`
	// Rejected are the proxy's reasons, by type, where it rejects what it was
	// sent last.
	Rejected map[string]string `json:"rejected,omitempty"`
}

// syncz tells of each proxy whether it has what it was sent.
func (d debugger) syncz() (answerOf, error) {
	a := answerOf{}
	list := []syncStatus{}
	for _, st := range d.visible() {
		c := &statusv3.ClientConfig{Node: &corev3.Node{Id: st.Proxy.ID, Metadata: &structpb.Struct{Fields: map[string]*structpb.Value{
			"CLUSTER_ID": structpb.NewStringValue(st.Proxy.ClusterID), "NAMESPACE": structpb.NewStringValue(st.Proxy.Namespace),
		}}}}
		s := syncStatus{ClusterID: st.Proxy.ClusterID, Proxy: st.Proxy.ID, ProxyType: st.Proxy.Role, AgentVersion: st.Proxy.Agent}
		nonces := map[string][2]*string{
			xds.TypeCluster: {&s.ClusterSent, &s.ClusterAcked}, xds.TypeListener: {&s.ListenerSent, &s.ListenerAcked},
			xds.TypeRoute: {&s.RouteSent, &s.RouteAcked}, xds.TypeEndpoint: {&s.EndpointSent, &s.EndpointAcked},
			xds.TypeExtension: {&s.PluginSent, &s.PluginAcked},
		}
		for _, p := range st.Types {
			typeURL := p.TypeURL
			if at, ok := nonces[typeURL]; ok {
				*at[0], *at[1] = nonceText(p.Sent), nonceText(p.Acked)
				c.GenericXdsConfigs = append(c.GenericXdsConfigs, &statusv3.ClientConfig_GenericXdsConfig{TypeUrl: typeURL, ConfigStatus: p.status()})
			}
			if p.status() == statusv3.ConfigStatus_ERROR {
				if s.Rejected == nil {
					s.Rejected = map[string]string{}
				}
				s.Rejected[p.Name] = p.Reason
			}
		}
		list = append(list, s)
		a.messages, a.names = append(a.messages, c), append(a.names, st.Proxy.ID)
	}
	a.json = list
	return a, nil
}

// connections lists the streams.
func (d debugger) connections() (answerOf, error) {
	type connection struct {
		ID        string    `json:"connectionId"`
		Connected time.Time `json:"connectedAt"`
		Delta     bool      `json:"delta"`
		Addresses []string  `json:"addresses"`
		Identity  string    `json:"identity,omitempty"`
	}
	list := []connection{}
	for _, st := range d.visible() {
		c := connection{ID: st.ID, Connected: st.Connected, Delta: st.Delta, Addresses: st.Proxy.IPs}
		if st.Caller != nil {
			c.Identity = st.Caller.ID.String()
		}
		list = append(list, c)
	}
	return answerOf{json: map[string]any{"totalClients": len(list), "clients": list}}, nil
}

// ndsz is the name table of a proxy.
func (d debugger) ndsz() (answerOf, error) {
	proxy, err := d.proxy()
	if err != nil {
		return answerOf{}, err
	}
	table := &nds.Table{Hosts: map[string]nds.Host{}}
	for _, r := range d.source.Generate(d.mesh, proxy, xds.TypeNameTable).Resources {
		a := &anypb.Any{}
		if err := proto.Unmarshal(r.Any, a); err != nil {
			return answerOf{}, fmt.Errorf("read the name table: %w", err)
		}
		if table, err = nds.Unmarshal(a.GetValue()); err != nil {
			return answerOf{}, err
		}
	}
	return answerOf{json: table}, nil
}

// requestable returns the resources of a type that a proxy may request by name, without Secrets.
func (d debugger) requestable(typeURL string, empty proto.Message) (answerOf, error) {
	proxy, err := d.proxy()
	if err != nil {
		return answerOf{}, err
	}
	list := []asJSON{}
	for _, r := range d.source.Generate(d.mesh, proxy, typeURL).Resources {
		m := proto.Clone(empty)
		if err := r.UnmarshalTo(m); err != nil {
			return answerOf{}, err
		}
		list = append(list, asJSON{m})
	}
	return answerOf{json: list}, nil
}

// edsz returns the endpoints that a proxy may request.
func (d debugger) edsz() (answerOf, error) {
	return d.requestable(xds.TypeEndpoint, &endpointv3.ClusterLoadAssignment{})
}

// ecdsz returns the WasmPlugins and other filters that a proxy may request.
func (d debugger) ecdsz() (answerOf, error) {
	return d.requestable(xds.TypeExtension, &corev3.TypedExtensionConfig{})
}

func (t TypeState) status() statusv3.ConfigStatus {
	switch t.State() {
	case report.NotSent:
		return statusv3.ConfigStatus_NOT_SENT
	case report.Synced:
		return statusv3.ConfigStatus_SYNCED
	case report.Rejected:
		return statusv3.ConfigStatus_ERROR
	}
	return statusv3.ConfigStatus_STALE
}

// nonceText is the number of a response as the proxy has it, empty for none.
func nonceText(n uint64) string {
	if n == 0 {
		return ""
	}
	return strconv.FormatUint(n, 36)
}
