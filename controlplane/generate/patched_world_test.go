// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitservicev3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	grpchealth "google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/e2e/envoytest"
)

// The addresses of the worlds of the corpus, in place of those in its files.
const (
	corpusSidecar = "127.77.61.5"
	corpusGateway = "127.77.61.2"
	corpusServer  = "127.77.61.6" // the services of both
	corpusOffice  = "127.77.62.1" // a client in a network that filters name
)

var corpusAddresses = strings.NewReplacer(
	"{address: 10.244.0.6}", "{address: "+corpusServer+", ports: {http: 8080}}", // 80 needs rights
	"10.244.0.5", corpusSidecar, "10.244.0.6", corpusServer, "10.0.0.1", corpusServer, "10.9.0.1", corpusGateway,
	"127.0.0.1", corpusServer, "address: localhost", "address: "+corpusServer, "198.51.100.0", "127.77.62.0", "192.0.2.0", "127.77.62.0",
)

// corpusServices are added to the worlds of the corpus, by the name of the world.
var corpusServices = map[string]string{
	"testdata/patch-sidecar": `
kind: ServiceEntry
metadata: {name: frontend-grpc, namespace: default}
spec:
  hosts: [frontend-grpc.default.svc.cluster.local]
  addresses: [10.96.1.4]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 9090, name: grpc, protocol: GRPC}]
  endpoints: [{address: 10.244.0.5, labels: {app: frontend}}]
---
kind: ServiceEntry
metadata: {name: raw, namespace: default}
spec: {hosts: [raw.default.svc.cluster.local], resolution: STATIC, ports: [{number: 80, name: http, protocol: HTTP}], endpoints: [{address: 10.244.0.6, ports: {http: 8084}}]}
---
kind: ServiceEntry
metadata: {name: slow, namespace: default}
spec: {hosts: [slow.default.svc.cluster.local], resolution: STATIC, ports: [{number: 80, name: http, protocol: HTTP}], endpoints: [{address: 10.244.0.6, ports: {http: 8085}}]}
---
kind: DestinationRule
metadata: {name: slow, namespace: default}
spec: {host: slow.default.svc.cluster.local, trafficPolicy: {tls: {mode: SIMPLE, insecureSkipVerify: true}}}
---
kind: ServiceEntry
metadata: {name: many, namespace: default}
spec:
  hosts: [many.default.svc.cluster.local]
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP}]
  endpoints: [{address: 10.244.0.6}, {address: 10.244.0.6, ports: {http: 8086}}, {address: 10.244.0.6, ports: {http: 8087}}]
---
kind: VirtualService
metadata: {name: web, namespace: default}
spec:
  hosts: [web.default.svc.cluster.local]
  http: [{corsPolicy: {allowOrigins: [{exact: "https://shop.example.com"}]}, route: [{destination: {host: web.default.svc.cluster.local}}]}]
`,
	"testdata/patch-gateway": `
kind: Gateway
metadata: {name: more, namespace: shop}
spec:
  selector: {istio: ingressgateway}
  servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: [more.example.com]}]
---
kind: VirtualService
metadata: {name: more, namespace: shop}
spec:
  hosts: [more.example.com]
  gateways: [more]
  http:
  - {match: [{uri: {prefix: /grpc.health}}], route: [{destination: {host: api.shop.svc.cluster.local}}]}
  - {match: [{uri: {prefix: /gone}}], route: [{destination: {host: gone.shop.svc.cluster.local}}]}
  - {match: [{uri: {prefix: /names}}], route: [{destination: {host: names.shop.svc.cluster.local}}]}
  - {route: [{destination: {host: sticky.shop.svc.cluster.local}}]}
---
kind: ServiceEntry
metadata: {name: api, namespace: shop}
spec: {hosts: [api.shop.svc.cluster.local], resolution: STATIC, ports: [{number: 9081, name: grpc, protocol: GRPC}], endpoints: [{address: 10.0.0.1}]}
---
kind: ServiceEntry
metadata: {name: gone, namespace: shop}
spec: {hosts: [gone.shop.svc.cluster.local], resolution: STATIC, ports: [{number: 9, name: http, protocol: HTTP}], endpoints: [{address: 10.0.0.1}]}
---
kind: ServiceEntry
metadata: {name: names, namespace: shop}
spec: {hosts: [names.shop.svc.cluster.local], resolution: DNS, ports: [{number: 9082, name: http, protocol: HTTP}], endpoints: [{address: 'localhost'}]}
---
kind: ServiceEntry
metadata: {name: sticky, namespace: shop}
spec: {hosts: [sticky.shop.svc.cluster.local], resolution: STATIC, ports: [{number: 9080, name: http, protocol: HTTP}], endpoints: [{address: 10.0.0.1}]}
---
kind: DestinationRule
metadata: {name: sticky, namespace: shop}
spec: {host: sticky.shop.svc.cluster.local, trafficPolicy: {loadBalancer: {consistentHash: {httpHeaderName: x-none}}}}
`,
}

