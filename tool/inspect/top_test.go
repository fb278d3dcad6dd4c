// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/outrigger-mesh/outrigger/internal/columns"
)

// pages serves one page after another, and then repeats the last one.
func pages(t *testing.T, list ...string) proxy {
	t.Helper()
	var n atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		page := list[min(int(n.Add(1)), len(list))-1]
		if page == "" || r.URL.Path != "/stats/prometheus" {
			http.Error(w, "out of \x1b[31mservice", http.StatusServiceUnavailable)
			return
		}
		_, _ = fmt.Fprint(w, page)
	}))
	t.Cleanup(server.Close)
	address := strings.TrimPrefix(server.URL, "http://")
	return proxy{name: address, agent: address}
}

const identityOf = "spiffe://cluster.local/ns/shop/sa/"

// metric returns a line of Envoy's metrics.
func metric(reporter, from, to, name, more string, value int) string {
	principal, workload := identityOf+from, from
	if from == "" {
		principal, workload = "unknown", "unknown"
	}
	return fmt.Sprintf("%s{reporter=%q,source_workload=%q,source_workload_namespace=\"shop\",source_principal=%q,destination_workload=%q,destination_workload_namespace=\"shop\"%s} %d\n",
		name, reporter, workload, principal, to, more, value)
}

// requestsOf returns the metrics of requests with status 200 that took at most 10 ms, and of
// requests with status 503.
func requestsOf(reporter, from, to string, well, badly int) string {
	const buckets = "istio_request_duration_milliseconds_bucket"
	return metric(reporter, from, to, "istio_requests_total", `,response_code="200"`, well) + metric(reporter, from, to, "istio_requests_total", `,response_code="503"`, badly) +
		metric(reporter, from, to, buckets, `,le="10"`, well) + metric(reporter, from, to, buckets, `,le="25"`, well+badly) + metric(reporter, from, to, buckets, `,le="+Inf"`, well+badly)
}

// measured returns the traffic between the first two samples of proxies.
func measured(t *testing.T, proxies, unseen []proxy) traffic {
	t.Helper()
	m := &meter{timeout: time.Minute}
	m.measure(t.Context(), proxies, unseen)
	out := m.measure(t.Context(), proxies, unseen)
	out.sort("name")
	return out
}

// shown formats flows briefly.
func shown(list []flow) string {
	var b strings.Builder
	for _, w := range list {
		fmt.Fprintf(&b, "%s>%s %.0f", w.Source, w.Destination, w.Requests)
		if w.Success != nil {
			fmt.Fprintf(&b, " %.2f", *w.Success)
		}
		if w.Bytes > 0 {
			b.WriteString(" tcp")
		}
		b.WriteString("; ")
	}
	return b.String()
}

