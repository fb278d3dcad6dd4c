// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package agent

import (
	"errors"

	"google.golang.org/protobuf/proto"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/outrigger-mesh/outrigger/xdsproxy"
	"github.com/outrigger-mesh/outrigger/xdsproxy/nds"
)

// typeProxyConfig is the type of the resource with additional roots.
const typeProxyConfig = "type.googleapis.com/istio.mesh.v1alpha1.ProxyConfig"

func (b *builder) relay() (err error) {
	cfg := b.cfg
	b.parts.relay, err = xdsproxy.New(xdsproxy.Config{
		Listener: b.socks.xds, Logger: b.logger("xdsproxy"), Registerer: b.registry,
		Consumers: b.consumers(), Rewriters: b.rewriters(), Check: b.fileCheck(), LastGood: b.lastGoodOfRelay(),
		Rejected: func(pid int, typeURL, reason string) {
			if b.parts.envoy != nil {
				b.parts.envoy.Rejected(pid, typeURL, reason)
			}
		},
		Upstream: xdsproxy.UpstreamConfig{
			Address: cfg.xds.address, ServerName: cfg.xds.serverName, TLS: cfg.xds.tlsConfig(b.certificate), Token: tokenSource(cfg.env.Upstream.JWTPolicy),
			ClusterID: cfg.metadata.ClusterID, Headers: cfg.env.Upstream.XDSHeaders, Refused: b.refused,
			KeepaliveTime: cfg.env.Upstream.KeepaliveInterval, KeepaliveTimeout: cfg.env.Upstream.KeepaliveTimeout,
		},
	})
	return err
}

// consumers returns the consumers of the types that are for the agent itself.
func (b *builder) consumers() []xdsproxy.Consumer {
	var list []xdsproxy.Consumer
	if table := b.parts.dns; table != nil {
		list = append(list, xdsproxy.Consumer{TypeURL: nds.TypeURL, Subscribe: true, Handle: func(messages [][]byte, _ []string) error {
			if len(messages) == 0 {
				if !table.Ready() {
					table.Update(&nds.Table{}) // there are no names
				}
				return nil
			}
			names, err := nds.Unmarshal(messages[0])
			if err != nil {
				return err
			}
			table.Update(names)
			return nil
		}})
	}
	if workload := b.parts.workload; workload != nil && b.cfg.env.Upstream.TrustBundle {
		list = append(list, xdsproxy.Consumer{TypeURL: typeProxyConfig, Subscribe: true, Handle: func(messages [][]byte, _ []string) error {
			if len(messages) == 0 {
				return nil
			}
			pc := &meshv1alpha1.ProxyConfig{}
			if err := proto.Unmarshal(messages[0], pc); err != nil {
				return errors.New("the ProxyConfig cannot be read")
			}
			var anchors [][]byte
			for _, text := range pc.GetCaCertificatesPem() {
				anchors = append(anchors, []byte(text))
			}
			return workload.SetAnchors(anchors)
		}})
	}
	return list
}

// refused renews a certificate that the control plane does not accept.
func (b *builder) refused() {
	if b.parts.workload != nil {
		b.parts.workload.Renew()
	}
}
