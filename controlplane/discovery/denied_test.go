// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/outrigger-mesh/outrigger/controlplane/denylist"
	"github.com/outrigger-mesh/outrigger/controlplane/discovery/debug"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/report"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// TestDenyListStatus follows a deny list through two proxies: only a proxy that has
// acknowledged the snapshot counts, and one that ignores serial numbers is named.
func TestDenyListStatus(t *testing.T) {
	t.Parallel()
	for _, delta := range []bool{false, true} {
		t.Run(fmt.Sprintf("delta %t", delta), func(t *testing.T) {
			t.Parallel()
			logged, problem, reg := &journal{}, "", prometheus.NewRegistry()
			h := &harness{table: &table{}}
			h.serve(t, Config{Generator: h.table, Workers: 2, Logger: slog.New(slog.NewTextHandler(logged, nil))}, nil, insecure.NewCredentials(), insecure.NewCredentials())
			h.server.Debug(debug.Config{DenyListProblem: func() string { return problem }, Registerer: reg})
			deny := func(text, listener string) {
				t.Helper()
				h.set(xds.TypeListener, map[string]string{"l": listener})
				mesh := h.freeze()
				var err error
				if mesh.Denied, err = denylist.Parse([]byte(text)); err != nil {
					t.Fatal(err)
				}
				h.server.Push(mesh, model.Change{All: true})
			}
			connect := func(number int, minor uint32) *peer {
				t.Helper()
				p := h.connectAs(t, delta, number)
				p.node.UserAgentName = "envoy"
				p.node.UserAgentVersionType = &corev3.Node_UserAgentBuildVersion{UserAgentBuildVersion: &corev3.BuildVersion{Version: &typev3.SemanticVersion{MajorNumber: 1, MinorNumber: minor}}}
				p.subscribe(xds.TypeCluster)
				p.wantAck("cds")
				p.subscribe(xds.TypeListener)
				return p
			}
			want := func(when, want string) {
				t.Helper()
				got := ""
				until(t, when+": "+want, func() bool {
					var r report.Replica
					debugGet(t, h.server, "proxies", &r)
					if got = "none"; r.DenyList != nil {
						l := r.DenyList
						got = fmt.Sprintf("%d entries, %d serials, %d have it, not %v, ignored by %v, %q", l.Entries, l.Serials, l.Acknowledged, l.Missing, l.Ignoring, l.Problem)
						if (l.Version == "") != (l.Entries == 0) || l.Since.IsZero() {
							t.Fatalf("%s: %+v", when, l)
						}
					}
					return got == want
				})
			}
			metric := func(name string) (value float64) {
				t.Helper()
				families, err := reg.Gather()
				if err != nil {
					t.Fatal(err)
				}
				for _, f := range families {
					if f.GetName() == "outrigger_control_deny_list_proxies_"+name {
						value = f.GetMetric()[0].GetGauge().GetValue()
					}
				}
				return value
			}
			deny("# nobody\n", "l=1")
			one := connect(1, 36)
			one.wantAck("lds l=1")
			want("no list", "none")
			const both = "spiffe://cluster.local/ns/shop/sa/web\nserial ab\n"
			deny(both, "l=2")
			one.want("lds l=2")
			want("not answered", `2 entries, 1 serials, 0 have it, not [shop-1.default], ignored by [shop-1.default], ""`)
			if metric("missing") != 1 || metric("ignoring_serials") != 1 {
				t.Errorf("the metrics are %v and %v", metric("missing"), metric("ignoring_serials"))
			}
			one.ack(xds.TypeListener)
			want("answered", `2 entries, 1 serials, 1 have it, not [], ignored by [shop-1.default], ""`)
			two := connect(2, 37)
			two.want("lds l=2")
			want("a new proxy", `2 entries, 1 serials, 1 have it, not [shop-2.default], ignored by [shop-1.default], ""`)
			two.ack(xds.TypeListener)
			want("it has answered", `2 entries, 1 serials, 2 have it, not [], ignored by [shop-1.default], ""`)
			problem = "line 3: no"
			deny(both+"spiffe://cluster.local/ns/shop/sa/api\n", "l=3")
			one.wantAck("lds l=3")
			two.want("lds l=3")
			two.nack(xds.TypeListener, "no")
			want("one rejects it", `3 entries, 1 serials, 1 have it, not [shop-2.default], ignored by [shop-1.default], "line 3: no"`)
			problem = ""
			deny("# nobody\n", "l=4")
			one.wantAck("lds l=4")
			two.wantAck("lds l=4")
			want("lifted", `0 entries, 0 serials, 2 have it, not [], ignored by [], ""`)
			deny("serial ab\n", "l=5")
			three := connect(3, 36)
			three.wantAck("lds l=5")
			for text, n := range map[string]int{"the deny list has serial numbers that some proxies ignore": 3, "the proxy ignores the serial numbers of the deny list": 1} {
				if got := strings.Count(logged.String(), text); got != n {
					t.Errorf("%q is logged %d times, want %d:\n%s", text, got, n, logged)
				}
			}
		})
	}
}

func TestIgnoresSerials(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]bool{"1.36.2": true, "1.37.0": false, "1.40.0": false, "2.0.0": false, "0.99.1": true, "": true, "1": true, "1.x": true, "custom": true} {
		if got := ignoresSerials(&model.Proxy{Envoy: version}); got != want {
			t.Errorf("Envoy %q: %t, want %t", version, got, want)
		}
	}
	if !ignoresSerials(&model.Proxy{Envoy: "1.40.0", Proxyless: true}) {
		t.Error("proxyless gRPC checks serial numbers, want it reported as ignoring them")
	}
}