func TestMeter(t *testing.T) {
	t.Parallel()
	tcp := func(value int) string {
		return metric("destination", "web", "db", "istio_tcp_sent_bytes_total", "", value)
	}
	for name, c := range map[string]struct {
		proxies          [][]string
		unseen           []proxy
		workloads, edges string
		errs             int
	}{
		"both sides report": {
			proxies:   [][]string{{requestsOf("source", "web", "cart", 10, 1), requestsOf("source", "web", "cart", 17, 2)}, {requestsOf("destination", "web", "cart", 5, 0), requestsOf("destination", "web", "cart", 12, 0)}},
			workloads: ">cart 7 1.00; ", edges: "web>cart 8 0.88; ",
		},
		"client not scraped": {
			proxies:   [][]string{{requestsOf("destination", "web", "cart", 5, 0), requestsOf("destination", "web", "cart", 12, 0)}},
			workloads: ">cart 7 1.00; ", edges: "web>cart 7 1.00; ",
		},
		"another proxy of the client not scraped": {
			proxies:   [][]string{{requestsOf("source", "web", "cart", 0, 0), requestsOf("source", "web", "cart", 3, 0)}, {requestsOf("destination", "web", "cart", 5, 0), requestsOf("destination", "web", "cart", 12, 0)}},
			unseen:    []proxy{{identity: identityOf + "web"}},
			workloads: ">cart 7 1.00; ", edges: "web>cart 10 1.00; ",
		},
		"a client without a proxy": {
			proxies:   [][]string{{requestsOf("destination", "", "cart", 5, 0), requestsOf("destination", "", "cart", 6, 3)}},
			workloads: ">cart 4 0.25; ", edges: "unknown>cart 4 0.25; ",
		},
		"a restart": {
			proxies:   [][]string{{requestsOf("destination", "web", "cart", 500, 9), requestsOf("destination", "web", "cart", 4, 0)}},
			workloads: ">cart 4 1.00; ", edges: "web>cart 4 1.00; ",
		},
		"new series and old ones": {
			proxies:   [][]string{{requestsOf("destination", "web", "cart", 5, 0), requestsOf("destination", "web", "pay", 2, 2)}},
			workloads: ">pay 4 0.50; ", edges: "web>pay 4 0.50; ",
		},
		"connections": {proxies: [][]string{{tcp(5), tcp(5_000_000)}}, workloads: ">db 0 tcp; ", edges: "web>db 0 tcp; "},
		"idle":        {proxies: [][]string{{tcp(5), tcp(5)}}},
		"one does not respond": {
			proxies:   [][]string{{requestsOf("destination", "web", "cart", 5, 0), requestsOf("destination", "web", "cart", 12, 0)}, {tcp(5), ""}, {"", tcp(5)}},
			workloads: ">cart 7 1.00; ", edges: "web>cart 7 1.00; ", errs: 1,
		},
	} {
		var proxies []proxy
		for _, list := range c.proxies {
			proxies = append(proxies, pages(t, list...))
		}
		got := measured(t, proxies, c.unseen)
		if w, e := shown(got.Workloads), shown(got.Edges); w != c.workloads || e != c.edges || len(got.Errors) != c.errs {
			t.Errorf("%s: got workloads %q, edges %q, errors %q", name, w, e, got.Errors)
		}
	}
	got := measured(t, []proxy{pages(t, requestsOf("destination", "web", "cart", 0, 0), requestsOf("destination", "web", "cart", 80, 20))}, nil)
	if w := got.Workloads[0]; w.P50 == nil || math.Abs(*w.P50-6.25) > 1e-9 || math.Abs(*w.P95-21.25) > 1e-9 || math.Abs(*w.P99-24.25) > 1e-9 {
		t.Errorf("quantiles: got %+v", w)
	}
}

// TestMeterWithFalseReports uses a proxy that claims to report for another client.
func TestMeterWithFalseReports(t *testing.T) {
	t.Parallel()
	liar := pages(t, requestsOf("source", "web", "cart", 1, 0), requestsOf("source", "web", "cart", 2, 0))
	liar.identity = identityOf + "liar"
	server := pages(t, requestsOf("destination", "web", "cart", 0, 0), requestsOf("destination", "web", "cart", 0, 9))
	if got := shown(measured(t, []proxy{liar, server}, nil).Edges); got != "liar>cart 1 1.00; web>cart 9 0.00; " {
		t.Errorf("the server's report is hidden, or the liar's requests are attributed to another client: %s", got)
	}
}

// TestMeterVerifiesNames checks that the namespace and account of a proxy come from the control
// plane, which verified them.
func TestMeterVerifiesNames(t *testing.T) {
	t.Parallel()
	for claimed, want := range map[string]string{"cart": "cart", "cart-v1": "cart-v1", "pay": "cart", "car": "cart", "cart-v1-x": "cart-v1-x", "x": "cart"} {
		p := pages(t, requestsOf("destination", "web", claimed, 0, 0), requestsOf("destination", "web", claimed, 1, 0))
		p.name, p.namespace, p.identity = "cart-v1-x.mine", "mine", "spiffe://cluster.local/ns/mine/sa/cart"
		got := measured(t, []proxy{p}, nil).Workloads
		if len(got) != 1 || got[0].Destination != want || got[0].DestinationNamespace != "mine" {
			t.Errorf("a proxy of cart that claims to be %s.shop: got %+v, want %s.mine", claimed, got, want)
		}
	}
}

