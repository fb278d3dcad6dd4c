// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/wrapperspb"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/bootstrap/meshconfig"
	"github.com/outrigger-mesh/outrigger/controlplane/generate"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/e2e/envoytest"
)

// cable is a TCP proxy in front of a server that a test can cut and redirect. It counts the bytes
// from the server.
type cable struct {
	net.Listener
	received atomic.Int64
	mu       sync.Mutex // guards the fields below
	to       string
	open     []net.Conn
}

func newCable(t *testing.T, address, to string) *cable {
	t.Helper()
	l, err := net.Listen("tcp", address+":0")
	if err != nil {
		t.Fatal(err)
	}
	w := &cable{Listener: l, to: to}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			down, err := l.Accept()
			if err != nil {
				return
			}
			w.mu.Lock()
			up, err := net.Dial("tcp", w.to)
			if err != nil {
				_ = down.Close()
				w.mu.Unlock()
				continue
			}
			w.open = append(w.open, down, up)
			w.mu.Unlock()
			running.Go(func() { _, _ = io.Copy(up, down); _ = up.Close() })
			running.Go(func() { _, _ = io.Copy(down, io.TeeReader(up, w)); _ = down.Close() })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		w.lead(to)
		running.Wait()
	})
	return w
}

// Write counts.
func (w *cable) Write(b []byte) (int, error) {
	w.received.Add(int64(len(b)))
	return len(b), nil
}

// lead cuts all connections; new ones go to a server.
func (w *cable) lead(to string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.to = to
	for _, c := range w.open {
		_ = c.Close()
	}
	w.open = nil
}

// turning is a mesh whose routes change while an Envoy serves requests.
type turning struct {
	servers []*harness
	cable   *cable
	mesh    *snapshot.Mesh
	objects map[model.Key]*model.Config
	client  *http.Client
	failed  atomic.Pointer[string]
	served  atomic.Int64
	logged  *journal
	// port is that of the HTTP proxy, 0 for none.
	port uint16
}

// fill is the number of unused virtual hosts.
const fill = 200

func startTurning(t *testing.T, address string, noVHDS []bool, args ...string) *turning {
	t.Helper()
	binary := envoytest.Binary(t)
	m := &turning{objects: map[model.Key]*model.Config{}, logged: &journal{}}
	log := slog.New(slog.NewTextHandler(m.logged, &slog.HandlerOptions{Level: slog.LevelDebug}))
	for _, off := range noVHDS {
		h := &harness{}
		h.serve(t, Config{Generator: generate.New(generate.Config{}), Workers: 1, NoVHDS: off, Logger: log}, nil, insecure.NewCredentials(), insecure.NewCredentials())
		m.servers = append(m.servers, h)
	}
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "stable") }))
	t.Cleanup(backend.Close)
	host, port, err := net.SplitHostPort(backend.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"stable", "other"} {
		m.put(model.ServiceEntry, name, &networkingv1alpha3.ServiceEntry{
			Hosts: []string{name + ".example.com"}, Resolution: networkingv1alpha3.ServiceEntry_STATIC,
			Ports:     []*networkingv1alpha3.ServicePort{{Number: 80, Name: "http", Protocol: "HTTP"}},
			Endpoints: []*networkingv1alpha3.WorkloadEntry{{Address: host, Ports: map[string]uint32{"http": uint32(number)}}},
		})
	}
	for i := range fill {
		m.answer(fmt.Sprintf("fill-%d", i), "fill")
	}
	m.answer("turn", "0")
	text := freePort(t, address)
	if number, err = strconv.ParseUint(text, 10, 16); err != nil {
		t.Fatal(err)
	}
	m.port = uint16(number)
	m.push()
	m.cable = newCable(t, address, m.servers[0].address)
	g := &gatewayTest{address: address + ":" + text}
	g.runEnvoy(t, binary, m.bootstrap(t, address), args...)
	m.client = &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{Proxy: http.ProxyURL(&url.URL{Scheme: "http", Host: g.address})}}
	t.Cleanup(m.client.CloseIdleConnections)
	return m
}

// takesVHDS reports whether the Envoy of the tests supports virtual hosts over ADS.
func takesVHDS(t *testing.T) bool {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), envoytest.Binary(t), "--version").CombinedOutput()
	if err != nil {
		t.Fatalf("envoy --version: %v: %s", err, out)
	}
	return !strings.Contains(string(out), "/1.36.")
}

// needVHDS skips a test of virtual hosts as separate resources if Envoy does not support them.
func needVHDS(t *testing.T) {
	t.Helper()
	if !takesVHDS(t) {
		t.Skip("Envoy 1.36 takes no virtual hosts over ADS: routes hold them")
	}
}