// corpusLimits is a service of global limits.
type corpusLimits struct {
	ratelimitservicev3.UnimplementedRateLimitServiceServer
}

func (corpusLimits) ShouldRateLimit(_ context.Context, r *ratelimitservicev3.RateLimitRequest) (*ratelimitservicev3.RateLimitResponse, error) {
	code := ratelimitservicev3.RateLimitResponse_OK
	over := func(e *ratelimitv3.RateLimitDescriptor_Entry) bool {
		return e.GetKey() == "PATH" && e.GetValue() == "/limited"
	}
	for _, d := range r.GetDescriptors() {
		if r.GetDomain() == "edge" && slices.ContainsFunc(d.GetEntries(), over) {
			code = ratelimitservicev3.RateLimitResponse_OVER_LIMIT
		}
	}
	return &ratelimitservicev3.RateLimitResponse{OverallCode: code}, nil
}

// corpusServers are the applications of both worlds.
type corpusServers struct {
	*journal
	key     dayKey
	metrics net.PacketConn
}

func newCorpusServers(t *testing.T) *corpusServers {
	t.Helper()
	s := &corpusServers{journal: &journal{arrivals: map[string][]arrival{}, changed: make(chan struct{})}, key: newDayKey(t, "own", "k")}
	for address, handler := range map[string]http.Handler{
		corpusSidecar + ":8080": s.more(s.serve("frontend")), corpusServer + ":8080": s.serve("web"),
		corpusServer + ":9080": s.more(s.serve("web")), corpusServer + ":8888": s.serve("called"),
		corpusServer + ":8086": s.serve("sick"), corpusServer + ":8087": s.serve("sick"),
	} {
		server := &http.Server{Handler: upgrades(handler), ReadHeaderTimeout: time.Minute}
		l := corpusListen(t, address)
		go func() { _ = server.Serve(l) }() // until it is closed
		t.Cleanup(func() { _ = server.Close() })
	}
	for address, service := range map[string]func(*grpc.Server){
		corpusSidecar + ":9090": func(g *grpc.Server) { grpc_health_v1.RegisterHealthServer(g, grpchealth.NewServer()) },
		corpusServer + ":9081":  func(g *grpc.Server) { grpc_health_v1.RegisterHealthServer(g, grpchealth.NewServer()) },
		corpusServer + ":8081":  func(g *grpc.Server) { ratelimitservicev3.RegisterRateLimitServiceServer(g, corpusLimits{}) },
	} {
		server := grpc.NewServer()
		service(server)
		l := corpusListen(t, address)
		go func() { _ = server.Serve(l) }() // until it is stopped
		t.Cleanup(server.Stop)
	}
	corpusListen(t, corpusServer+":8085") // accepts connections and sends nothing
	for address, serve := range map[string]func(net.Conn){
		corpusServer + ":5432": func(c net.Conn) { _, _ = io.Copy(c, c) },
		corpusServer + ":8084": func(c net.Conn) { // returns the head of a request as it arrives
			var head strings.Builder
			for in := bufio.NewScanner(c); in.Scan() && in.Text() != ""; {
				head.WriteString(in.Text() + "\n")
			}
			_, _ = fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", head.Len(), head.String())
		},
	} {
		l := corpusListen(t, address)
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go func() {
					serve(c) // the client detects missing data
					_ = c.Close()
				}()
			}
		}()
	}
	var err error
	if s.metrics, err = net.ListenPacket("udp", corpusServer+":9125"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.metrics.Close() })
	return s
}

