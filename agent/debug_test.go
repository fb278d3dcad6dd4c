// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package agent

import (
	"encoding/json"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/outrigger-mesh/outrigger/agent/environ"
)

func TestDebugConfig(t *testing.T) {
	t.Parallel()
	src := testSources(
		map[string]string{"override": "admin: {s3cr3t: 1}", annotationsFile: `note="s3cr3t"`},
		"PROXY_CONFIG={concurrency: 2, proxyMetadata: {ISTIO_META_KEY: s3cr3t, OTHER: s3cr3t}}", "ISTIO_BOOTSTRAP_OVERRIDE=override",
		"ISTIO_META_PASSWORD=s3cr3t", "ISTIO_META_CLUSTER_ID=here", `ISTIO_METAJSON_X={"DEEP":"s3cr3t"}`, "XDS_HEADER_AUTHORIZATION=s3cr3t", "SECRET_TTL=1h",
		`ISTIO_KUBE_APP_PROBERS={"/app-health/a/livez":{"httpGet":{"port":1,"httpHeaders":[{"name":"x","value":"s3cr3t"}]}}}`,
	)
	cfg, _, err := resolve(t.Context(), src)
	if err != nil {
		t.Fatal(err)
	}
	answer := httptest.NewRecorder()
	(&builder{cfg: cfg, parts: &parts{}}).debugHandlers()["/debug/config"].ServeHTTP(answer, httptest.NewRequest("GET", "/debug/config", nil))
	body := answer.Body.String()
	if answer.Code != 200 || strings.Contains(body, "s3cr3t") {
		t.Errorf("the answer is %d %s", answer.Code, body)
	}
	var doc struct {
		Node struct {
			ID       string
			Metadata struct {
				Typed       map[string]any
				Others      []string
				Annotations []string
			}
		}
		Identity     map[string]string
		ProxyConfig  map[string]any
		ControlPlane map[string]any
		Envoy        []string
		Environment  map[string]string
		Headers      []string
	}
	if err := json.Unmarshal(answer.Body.Bytes(), &doc); err != nil {
		t.Fatal(err)
	}
	got := []any{
		doc.Node.ID, doc.Node.Metadata.Typed["CLUSTER_ID"], doc.Node.Metadata.Others, doc.Node.Metadata.Annotations, doc.Identity["id"], doc.ProxyConfig["concurrency"],
		doc.ControlPlane["address"], doc.ControlPlane["tls"], doc.Headers, doc.Environment["SECRET_TTL"], doc.Environment["PROXY_CONFIG"], doc.Environment["ECC_CURVE"],
	}
	want := []any{
		cfg.node.String(), "here",
		[]string{"DEEP", "KEY", "PASSWORD"},
		[]string{"note"},
		cfg.identity.String(), 2.0,
		cfg.xds.address, true,
		[]string{"authorization"},
		"1h", environ.Hidden, "P256",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s\n%s", diff, body)
	}
	if !strings.Contains(strings.Join(cfg.envoyArgs, " "), "--config-yaml admin") {
		t.Errorf("the arguments themselves were changed: %q", cfg.envoyArgs)
	}
}

func TestDebugHost(t *testing.T) {
	t.Parallel()
	for local, want := range map[string]string{
		"localhost": "localhost", "127.0.0.1": "127.0.0.1", "127.77.103.9": "127.77.103.9", "::1": "::1", "10.0.0.1": "127.0.0.1", "fd00::1": "::1", "0.0.0.0": "127.0.0.1",
	} {
		if got := DebugHost(local); got != want {
			t.Errorf("%s: %s, want %s", local, got, want)
		}
	}
}