// TestTopReportsWhyNothingIsShown checks that the output distinguishes proxies without requests
// from proxies that cannot count.
func TestTopReportsWhyNothingIsShown(t *testing.T) {
	t.Parallel()
	idle := requestsOf("destination", "web", "cart", 1, 0)
	for name, c := range map[string]struct{ page, envoy, want string }{
		"idle":        {idle, "1.39.3", ""},
		"no series":   {"other 1\n", "1.39.3", "They have counted none"},
		"an old one":  {"other 1\n", "1.36.2", "Metrics need Envoy 1.37 or newer: proxy"},
		"not known":   {"other 1\n", "", "They have counted none"},
		"a new major": {idle, "2.0.0", ""},
	} {
		p := pages(t, c.page, c.page)
		p.envoy = c.envoy
		var out strings.Builder
		(&topFlags{}).tables(&out, measured(t, []proxy{p}, nil), 0)
		first, rest, _ := strings.Cut(out.String(), "\n")
		if !strings.HasPrefix(first, "No requests in") || !strings.HasPrefix(rest, c.want) || (c.want == "") != (rest == "") {
			t.Errorf("%s: got %q, want %q", name, out.String(), c.want)
		}
	}
}

// TestMeterAfterFailedSample measures again after a failed sample, and checks that series that were
// possibly missing are not counted.
func TestMeterAfterFailedSample(t *testing.T) {
	t.Parallel()
	count := func(n int) string { return requestsOf("destination", "web", "cart", n, 0) }
	m, p := &meter{timeout: time.Minute}, []proxy{pages(t, count(1), "", count(9))}
	for i, want := range []string{"", "", ">cart 8 1.00; ", ""} {
		if got := m.measure(t.Context(), p, nil); shown(got.Workloads) != want || len(got.Errors) > 0 != (i == 1) {
			t.Errorf("measurement %d: got %s, errors %q", i, shown(got.Workloads), got.Errors)
		}
	}
	m.measure(t.Context(), nil, nil)
	if len(m.last) > 0 {
		t.Error("samples of removed proxies were kept")
	}
	last, err := newSamples(strings.NewReader(count(1)), 1)
	now, nowErr := newSamples(strings.NewReader(requestsOf("destination", "other", "cart", 99, 0)), 100)
	sum := summer{workloads: flows{}, sent: flows{}, received: flows{}, clients: map[string]bool{}}
	if sum.proxy("", last, now); err != nil || nowErr != nil || len(sum.workloads) > 0 {
		t.Errorf("series that may be old were counted: %s (errors %v, %v)", shown(sum.workloads.list()), err, nowErr)
	}
}

