// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package quarantine

import (
	"fmt"
	"net"
	"strings"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	tcpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// resource serializes a message.
func resource(t *testing.T, typ int, name string, m proto.Message) *xds.Resource {
	t.Helper()
	res, err := xds.New(xds.Types[typ], name, m)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

// listener returns a listener at an address that connects to a cluster.
func listener(t *testing.T, name, address, statPrefix, cluster string) *xds.Resource {
	t.Helper()
	tcp, err := anypb.New(&tcpv3.TcpProxy{StatPrefix: statPrefix, ClusterSpecifier: &tcpv3.TcpProxy_Cluster{Cluster: cluster}})
	if err != nil {
		t.Fatal(err)
	}
	return resource(t, typeListener, name, &listenerv3.Listener{
		Name: name, Address: &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
			Address: address, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: 80},
		}}},
		FilterChains: []*listenerv3.FilterChain{{Filters: []*listenerv3.Filter{{Name: "tcp", ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: tcp}}}}},
	})
}

// TestReplaceAddress checks that addresses that start or end with another address are not changed.
func TestReplaceAddress(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ from, to, in, want string }{
		{"10.1.1.1", "10.1.1.9", "10.1.1.1", "10.1.1.9"},
		{"10.1.1.1", "10.1.1.9", "10.1.1.1_80 and 10.1.1.12_80", "10.1.1.9_80 and 10.1.1.12_80"},
		{"10.1.1.1", "10.1.1.9", "110.1.1.1 10.1.1.1", "110.1.1.1 10.1.1.9"},
		{"10.1.1.1", "10.1.1.9", "10.1.1.110.1.1.1", "10.1.1.110.1.1.1"},
		{"10.1.1.1", "10.1.1.9", "10.1.1.1:80,::ffff:10.1.1.1", "10.1.1.9:80,::ffff:10.1.1.9"},
		{"10.1.1.1", "10.1.1.100", "tcp://10.1.1.1:80/", "tcp://10.1.1.100:80/"},
		{"10.1.1.1", "10.1.1.9", "nothing", "nothing"},
		{"10.1.1.1", "10.1.1.9", "10.1.1.10 10.1.1.1.nip 5.10.1 x10.1.1.1", "10.1.1.10 10.1.1.1.nip 5.10.1 x10.1.1.1"},
		{"10.1.1.1", "10.1.1.9", "ü10.1.1.1 ☎10.1.1.1", "ü10.1.1.1 ☎10.1.1.9"},
		{"fd00::1", "fd00::2", "fd00::1 [fd00::1]:80 fd00::1:80 fd00::11 ffd00::1", "fd00::2 [fd00::2]:80 fd00::1:80 fd00::11 ffd00::1"},
	} {
		if got := replaceAddress(tc.in, tc.from, tc.to); got != tc.want {
			t.Errorf("%q becomes %q, want %q", tc.in, got, tc.want)
		}
	}
}

// TestShapes compares the listeners of two proxies without their addresses, and derives that of
// the second proxy from that of the first. The length of strings of 48 to 57 bytes is the code of
// a digit.
func TestShapes(t *testing.T) {
	t.Parallel()
	it := func(res *xds.Resource) Item { return Item{typeListener, res.Name} }
	for _, addresses := range [][2]string{{"10.1.1.1", "10.1.1.9"}, {"10.1.1.1", "10.1.1.123"}, {"10.1.1.12", "10.1.1.1"}, {"fd00::1", "fd00:1::1"}} {
		for length := range 150 {
			of := func(address string) *xds.Resource {
				return listener(t, address+"_80", address, net.JoinHostPort(address, "80")+strings.Repeat("_", length), "10.1.1.11")
			}
			first, second := of(addresses[0]), of(addresses[1])
			if a, b := shapeOf(it(first), first, addresses[0]), shapeOf(it(second), second, addresses[1]); a != b || a.Hash == first.Hash {
				t.Fatalf("%v, %d more bytes: the shapes are %v and %v", addresses, length, a, b)
			}
			got := withAddress(first, addresses[0], addresses[1])
			if got.Name != second.Name || got.Hash != second.Hash || string(got.Any) != string(second.Any) {
				t.Fatalf("%v, %d more bytes: it becomes %q, want %q", addresses, length, got.Any, second.Any)
			}
		}
	}
	other := listener(t, "a", "10.1.1.12", "x", "y")
	if got := shapeOf(it(other), other, "10.1.1.1"); got != (Key{it(other), other.Hash}) || withAddress(other, "10.1.1.1", "10.1.1.9") != other {
		t.Errorf("a resource with another address has the shape %v", got)
	}
	if withAddress(listener(t, "a", "10.1.1.1", "x", "y"), "10.1.1.1", "") != nil {
		t.Error("an address is replaced by nothing")
	}
}

// TestNeeds checks that, of two removed clusters, only the one is kept to which a replacement
// listener refers, with its endpoints.
func TestNeeds(t *testing.T) {
	t.Parallel()
	for _, canary := range []bool{false, true} {
		t.Run(fmt.Sprintf("canary %t", canary), func(t *testing.T) {
			t.Parallel()
			q := newQuarantine()
			q.cfg.Canary = canary
			made := func(statPrefix, to string, clusters ...string) (made Sets) {
				all := map[int][]*xds.Resource{typeListener: {listener(t, "l", "127.0.0.1", statPrefix, to)}}
				for _, name := range clusters {
					all[typeCluster] = append(all[typeCluster], resource(t, typeCluster, name, &clusterv3.Cluster{Name: name}))
					all[typeEndpoint] = append(all[typeEndpoint], &xds.Resource{Name: name, Hash: 1})
				}
				for i := range made {
					made[i] = xds.NewSet(nil, all[i], nil)
				}
				return made
			}
			first, second := made("1", "ab", "a", "ab", "abc", "new"), made("2", "new", "new")
			m := q.Join(proxy(1, "envoy"), &stream{})
			m.Place(first, 1, false)
			for i := range first {
				m.Accepted(Answer{Type: i, Base: first[i], Sequence: 1, Changed: first[i].Resources}, state{true})
			}
			m.Place(second, 2, false)
			m.Rejected(Rejection{Type: typeListener, Changed: second[typeListener].Resources, Reason: "is bad", After: 1, UpTo: 2})
			got := m.Place(second, 2, false).Sets
			if got[typeListener].Get("l") != first[typeListener].Get("l") {
				t.Fatal("the rejected listener is not withheld")
			}
			for _, typ := range []int{typeCluster, typeEndpoint} {
				var names []string
				for _, res := range got[typ].Resources {
					names = append(names, res.Name)
				}
				if want := "ab new"; strings.Join(names, " ") != want {
					t.Errorf("%s: the proxy receives %q, want %s", xds.Types[typ], names, want)
				}
			}
		})
	}
}
