// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	adminv3 "github.com/envoyproxy/go-control-plane/envoy/admin/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3" // a dump of Envoy contains it
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
	"github.com/outrigger-mesh/outrigger/e2e/envoytest"
)

// wireEnvoy is an Envoy that has its configuration from a wireMesh.
type wireEnvoy struct {
	t     *testing.T
	admin string
}

// runWireEnvoy runs Envoy until the test ends. Its admin port, and all that it
// listens on, are of one address.
func runWireEnvoy(t *testing.T, w *wireMesh, api, ip string) *wireEnvoy {
	t.Helper()
	binary := envoytest.Binary(t)
	e := &wireEnvoy{t: t, admin: net.JoinHostPort(ip, freePort(t, ip))}
	at := func(address string) any {
		host, port, _ := strings.Cut(address, ":")
		return map[string]any{"socket_address": map[string]any{"address": host, "port_value": parsePort(port)}}
	}
	type object = map[string]any
	ads := object{"ads": object{}, "resource_api_version": "V3", "initial_fetch_timeout": "0s"}
	bootstrap, err := json.Marshal(object{
		"node": object{
			"id": "sidecar~" + ip + "~shop-1.default~default.svc.cluster.local", "cluster": "shop",
			"metadata": object{"NAMESPACE": "default", "INTERCEPTION_MODE": "NONE"},
		},
		"admin": object{"address": at(e.admin)},
		// As in the bootstrap of agents: Envoy before 1.38 limits regular expressions to 100.
		"layered_runtime": object{"layers": []any{object{"name": "global", "static_layer": object{"re2.max_program_size.error_level": "32768"}}}},
		"dynamic_resources": object{
			"lds_config": ads, "cds_config": ads,
			"ads_config": object{"api_type": api, "transport_api_version": "V3", "grpc_services": []any{object{"envoy_grpc": object{"cluster_name": "control"}}}},
		},
		"static_resources": object{"clusters": []any{object{
			"name": "control", "type": "STATIC", "connect_timeout": "1s",
			"typed_extension_protocol_options": object{"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": object{
				"@type":                "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
				"explicit_http_config": object{"http2_protocol_options": object{}},
			}},
			"load_assignment": object{"cluster_name": "control", "endpoints": []any{object{"lb_endpoints": []any{object{"endpoint": object{"address": at(w.address)}}}}}},
		}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "envoy.json")
	if err := os.WriteFile(path, bootstrap, 0o600); err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(dir, "envoy.log"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, binary, "-c", path, "--concurrency", "1", "--disable-hot-restart", "--log-level", "warning")
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		cancel()
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		_ = cmd.Wait() // it was killed
		_ = log.Close()
		if text, err := os.ReadFile(log.Name()); err == nil && t.Failed() {
			t.Logf("envoy said:\n%.4000s", text)
		}
	})
	return e
}

// get sends a request to the admin port; it returns nothing while the port does not respond.
func (e *wireEnvoy) get(path string) string {
	resp, err := http.Get("http://" + e.admin + path) //nolint:noctx // the test's own Envoy, which answers at once
	if err != nil {
		return ""
	}
	defer func() { _ = resp.Body.Close() }() // it was read
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		return ""
	}
	return string(body)
}

// view returns the active resources of Envoy in the form of a viewer, or nil while something is
// warming.
func (e *wireEnvoy) view(kind viewerKind) *viewer {
	dump := &adminv3.ConfigDump{}
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal([]byte(e.get("/config_dump?include_eds")), dump); err != nil {
		return nil
	}
	v := newViewer(e.t, kind, "")
	hold := func(typeURL, name string, res *anypb.Any) {
		if v.have[typeURL] == nil {
			v.have[typeURL] = map[string]*anypb.Any{}
		}
		v.have[typeURL][name] = res
	}
	for _, section := range dump.GetConfigs() {
		m, err := section.UnmarshalNew()
		if err != nil {
			e.t.Fatal(err)
		}
		switch d := m.(type) {
		case *adminv3.ClustersConfigDump:
			if len(d.GetDynamicWarmingClusters()) > 0 {
				return nil
			}
			for _, c := range d.GetDynamicActiveClusters() {
				hold(xds.TypeCluster, nameOf(e.t, c.GetCluster()), c.GetCluster())
			}
		case *adminv3.ListenersConfigDump:
			for _, l := range d.GetDynamicListeners() {
				if l.GetWarmingState() != nil || l.GetErrorState() != nil {
					return nil
				}
				if active := l.GetActiveState().GetListener(); active != nil {
					hold(xds.TypeListener, l.GetName(), active)
				}
			}
		case *adminv3.RoutesConfigDump:
			for _, r := range d.GetDynamicRouteConfigs() {
				hold(xds.TypeRoute, nameOf(e.t, r.GetRouteConfig()), r.GetRouteConfig())
			}
		case *adminv3.EndpointsConfigDump:
			for _, ep := range d.GetDynamicEndpointConfigs() {
				hold(xds.TypeEndpoint, nameOf(e.t, ep.GetEndpointConfig()), ep.GetEndpointConfig())
			}
		}
	}
	edsClusters := v.namedEndpoints() // the dump also has those of other clusters
	maps.DeleteFunc(v.have[xds.TypeEndpoint], func(name string, _ *anypb.Any) bool { return !slices.Contains(edsClusters, name) })
	return v
}

