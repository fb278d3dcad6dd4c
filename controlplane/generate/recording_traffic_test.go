// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	dataaccesslogv3 "github.com/envoyproxy/go-control-plane/envoy/data/accesslog/v3"
	accesslogservicev3 "github.com/envoyproxy/go-control-plane/envoy/service/accesslog/v3"
	commonv1 "go.opentelemetry.io/proto/otlp/common/v1"
	logsv1 "go.opentelemetry.io/proto/otlp/logs/v1"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/outrigger-mesh/outrigger/bootstrap/meshconfig"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/e2e/envoytest"
	"github.com/outrigger-mesh/outrigger/e2e/ownnet"
)

// recorded is a receiver of access logs and spans: an access log service, OTLP over gRPC, Zipkin.
type recorded struct {
	accesslogservicev3.UnimplementedAccessLogServiceServer
	grpcPort, httpPort string
	mu                 sync.Mutex // guards lines
	lines              []string   // one for each record: its kind, and what it says
}

// newRecorded runs receivers until the test ends or stop is called, at two ports or, if they are 0, any.
func newRecorded(t *testing.T, grpcPort, httpPort string) (r *recorded, stop func()) {
	t.Helper()
	r = &recorded{}
	listen := func(port string) net.Listener {
		l, err := ownnet.Listen("127.0.0.1:" + port)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	l := listen(grpcPort)
	server := grpc.NewServer()
	accesslogservicev3.RegisterAccessLogServiceServer(server, r)
	server.RegisterService(otlpService("opentelemetry.proto.collector.trace.v1.TraceService", func(decode func(any) error) error {
		m := &tracev1.TracesData{} // the same fields as those of a request
		if err := decode(m); err != nil {
			return err
		}
		for _, of := range m.GetResourceSpans() {
			for _, scope := range of.GetScopeSpans() {
				for _, span := range scope.GetSpans() {
					r.add("otlp span of " + textOf(of.GetResource().GetAttributes()) + ": " + textOf(span.GetAttributes()) + parentText(hex.EncodeToString(span.GetTraceId()), hex.EncodeToString(span.GetParentSpanId())))
				}
			}
		}
		return nil
	}), r)
	server.RegisterService(otlpService("opentelemetry.proto.collector.logs.v1.LogsService", func(decode func(any) error) error {
		m := &logsv1.LogsData{}
		if err := decode(m); err != nil {
			return err
		}
		for _, of := range m.GetResourceLogs() {
			for _, scope := range of.GetScopeLogs() {
				for _, record := range scope.GetLogRecords() {
					r.add("otlp log " + record.GetBody().GetStringValue() + ": " + textOf(record.GetAttributes()))
				}
			}
		}
		return nil
	}), r)
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	zipkin := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		var spans []struct {
			TraceID, ParentID string
			Tags              map[string]string
		}
		body, err := io.ReadAll(req.Body)
		if err != nil || json.Unmarshal(body, &spans) != nil {
			http.Error(w, "no spans", http.StatusBadRequest)
			return
		}
		for _, s := range spans {
			text, _ := json.Marshal(s.Tags) // a map of strings
			r.add("zipkin span at " + req.URL.Path + ": " + string(text) + parentText(s.TraceID, s.ParentID))
		}
		w.WriteHeader(http.StatusAccepted)
	}))
	_ = zipkin.Listener.Close() // replaced
	zipkin.Listener = listen(httpPort)
	zipkin.Start()
	stop = sync.OnceFunc(func() {
		zipkin.CloseClientConnections()
		zipkin.Close()
		server.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	r.grpcPort, r.httpPort = portOf(t, l.Addr()), portOf(t, zipkin.Listener.Addr())
	return r, stop
}

func otlpService(name string, export func(func(any) error) error) *grpc.ServiceDesc {
	return &grpc.ServiceDesc{ServiceName: name, HandlerType: (*any)(nil), Methods: []grpc.MethodDesc{{
		MethodName: "Export",
		Handler: func(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			return &emptypb.Empty{}, export(decode)
		},
	}}}
}

func parentText(trace, parent string) string { return " in " + trace + " of " + parent + ";" }

func textOf(attributes []*commonv1.KeyValue) string {
	var out []string
	for _, a := range attributes {
		out = append(out, a.GetKey()+"="+a.GetValue().GetStringValue())
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func (r *recorded) add(line string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = append(r.lines, line)
}

func (r *recorded) all() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.lines)
}

// StreamAccessLogs receives the entries of requests.
func (r *recorded) StreamAccessLogs(stream accesslogservicev3.AccessLogService_StreamAccessLogsServer) error {
	name := ""
	for {
		m, err := stream.Recv()
		if err != nil {
			return nil // Envoy ended
		}
		if id := m.GetIdentifier(); id != nil {
			name = id.GetLogName()
		}
		for _, e := range m.GetHttpLogs().GetLogEntry() {
			r.add("als " + name + ": " + entryText(e))
		}
		for range m.GetTcpLogs().GetLogEntry() {
			r.add("als " + name + ": a connection")
		}
	}
}

func entryText(e *dataaccesslogv3.HTTPAccessLogEntry) string {
	return e.GetRequest().GetPath() + " " + strconv.Itoa(int(e.GetResponse().GetResponseCode().GetValue())) + " x-a=" + e.GetRequest().GetRequestHeaders()["x-a"]
}

// await waits until a record contains all texts.
func (r *recorded) await(t *testing.T, texts ...string) {
	t.Helper()
	for deadline := time.Now().Add(3 * time.Minute); ; time.Sleep(50 * time.Millisecond) {
		lines := r.all()
		if slices.ContainsFunc(lines, func(line string) bool {
			return !slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(line, text) })
		}) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("no record contains %q:\n%s", texts, strings.Join(lines, "\n"))
		}
	}
}

