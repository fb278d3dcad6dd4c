// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cespare/xxhash/v2"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
	"github.com/outrigger-mesh/outrigger/e2e/envoytest"
)

// template is a Generator of resources that are JSON with {{ip}} in it: type ->
// name -> resource. Unlike table it makes listeners that differ by proxy.
type template struct {
	table
	made map[string]*xds.Set // by snapshot, type and address
}

func (g *template) Generate(mesh *snapshot.Mesh, proxy *model.Proxy, typeURL string) *xds.Set {
	g.mu.Lock()
	defer g.mu.Unlock()
	pushed := g.pushed[mesh.Sequence-1][typeURL]
	key := fmt.Sprintf("%p %s %s", pushed, typeURL, proxy.IPs[0])
	if set := g.made[key]; set != nil {
		return set
	}
	set := &xds.Set{Version: versionOf(xxhash.Sum64String(key))}
	for _, res := range pushed.Resources {
		b := resourceBytes(typeURL, strings.ReplaceAll(string(res.Any), "{{ip}}", proxy.IPs[0]))
		set.Resources = append(set.Resources, &xds.Resource{Name: strings.ReplaceAll(res.Name, "{{ip}}", proxy.IPs[0]), Hash: xxhash.Sum64(b), Any: b})
	}
	g.made[key] = set
	return set
}

// resourceBytes makes the bytes of a resource.
func resourceBytes(typeURL, text string) []byte {
	var m proto.Message
	switch typeURL {
	case xds.TypeCluster:
		m = &clusterv3.Cluster{}
	case xds.TypeListener:
		m = &listenerv3.Listener{}
	default:
		m = &routev3.RouteConfiguration{}
	}
	if err := protojson.Unmarshal([]byte(text), m); err != nil {
		panic(err)
	}
	a, err := anypb.New(m)
	if err != nil {
		panic(err)
	}
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(a)
	if err != nil {
		panic(err)
	}
	return b
}

// canaryMesh is a group of Envoys under load.
type canaryMesh struct {
	*harness
	content *template
	binary  string
	api     string
	base    int // last part of the address of the first
	envoys  []*loaded
	control string
}

// loaded is an Envoy under continuous load.
type loaded struct {
	address string
	served  atomic.Pointer[string] // the last answer
	failed  atomic.Pointer[string] // the first that was none
}

func startCanaryMesh(t *testing.T, binary, api string, base int) *canaryMesh {
	t.Helper()
	m := &canaryMesh{harness: &harness{}, content: &template{made: map[string]*xds.Set{}}, binary: binary, api: api, base: base}
	logged := &journal{}
	var err error
	m.patience(30 * time.Second) // several Envoys share the machine
	m.server, err = New(Config{Generator: m.content, Workers: 2, CanaryPush: true, CanaryWait: m.canaryWait, Logger: slog.New(slog.NewTextHandler(logged, nil))})
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(grpc.ForceServerCodecV2(Codec()))
	m.server.Register(s, shopCaller)
	l, err := net.Listen("tcp", m.ip(0)+":0")
	if err != nil {
		t.Fatal(err)
	}
	m.control = l.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 2)
	go func() { done <- m.server.Run(ctx) }()
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Stop()
		cancel()
		for range cap(done) {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		if t.Failed() {
			t.Logf("the control plane said:\n%s", logged)
		}
	})
	return m
}

func (m *canaryMesh) ip(n int) string { return "127.77.151." + strconv.Itoa(m.base+n) }

// change pushes other resources: type -> name -> JSON.
func (m *canaryMesh) change(texts map[string]map[string]string) {
	m.content.mu.Lock()
	sets := map[string]*xds.Set{}
	for _, typeURL := range xds.Types {
		set := &xds.Set{}
		for name, text := range texts[typeURL] {
			set.Resources = append(set.Resources, &xds.Resource{Name: name, Any: []byte(text)})
		}
		slices.SortFunc(set.Resources, byResourceName)
		sets[typeURL] = set
	}
	m.content.sets = sets
	m.content.mu.Unlock()
	m.server.Push(m.content.freeze(), model.Change{All: true})
}

