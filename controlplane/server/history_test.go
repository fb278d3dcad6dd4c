// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package server

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/report"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
)

// ask sends a request to the HTTP port.
func (s *Server) ask(t *testing.T, path string, headers map[string]string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+s.ports.listeners.http.Addr().String()+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range headers {
		req.Header.Set(name, value)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }() // closing cannot lose data
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

// TestDebugOverHTTP sends requests to a control plane from its own machine, and from elsewhere with
// the token of a workload.
func TestDebugOverHTTP(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, map[string][]byte{
		filepath.Join(dir, "web.yaml"): []byte(shopService), filepath.Join(dir, "1.yaml"): machineFile("21"),
		filepath.Join(dir, "proxy.yaml"): []byte("apiVersion: networking.istio.io/v1beta1\nkind: ProxyConfig\nmetadata: {name: debug, namespace: shop}\nspec: {concurrency: 2}\n"),
		filepath.Join(dir, "bad.yaml"):   []byte("apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: bad, namespace: shop}\nspec: {htpp: []}\n"),
	})
	i := newIssuer(t)
	s := serve(t, func(c *Config) {
		c.ConfigDir = dir
		c.Profile = true
		c.Callers.JWTRule = fmt.Sprintf(`{"issuer":"tests","audiences":["istio-ca"],"jwksUri":%q}`, i.url+"/keys")
		c.Callers.Hosts = []string{testHost}
		c.PodName, c.Registration.Instance = "istiod-0", "istiod-0"
	})
	waitUntil(t, "the first snapshot", s.discovery.Ready)
	i.stream(t, s, "127.77.63.21")
	var replica report.Replica
	waitUntil(t, "the proxy is seen", func() bool {
		code, body := s.ask(t, "/debug/proxies", nil)
		if code != http.StatusOK {
			t.Fatalf("status %d, body %s", code, body)
		}
		replica = report.Replica{}
		if err := json.Unmarshal([]byte(body), &replica); err != nil {
			t.Fatal(err)
		}
		return len(replica.Proxies) == 1
	})
	waitUntil(t, "the subscription is known", func() bool { // the connection is known before the subscription
		_, body := s.ask(t, "/debug/config_distribution?resource=ServiceEntry/shop/web", nil)
		return strings.Contains(body, `"proxy":"web.shop"`)
	})
	if replica.Name != "istiod-0" || replica.Version != "test" || replica.Problems == 0 || replica.Proxies[0].Name != "web.shop" {
		t.Errorf("replica: got %+v", replica)
	}
	away := func(token string) map[string]string {
		return map[string]string{"X-Forwarded-For": "192.0.2.1", "Authorization": "Bearer " + token}
	}
	for _, tc := range []struct {
		path    string
		headers map[string]string
		code    int
		has     string
	}{
		{"/debug", nil, 200, "/debug/config_dump"},
		{"/debug/explain?kind=ServiceEntry&namespace=shop&name=web", nil, 200, `"found":true`},
		{"/debug/explain?kind=VirtualService&namespace=shop&name=bad", nil, 200, `unknown field \"htpp\"`},
		{"/debug/explain?kind=ProxyConfig&namespace=shop&name=debug", nil, 200, "this control plane does not inject"},
		{"/debug/configz?kind=WorkloadEntry", nil, 200, `"web-21"`},
		{"/debug/config_distribution?resource=ServiceEntry/shop/web", nil, 200, `"proxy":"web.shop"`},
		{"/debug/proxies", nil, 200, `"what":"certificate of the xDS port"`},
		{"/debug/proxies", nil, 200, `"what":"token keys of tests"`},
		{"/debug/proxies", nil, 200, `"what":"CA certificate"`},
		{"/debug/pprof/heap?debug=1", nil, 200, "heap profile"},
		{"/debug/connections", away(i.token(t, "istio-ca")), 200, "web.shop"},
		{"/debug/configz", away(i.token(t, "istio-ca")), 403, "istio-system"},
		{"/debug/connections", away(i.token(t, "vault")), 401, "unauthenticated"},
		{"/debug/connections", away(""), 401, "unauthenticated"},
		{"/metrics", nil, 200, `pilot_info{version="test"} 1`},
		{"/metrics", nil, 200, `pilot_services 1`},
		{"/metrics", nil, 200, `outrigger_control_outage_left_seconds{part="CA_certificate"}`},
	} {
		if code, body := s.ask(t, tc.path, tc.headers); code != tc.code || !strings.Contains(body, tc.has) {
			t.Errorf("%s %v: got %d %.400s, want %d with %s", tc.path, tc.headers != nil, code, body, tc.code, tc.has)
		}
	}
	before := replica.Snapshot
	if code, body := s.ask(t, "/debug/adsz?push=true", nil); code != 200 || body != "{\"pushed\":1}\n" {
		t.Errorf("push: got %d %s, want 200 and one proxy", code, body)
	}
	waitUntil(t, "there is another push", func() bool {
		_, body := s.ask(t, "/debug/pushcontext", nil)
		return strings.Contains(body, fmt.Sprintf(`"sequence":%d`, before+1))
	})
}

