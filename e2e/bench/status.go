// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/outrigger-mesh/outrigger/status/probe/probetest"
)

const (
	statusHost = agentNet + "210"
	probeURL   = "http://" + statusHost + ":15020/app-health/app/livez"
	// scrapeSize is the size of the application's metrics in bytes.
	scrapeSize = 100e6
	// probeRate is the number of probes per second of the load that detects leaks.
	probeRate = 5000
)

// application is the probed and scraped application, which is this program. It serves probes at the
// address of the agent, and metrics on loopback.
type application struct{ probed, scraped net.Listener }

// newApplication serves metrics from memory, and also rendered line by line as most programs do.
// The caller closes the server.
func newApplication() (*application, *http.Server) {
	var block bytes.Buffer // one megabyte
	check(renderMetrics(&block, 1e6))
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") })
	mux.HandleFunc("/memory", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4")
		for sent := 0; sent < scrapeSize; sent += block.Len() {
			if _, err := w.Write(block.Bytes()); err != nil {
				return // the reader reports it
			}
		}
	})
	mux.HandleFunc("/rendered", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4")
		_ = renderMetrics(w, scrapeSize) // as above
	})
	app := &application{must(net.Listen("tcp", statusHost+":0")), must(net.Listen("tcp", "127.0.0.1:0"))}
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = server.Serve(app.probed) }() // it ends with the server
	go func() { _ = server.Serve(app.scraped) }()
	return app, server
}

// renderMetrics writes metrics of approximately the given size in bytes.
func renderMetrics(w io.Writer, size int) error {
	line := make([]byte, 0, 1<<16)
	for sent, n := 0, 0; sent < size; n++ {
		if n%200 == 0 {
			line = fmt.Appendf(line, "# HELP bench_family_%[1]d_total Requests by source and destination.\n# TYPE bench_family_%[1]d_total counter\n", n/200)
		}
		line = fmt.Appendf(line, "bench_family_%d_total{source=\"frontend-%d\",destination=\"catalog-%d\",code=\"200\"} %d\n", n/200, n%7, n, n*31)
		if len(line) > 60<<10 {
			if _, err := w.Write(line); err != nil {
				return err
			}
			sent += len(line)
			line = line[:0]
		}
	}
	_, err := w.Write(line)
	return err
}

// status measures the status port: scrapes, a single probe and many probes, directly at the
// application and through an agent.
func (b *bench) status(ctx context.Context) {
	app, server := newApplication()
	defer func() { _ = server.Close() }() // it is no longer used
	p := b.statusAgent(ctx, app, "/memory")
	b.scrape(ctx, p, app, "/memory", figure{Name: "status: 100 MB of metrics, from memory"})
	p.stop()
	p = b.statusAgent(ctx, app, "/rendered")
	b.scrape(ctx, p, app, "/rendered", figure{Name: "status: 100 MB of metrics, rendered", TargetRatio: 1.3})
	b.oneProbe(ctx, app)
	b.manyProbes(ctx, p)
}

// statusAgent starts an agent that probes and scrapes the application. Neither Envoy nor a control
// plane is needed.
func (b *bench) statusAgent(ctx context.Context, app *application, path string) *process {
	port := func(l net.Listener) int { return l.Addr().(*net.TCPAddr).Port }
	p := b.startAgent("status", agentSpec{address: statusHost, discovery: relayHost + plaintext, env: []string{
		"DISABLE_ENVOY=true",
		fmt.Sprintf(`ISTIO_KUBE_APP_PROBERS={"/app-health/app/livez":{"httpGet":{"path":"/healthz","port":%d},"timeoutSeconds":10}}`, port(app.probed)),
		fmt.Sprintf(`ISTIO_PROMETHEUS_ANNOTATIONS={"scrape":"true","path":"%s","port":"%d"}`, path, port(app.scraped)),
	}})
	p.wait(ctx, probeURL, "ok")
	sleep(ctx, 2*time.Second)
	// The start is complete and has released more memory than an agent with occasional requests
	// needs.
	p.wait(ctx, probeURL, "ok")
	return p
}