func corpusListen(t *testing.T, address string) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// more serves the keys of an issuer and a long body, refuses the requests that Envoy itself sends to
// a path, and leaves other requests to next.
func (s *corpusServers) more(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/jwks":
			_, _ = io.WriteString(w, dayKeys(s.key.t, s.key))
		case r.URL.Path == "/big":
			w.Header().Set("Content-Type", "text/plain")
			w.Header().Set("Content-Length", strconv.Itoa(200_000))
			_, _ = w.Write(make([]byte, 200_000)) // the client detects missing data
		case r.URL.Path == "/refused" && r.Header.Get(idHeader) == "":
			w.WriteHeader(http.StatusForbidden)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// corpusProxy is an Envoy of a world of the corpus, whose configuration changes.
type corpusProxy struct {
	*corpusServers
	testCase
	dir, output, admin string
	secret             func(t testing.TB, name string) map[string]any
	files              map[string][]byte
	pair               tls.Certificate
	patience           time.Duration // how long to wait for what may never come
	sent               atomic.Int64
}

// startCorpus runs the Envoy until the test ends. Bootstrap are arguments.
func startCorpus(t *testing.T, servers *corpusServers, world testCase, bootstrap ...string) *corpusProxy {
	t.Helper()
	p := &corpusProxy{corpusServers: servers, testCase: world, dir: t.TempDir(), files: map[string][]byte{}}
	ids := &guarded{dir: p.dir, authority: newIssuer(t, p.dir, "root")}
	pair, chain, key := ids.identity(t, "spiffe://cluster.local/ns/default/sa/frontend")
	ids.own, p.secret, p.pair = chain+"~"+key, ids.secret, pair
	p.admin = world.proxy.IPs[0] + ":" + freePorts(t, world.proxy.IPs[0], 1)[0]
	p.write(t, p.configuration(t, nil))
	from := func(name string) map[string]any {
		return map[string]any{"resource_api_version": "V3", "path_config_source": map[string]any{"path": filepath.Join(p.dir, name)}}
	}
	at := netip.MustParseAddrPort(p.admin)
	b, err := json.Marshal(map[string]any{
		"node":                 map[string]any{"id": "test", "cluster": "test"},
		"admin":                map[string]any{"address": map[string]any{"socket_address": map[string]any{"address": at.Addr().String(), "port_value": at.Port()}}},
		"dynamic_resources":    map[string]any{"lds_config": from("listeners"), "cds_config": from("clusters")},
		"stats_flush_interval": "0.2s",
	})
	if err != nil {
		t.Fatal(err)
	}
	args := append([]string{"--drain-time-s", "1", "--drain-strategy", "immediate", "--file-flush-interval-msec", "20"}, bootstrap...)
	p.output, _ = runEnvoy(t, envoytest.Binary(t), b, p.address(), args...)
	return p
}

// address returns where the Envoy accepts connections.
func (p *corpusProxy) address() string {
	if p.proxy.Role == "router" {
		return corpusGateway + ":8080"
	}
	return corpusSidecar + ":15006"
}

// configuration returns the listeners and clusters with an EnvoyFilter. What the rules of the kernel
// do in a pod, the PROXY protocol does here: clients say where their connection went to.
func (p *corpusProxy) configuration(t *testing.T, filter *model.Config) map[string][]byte {
	t.Helper()
	objects := slices.Clone(p.objects)
	if filter != nil {
		objects = append(objects, filter)
	}
	mesh := snapshot.Build(nil, inputOf(objects, p.mesh), model.Change{All: true})
	noProblems(t, mesh, p.proxy)
	var all struct {
		Static map[string][]map[string]any `json:"static_resources"`
	}
	if err := json.Unmarshal(withSecrets(t, p.dir, staticBootstrap(t, mesh, p.proxy), p.secret), &all); err != nil {
		t.Fatal(err)
	}
	for _, l := range all.Static["listeners"] {
		l["@type"] = "type.googleapis.com/envoy.config.listener.v3.Listener"
		filters, _ := l["listenerFilters"].([]any)
		if name := l["name"]; name == "virtualInbound" || name == "virtualOutbound" {
			at := min(len(filters), 1) // after original_dst
			l["listenerFilters"] = slices.Insert(filters, at, any(map[string]any{
				"name": "test", "typed_config": map[string]any{"@type": "type.googleapis.com/envoy.extensions.filters.listener.proxy_protocol.v3.ProxyProtocol"},
			}))
		}
		if address, ok := l["address"].(map[string]any)["socketAddress"].(map[string]any); ok && l["bindToPort"] != false && address["address"] == "0.0.0.0" {
			address["address"] = p.proxy.IPs[0]
		}
	}
	for _, c := range all.Static["clusters"] {
		c["@type"] = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
	}
	out := map[string][]byte{}
	for _, name := range []string{"clusters", "listeners"} {
		b, err := json.Marshal(map[string]any{"resources": all.Static[name]})
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range newFields {
			if envoyMinor(t) < f.since {
				b = f.field.ReplaceAll(b, nil)
			}
		}
		out[name] = b
	}
	for _, port := range []string{"8086", "8087"} { // of three endpoints, two are ill
		endpoint := fmt.Sprintf(`"socketAddress":{"address":%q,"portValue":%s}}}`, corpusServer, port)
		if p.proxy.Role == "sidecar" && !bytes.Contains(out["clusters"], []byte(endpoint)) {
			t.Fatalf("no endpoint at port %s: %s", port, out["clusters"])
		}
		out["clusters"] = bytes.ReplaceAll(out["clusters"], []byte(endpoint), []byte(endpoint+`,"healthStatus":"UNHEALTHY"`))
	}
	return out
}

// write replaces files whose content differs, and waits until a running Envoy has read them.
func (p *corpusProxy) write(t *testing.T, files map[string][]byte) {
	t.Helper()
	for _, name := range []string{"clusters", "listeners"} {
		if bytes.Equal(p.files[name], files[name]) {
			continue
		}
		counter := map[string]string{"clusters": "cluster_manager.cds.", "listeners": "listener_manager.lds."}[name]
		before := 0
		if p.output != "" {
			before = p.counters(t, counter+"update_(success|rejected)")
		}
		p.files[name] = files[name]
		write(t, filepath.Join(p.dir, name+".new"), files[name])
		if err := os.Rename(filepath.Join(p.dir, name+".new"), filepath.Join(p.dir, name)); err != nil {
			t.Fatal(err)
		}
		if p.output != "" {
			rejected := p.counters(t, counter+"update_rejected")
			for deadline := time.Now().Add(2 * time.Minute); p.counters(t, counter+"update_(success|rejected)") == before; time.Sleep(2 * time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatalf("Envoy does not read the %s", name)
				}
			}
			if p.counters(t, counter+"update_rejected") > rejected {
				t.Errorf("Envoy refuses the %s", name)
			}
		}
	}
}

// ask returns what the admin port of the Envoy answers.
func (p *corpusProxy) ask(t *testing.T, path string) string {
	t.Helper()
	_, body := get(t, http.DefaultClient, "http://"+p.admin+path, "")
	return body
}

// counters returns the sum of the counters whose names match a regular expression.
func (p *corpusProxy) counters(t *testing.T, names string) (sum int) {
	t.Helper()
	for line := range strings.Lines(p.ask(t, "/stats?filter="+url.QueryEscape(names))) {
		if _, value, ok := strings.Cut(strings.TrimSpace(line), ": "); ok {
			n, err := strconv.Atoi(value)
			if err != nil {
				t.Fatal(line)
			}
			sum += n
		}
	}
	return sum
}