// TestTopTables compares the tables with a golden file. No line may have more than 80 characters.
func TestTopTables(t *testing.T) {
	t.Parallel()
	number := func(n float64) *float64 { return &n }
	long := strings.Repeat("a-very-long-name-", 5)
	one := flow{Destination: "cart", DestinationNamespace: "shop", Requests: 5, Rate: 1.25, Success: number(0.99951), P50: number(0.4), P95: number(12), P99: number(1234)}
	huge := flow{Destination: long + "1", DestinationNamespace: "shop", Requests: 5, Rate: 1e20, Success: number(1), P50: number(99_999), P95: number(1e9), P99: number(1e300), Bytes: 1e300}
	edge := func(w flow, from, namespace string) flow {
		w.Source, w.SourceNamespace = from, namespace
		return w
	}
	var b bytes.Buffer
	f := &topFlags{}
	f.cfg.Width = tableWidth
	w := &columns.Writer{Out: &b, Width: tableWidth}
	f.tables(w, traffic{Seconds: 5.04, Proxies: 2, Workloads: []flow{one, huge, {Destination: "db", DestinationNamespace: "shop", Bytes: 1536}}, Edges: []flow{edge(one, "web", "shop"), edge(huge, long, "shop"), edge(huge, "web", "shop")}}, 0)
	b.WriteString("--\n")
	f.tables(w, traffic{Seconds: 5, Proxies: 1, Workloads: []flow{one, one, one}, Edges: []flow{edge(one, "web\x1b[2J", "default")}}, 2)
	b.WriteString("--\n")
	f.tables(w, traffic{Seconds: 5, Proxies: 1}, 0)
	for line := range strings.Lines(b.String()) {
		if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > tableWidth || strings.Contains(line, "\x1b") {
			t.Errorf("a line has %d characters or an escape character: %q", n, line)
		}
	}
	golden(t, "top", b.String())
}

func TestTop(t *testing.T) {
	t.Parallel()
	good := pages(t, requestsOf("destination", "web", "cart", 5, 0), requestsOf("destination", "web", "cart", 12, 0)).agent
	other := pages(t, "istio_requests_total{a=\"b\"} 1\n", "").agent
	out, errs, code := run(t, "top", "--agent", good, "--agent", other, "--interval", "1s", "-o", "json")
	var got traffic
	if err := json.Unmarshal([]byte(out), &got); err != nil || code != 1 || shown(got.Workloads) != ">cart 7 1.00; " || got.Proxies != 1 {
		t.Errorf("got exit code %d (error %v):\n%s", code, err, out)
	}
	for _, want := range []string{"measuring 2 proxies for 1s\n", "error: proxy " + other + ": it returned 503: out of  [31mservice\n", "kubectl port-forward"} {
		if !strings.Contains(errs, want) {
			t.Errorf("the errors do not contain %q:\n%s", want, errs)
		}
	}
	if out, _, code := run(t, "top", "--agent", good, "--interval", "1s"); code != 0 || !strings.Contains(out, "No requests in ") {
		t.Errorf("idle: got exit code %d\n%s", code, out)
	}
	control := startControl(t, "istiod-0")
	redirects := httptest.NewServer(http.RedirectHandler("http://"+good+"/stats/prometheus", http.StatusFound))
	defer redirects.Close()
	for want, args := range map[string][]string{
		"want at most one proxy":               {"a", "b"},
		"write table, wide, yaml or json":      {"-o", "xml"},
		"write name, p99, rate, success or":    {"--sort", "x"},
		"must be from 1s to 10m0s":             {"--interval", "1ms"},
		"leave out PROXY and -n":               {"--agent", good, "-n", "shop"},
		"no proxy is connected to these":       {"--control", control.http},
		"No control plane was reached":         {"--control", listenNowhere(t)},
		"it returned 302":                      {"--agent", strings.TrimPrefix(redirects.URL, "http://")},
		"name one with --control":              nil,
		"error: proxy " + listenNowhere(t)[:7]: {"--agent", listenNowhere(t)},
	} {
		if out, errs, code := run(t, append([]string{"top"}, args...)...); code == 0 || !strings.Contains(errs, want) {
			t.Errorf("%q: got exit code %d, want an error with %q:\n%s%s", args, code, want, out, errs)
		}
	}
	control.proxy(t, "web-1", "")
	if _, errs, code := run(t, "top", "--control", control.http, "-n", "other"); code != 1 || !strings.Contains(errs, "in the namespace other") {
		t.Errorf("another namespace: got exit code %d: %s", code, errs)
	}
	if _, errs, code := run(t, "top", "--control", control.http, "web"); code != 1 || !strings.Contains(errs, "error: proxy web-1.shop at ") {
		t.Errorf("an agent that cannot be reached: got exit code %d: %s", code, errs)
	}
}