// run starts one more Envoy and loads it from when it first answers.
func (m *canaryMesh) run(t *testing.T) *loaded {
	t.Helper()
	ip := m.ip(1 + len(m.envoys))
	e := &loaded{address: ip}
	m.envoys = append(m.envoys, e)
	host, port, err := net.SplitHostPort(m.control)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	bootstrap := fmt.Sprintf(`{"node":{"id":"sidecar~%[1]s~shop-%[1]s.default~default.svc.cluster.local","cluster":"shop","metadata":{"NAMESPACE":"default","INTERCEPTION_MODE":"NONE"}},
		"admin":{"address":{"socket_address":{"address":%[1]q,"port_value":15000}}},
		"dynamic_resources":{"lds_config":{"ads":{},"resource_api_version":"V3"},"cds_config":{"ads":{},"resource_api_version":"V3"},
			"ads_config":{"api_type":%[2]q,"transport_api_version":"V3","grpc_services":[{"envoy_grpc":{"cluster_name":"control"}}]}},
		"static_resources":{"clusters":[{"name":"control","type":"STATIC","connect_timeout":"5s",
			"typed_extension_protocol_options":{"envoy.extensions.upstreams.http.v3.HttpProtocolOptions":{
				"@type":"type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions","explicit_http_config":{"http2_protocol_options":{}}}},
			"load_assignment":{"cluster_name":"control","endpoints":[{"lb_endpoints":[{"endpoint":{"address":{"socket_address":{"address":%[3]q,"port_value":%[4]s}}}}]}]}}]}}`,
		ip, m.api, host, port)
	path := filepath.Join(dir, "envoy.json")
	if err := os.WriteFile(path, []byte(bootstrap), 0o600); err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(dir, "envoy.log"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, m.binary, "-c", path, "--concurrency", "1", "--disable-hot-restart", "--log-level", "error")
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		cancel()
		t.Fatal(err)
	}
	done := make(chan struct{})
	t.Cleanup(func() {
		cancel()
		<-done
		_ = cmd.Wait() // it was killed
		_ = log.Close()
		if text, err := os.ReadFile(log.Name()); err == nil && t.Failed() {
			t.Logf("envoy %s said:\n%s", ip, text)
		}
	})
	go func() {
		defer close(done)
		e.load(ctx)
	}()
	until(t, "envoy "+ip+" serves", func() bool { return e.served.Load() != nil })
	return e
}

// load sends one request after another, and records failures after the first success.
func (e *loaded) load(ctx context.Context) {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 10 * time.Second}
	defer client.CloseIdleConnections()
	for tick := time.NewTicker(2 * time.Millisecond); ctx.Err() == nil; <-tick.C {
		got, err := fetch(ctx, client, "http://"+e.address+":8080/")
		switch {
		case ctx.Err() != nil:
			tick.Stop()
			return
		case err == nil:
			e.served.Store(&got)
		case e.served.Load() != nil:
			text := err.Error()
			e.failed.CompareAndSwap(nil, &text)
		}
	}
}

func fetch(ctx context.Context, client *http.Client, url string) (string, error) {
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return "", err
	}
	r, err := client.Do(q)
	if err != nil {
		return "", err
	}
	defer func() { _ = r.Body.Close() }()
	body, err := io.ReadAll(r.Body)
	if err == nil && r.StatusCode != http.StatusOK {
		err = errors.New(r.Status + ": " + string(body))
	}
	return string(body), err
}

// serve waits until all Envoys answer with a text.
func (m *canaryMesh) serve(t *testing.T, want string) {
	t.Helper()
	for _, e := range m.envoys {
		until(t, e.address+" serves "+want, func() bool { return *e.served.Load() == want })
	}
}

// counts returns what each Envoy counts.
func (m *canaryMesh) counts(t *testing.T, stat string) []int {
	t.Helper()
	out := make([]int, len(m.envoys))
	for i, e := range m.envoys {
		text, err := fetch(t.Context(), http.DefaultClient, "http://"+e.address+":15000/stats?filter="+stat)
		if err != nil {
			t.Fatal(err)
		}
		for s := bufio.NewScanner(strings.NewReader(text)); s.Scan(); {
			if _, value, ok := strings.Cut(s.Text(), ": "); ok {
				n, err := strconv.Atoi(value)
				if err != nil {
					t.Fatal(err)
				}
				out[i] += n
			}
		}
	}
	return out
}

// The resources of the test, in JSON.
const (
	canaryListener = `{"name":"{{ip}}_8080","address":{"socket_address":{"address":"{{ip}}","port_value":8080}},%s"filter_chains":[{"filters":[{"name":"http","typed_config":{
		"@type":"type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager","stat_prefix":"x",
		"rds":{"route_config_name":"main","config_source":{"ads":{},"resource_api_version":"V3"}},
		"http_filters":[{"name":"router","typed_config":{"@type":"type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"}}]}}]}]}`
	canaryRoute   = `{"name":"main","virtual_hosts":[{"name":"all","domains":["*"],"routes":[{"match":{%s},"direct_response":{"status":200,"body":{"inline_string":%q}}}]}]}`
	canaryCluster = `{"name":%q,"type":"STATIC","connect_timeout":"5s"%s}`
)