// oneProbe measures single probes, alternating between direct ones and those through the agent.
func (b *bench) oneProbe(ctx context.Context, app *application) {
	b.say("status: single probes")
	probe := func(url string) func() float64 {
		return func() float64 { return sent(ctx, probetest.Load{URL: url, Duration: time.Second}).P50.Seconds() }
	}
	took := turns(b.rounds, probe(probeURL), probe("http://"+app.probed.Addr().String()+"/healthz"))
	b.add(
		figure{Name: "status: one probe, p50", Unit: milliseconds, Ours: took[0], Straight: took[1]},
		figure{Name: "status: of that what the agent adds", Unit: milliseconds, Ours: took[0] - took[1], Target: 0.3e-3})
}

// sent sends probes. All of them must succeed.
func sent(ctx context.Context, load probetest.Load) probetest.Outcome {
	out := must(load.Run(ctx))
	if out.Failed > 0 {
		fail("%d of %d probes of %s failed: %w", out.Failed, out.Sent, load.URL, out.Failure)
	}
	return out
}

// manyProbes sends probes for a while and measures the agent's resources afterwards.
func (b *bench) manyProbes(ctx context.Context, p *process) {
	b.say("status: %d probes a second for %s", probeRate, b.probeTime)
	load := probetest.Load{URL: probeURL, Rate: probeRate, Duration: time.Second}
	must(load.Run(ctx))
	before := holdings(ctx, p)
	load.Duration = b.probeTime
	used := p.usage().cpu
	out := must(load.Run(ctx))
	used = p.usage().cpu - used
	after := holdings(ctx, p)
	b.say("status: sent %.0f probes a second", float64(out.Sent)/b.probeTime.Seconds())
	if out.Failed > 0 {
		b.say("status: %d of %d probes failed, one with: %v", out.Failed, out.Sent, out.Failure)
	}
	name := fmt.Sprintf("status: %d probes a second: ", probeRate)
	b.add(
		figure{Name: name + "failures", Unit: count, Ours: float64(out.Failed)},
		figure{Name: name + "more open files", Unit: count, Ours: max(0, after.files-before.files)},
		figure{Name: name + "more goroutines", Unit: count, Ours: max(0, after.goroutines-before.goroutines)},
		figure{Name: name + "more anonymous memory", Unit: megabytes, Ours: max(0, after.anonymous-before.anonymous)},
		figure{Name: name + "p99", Unit: milliseconds, Ours: out.P99.Seconds()},
		figure{Name: "status: the agent's CPU for one probe", Unit: milliseconds, Ours: used / float64(max(1, out.Sent))})
}

// holding contains the resources that an agent holds.
type holding struct{ files, goroutines, anonymous float64 }

// holdings waits two seconds, until temporary resources are released, and measures.
func holdings(ctx context.Context, p *process) holding {
	sleep(ctx, 2*time.Second)
	h := holding{files: float64(must(probetest.OpenFiles(p.PID))), anonymous: p.usage().anonymous}
	var profile strings.Builder
	must(get(ctx, freshClient(), statusURL(statusHost, "/debug/pprof/goroutine?debug=1"), &profile))
	must(fmt.Sscanf(profile.String(), "goroutine profile: total %f", &h.goroutines))
	return h
}

// freshClient returns a client that opens a connection for each request.
func freshClient() *http.Client {
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DisableCompression: true}}
}

// scrape reads all metrics, alternating between direct requests and those through the agent, and
// measures the increase of the agent's memory.
func (b *bench) scrape(ctx context.Context, p *process, app *application, path string, f figure) {
	b.say("status: %.0f MB of metrics from %s", scrapeSize/1e6, path)
	before := p.usage().resident
	check(p.ResetPeak())
	read := func(url string) func() float64 {
		return func() float64 {
			began := time.Now()
			n := must(get(ctx, freshClient(), url, bufio.NewWriterSize(struct{ io.Writer }{io.Discard}, 256<<10)))
			if n < scrapeSize*95/100 { // repeated comments are omitted
				fail("%s has %d bytes: the application's metrics are not there", url, n)
			}
			return time.Since(began).Seconds()
		}
	}
	took := turns(b.rounds, read(statusURL(statusHost, "/metrics")), read("http://"+app.scraped.Addr().String()+path))
	f.Unit, f.Ours, f.Straight = milliseconds, took[0], took[1]
	b.add(f, figure{Name: f.Name + ": rise of the agent's resident memory", Unit: megabytes, Ours: p.usage().peak - before, Target: 8e6})
}
