// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

//go:build linux

package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// scrapes is the configuration of Prometheus that Istio's documentation recommends, for two
// namespaces. The verb is the kubeconfig.
const scrapes = `
global: {scrape_interval: 2s}
scrape_configs:
- job_name: pods
  kubernetes_sd_configs: [{role: pod, kubeconfig_file: %q, namespaces: {names: [metrics, istio-system]}}]
  relabel_configs:
  - {action: keep, source_labels: [__meta_kubernetes_pod_annotation_prometheus_io_scrape], regex: "true"}
  - {source_labels: [__meta_kubernetes_pod_annotation_prometheus_io_path], regex: (.+), target_label: __metrics_path__}
  - {source_labels: [__meta_kubernetes_pod_ip, __meta_kubernetes_pod_annotation_prometheus_io_port], regex: (.+);(\d+), replacement: "$1:$2", target_label: __address__}
  - {action: labelmap, regex: __meta_kubernetes_pod_label_(.+)}
  - {source_labels: [__meta_kubernetes_namespace], target_label: namespace}
  - {source_labels: [__meta_kubernetes_pod_name], target_label: pod}
`

// prometheusAddress is in the network namespace of the node.
const prometheusAddress = "127.0.0.1:9090"

// metricsMesh has a client, a server of HTTP, and one of TCP.
const metricsMesh = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: client}
spec:
  selector: {matchLabels: {app: client}}
  template:
    metadata: {labels: {app: client}, annotations: {traffic.sidecar.istio.io/excludeInboundPorts: "` + askPort + `"}}
    spec: {containers: [{name: app, image: "` + appImage + `", args: [ask, ":` + askPort + `"]}]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: server}
spec:
  hosts: [server]
  http:
  - {match: [{uri: {exact: /missing}}], directResponse: {status: 404}}
  - {match: [{uri: {exact: /broken}}], directResponse: {status: 503}}
  - {route: [{destination: {host: server}}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: database}
spec:
  selector: {matchLabels: {app: database}}
  template:
    metadata: {labels: {app: database}}
    spec: {containers: [{name: app, image: "` + appImage + `", args: [serve, ":8080"]}]}
---
apiVersion: v1
kind: Service
metadata: {name: database}
spec: {selector: {app: database}, ports: [{name: tcp, port: 8080}]}
`

// TestDashboards checks that the queries of Istio's dashboards and of Kiali return data from a
// Prometheus that scrapes a mesh.
func TestDashboards(t *testing.T) {
	t.Parallel()
	n := mesh.Node(t)
	n.meshed(t, "metrics")
	n.apply(t, "metrics", fmt.Sprintf(server, "server")+metricsMesh)
	if err := n.CreateNamespace(t.Context(), "no-metrics"); err != nil {
		t.Fatal(err)
	}
	n.apply(t, "no-metrics", strings.TrimSuffix(asker, "---\n"))
	for _, label := range []string{"app=server", "app=database"} {
		n.Selected(t, "metrics", label, Ready)
	}
	inside, outside := n.Selected(t, "metrics", "app=client", Ready).Status.PodIP, n.Pod(t, "no-metrics", "asker", Ready).Status.PodIP
	n.prometheus(t)
	queries := dashboardQueries(t)
	t.Logf("%d queries", len(queries))
	n.eventually(t, "metrics", func(ctx context.Context) error {
		for range 10 {
			for _, r := range []struct{ from, url string }{
				{inside, "http://server/"},
				{inside, "http://server/missing"},
				{inside, "http://server/broken"},
				{inside, "http://database:8080/once"},
				{outside, "http://server.metrics/"},
			} {
				_, _ = n.ask(ctx, r.from, r.url) // it is counted in any case
			}
		}
		var missing []error
		queries = slices.DeleteFunc(queries, func(q string) bool {
			err := hasData(ctx, q)
			if err != nil {
				missing = append(missing, fmt.Errorf("%s: %w", q, err))
			}
			return err == nil
		})
		return errors.Join(missing...)
	})
}

// prometheus runs Prometheus until the test ends.
func (n *Node) prometheus(t *testing.T) {
	t.Helper()
	kubeconfig, err := n.Kubeconfig("admin", "system:masters")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	config := filepath.Join(dir, "prometheus.yaml")
	if err := os.WriteFile(config, fmt.Appendf(nil, scrapes, kubeconfig), 0o600); err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "/usr/bin/prometheus", "--config.file="+config, "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+prometheusAddress)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()         // it was killed
		_ = log.Close()        // only read from now on
		if text, err := os.ReadFile(log.Name()); t.Failed() {
			t.Logf("the log of Prometheus: %v\n%s", err, text[max(0, len(text)-3000):])
		}
	})
}

// hasData returns why a query returns no number.
func hasData(ctx context.Context, query string) error {
	text, err := fetch(ctx, "http://"+prometheusAddress+"/api/v1/query?query="+url.QueryEscape(query))
	if err != nil {
		return err
	}
	var answer struct {
		Data struct {
			Result []struct{ Value [2]any }
		}
	}
	if err := json.Unmarshal([]byte(text), &answer); err != nil {
		return err
	}
	for _, series := range answer.Data.Result {
		if series.Value[1] != "NaN" {
			return nil
		}
	}
	return errors.New("no data")
}

var alternatives = regexp.MustCompile(`<([^<>]*\|[^<>]*)>`)

// dashboardQueries returns the queries of the file, with all alternatives.
func dashboardQueries(t *testing.T) (all []string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "dashboards.txt"))
	if err != nil {
		t.Fatal(err)
	}
	values := strings.NewReplacer("$service", "server.metrics.svc.cluster.local", "$database", "database.metrics.svc.cluster.local",
		"$workload", "server", "$client", "client", "$namespace", "metrics")
	var expand func(string)
	expand = func(q string) {
		at := alternatives.FindStringSubmatchIndex(q)
		if at == nil {
			all = append(all, values.Replace(q))
			return
		}
		for one := range strings.SplitSeq(q[at[2]:at[3]], "|") {
			expand(q[:at[0]] + one + q[at[1]:])
		}
	}
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
			expand(line)
		}
	}
	return all
}
