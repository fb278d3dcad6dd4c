// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/outrigger-mesh/outrigger/status/probe/probetest"
)

const (
	// statusAgent is the number of the agent's address.
	statusAgent = "210"
	// scrapeSize is how much the application has to say.
	scrapeSize = 100e6
	// probeRate is of the load that shows whether something leaks.
	probeRate = 5000
)

// application is what is probed and scraped: this program.
type application struct {
	// probed and scraped are where.
	probed, scraped string
	stop            func()
}

// newApplication serves at an address of the agent, where its probes go, and on
// loopback, where it scrapes: from memory, and rendered line by line as programs
// that have something to say do.
func newApplication(address string) (*application, error) {
	block := metricsBlock()
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") })
	mux.HandleFunc("/memory", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4")
		for sent := 0; sent < scrapeSize; sent += len(block) {
			if _, err := w.Write(block); err != nil {
				return // the reader reports it
			}
		}
	})
	mux.HandleFunc("/rendered", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4")
		_ = renderMetrics(w, scrapeSize) // as above
	})
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	stop := func() { _ = server.Close() } // it has been measured
	var at [2]string
	for i, host := range []string{address, "127.0.0.1"} {
		l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
		if err != nil {
			stop()
			return nil, fmt.Errorf("listen as the application: %w", err)
		}
		at[i] = l.Addr().String()
		go func() { _ = server.Serve(l) }() // it ends with stop
	}
	return &application{probed: at[0], scraped: at[1], stop: stop}, nil
}

// metricsBlock is a megabyte of metrics.
func metricsBlock() []byte {
	var b bytes.Buffer
	_ = renderMetrics(&b, 1e6) // a buffer takes all
	return b.Bytes()
}

// renderMetrics writes about so many bytes of metrics.
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

// status measures the status port: a probe, a scrape and many probes, each
// straight at the application and through an agent.
func (b *bench) status(ctx context.Context) (figures []figure, err error) {
	address := agentNet + statusAgent
	app, err := newApplication(address)
	if err != nil {
		return nil, err
	}
	defer app.stop()
	for _, path := range []string{"/memory", "/rendered"} {
		more, err := b.statusOf(ctx, address, app, path)
		figures = append(figures, more...)
		if err != nil {
			return figures, err
		}
	}
	return figures, nil
}

// statusOf measures an agent whose application has its metrics at a path.
func (b *bench) statusOf(ctx context.Context, address string, app *application, path string) ([]figure, error) {
	p, err := b.statusAgent(ctx, address, app, path)
	if err != nil {
		return nil, err
	}
	defer p.stop()
	figures, err := b.scrape(ctx, p, address, app, path)
	if err != nil || path == "/memory" {
		return figures, err
	}
	one, err := b.oneProbe(ctx, address, app)
	if err != nil {
		return figures, err
	}
	many, err := b.manyProbes(ctx, p, address)
	return slices.Concat(figures, one, many), err
}

// statusAgent starts an agent that probes and scrapes the application. Neither
// Envoy nor control plane has a part in that, so there are none.
func (b *bench) statusAgent(ctx context.Context, address string, app *application, path string) (*process, error) {
	_, probed, err := net.SplitHostPort(app.probed)
	if err != nil {
		return nil, err
	}
	_, scraped, err := net.SplitHostPort(app.scraped)
	if err != nil {
		return nil, err
	}
	p, err := b.startAgent("status", agentSpec{
		address: address, discovery: relayHost + plaintext, binary: b.envoy, plaintext: true,
		env: []string{
			"DISABLE_ENVOY=true",
			`ISTIO_KUBE_APP_PROBERS={"/app-health/app/livez":{"httpGet":{"path":"/healthz","port":` + probed + `},"timeoutSeconds":10}}`,
			`ISTIO_PROMETHEUS_ANNOTATIONS={"scrape":"true","path":"` + path + `","port":"` + scraped + `"}`,
		},
	})
	if err != nil {
		return nil, err
	}
	if _, err := p.wait(ctx, statusURL(address, "/app-health/app/livez"), "ok"); err != nil {
		p.stop()
		return nil, err
	}
	if err := sleep(ctx, 2*time.Second); err != nil {
		p.stop()
		return nil, err
	}
	// The start is over, and has given back more than an agent that is asked now
	// and then can do without.
	if _, err := p.wait(ctx, statusURL(address, "/app-health/app/livez"), "ok"); err != nil {
		p.stop()
		return nil, err
	}
	return p, nil
}

