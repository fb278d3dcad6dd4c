// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package prober

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/exemplar"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/textparse"

	"github.com/outrigger-mesh/outrigger/status"
)

// found is what Prometheus reads from a response.
type found struct {
	// format is the media type, without its parameters.
	format string
	// samples contains the series with their values, one line each, sorted; types the metadata of
	// families; exemplars those of all series.
	samples, types, exemplars []string
}

// parse reads a response as Prometheus does with all features enabled.
func parse(t *testing.T, body []byte, contentType string) found {
	t.Helper()
	format, _, _ := strings.Cut(contentType, ";")
	f := found{format: format}
	p, err := textparse.New(body, contentType, labels.NewSymbolTable(), textparse.ParserOptions{KeepClassicOnClassicAndNativeHistograms: true})
	if err != nil {
		t.Fatalf("%s: %v", contentType, err)
	}
	for {
		entry, err := p.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("%s: %v in\n%.2000s", contentType, err, body)
		}
		switch entry {
		case textparse.EntryType:
			name, kind := p.Type()
			f.types = append(f.types, fmt.Sprintf("%s %s", name, kind))
		case textparse.EntryHelp:
			name, help := p.Help()
			f.types = append(f.types, fmt.Sprintf("%s: %s", name, help))
		case textparse.EntryUnit:
			name, unit := p.Unit()
			f.types = append(f.types, fmt.Sprintf("%s in %s", name, unit))
		case textparse.EntrySeries, textparse.EntryHistogram:
			f.take(p, entry)
		}
	}
	for _, list := range []*[]string{&f.samples, &f.types, &f.exemplars} {
		slices.Sort(*list)
	}
	return f
}

func (f *found) take(p textparse.Parser, entry textparse.Entry) {
	var series labels.Labels
	p.Labels(&series)
	var value string
	var at *int64
	if entry == textparse.EntryHistogram {
		_, ts, whole, float := p.Histogram()
		if at = ts; whole != nil {
			value = fmt.Sprintf("%s schema %d %v %v zero %v", whole, whole.Schema, whole.PositiveSpans, whole.NegativeSpans, whole.ZeroThreshold)
		} else {
			value = fmt.Sprintf("%s schema %d", float, float.Schema)
		}
	} else {
		_, ts, v := p.Series()
		at, value = ts, fmt.Sprint(v)
	}
	line := series.String() + " " + value
	if at != nil {
		line += fmt.Sprintf(" at %d", *at)
	}
	f.samples = append(f.samples, line)
	for {
		var e exemplar.Exemplar
		if !p.Exemplar(&e) {
			return
		}
		f.exemplars = append(f.exemplars, fmt.Sprintf("%s: %s %v %v %d", series, e.Labels, e.Value, e.HasTs, e.Ts))
	}
}

// merging runs a status server in front of sources until the test ends. The first source takes the
// role of Envoy.
func merging(t *testing.T, envoyURL string, apps ...status.AppScrape) (url string) {
	t.Helper()
	listener := listen(t, "127.77.62.21")
	server, err := status.New(status.Config{
		Listener: listener, Ready: func(context.Context) error { return nil }, EnvoyMetricsURL: envoyURL, AppScrape: apps, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- server.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the status server ended: %v", err)
		}
	})
	return "http://" + listener.Addr().String() + "/stats/prometheus"
}

// sourceOf serves metrics on loopback, until the test ends.
func sourceOf(t *testing.T, handler http.Handler) status.AppScrape {
	t.Helper()
	listener := listen(t, "127.0.0.1")
	serve(t, &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute}, listener)
	return status.AppScrape{Port: portOf(listener), Path: "/metrics"}
}

// scrapeOf gets metrics as a scraper.
func scrapeOf(t *testing.T, url, accept string) (body []byte, contentType string) {
	t.Helper()
	body, contentType, err := fetch(t.Context(), url, accept)
	if err != nil {
		t.Fatal(err)
	}
	return body, contentType
}

func fetch(ctx context.Context, url, accept string) (body []byte, contentType string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, "", err
	}
	req.Header.Set("Accept", accept)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, "", err
	}
	defer func() { _ = resp.Body.Close() }() // only read
	if body, err = io.ReadAll(resp.Body); err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", url, resp.Status)
	}
	return body, resp.Header.Get("Content-Type"), err
}

// static responds with the same metrics to all requests.
func static(contentType, body string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", contentType)
		_, _ = io.WriteString(w, body) // a disconnected peer needs no response
	})
}

// still forwards a server's responses, and repeats the first one of each format, because its
// metrics change continuously.
func still(url string) http.Handler {
	var mu sync.Mutex
	kept := map[string][]byte{}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		target := url
		if r.URL.RawQuery != "" {
			target += "?" + r.URL.RawQuery
		}
		body, contentType, err := fetch(r.Context(), target, r.Header.Get("Accept"))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		key := contentType + r.URL.RawQuery
		if _, known := kept[key]; !known {
			kept[key] = body
		}
		w.Header().Set("Content-Type", contentType)
		_, _ = w.Write(kept[key]) // as above
	})
}

// envoyConfig has a listener, so that there are counters and histograms of requests.
const envoyConfig = `admin: {address: {socket_address: {address: ADDRESS, port_value: 15000}}}
stats_flush_interval: 0.1s
static_resources:
  listeners:
  - name: only
    address: {socket_address: {address: ADDRESS, port_value: 15001}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: only
          http_filters: [{name: envoy.filters.http.router, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}]
          route_config: {virtual_hosts: [{name: all, domains: ["*"], routes: [{match: {prefix: /}, direct_response: {status: 200}}]}]}
`

// startEnvoy runs an Envoy that has served requests, and returns the URL of its metrics.
func startEnvoy(t *testing.T, address string) (url string) {
	t.Helper()
	path := findEnvoy()
	if path == "" {
		t.Skip("no Envoy found: run `make envoy` or set ENVOY")
	}
	config := filepath.Join(t.TempDir(), "envoy.yaml")
	if err := os.WriteFile(config, []byte(strings.ReplaceAll(envoyConfig, "ADDRESS", address)), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), path, "-c", config, "--concurrency", "1", "--disable-hot-restart", "-l", "error")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have exited
		_ = cmd.Wait()         // it was killed
	})
	url = "http://" + address + ":15000/stats/prometheus"
	for end := time.Now().Add(3 * time.Minute); ; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("timeout: Envoy has histograms of requests")
		}
		resp, err := http.Get("http://" + address + ":15001/")
		if err != nil {
			continue // it is starting
		}
		_ = resp.Body.Close() // only the request matters
		if body, _ := scrapeOf(t, url, "text/plain"); strings.Contains(string(body), `envoy_http_downstream_rq_time_bucket{envoy_http_conn_manager_prefix="only"`) {
			return url
		}
	}
}

func findEnvoy() string {
	for _, candidate := range []string{os.Getenv("ENVOY"), "../../../bin/envoy", "envoy"} {
		if candidate == "" {
			continue
		}
		if path, err := exec.LookPath(candidate); err == nil {
			if abs, err := filepath.Abs(path); err == nil {
				return abs
			}
		}
	}
	return ""
}

// sortedKeys are the keys of a map in order.
func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