func (m *turning) put(kind model.Kind, name string, spec any) {
	c := &model.Config{Key: model.Key{Kind: kind, Namespace: "default", Name: name}}
	switch s := spec.(type) {
	case *networkingv1alpha3.ServiceEntry:
		c.Spec = s
	case *networkingv1alpha3.VirtualService:
		c.Spec = s
	}
	m.objects[c.Key] = c
}

// answer has a host answered by Envoy itself. Of several bodies the first is for
// all requests: the order of routes decides.
func (m *turning) answer(name string, bodies ...string) {
	spec := &networkingv1alpha3.VirtualService{Hosts: []string{name + ".example.com"}}
	for _, body := range bodies {
		spec.Http = append(spec.Http, &networkingv1alpha3.HTTPRoute{
			Match: []*networkingv1alpha3.HTTPMatchRequest{{Uri: &networkingv1alpha3.StringMatch{MatchType: &networkingv1alpha3.StringMatch_Prefix{Prefix: "/"}}}},
			DirectResponse: &networkingv1alpha3.HTTPDirectResponse{
				Status: 200, Body: &networkingv1alpha3.HTTPBody{Specifier: &networkingv1alpha3.HTTPBody_String_{String_: body}},
			},
		})
	}
	m.put(model.VirtualService, name, spec)
}

// push publishes what is set on all servers.
func (m *turning) push() {
	settings := meshconfig.Default()
	settings.EnableAutoMtls, settings.ProxyHttpPort = wrapperspb.Bool(false), int32(m.port)
	m.mesh = snapshot.Build(m.mesh, snapshot.Input{Mesh: settings, List: func(kind model.Kind) (out []*model.Config) {
		for key, c := range m.objects {
			if key.Kind == kind {
				out = append(out, c)
			}
		}
		return out
	}}, model.Change{All: true})
	for _, h := range m.servers {
		h.server.Push(m.mesh, model.Change{All: true})
	}
}