func TestDebugOff(t *testing.T) {
	t.Parallel()
	s := serve(t, func(c *Config) {
		c.DebugHTTP = false
	})
	waitUntil(t, "the first snapshot", s.discovery.Ready)
	for _, path := range []string{"/debug", "/debug/syncz"} {
		if code, _ := s.ask(t, path, nil); code != http.StatusNotFound {
			t.Errorf("%s: got status %d, want 404", path, code)
		}
	}
}

// TestHistory checks the times of changes and problems, and the reasons of pushes.
func TestHistory(t *testing.T) {
	t.Parallel()
	p := newHistory(func(model.Key) bool { return true }, "test", prometheus.NewRegistry())
	web, api := model.Key{Kind: model.VirtualService, Name: "web"}, model.Key{Kind: model.KubernetesService, Name: "api"}
	problem := model.Problem{Object: web, Source: "a.yaml:1", Reason: "no"}
	p.built(&snapshot.Mesh{Sequence: 1}, model.Change{All: true}, time.Millisecond)
	p.built(&snapshot.Mesh{Sequence: 2, Problems: []model.Problem{problem}}, model.NewChange(web), time.Millisecond)
	if sequence, at, first := p.changed(web); sequence != 2 || first || at.IsZero() {
		t.Errorf("changed(web) = %d, %v, %v; want 2, a time, false", sequence, at, first)
	}
	if sequence, _, first := p.changed(api); sequence != 1 || !first {
		t.Errorf("changed(api) = %d, first %v; want 1, true", sequence, first)
	}
	first := p.problems(nil)
	moved := problem
	moved.Source = "a.yaml:7"
	p.built(&snapshot.Mesh{Sequence: 3, Problems: []model.Problem{moved}}, model.NewChange(api), time.Millisecond)
	second := p.problems([]model.Problem{{Object: api, Reason: "odd"}})
	if len(first) != 1 || len(second) != 2 || !second[1].Since.Equal(first[0].Since) || second[1].Source != "a.yaml:7" || !second[1].Warning {
		t.Errorf("problems: got %+v, then %+v", first, second)
	}
	p.built(&snapshot.Mesh{Sequence: 4}, model.NewChange(), time.Millisecond)
	if got := p.problems(nil); len(got) != 0 || len(p.since) != 0 {
		t.Errorf("fixed problems are remembered: %+v, %+v", got, p.since)
	}
}

// TestHistoryIsBounded creates and deletes many machines and pods with new names. The
// history must not grow with them, and must keep the objects that exist.
func TestHistoryIsBounded(t *testing.T) {
	t.Parallel()
	there := map[model.Key]bool{}
	p := newHistory(func(key model.Key) bool { return there[key] }, "test", prometheus.NewRegistry())
	stays := model.Key{Kind: model.WorkloadEntry, Namespace: "shop", Name: "stays"}
	there[stays] = true
	mesh := &snapshot.Mesh{Sequence: 1}
	p.built(mesh, model.Change{All: true}, 0)
	mesh = &snapshot.Mesh{Sequence: 2}
	p.built(mesh, model.NewChange(stays), 0)
	for i := range 10 * minSweep {
		name := fmt.Sprint(i)
		mesh = &snapshot.Mesh{Sequence: mesh.Sequence + 1}
		p.built(mesh, model.NewChange(model.Key{Kind: model.WorkloadEntry, Namespace: "shop", Name: name}, model.Key{Kind: model.KubernetesPod, Namespace: "shop", Name: name}), 0)
	}
	if n := len(p.changes); n > minSweep {
		t.Errorf("%d changes of removed objects are remembered, want at most %d", n, minSweep)
	}
	if sequence, _, first := p.changed(stays); sequence != 2 || first {
		t.Errorf("changed() of an existing object = %d, first %t; want 2, false", sequence, first)
	}
}
