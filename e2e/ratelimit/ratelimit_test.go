// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package ratelimit

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/envoyproxy/ratelimit/src/service_cmd/runner"
	"github.com/envoyproxy/ratelimit/src/settings"

	"github.com/outrigger-mesh/outrigger/e2e/meshtest"
	"github.com/outrigger-mesh/outrigger/e2e/ownnet"
)

// program is the name under which the test binary is the rate limit service.
const program = "ratelimit"

func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == program {
		serve()
		return
	}
	os.Exit(ownnet.Tests(m).Run())
}

// serve runs the rate limit service with counters in memory. The environment configures it.
func serve() {
	counters, err := miniredis.Run()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	s := settings.NewSettings()
	s.RedisSocketType, s.RedisUrl = "tcp", counters.Addr()
	r := runner.NewRunner(s)
	r.Run()
}

// meshFile starts two proxies of catalog, a client and the service. DIR is the directory of the
// test, BIN that of the programs.
const meshFile = `
config: config
network: 127.77.90.0/24
workloads:
- {name: frontend, command: [BIN/shop, frontend, --listen, "127.0.0.1:$(PORT)"], port: 18080, servicePort: 8080}
- name: catalog-v1
  service: catalog
  command: [BIN/shop, catalog, --version, v1, --listen, "127.0.0.1:$(PORT)"]
  port: 18081
  servicePort: 8080
- name: catalog-v2
  service: catalog
  command: [BIN/shop, catalog, --version, v2, --listen, "127.0.0.1:$(PORT)"]
  port: 18082
  servicePort: 8080
- name: ratelimit
  command: [DIR/ratelimit]
  env: {GRPC_HOST: 127.0.0.1, GRPC_PORT: $(PORT), HOST: 127.0.0.1, PORT: "18091", DEBUG_HOST: 127.0.0.1, USE_STATSD: "false", DISABLE_STATS: "true", RUNTIME_ROOT: DIR/limits, RUNTIME_WATCH_ROOT: "false", LOG_LEVEL: warn}
  port: 18090
  servicePort: 8081
  protocol: GRPC
`

// limits allow three requests a day with a path that outrigger up does not request itself.
const limits = `
domain: shop
descriptors:
- {key: path, value: "/?limited", rate_limit: {unit: day, requests_per_unit: 3}}
`

// TestGlobalLimit sends requests to two proxies, which share a limit.
func TestGlobalLimit(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	dir, bin := t.TempDir(), filepath.Join(root, "bin")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	example, err := os.ReadFile(filepath.Join(root, "examples/limits/global.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(self, filepath.Join(dir, program)); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"mesh.yaml": strings.NewReplacer("BIN", bin, "DIR", dir).Replace(meshFile), "config/limit.yaml": string(example), "limits/config/shop.yaml": limits,
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	meshtest.Run(t, bin, dir)

	proxy := &url.URL{Scheme: "http", Host: "127.77.90.2:15080"}
	client := &http.Client{Transport: &http.Transport{Proxy: http.ProxyURL(proxy), DisableKeepAlives: true}, Timeout: time.Minute}
	day := time.Now().UTC().YearDay()
	seen := map[string]int{}
	for range 20 {
		resp, err := client.Get("http://catalog:8080/?limited")
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close() // it was read
		if err != nil {
			t.Fatal(err)
		}
		seen[fmt.Sprint(resp.StatusCode, " ", resp.Header.Get("x-envoy-ratelimited"))]++
		if resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusTooManyRequests {
			t.Errorf("%d: %s", resp.StatusCode, body)
		}
	}
	if time.Now().UTC().YearDay() != day && seen["200 "] == 6 {
		seen["200 "] -= 3
		seen["429 true"] += 3
	}
	if seen["200 "] != 3 || seen["429 true"] != 17 {
		t.Errorf("answers: %v, want 3 of 20 from both proxies together", seen)
	}
}