// bootstrap is that of a sidecar with an address.
func (m *turning) bootstrap(t *testing.T, ip string) []byte {
	t.Helper()
	type object = map[string]any
	ads := object{"ads": object{}, "resource_api_version": "V3", "initial_fetch_timeout": "0s"}
	server := object{"socket_address": object{"address": ip, "port_value": m.cable.Addr().(*net.TCPAddr).Port}}
	b, err := json.Marshal(object{
		"node": object{
			"id": "sidecar~" + ip + "~shop-1.default~default.svc.cluster.local", "cluster": "shop",
			"metadata": object{"NAMESPACE": "default", "INTERCEPTION_MODE": "NONE"},
		},
		"dynamic_resources": object{"lds_config": ads, "cds_config": ads, "ads_config": object{
			"api_type": "DELTA_GRPC", "transport_api_version": "V3",
			"grpc_services": []any{object{"envoy_grpc": object{"cluster_name": "control", "retry_policy": object{"retry_back_off": object{"base_interval": "0.05s", "max_interval": "0.1s"}}}}},
		}},
		"static_resources": object{"clusters": []any{object{
			"name": "control", "type": "STATIC", "connect_timeout": "5s",
			"typed_extension_protocol_options": object{"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": object{
				"@type":                "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
				"explicit_http_config": object{"http2_protocol_options": object{}},
			}},
			"load_assignment": object{"cluster_name": "control", "endpoints": []any{object{"lb_endpoints": []any{object{"endpoint": object{"address": server}}}}}},
		}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// get requests a host, and returns the status and the response.
func (m *turning) get(host string) string {
	r, err := m.client.Get("http://" + host + "/")
	if err != nil {
		return err.Error()
	}
	defer func() { _ = r.Body.Close() }() // it is read below
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return err.Error()
	}
	return fmt.Sprint(r.StatusCode, " ", string(body))
}

func (m *turning) fail(why string) { m.failed.CompareAndSwap(nil, &why) }

// load sends requests until the test ends. Each must succeed, and with ordered a response is never
// older than the previous one.
func (m *turning) load(t *testing.T, inOrder bool) {
	t.Helper()
	stop := make(chan struct{})
	var running sync.WaitGroup
	for range 4 {
		running.Go(func() {
			newest := 0
			for {
				select {
				case <-stop:
					return
				default:
				}
				answer := m.get("turn.example.com")
				turn, err := strconv.Atoi(strings.TrimPrefix(answer, "200 "))
				if err != nil || inOrder && turn < newest {
					m.fail(fmt.Sprintf("%q after %d", answer, newest))
				}
				newest = turn
				if answer := m.get("stable.example.com"); answer != "200 stable" {
					m.fail(fmt.Sprintf("%q", answer))
				}
				m.served.Add(2)
			}
		})
	}
	t.Cleanup(func() {
		close(stop)
		running.Wait()
		if why := m.failed.Load(); why != nil {
			t.Errorf("of %d requests while routes changed, one got %s", m.served.Load(), *why)
		}
	})
}

// turn makes change i and waits until Envoy has it.
func (m *turning) turn(t *testing.T, i int) {
	t.Helper()
	host, want := "turn.example.com", fmt.Sprint("200 ", i)
	switch i % 5 {
	case 0:
		m.answer("turn", strconv.Itoa(i))
	case 1: // the routes change places
		bodies := []string{"a", "b"}
		host, want = "order.example.com", "200 "+bodies[i/5%2]
		m.answer("order", bodies[i/5%2], bodies[1-i/5%2])
	case 2: // a new host
		host, want = fmt.Sprintf("new-%d.example.com", i), "200 new"
		m.answer(fmt.Sprintf("new-%d", i), "new")
	case 3: // it goes
		host, want = fmt.Sprintf("new-%d.example.com", i-1), "502 no service"
		delete(m.objects, model.Key{Kind: model.VirtualService, Namespace: "default", Name: fmt.Sprintf("new-%d", i-1)})
	case 4: // an address moves from one to the other
		host, want = "240.0.0.9", "200 stable"
		for n, name := range []string{"stable", "other"} {
			key := model.Key{Kind: model.ServiceEntry, Namespace: "default", Name: name}
			spec := model.CloneSpec(m.objects[key].Spec).(*networkingv1alpha3.ServiceEntry)
			spec.Addresses = nil
			if n == i/5%2 {
				spec.Addresses = []string{"240.0.0.9"}
			}
			m.put(model.ServiceEntry, name, spec)
		}
	}
	m.push()
	until(t, fmt.Sprintf("change %d: %s answers %q", i, host, want), func() bool { return strings.HasPrefix(m.get(host), want) })
}

// TestEnvoyVHDS changes 200 routes of a real Envoy under load, both ways: each change arrives, no
// request fails or receives an outdated response, and with VHDS a change is small. In between the
// stream is cut: unchanged resources are not sent again.
func TestEnvoyVHDS(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		address string
		off     bool
	}{"VHDS": {"127.77.141.3", false}, "inside": {"127.77.141.4", true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if !tc.off {
				needVHDS(t)
			}
			m := startTurning(t, tc.address, []bool{tc.off})
			m.load(t, true)
			first := m.cable.received.Load()
			for i := 1; i <= 200; i++ {
				if i%40 == 0 {
					m.cable.lead(m.servers[0].address)
				}
				m.turn(t, i)
			}
			perChange := (m.cable.received.Load() - first) / 200
			t.Logf("first %d bytes, then %d bytes for a change; %d requests", first, perChange, m.served.Load())
			if m.failed.Load() == nil && m.served.Load() < 200 {
				t.Errorf("only %d requests were sent meanwhile", m.served.Load())
			}
			if limit := int64(2000); tc.off == (perChange < limit) {
				t.Errorf("%d bytes for a change", perChange)
			}
		})
	}
}

// TestEnvoyChangesOver leads an Envoy under load from a control plane with VHDS
// to one without, and back, again and again: no request fails, and changes
// arrive. Only connections that the listener is draining have the routes that
// there were when it changed.
func TestEnvoyChangesOver(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		address string
		off     []bool
	}{"from VHDS": {"127.77.141.5", []bool{false, true}}, "to VHDS": {"127.77.141.6", []bool{true, false}}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := startTurning(t, tc.address, tc.off)
			m.load(t, false)
			for i := 1; i <= 40; i++ {
				if i%5 == 0 {
					m.cable.lead(m.servers[i/5%2].address)
				}
				m.turn(t, i)
			}
		})
	}
}

// TestEnvoyListenerComesBack removes the listener for longer than it drains, and restores it: Envoy
// requests the routes again, but not their virtual hosts, although it has dropped them; it accepts
// no request before it has them.
func TestEnvoyListenerComesBack(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		address string
		cut     bool
	}{"on one stream": {"127.77.141.7", false}, "on another stream": {"127.77.141.8", true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			needVHDS(t)
			m := startTurning(t, tc.address, []bool{false}, "--drain-time-s", "1")
			port := m.port
			for round := 1; round <= 2; round++ {
				const taken = "type.googleapis.com/envoy.config.route.v3.VirtualHost nonce"
				m.turn(t, 5*round)
				before := strings.Count(m.logged.String(), taken)
				m.port = 0
				m.push()
				until(t, "the listener is gone", func() bool { return strings.Contains(m.get("turn.example.com"), "refused") })
				until(t, "the hosts are taken back", func() bool { return strings.Count(m.logged.String(), taken) > before })
				if tc.cut {
					m.cable.lead(m.servers[0].address)
				}
				m.port = port
				m.push()
				until(t, "the listener is back", func() bool { return !strings.Contains(m.get("turn.example.com"), "refused") })
				m.turn(t, 5*round+1)
				if got, want := m.get("turn.example.com"), fmt.Sprint("200 ", 5*round); got != want {
					t.Errorf("got %q, want %q", got, want)
				}
			}
		})
	}
}
