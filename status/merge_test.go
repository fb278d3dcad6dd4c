// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package status

import (
	"compress/gzip"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

const (
	envoyText = "# TYPE envoy_server_live gauge\nenvoy_server_live{} 1\n"
	appText   = "# HELP app_requests_total Requests.\n# TYPE app_requests_total counter\napp_requests_total{path=\"/\"} 5" // without a final newline
)

func text(body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4")
		_, _ = io.WriteString(w, body)
	}
}

// serveMerged runs a server in front of an Envoy and an application.
func serveMerged(t *testing.T, envoy, app http.HandlerFunc) (*prometheus.Registry, string) {
	t.Helper()
	reg := prometheus.NewRegistry()
	port, err := strconv.Atoi(portOfAddr(t, upstream(t, app).URL))
	if err != nil {
		t.Fatal(err)
	}
	envoyURL := upstream(t, envoy).URL + "/stats/prometheus"
	_, address := serve(t, func(c *Config) {
		c.Gatherer, c.Registerer = reg, reg
		c.EnvoyMetricsURL, c.AppScrape = envoyURL, []AppScrape{{Port: port, Path: "/metrics?x=1"}}
	})
	return reg, address
}

// scrape returns the response and the names of the metric families that a Prometheus parser finds
// in it.
func scrape(t *testing.T, address, path string, header http.Header) (body string, names map[string]bool) {
	t.Helper()
	code, body, got := do(t, http.MethodGet, address, path, header)
	if code != http.StatusOK || !strings.HasPrefix(got.Get("Content-Type"), "text/plain; version=0.0.4; charset=utf-8") {
		t.Errorf("scrape = %d, content type %q", code, got.Get("Content-Type"))
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(body))
	if err != nil {
		t.Errorf("merged metrics cannot be parsed: %v\n%s", err, body)
	}
	names = map[string]bool{}
	for name := range families {
		names[name] = true
	}
	return body, names
}

func failuresOf(t *testing.T, reg *prometheus.Registry) float64 {
	t.Helper()
	return gauge(t, reg, "istio_agent_scrape_failures_total")
}

func TestMergedMetrics(t *testing.T) {
	t.Parallel()
	asked := make(chan *http.Request, 4)
	recorded := func(next http.HandlerFunc) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			asked <- r
			next(w, r)
		}
	}
	reg, address := serveMerged(t, recorded(text(envoyText)), recorded(text(appText)))
	for _, path := range []string{"/stats/prometheus", "/metrics"} {
		body, names := scrape(t, address, path, http.Header{
			"Accept": {"text/html"}, "User-Agent": {"Prometheus/3"}, timeoutHeader: {"9.5"}, "Cookie": {"a=b"},
		})
		agent, envoy, app := strings.Index(body, "istio_agent_scrapes_total"), strings.Index(body, "envoy_server_live"), strings.Index(body, "app_requests_total")
		if agent < 0 || envoy < agent || app < envoy {
			t.Errorf("the sources are at %d, %d, %d, want the order agent, Envoy, application:\n%s", agent, envoy, app, body)
		}
		if !names["istio_agent_scrapes_total"] || !names["envoy_server_live"] || !names["app_requests_total"] {
			t.Errorf("families: got %v", names)
		}
		for range 2 {
			r := <-asked
			if !strings.HasPrefix(r.Header.Get("Accept"), "text/plain;version=0.0.4;escaping=") || r.UserAgent() != "Prometheus/3" || r.Header.Get(timeoutHeader) != "9.5" || r.Header.Get("Cookie") != "" {
				t.Errorf("request to %s: got headers %v", r.URL, r.Header)
			}
		}
	}
	if n := gauge(t, reg, "istio_agent_scrapes_total"); n != 2 {
		t.Errorf("scrapes = %v, want 2", n)
	}
	if n := failuresOf(t, reg); n != 0 {
		t.Errorf("failures = %v, want 0", n)
	}
}

