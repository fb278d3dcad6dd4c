// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"google.golang.org/grpc/metadata"
	grpcpeer "google.golang.org/grpc/peer"

	"github.com/outrigger-mesh/outrigger/certs"
	"github.com/outrigger-mesh/outrigger/controlplane/authn"
	"github.com/outrigger-mesh/outrigger/controlplane/discovery/debug"
	"github.com/outrigger-mesh/outrigger/controlplane/discovery/debug/debugtest"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// bearers authenticates callers by their tokens, "Bearer <namespace>", and treats any client
// certificate as one of the namespace bank.
type bearers struct{}

func (bearers) Authenticate(ctx context.Context) (*authn.Caller, error) {
	id := certs.ID{TrustDomain: "cluster.local", ServiceAccount: "op"}
	if p, ok := grpcpeer.FromContext(ctx); ok && p.AuthInfo != nil {
		id.Namespace = "bank"
		return &authn.Caller{ID: id}, nil
	}
	for _, v := range metadata.ValueFromIncomingContext(ctx, "authorization") {
		switch id.Namespace = strings.TrimPrefix(v, "Bearer "); id.Namespace {
		case "away":
			return nil, fmt.Errorf("%w: %w", authn.ErrUnauthenticated, authn.ErrUnavailable)
		case "default", "istio-system":
			return &authn.Caller{ID: id}, nil
		}
	}
	return nil, authn.ErrUnauthenticated
}

// TestDebugHTTPAccess checks which callers may send which queries.
func TestDebugHTTPAccess(t *testing.T) {
	t.Parallel()
	h := startDebug(t, true)
	h.server.Debug(debug.Config{Authenticator: bearers{}, Push: func() {}})
	h.server.Push(snapshotOf(nil, nil, debugtest.External("a", "240.0.0.1")), model.Change{All: true})
	h.join(t, "vault", "bank")
	h.join(t, "shop", "default")
	handler := h.server.DebugHandler()
	ask := func(path, from, host string, headers map[string]string) (int, string) {
		r := httptest.NewRequest(http.MethodGet, "http://"+host+"/debug"+path, nil)
		r.RemoteAddr = from
		for name, value := range headers {
			if name == "certificate" {
				r.TLS = &tls.ConnectionState{}
			} else {
				r.Header.Set(name, value)
			}
		}
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		return w.Code, w.Body.String()
	}
	const here, there = "127.77.51.4:1", "192.0.2.1:1"
	bearer := func(of string) map[string]string { return map[string]string{"Authorization": "Bearer " + of} }
	for _, tc := range []struct {
		name, path, from, host string
		headers                map[string]string
		code                   int
		has, lacks             string
	}{
		{"this machine sees all", "/connections", here, "127.0.0.1:15014", nil, 200, "vault.bank", "error"},
		{"by IPv6, too", "/connections", "[::1]:1", "[::1]:15014", nil, 200, "vault.bank", "error"},
		{"by a name of it", "/mesh", here, "localhost:15014", nil, 200, "{", "error"},
		{"a page that has its name lead here", "/mesh", here, "evil.example:15014", nil, 403, `"evil.example"`, ""},
		{"a page of somebody else", "/adsz?push=true", here, "127.0.0.1:15014", map[string]string{"Sec-Fetch-Site": "cross-site"}, 403, "web pages", ""},
		{"a page with an origin", "/mesh", here, "127.0.0.1:15014", map[string]string{"Origin": "null"}, 403, "web pages", ""},
		{"what Envoy hands on", "/connections", "127.0.0.6:1", "127.0.0.1:15014", nil, 401, "unauthenticated", "vault"},
		{"what a proxy here hands on", "/connections", here, "127.0.0.1:15014", map[string]string{"X-Forwarded-For": "192.0.2.1"}, 401, "unauthenticated", "vault"},
		{"anybody", "/connections", there, "istiod:8080", nil, 401, "unauthenticated", "vault"},
		{"an unknown token", "/connections", there, "istiod:8080", bearer("nobody"), 401, "unauthenticated", "vault"},
		{"nobody can tell", "/connections", there, "istiod:8080", bearer("away"), 503, "unavailable", "vault"},
		{"a workload sees its namespace", "/connections", there, "istiod:8080", bearer("default"), 200, "shop.default", "vault"},
		{"and nobody else's proxy", "/config_dump?proxyID=vault.bank", there, "istiod:8080", bearer("default"), 404, "no proxy", ""},
		{"nor the mesh", "/mesh", there, "istiod:8080", bearer("default"), 403, "istio-system", ""},
		{"nor the objects", "/configz", there, "istiod:8080", bearer("default"), 403, "istio-system", ""},
		{"nor may it push", "/adsz?push=true", there, "istiod:8080", bearer("default"), 403, "istio-system", ""},
		{"a certificate counts", "/connections", there, "istiod:8080", map[string]string{"certificate": ""}, 200, "vault.bank", "shop.default"},
		{"the root namespace sees all", "/connections", there, "istiod:8080", bearer("istio-system"), 200, "vault.bank", "error"},
		{"and the mesh", "/mesh", there, "istiod:8080", bearer("istio-system"), 200, "{", "error"},
		{"the index is for all", "", there, "istiod:8080", nil, 200, "/debug/config_dump", "vault"},
		{"there is no such thing", "/nonsense", here, "127.0.0.1", nil, 404, "it must be one of", ""},
		{"Istio has it", "/cachez", here, "127.0.0.1", nil, 404, "resourcesz has their names", ""},
		{"a proxy has to be named", "/config_dump", here, "127.0.0.1", nil, 400, "name the proxy", ""},
	} {
		if code, body := ask(tc.path, tc.from, tc.host, tc.headers); code != tc.code || !strings.Contains(body, tc.has) || tc.lacks != "" && strings.Contains(body, tc.lacks) {
			t.Errorf("%s: got %d %.300s, want %d with %q without %q", tc.name, code, body, tc.code, tc.has, tc.lacks)
		}
	}
	if code, body := ask("/list?pretty", here, "127.0.0.1", nil); code != 200 || !strings.Contains(body, "\n  ") {
		t.Errorf("pretty: %d %s", code, body)
	}
	r := httptest.NewRequest(http.MethodPost, "http://127.0.0.1/debug/mesh", nil)
	w := httptest.NewRecorder()
	if handler.ServeHTTP(w, r); w.Code != http.StatusMethodNotAllowed {
		t.Errorf("POST: %d", w.Code)
	}
}

