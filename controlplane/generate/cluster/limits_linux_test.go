// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package cluster

import (
	"context"
	"net"
	"syscall"
	"testing"

	"google.golang.org/protobuf/types/known/durationpb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// TestKeepaliveOfTheKernel checks that the kernel accepts the keepalive settings of any rule.
// Otherwise it would reject the socket option, and Envoy every connection.
func TestKeepaliveOfTheKernel(t *testing.T) {
	t.Parallel()
	for _, seconds := range []int64{1, 32767, 32768, 36_000, 1 << 32, 1<<32 + 1} {
		p := Policy{Pool: &networkingv1alpha3.ConnectionPoolSettings{Tcp: &networkingv1alpha3.ConnectionPoolSettings_TCPSettings{
			TcpKeepalive: &networkingv1alpha3.ConnectionPoolSettings_TCPSettings_TcpKeepalive{
				Probes: uint32(seconds), Time: &durationpb.Duration{Seconds: seconds}, Interval: &durationpb.Duration{Seconds: seconds},
			},
		}}}
		c := BlackHole()
		p.applyConnections(c, &meshv1alpha1.MeshConfig{})
		k := c.GetUpstreamConnectionOptions().GetTcpKeepalive()
		var refused error
		dialer := &net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
			return raw.Control(func(fd uintptr) {
				for option, value := range map[int]uint32{
					syscall.TCP_KEEPCNT: k.GetKeepaliveProbes().GetValue(), syscall.TCP_KEEPIDLE: k.GetKeepaliveTime().GetValue(),
					syscall.TCP_KEEPINTVL: k.GetKeepaliveInterval().GetValue(),
				} {
					if value == 0 {
						continue // not set
					}
					if err := syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, option, int(value)); err != nil {
						refused = err
					}
				}
			})
		}}
		l, err := dialer.Listen(context.Background(), "tcp", "127.77.64.1:0")
		if err != nil {
			t.Fatal(err)
		}
		_ = l.Close() // nothing was sent
		if refused != nil || k.GetKeepaliveTime().GetValue() == 0 || k.GetKeepaliveInterval().GetValue() == 0 {
			t.Errorf("%d seconds and probes give %v: %v", seconds, k, refused)
		}
	}
}

// TestUnknownTLSMode checks that an unknown mode does not result in plaintext.
func TestUnknownTLSMode(t *testing.T) {
	t.Parallel()
	for _, v := range []Viewer{{}, {Router: true}, {Proxyless: true}} {
		if (Policy{TLS: &networkingv1alpha3.ClientTLSSettings{Mode: 9}}).Serves(v) {
			t.Errorf("%+v gets a cluster without TLS", v)
		}
	}
	if !(Policy{TLS: &networkingv1alpha3.ClientTLSSettings{}}).Serves(Viewer{}) {
		t.Errorf("the mode DISABLE is not served to %s", model.ProtocolHTTP)
	}
}