// TestEnvoyMetrics requests Envoy's metrics alone, from an Envoy that answers and one that does not.
func TestEnvoyMetrics(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	for _, name := range []string{"istio_build", "other"} {
		reg.MustRegister(prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: "A gauge."}))
	}
	var gone atomic.Bool
	envoyURL := upstream(t, func(w http.ResponseWriter, _ *http.Request) {
		if gone.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		text(envoyText+"# TYPE envoy_istiocustom_istio_requests_total counter\nenvoy_istiocustom_istio_requests_total{source_app=\"\"} 3\n")(w, nil)
	}).URL
	_, address := serve(t, func(c *Config) {
		c.Gatherer, c.Registerer, c.EnvoyMetricsURL, c.EnvoyApart = reg, reg, envoyURL, true
	})
	body, names := scrape(t, address, "/stats/envoy", nil)
	if len(names) != 3 || !names["istio_build"] || !names["envoy_server_live"] || !strings.Contains(body, `istio_requests_total{source_app="unknown"} 3`) {
		t.Errorf("the metrics of Envoy are %v:\n%s", names, body)
	}
	if _, names := scrape(t, address, "/metrics", nil); names["envoy_server_live"] || !names["other"] {
		t.Errorf("the merged metrics are %v", names)
	}
	gone.Store(true)
	wantAnswer(t, address, "/stats/envoy", http.StatusServiceUnavailable, "Envoy's metrics cannot be fetched")
	if n := failuresOf(t, reg); n != 1 {
		t.Errorf("%v failures are counted, want 1", n)
	}
}

func TestFailingSources(t *testing.T) {
	t.Parallel()
	for name, broken := range map[string]http.HandlerFunc{
		"status": func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "broken 1", http.StatusInternalServerError)
		},
		"another format": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html")
			_, _ = io.WriteString(w, "broken 1")
		},
		"invalid protobuf": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/vnd.google.protobuf; encoding=delimited")
			_, _ = io.WriteString(w, "\x06broken")
		},
		"invalid gzip": func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Encoding", "gzip") },
		"compressed":   func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Encoding", "br") },
		"redirect": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://127.0.0.1:1/", http.StatusFound)
		},
		"truncated": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "1000")
			_, _ = io.WriteString(w, "whole 1\nbroken{half=\"")
		},
		"a page of text":      text("broken: try again\n"),
		"an error at the end": text("whole 1\nbroken: try again\n"),
		"long line": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "whole 1\nbroken{half=\""+strings.Repeat("x", 64<<10))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			reg, address := serveMerged(t, broken, text(appText))
			body, names := scrape(t, address, "/metrics", nil)
			if !names["app_requests_total"] || strings.Contains(body, "broken") {
				t.Errorf("merged metrics: got\n%s", body)
			}
			if n := failuresOf(t, reg); n != 1 {
				t.Errorf("failures = %v, want 1", n)
			}
		})
	}
}

func TestHangingSource(t *testing.T) {
	t.Parallel()
	hang := func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	hangHalfway := func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, appText+"\n")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}
	for name, handlers := range map[string][2]http.HandlerFunc{
		// The response is long, so that reading it takes time as well.
		"envoy":               {hang, text(strings.Repeat("# a comment\n", 50_000) + appText)},
		"application halfway": {text(envoyText), hangHalfway},
		"envoy halfway":       {hangHalfway, text(appText)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			reg, address := serveMerged(t, handlers[0], handlers[1])
			begin := time.Now()
			// The other source may use a quarter of this time, which must suffice on a busy
			// machine.
			_, names := scrape(t, address, "/metrics", http.Header{timeoutHeader: {"4"}})
			if took := time.Since(begin); took >= 4*time.Second {
				t.Errorf("the scrape took %s, want less than the scraper's four seconds", took)
			}
			if !names["app_requests_total"] || failuresOf(t, reg) != 1 {
				t.Errorf("got families %v, failures %v", names, failuresOf(t, reg))
			}
		})
	}
}

func TestScrapeTime(t *testing.T) {
	t.Parallel()
	for header, want := range map[string]time.Duration{
		"": maxScrape, "x": maxScrape, "0": maxScrape, "-1": maxScrape, "NaN": maxScrape, "Inf": maxScrape, "1e300": maxScrape,
		"10": 9500 * time.Millisecond, "1": 900 * time.Millisecond, "0.5": 450 * time.Millisecond,
	} {
		if got := scrapeTime(header); got != want {
			t.Errorf("scrapeTime(%q) = %s, want %s", header, got, want)
		}
	}
}