// Without an authenticator, or before there is a snapshot, all queries fail.
func TestDebugHTTPWithout(t *testing.T) {
	t.Parallel()
	s, err := New(Config{Generator: &table{}, Workers: 1})
	if err != nil {
		t.Fatal(err)
	}
	for from, code := range map[string]int{"127.0.0.1:1": http.StatusServiceUnavailable, "192.0.2.1:1": http.StatusUnauthorized, "nowhere": http.StatusUnauthorized} {
		r := httptest.NewRequest(http.MethodGet, "http://127.0.0.1/debug/mesh", nil)
		r.RemoteAddr = from
		w := httptest.NewRecorder()
		if s.DebugHandler().ServeHTTP(w, r); w.Code != code {
			t.Errorf("%s: %d %s, want %d", from, w.Code, w.Body, code)
		}
	}
}

// The metrics of a mesh are computed when they are scraped.
func TestMeshMetrics(t *testing.T) {
	t.Parallel()
	h, reg := startDebug(t, false), prometheus.NewRegistry()
	objects := debugtest.Shop()
	h.server.Debug(debug.Config{Objects: objects, Registerer: reg})
	h.server.Push(objects.Mesh(nil), model.Change{All: true})
	p := h.join(t, "shop", "default")
	p.nack(xds.TypeCluster, "Error adding/updating cluster(s) inbound|8080||: no")
	for end := time.Now().Add(2 * time.Minute); gaugeOf(t, reg, "pilot_xds_cds_reject") != 1; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the rejection is not counted within 2 minutes")
		}
	}
	for name, want := range map[string]float64{
		"pilot_services": 2, "pilot_virt_services": 1, "pilot_eds_no_instances": 0, "pilot_xds_lds_reject": 0, "outrigger_control_snapshot_problems": 0,
		"pilot_conflict_outbound_listener_tcp_over_current_tcp": 0, "pilot_conflict_inbound_listener": 0, "pilot_vservice_dup_domain": 0,
	} {
		if got := gaugeOf(t, reg, name); got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
	mesh := objects.Mesh(nil)
	mesh.Problems = []model.Problem{{Code: model.DuplicateHost}, {Code: model.DuplicateHost, Reason: "another"}}
	h.server.Push(mesh, model.Change{All: true})
	h.server.problems.record([]model.Problem{{Code: model.ConflictOutbound}, {Code: model.ConflictInbound}}, mesh.Sequence)
	for name, want := range map[string]float64{"pilot_vservice_dup_domain": 2, "pilot_conflict_outbound_listener_tcp_over_current_tcp": 1, "pilot_conflict_inbound_listener": 1} {
		if got := gaugeOf(t, reg, name); got != want {
			t.Errorf("with conflicts %s is %v, want %v", name, got, want)
		}
	}
}

func gaugeOf(t *testing.T, reg *prometheus.Registry, name string) float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name && f.GetType() == dto.MetricType_GAUGE {
			return f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	t.Fatalf("there is no %s", name)
	return 0
}