// content returns the parts of a view that affect traffic, for comparison: Envoy's dump fills in
// defaults, and has separate virtual hosts in random order.
func content(t *testing.T, v *viewer) map[string]string {
	t.Helper()
	if v == nil {
		return nil
	}
	out := map[string]string{}
	for typeURL, all := range v.have {
		for name, res := range all {
			short := shortType(typeURL) + " " + name
			switch typeURL {
			case xds.TypeEndpoint:
				out[short] = endpointsOf(t, res)
			case xds.TypeRoute:
				config := &routev3.RouteConfiguration{}
				decode(t, res, config)
				out[short] = "" // what stands around its hosts
				for _, host := range config.GetVirtualHosts() {
					out["vhds "+strings.TrimPrefix(host.GetName(), name+"/")] = canonical(t, unnamed(host))
				}
			case xds.TypeVirtualHost:
				host := &routev3.VirtualHost{}
				decode(t, res, host)
				out["vhds "+strings.TrimPrefix(name, routeOf(name)+"/")] = canonical(t, unnamed(host))
			default:
				m, err := res.UnmarshalNew()
				if err != nil {
					t.Fatal(err)
				}
				out[short] = canonical(t, m)
			}
		}
	}
	return out
}

// unnamed returns a virtual host without its name, which differs with VHDS.
func unnamed(host *routev3.VirtualHost) *routev3.VirtualHost {
	host = proto.Clone(host).(*routev3.VirtualHost)
	host.Name = ""
	return host
}

func canonical(t *testing.T, m proto.Message) string {
	t.Helper()
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// endpointsOf lists addresses.
func endpointsOf(t *testing.T, res *anypb.Any) string {
	t.Helper()
	var addresses []string
	cla := &endpointv3.ClusterLoadAssignment{}
	decode(t, res, cla)
	for _, group := range cla.GetEndpoints() {
		for _, ep := range group.GetLbEndpoints() {
			at := ep.GetEndpoint().GetAddress().GetSocketAddress()
			addresses = append(addresses, fmt.Sprintf("%s:%d", at.GetAddress(), at.GetPortValue()))
		}
	}
	slices.Sort(addresses)
	return strings.Join(slices.Compact(addresses), " ")
}

// TestEnvoyViews makes random changes while a real Envoy is connected, and its control plane
// restarts: at the end Envoy has in force what a new control plane would send, has rejected
// nothing, and nothing is warming.
func TestEnvoyViews(t *testing.T) {
	t.Parallel()
	delta := viewerKinds[2]
	if !takesVHDS(t) {
		delta = viewerKinds[1]
	}
	for name, tc := range map[string]struct {
		api, control, envoy string
		kind                viewerKind
	}{
		"sotw":  {"GRPC", "127.77.171.4", "127.77.171.5", viewerKinds[0]},
		"delta": {"DELTA_GRPC", "127.77.171.6", "127.77.171.7", delta},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWireMesh(t, tc.control)
			w.noTLS = true
			w.setPort(15080)
			r := &propertyRun{t: t, rnd: rand.New(rand.NewPCG(7, 7)), w: w, v: newViewer(t, tc.kind, ""), at: tc.envoy, plain: true}
			e := runWireEnvoy(t, w, tc.api, tc.envoy)
			for round := range 6 {
				for range 15 {
					r.change()
				}
				if round%3 == 2 {
					r.did("restart")
					w.restart()
				}
				want := content(t, r.fresh())
				var got map[string]string
				for end := time.Now().Add(2 * time.Minute); !maps.Equal(got, want) && time.Now().Before(end); {
					got = content(t, e.view(tc.kind))
				}
				if !maps.Equal(got, want) {
					t.Fatalf("after round %d of %s\nEnvoy differs from a view built from nothing (-have +want):\n%s", round, strings.Join(r.changes, ", "), cmp.Diff(got, want))
				}
			}
			for line := range strings.Lines(e.get("/stats?filter=update_rejected")) {
				if _, n, _ := strings.Cut(strings.TrimSpace(line), ": "); n != "0" {
					t.Errorf("Envoy rejected something: %s", line)
				}
			}
			if said := w.logged.String(); strings.Contains(said, "rejected configuration") {
				t.Error("the control plane heard of a rejection")
			}
			w.putOne(model.ServiceEntry, "last", wireService("last.default.svc.cluster.local", "HTTP", 80, "10.0.50.1"))
			until(t, "Envoy has the last service", func() bool {
				return content(t, e.view(tc.kind))["eds outbound|80||last.default.svc.cluster.local"] == "10.0.50.1:80"
			})
		})
	}
}