func statusURL(address, path string) string { return "http://" + address + ":15020" + path }

// oneProbe times single probes, straight and through the agent in turns.
func (b *bench) oneProbe(ctx context.Context, address string, app *application) ([]figure, error) {
	b.say("status: single probes")
	var times [2][]float64
	for range b.rounds {
		for i, url := range []string{statusURL(address, "/app-health/app/livez"), "http://" + app.probed + "/healthz"} {
			out, err := probetest.Load{URL: url, Duration: time.Second}.Run(ctx)
			if err != nil {
				return nil, err
			}
			if out.Failed > 0 {
				return nil, fmt.Errorf("%d of %d probes of %s failed: %w", out.Failed, out.Sent, url, out.Failure)
			}
			times[i] = append(times[i], out.P50.Seconds())
		}
	}
	through, err := median(times[0])
	if err != nil {
		return nil, err
	}
	straight, err := median(times[1])
	return []figure{
		{Name: "status: one probe, p50", Unit: milliseconds, Ours: through, Straight: straight},
		{Name: "status: of that what the agent adds", Unit: milliseconds, Ours: through - straight, Target: 0.3e-3},
	}, err
}

// manyProbes sends probes for a while and tells what the agent holds afterwards.
func (b *bench) manyProbes(ctx context.Context, p *process, address string) ([]figure, error) {
	b.say("status: %d probes a second for %s", probeRate, b.probeTime)
	if _, err := (probetest.Load{URL: statusURL(address, "/app-health/app/livez"), Rate: probeRate, Duration: time.Second}).Run(ctx); err != nil {
		return nil, err
	}
	before, err := holdings(ctx, p, address)
	if err != nil {
		return nil, err
	}
	used, err := cpu(p.pid())
	if err != nil {
		return nil, err
	}
	out, err := probetest.Load{URL: statusURL(address, "/app-health/app/livez"), Rate: probeRate, Duration: b.probeTime}.Run(ctx)
	if err != nil {
		return nil, err
	}
	usedThen, err := cpu(p.pid())
	if err != nil {
		return nil, err
	}
	after, err := holdings(ctx, p, address)
	if err != nil {
		return nil, err
	}
	b.say("status: sent %.0f probes a second", float64(out.Sent)/b.probeTime.Seconds())
	if out.Failed > 0 {
		b.say("status: %d of %d probes failed, one with: %v", out.Failed, out.Sent, out.Failure)
	}
	name := fmt.Sprintf("status: %d probes a second: ", probeRate)
	return []figure{
		{Name: name + "failures", Unit: count, Ours: float64(out.Failed)},
		{Name: name + "more open files", Unit: count, Ours: max(0, after.files-before.files)},
		{Name: name + "more goroutines", Unit: count, Ours: max(0, after.goroutines-before.goroutines)},
		{Name: name + "more anonymous memory", Unit: megabytes, Ours: max(0, after.anonymous-before.anonymous)},
		{Name: name + "p99", Unit: milliseconds, Ours: out.P99.Seconds()},
		{Name: "status: the agent's CPU for one probe", Unit: milliseconds, Ours: (usedThen - used).Seconds() / float64(max(1, out.Sent))},
	}, nil
}

// holding is what an agent holds.
type holding struct{ files, goroutines, anonymous float64 }