const recordingMesh = `
kind: ServiceEntry
metadata: {name: catalog, namespace: default}
spec:
  hosts: [catalog.default.svc.cluster.local]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 8080, name: http, protocol: HTTP}]
  endpoints: [{address: 127.0.0.1, ports: {http: PORT_APP}}]
---
kind: ServiceEntry
metadata: {name: collector, namespace: observe}
spec:
  hosts: [collector.observe.svc.cluster.local]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 4317, name: grpc, protocol: GRPC}, {number: 9411, name: http, protocol: HTTP}]
  endpoints: [{address: 127.0.0.1, ports: {grpc: PORT_GRPC, http: PORT_HTTP}}]
---
kind: VirtualService
metadata: {name: catalog, namespace: default}
spec:
  hosts: [catalog]
  http:
  - match: [{uri: {prefix: /missing}}]
    directResponse: {status: 404}
  - route: [{destination: {host: catalog}}]
---
kind: PeerAuthentication
metadata: {name: default, namespace: istio-system}
spec: {mtls: {mode: DISABLE}}
---
# It does not import the collector.
kind: Sidecar
metadata: {name: default, namespace: default}
spec:
  ingress: [{port: {number: PORT_IN, protocol: HTTP, name: http}, defaultEndpoint: "127.0.0.1:PORT_APP"}]
  egress: [{hosts: [default/*]}]
`

const recordingTelemetry = `---
kind: Telemetry
metadata: {name: default, namespace: default}
spec:
  accessLogging:
  - providers: [{name: text}, {name: otel}]
    match: {mode: CLIENT}
    filter: {expression: response.code >= 400}
  - providers: [{name: json}, {name: als}]
    match: {mode: CLIENT}
  tracing:
  - match: {mode: CLIENT}
    providers: [{name: zipkin}]
    randomSamplingPercentage: SAMPLED
    customTags: {who: {header: {name: x-a, defaultValue: nobody}}, fixed: {literal: {value: here}}}
  - match: {mode: SERVER}
    providers: [{name: otlp}]
    randomSamplingPercentage: SAMPLED
`

const recordingSettings = `
enableAutoMtls: false
extensionProviders:
- {name: text, envoyFileAccessLog: {path: DIR/text, logFormat: {text: "%REQ(:path)% %RESPONSE_CODE%"}}}
- {name: json, envoyFileAccessLog: {path: DIR/json, logFormat: {labels: {path: "%REQ(:path)%", code: "%RESPONSE_CODE%"}}}}
- {name: als, envoyHttpAls: {service: collector.observe.svc.cluster.local, port: 4317, logName: shop, additionalRequestHeadersToLog: [x-a]}}
- {name: otel, envoyOtelAls: {service: observe/collector.observe.svc.cluster.local, port: 4317, logFormat: {text: "%REQ(:path)%", labels: {code: "%RESPONSE_CODE%"}}}}
- {name: zipkin, zipkin: {service: collector.observe.svc.cluster.local, port: 9411, path: /spans}}
- {name: otlp, opentelemetry: {service: collector.observe.svc.cluster.local, port: 4317}}
- {name: w3c, zipkin: {service: collector.observe.svc.cluster.local, port: 9411, path: /spans, traceContextOption: USE_B3_WITH_W3C_PROPAGATION}}
`

// recordingEnvoy runs an Envoy that sends records to two ports. It returns clients of its HTTP proxy,
// the URL of the workload behind it, the directory of its logs, and the address of its admin port.
func recordingEnvoy(t *testing.T, address, grpcPort, httpPort, sampled string) (through *http.Client, inbound, dir, admin string) {
	t.Helper()
	dir = t.TempDir()
	through, inbound, admin = recordingOf(t, address, recordingMesh+strings.ReplaceAll(recordingTelemetry, "SAMPLED", sampled),
		strings.ReplaceAll(recordingSettings, "DIR", dir), strings.NewReplacer("PORT_APP", backend(t, "v1"), "PORT_GRPC", grpcPort, "PORT_HTTP", httpPort))
	return through, inbound, dir, admin
}