// TestMergedFormats checks that the response has a format and an encoding that the scraper accepts.
func TestMergedFormats(t *testing.T) {
	t.Parallel()
	asked := make(chan string, 4)
	openMetrics := func(w http.ResponseWriter, r *http.Request) {
		asked <- r.URL.RawQuery
		w.Header().Set("Content-Type", "application/openmetrics-text; version=1.0.0; charset=utf-8")
		w.Header().Set("Content-Encoding", "gzip")
		zipped := gzip.NewWriter(w)
		_, _ = io.WriteString(zipped, "# TYPE jobs counter\njobs_total 1 # {id=\"7\"} 1\n# EOF\n")
		_ = zipped.Close()
	}
	_, address := serveMerged(t, text(envoyText), openMetrics)
	const want = "# TYPE envoy_server_live gauge\nenvoy_server_live{} 1\n# TYPE jobs counter\njobs_total 1 # {id=\"7\"} 1\n# EOF\n"
	header := http.Header{"Accept": {"application/openmetrics-text;version=1.0.0"}, "Accept-Encoding": {"gzip;q=0.5"}}
	code, body, got := do(t, http.MethodGet, address, "/metrics?usedonly", header)
	zipped, err := gzip.NewReader(strings.NewReader(body))
	if err != nil {
		t.Fatalf("got status %d, headers %v, error %v", code, got, err)
	}
	plain, err := io.ReadAll(zipped)
	if err != nil || !strings.HasSuffix(string(plain), want) || strings.Count(string(plain), "# EOF") != 1 || got.Get("Content-Encoding") != "gzip" {
		t.Errorf("got headers %v, error %v:\n%s", got, err, plain)
	}
	if query := <-asked; query != "x=1&usedonly" {
		t.Errorf("the application received the query %q", query)
	}
	if _, names := scrape(t, address, "/metrics", nil); !names["jobs_total"] || !names["envoy_server_live"] {
		t.Errorf("families as text: got %v", names)
	}
}

// TestTruncatedResponse checks that a response that lacks a part in the middle does not look
// complete.
func TestTruncatedResponse(t *testing.T) {
	t.Parallel()
	torn := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/vnd.google.protobuf; encoding=delimited")
		_, _ = w.Write(append([]byte{0x80, 0x80, 0x80, 0x01}, make([]byte, 100)...)) // the prefix announces 2 MiB
	}
	_, address := serveMerged(t, torn, text(appText))
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept", "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited")
	resp, err := http.DefaultClient.Do(req)
	if err == nil {
		if resp.StatusCode != http.StatusOK {
			t.Errorf("status code = %d, want 200", resp.StatusCode)
		}
		_, err = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
	}
	if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("reading the response: %v, want the end of the connection in its middle", err)
	}
}

// closings counts calls of Close.
type closings struct {
	io.Reader
	n int
}

// Close implements io.Closer.
func (c *closings) Close() error { c.n++; return nil }

type answers func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (f answers) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestFetchLeavesNoTimer checks that the body is closed once and that no timer remains, whether the
// response is read or not.
func TestFetchLeavesNoTimer(t *testing.T) {
	t.Parallel()
	for name, read := range map[string]bool{"unread": false, "read": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				body := &closings{Reader: strings.NewReader("a 1\n")}
				f := fetcher{asked: httptest.NewRequest(http.MethodGet, "/stats/prometheus", nil), stall: time.Minute, client: &http.Client{
					Transport: answers(func(r *http.Request) (*http.Response, error) {
						return &http.Response{StatusCode: http.StatusOK, Body: body, Header: http.Header{}, Request: r}, nil
					}),
				}}
				got, _, err := f.fetch(t.Context(), "http://application/metrics")
				if err != nil {
					t.Fatal(err)
				}
				if read {
					if text, err := io.ReadAll(got); err != nil || string(text) != "a 1\n" {
						t.Errorf("got %q, error %v", text, err)
					}
				}
				_ = got.Close() // body counts the calls
				time.Sleep(24 * time.Hour)
				if body.n != 1 {
					t.Errorf("the body was closed %d times, want 1", body.n)
				}
			})
		})
	}
}

// TestFetchStalls checks that reading fails if a response stalls for too long.
func TestFetchStalls(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		reader, writer := io.Pipe()
		p := &patient{ReadCloser: reader, stall: time.Minute}
		go func() { _, _ = writer.Write([]byte("a 1")) }() // and nothing more follows
		began := time.Now()
		text, err := io.ReadAll(p)
		if string(text) != "a 1" || !errors.Is(err, io.ErrClosedPipe) || time.Since(began) != time.Minute {
			t.Errorf("got %q, error %v after %s", text, err, time.Since(began))
		}
	})
}
