// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package bootstrap

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/bootstrap/node"
)

// TestEnvoyStatNames checks that the names of Envoy's stats become labels, both with control planes
// that end them with a semicolon and with older ones.
func TestEnvoyStatNames(t *testing.T) {
	t.Parallel()
	envoy := findEnvoy()
	if envoy == "" {
		t.Skip("no Envoy found: run `make envoy` or set ENVOY")
	}
	clusters := []any{}
	for _, stat := range []string{
		"outbound|443||api.example.com;", "outbound|80|v1|a.ns.svc.cluster.local;", "inbound|80||;", "outbound_.443_._.x.mesh;",
		"outbound|80|v1|b.ns.svc.cluster.local", "inbound|81||", "outbound|443||old.example.com",
	} {
		clusters = append(clusters, object{"name": "c" + stat, "alt_stat_name": stat, "type": "STATIC", "connect_timeout": "1s"})
	}
	manager := func(prefix string) object {
		listener := staticListener(prefix, socketAddress("127.0.0.1", 0), prefix, object{
			"match": object{"prefix": "/"}, "stat_prefix": "checkout", "route": object{"cluster": "coutbound|443||api.example.com;"},
		})
		listener["stat_prefix"] = "l"
		return listener
	}
	got := scrape(t, envoy, object{"clusters": clusters, "listeners": []any{
		manager("inbound_0.0.0.0_8080;"), manager("InboundPassthroughCluster;"), manager("outbound_0.0.0.0_81"),
	}})
	for _, want := range []string{
		`envoy_cluster_upstream_rq_total{cluster_name="outbound|443||api.example.com"} 0`,
		`envoy_cluster_upstream_rq_total{cluster_name="outbound|80|v1|a.ns.svc.cluster.local"} 0`,
		`envoy_cluster_upstream_rq_total{cluster_name="inbound|80||"} 0`,
		`envoy_cluster_upstream_rq_total{cluster_name="outbound_.443_._.x.mesh"} 0`,
		`envoy_cluster_upstream_rq_total{cluster_name="outbound|80|v1|b.ns.svc.cluster.local"} 0`,
		`envoy_cluster_upstream_rq_total{cluster_name="inbound|81||"} 0`,
		// The end of this name cannot be determined.
		`envoy_cluster_example_com_upstream_rq_total{cluster_name="outbound|443||old"} 0`,
		`envoy_http_downstream_rq_total{http_conn_manager_prefix="inbound_0.0.0.0_8080"} 0`,
		`envoy_http_downstream_rq_total{http_conn_manager_prefix="InboundPassthroughCluster"} 0`,
		`envoy_http_downstream_rq_total{http_conn_manager_prefix="outbound_0.0.0.0_81"} 0`,
		`envoy_server_watchdog_miss{thread_name="main_thread"} 0`,
		// The statPrefix of a VirtualService.
		`envoy_vhost_backend_route_checkout_upstream_rq_total{} 0`,
	} {
		if !strings.Contains(got, "\n"+want+"\n") {
			t.Errorf("no line %s", want)
		}
	}
	if strings.Contains(got, ";") {
		t.Error("a name has a semicolon")
	}
	if t.Failed() {
		t.Log(got)
	}
}

// scrape returns the metrics of an Envoy that has the stats settings of the agent.
func scrape(t *testing.T, envoy string, resources object) string {
	t.Helper()
	pc := proxyConfig(t, "proxyStatsMatcher: {inclusionSuffixes: [upstream_rq_total]}")
	doc, err := Render(Input{ProxyConfig: pc, Metadata: &node.Metadata{}})
	if err != nil {
		t.Fatal(err)
	}
	var rendered map[string]any
	if err := json.Unmarshal(doc, &rendered); err != nil {
		t.Fatal(err)
	}
	config := object{
		"stats_config": rendered["stats_config"], "static_resources": resources,
		"node": object{"id": "x", "cluster": "x"}, "admin": object{"address": socketAddress("127.0.0.1", 0)},
	}
	dir := t.TempDir()
	file, admin := filepath.Join(dir, "envoy.json"), filepath.Join(dir, "admin")
	if err := os.WriteFile(file, []byte(asJSON(config)), 0o600); err != nil {
		t.Fatal(err)
	}
	out := &strings.Builder{}
	cmd := exec.Command(envoy, "-c", file, "--admin-address-path", admin, "--concurrency", "1", "--disable-hot-restart", "-l", "warning")
	cmd.Stdout, cmd.Stderr, cmd.Dir = out, out, dir
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	stop := func() {
		_ = cmd.Process.Kill()
		ended <- <-ended
	}
	defer stop()
	for deadline := time.Now().Add(3 * time.Minute); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		select {
		case err := <-ended:
			ended <- err
			t.Fatalf("envoy ended: %v\n%s", err, out)
		default:
		}
		address, err := os.ReadFile(admin)
		if err != nil || len(address) == 0 {
			continue
		}
		if _, err := get(t, fmt.Sprintf("http://%s/ready", address)); err != nil {
			continue
		}
		metrics, err := get(t, fmt.Sprintf("http://%s/stats/prometheus", address))
		if err != nil {
			t.Fatal(err)
		}
		return metrics
	}
	t.Fatal("envoy is not ready")
	return ""
}

func get(t *testing.T, url string) (string, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", url, resp.Status)
	}
	return string(body), err
}