// recordingOf is recordingEnvoy with other objects and settings.
func recordingOf(t *testing.T, address, objects, mesh string, ports *strings.Replacer) (through *http.Client, inbound, admin string) {
	t.Helper()
	binary := envoytest.Binary(t)
	free := freePorts(t, address, 3)
	text := strings.ReplaceAll(ports.Replace(objects), "PORT_IN", free[1])
	settings, err := meshconfig.Parse([]byte(mesh))
	if err != nil {
		t.Fatal(err)
	}
	settings.EnableAutoMtls = wrapperspb.Bool(false)
	built := snapshot.Build(nil, inputOf(decode(t, text), settings), model.Change{All: true})
	if len(built.Problems) > 0 {
		t.Fatal(built.Problems)
	}
	proxy := proxyAt(address)
	proxy.Envoy = "1." + strconv.Itoa(envoyMinor(t)) + ".0"
	port, err := strconv.ParseUint(free[0], 10, 16)
	if err != nil {
		t.Fatal(err)
	}
	proxy.HTTPProxyPort = uint32(port)
	admin = address + ":" + free[2]
	bootstrap := strings.Replace(string(staticBootstrap(t, built, proxy)), "{", `{"admin":{"address":{"socket_address":{"address":"`+address+`","port_value":`+free[2]+`}}},`, 1)
	runEnvoy(t, binary, []byte(bootstrap), address+":"+free[0], "--service-cluster", "c", "--service-node", "n")
	return &http.Client{Transport: &http.Transport{Proxy: http.ProxyURL(&url.URL{Scheme: "http", Host: address + ":" + free[0]})}}, "http://" + address + ":" + free[1] + "/in", admin
}

// TestEnvoyRecords has the real Envoy send access logs and spans to real receivers.
func TestEnvoyRecords(t *testing.T) {
	t.Parallel()
	r, _ := newRecorded(t, "0", "0")
	client, inbound, dir, _ := recordingEnvoy(t, "127.81.3.2", r.grpcPort, r.httpPort, "100")
	for path, want := range map[string]int{"/ok": 200, "/missing": 404} {
		if status, _ := get(t, client, "http://catalog:8080"+path, "x-a: me"); status != want {
			t.Errorf("%s: %d, want %d", path, status, want)
		}
	}
	if status, _ := get(t, http.DefaultClient, inbound, ""); status != 200 {
		t.Errorf("inbound: %d", status)
	}
	r.await(t, "als shop: /ok 200 x-a=me")
	r.await(t, "als shop: /missing 404 x-a=me")
	r.await(t, "otlp log /missing: code=404")
	r.await(t, "zipkin span at /spans", `"who":"me"`, `"fixed":"here"`, `"istio.canonical_service":"unknown"`, `"http.status_code":"404"`)
	r.await(t, "otlp span of", "service.name=svc-0001.default", "istio.mesh_id=", "/in")
	lines := func(name string, n int) []string {
		for deadline := time.Now().Add(3 * time.Minute); ; time.Sleep(50 * time.Millisecond) {
			b, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.Split(strings.TrimSpace(string(b)), "\n"); len(got) >= n && got[0] != "" {
				return got
			} else if time.Now().After(deadline) {
				t.Fatalf("the log %s is %q, want %d lines", name, b, n)
			}
		}
	}
	got := lines("json", 2)
	slices.Sort(got)
	if want := []string{`{"code":200,"path":"/ok"}`, `{"code":404,"path":"/missing"}`}; !slices.Equal(got, want) {
		t.Errorf("the log json is %q, want %q", got, want)
	}
	if got := lines("text", 1); !slices.Equal(got, []string{"/missing 404"}) {
		t.Errorf("the log text is %q", got)
	}
	for _, line := range r.all() {
		if strings.HasPrefix(line, "otlp log /ok") || strings.HasPrefix(line, "als") && strings.Contains(line, "/in") {
			t.Errorf("a record that the filter, or the mode, leaves out: %s", line)
		}
	}
}

// TestEnvoyTracesNone samples no request: only the one that another tracer has decided about is traced.
func TestEnvoyTracesNone(t *testing.T) {
	t.Parallel()
	r, _ := newRecorded(t, "0", "0")
	client, _, _, _ := recordingEnvoy(t, "127.81.3.3", r.grpcPort, r.httpPort, "0")
	for range 30 {
		get(t, client, "http://catalog:8080/none", "")
	}
	get(t, client, "http://catalog:8080/decided", "b3: 80f198ee56343ba864fe8b2a57d3eff7-e457b5a2e4d86bd1-1")
	r.await(t, "zipkin span", "/decided")
	for _, line := range r.all() {
		if strings.Contains(line, "span") && strings.Contains(line, "/none") {
			t.Errorf("a span of a request that was not sampled: %s", line)
		}
	}
}