// canaryTexts are the resources with an answer, more clusters, and with one of
// them in a version that Envoy rejects.
func canaryTexts(answer, bad string, clusters ...string) map[string]map[string]string {
	match, logs := `"prefix":"/"`, ""
	all := map[string]string{}
	for _, name := range append(clusters, "main") {
		all[name] = fmt.Sprintf(canaryCluster, name, "")
	}
	switch bad {
	case "route":
		match = `"safe_regex":{"regex":"("}`
	case "listener":
		logs = `"access_log":[{"name":"nobody.knows.it"}],`
	case "cluster":
		all["main"] = fmt.Sprintf(canaryCluster, "main", `,"load_balancing_policy":{"policies":[{"typed_extension_config":{"name":"nobody.knows.it","typed_config":{"@type":"type.googleapis.com/google.protobuf.Empty"}}}]}`)
	case "protection":
		all["main"] = fmt.Sprintf(canaryCluster, "main", `,"transport_socket":{"name":"nobody.knows.it"}`)
	case "message":
		all["main"] = fmt.Sprintf(canaryCluster, "main", `,"lb_policy":"LEAST_REQUEST","least_request_lb_config":{"choice_count":1}`)
	}
	return map[string]map[string]string{
		xds.TypeCluster:  all,
		xds.TypeListener: {"{{ip}}_8080": fmt.Sprintf(canaryListener, logs)},
		xds.TypeRoute:    {"main": fmt.Sprintf(canaryRoute, match, answer)},
	}
}

// TestEnvoyCanary sends resources that Envoy rejects to a group of Envoys: routes, listeners and
// clusters, and messages that it cannot parse, all under continuous load.
//   - exactly one receives each, and all continue to serve
//   - other changes reach all
//   - a later Envoy receives the last good ones
//   - the next good change reaches all
//   - a bad security change reaches all, and they keep their previous version
func TestEnvoyCanary(t *testing.T) {
	t.Parallel()
	binary := envoytest.Binary(t)
	for name, tc := range map[string]struct {
		api  string
		base int
	}{"sotw": {"GRPC", 20}, "delta": {"DELTA_GRPC", 40}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := startCanaryMesh(t, binary, tc.api, tc.base)
			m.change(canaryTexts("1", ""))
			for range 5 {
				m.run(t)
			}
			clusters := []string{}
			for i, bad := range []struct{ what, typ, resource, stat string }{
				{"route", "rds", "main", `rds\.main\.update_rejected`},
				{"cluster", "cds", "main", `cds\.update_rejected`},
				{"message", "cds", "main", `cds\.update_rejected`},
				{"listener", "lds", "_8080", `lds\.update_rejected`},
			} {
				good, next := strconv.Itoa(i+1), strconv.Itoa(i+2)
				before := m.counts(t, bad.stat)
				clusters = append(clusters, "beside-"+good)
				m.change(canaryTexts(good, bad.what, clusters...))
				begin := time.Now()
				until(t, "the bad "+bad.what+" is held back", func() bool {
					r := m.server.Rejected()
					return len(r) > 0 && shortType(r[0].Type) == bad.typ && strings.HasSuffix(r[0].Name, bad.resource) && r[0].LastGood
				})
				t.Logf("%s: held back after %v, for %q", bad.what, time.Since(begin), m.server.Rejected()[0].Reason)
				until(t, "what changed beside is everywhere", func() bool { return m.having(t, "beside-"+good) == len(m.envoys) })
				saw := 0
				for i, n := range m.counts(t, bad.stat) {
					if n > before[i] {
						saw++
					}
				}
				if saw != 1 {
					t.Errorf("%d Envoys rejected the bad %s, want 1", saw, bad.what)
				}
				m.run(t)
				m.serve(t, good)
				m.change(canaryTexts(next, "", clusters...))
				m.serve(t, next)
				until(t, "nothing is rejected", func() bool { return len(m.server.Rejected()) == 0 })
			}
			before := m.counts(t, `cds\.update_rejected`)
			m.change(canaryTexts("5", "protection", clusters...))
			until(t, "all reject a change of what protects", func() bool {
				return !slices.ContainsFunc(m.envoys, func(e *loaded) bool {
					i := slices.Index(m.envoys, e)
					return m.counts(t, `cds\.update_rejected`)[i] == before[i]
				})
			})
			if got := m.server.Rejected(); len(got) > 0 {
				t.Errorf("it is withheld: %+v", got)
			}
			m.change(canaryTexts("6", "", clusters...))
			m.serve(t, "6")
			for _, e := range m.envoys {
				if text := e.failed.Load(); text != nil {
					t.Errorf("a request to %s failed: %s", e.address, *text)
				}
			}
		})
	}
}

// having returns how many Envoys have a cluster.
func (m *canaryMesh) having(t *testing.T, name string) int {
	t.Helper()
	have := 0
	for _, e := range m.envoys {
		text, err := fetch(t.Context(), http.DefaultClient, "http://"+e.address+":15000/clusters")
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(text, name+"::") {
			have++
		}
	}
	return have
}