// holdings waits until what is about to end has ended: two seconds.
func holdings(ctx context.Context, p *process, address string) (h holding, err error) {
	if err := sleep(ctx, 2*time.Second); err != nil {
		return h, err
	}
	files, err := probetest.OpenFiles(p.pid())
	if err != nil {
		return h, err
	}
	h.files = float64(files)
	if _, h.anonymous, err = memory(p.pid()); err != nil {
		return h, err
	}
	h.goroutines, err = goroutines(ctx, address)
	return h, err
}

// goroutines asks the profile of an agent how many there are.
func goroutines(ctx context.Context, address string) (float64, error) {
	const start = "goroutine profile: total "
	var doc strings.Builder
	if _, err := fetch(ctx, statusURL(address, "/debug/pprof/goroutine?debug=1"), &doc); err != nil {
		return 0, err
	}
	first, _, _ := strings.Cut(doc.String(), "\n")
	n, found := strings.CutPrefix(first, start)
	if !found {
		return 0, fmt.Errorf("the agent's profile begins with %.100q", first)
	}
	return strconv.ParseFloat(n, 64)
}

// scrape reads all metrics, straight and through the agent in turns, and tells
// how far the agent's memory rises meanwhile.
func (b *bench) scrape(ctx context.Context, p *process, address string, app *application, path string) ([]figure, error) {
	b.say("status: %.0f MB of metrics from %s", scrapeSize/1e6, path)
	before, _, err := memory(p.pid())
	if err != nil {
		return nil, err
	}
	if err := forgetPeak(p.pid()); err != nil {
		return nil, err
	}
	var times [2][]float64
	for range b.rounds {
		for i, url := range []string{statusURL(address, "/metrics"), "http://" + app.scraped + path} {
			began := time.Now()
			n, err := fetch(ctx, url, io.Discard)
			if err != nil {
				return nil, err
			}
			if n < scrapeSize*95/100 { // comments that come again are left out
				return nil, fmt.Errorf("%s has %d bytes: the application's metrics are not there", url, n)
			}
			times[i] = append(times[i], time.Since(began).Seconds())
		}
	}
	peak, err := peakMemory(p.pid())
	if err != nil {
		return nil, err
	}
	through, err := median(times[0])
	if err != nil {
		return nil, err
	}
	straight, err := median(times[1])
	f := figure{Name: "status: 100 MB of metrics, rendered", Unit: milliseconds, Ours: through, Straight: straight, TargetRatio: 1.3}
	if path == "/memory" {
		f.Name, f.TargetRatio = "status: 100 MB of metrics, from memory", 0
	}
	return []figure{f, {Name: f.Name + ": rise of the agent's resident memory", Unit: megabytes, Ours: peak - before, Target: 8e6}}, err
}

// fetch reads a URL to its end.
func fetch(ctx context.Context, url string, to io.Writer) (int64, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, err
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DisableCompression: true}}
	resp, err := client.Do(req)
	if err != nil {
		return 0, err
	}
	n, err := io.CopyBuffer(struct{ io.Writer }{to}, resp.Body, make([]byte, 256<<10))
	if err = errors.Join(err, resp.Body.Close()); err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s answered %s", url, resp.Status)
	}
	return n, err
}

// forgetPeak has the kernel note the highest resident memory anew.
func forgetPeak(pid int) error {
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0); err != nil {
		return fmt.Errorf("reset the highest memory of process %d: %w", pid, err)
	}
	return nil
}

// peakMemory returns the highest resident memory since, in bytes.
func peakMemory(pid int) (float64, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, fmt.Errorf("read the highest memory of process %d: %w", pid, err)
	}
	_, after, _ := strings.Cut(string(data), "VmHWM:")
	var kb float64
	if _, err := fmt.Sscan(after, &kb); err != nil {
		return 0, fmt.Errorf("read the highest memory of process %d: %w", pid, err)
	}
	return kb * 1024, nil
}
