// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package status

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"

	"github.com/outrigger-mesh/outrigger/status/exposition"
)

const (
	// envoyKind is the kind of the source that is Envoy.
	envoyKind     = "envoy"
	timeoutHeader = "X-Prometheus-Scrape-Timeout-Seconds"
	// maxScrape limits a scrape whose request has no timeout.
	maxScrape = 2 * time.Minute
	// scrapeMargin is subtracted from the scraper's timeout, but at most a tenth of
	// it: a scrape without one hanging part is better than none.
	scrapeMargin = 500 * time.Millisecond
	// writeGrace is additional time for a scraper that reads slowly.
	writeGrace = 5 * time.Second
)

// serveMetrics streams the agent's metrics, then Envoy's, then the application's, in
// the requested format. A part that cannot be fetched is left out and counted.
func (s *Server) serveMetrics(w http.ResponseWriter, r *http.Request) {
	s.metrics.scrapes.Inc()
	s.serveSources(w, r, s.sources, false)
}

// serveEnvoy streams what ENVOY_PROMETHEUS_PORT shows: Envoy's metrics, and the version.
func (s *Server) serveEnvoy(w http.ResponseWriter, r *http.Request) {
	s.serveSources(w, r, []*source{s.envoy}, true)
}

// serveSources streams the agent's metrics and those of sources. With envoyOnly, the source is Envoy,
// of the agent's metrics there is only the version, and without Envoy the answer is an error.
func (s *Server) serveSources(w http.ResponseWriter, r *http.Request, sources []*source, envoyOnly bool) {
	limit := scrapeTime(r.Header.Get(timeoutHeader))
	ctx, cancel := context.WithTimeout(r.Context(), limit)
	controller := http.NewResponseController(w)
	// Only writers of tests do not support deadlines.
	_ = controller.SetWriteDeadline(time.Now().Add(limit + writeGrace))
	source := sourceOf(r.RemoteAddr)
	place := &scrapeSlot{source: source, exempt: s.node.has(source), end: func() {
		cancel()
		_ = controller.SetWriteDeadline(time.Now()) // as above
	}}
	waiting, stop := context.WithTimeout(ctx, min(limit/2, scrapeWait))
	entered := s.scrapes.enter(waiting, place)
	if stop(); !entered {
		cancel()
		s.metrics.failures.WithLabelValues("agent").Inc()
		w.Header().Set("Retry-After", "1")
		answer(w, http.StatusServiceUnavailable, "too many scrapes are running: retry")
		return
	}
	defer s.scrapes.leave(place)

	format := exposition.Negotiate(r.Header)
	fetch := fetcher{client: newScrapeClient(), accept: format.Accept(), asked: r, stall: limit / 4}
	parts := make([]*part, len(sources))
	for i, source := range sources {
		parts[i] = source.begin(ctx, fetch)
	}
	defer func() {
		cancel()
		for _, p := range parts {
			p.discard()
		}
	}()

	if envoyOnly {
		if <-parts[0].done; parts[0].err != nil {
			s.missing(parts[0].source, parts[0].err)
			answer(w, http.StatusServiceUnavailable, "Envoy's metrics cannot be fetched: see the agent's log")
			return
		}
	}
	w.Header().Set("Content-Type", format.ContentType())
	w.Header().Add("Vary", "Accept, Accept-Encoding")
	accept := r.Header.Get("Accept-Encoding")
	if s.cfg.PlainMetrics {
		accept = ""
	}
	out, end := compressed(w, accept)
	merger := exposition.NewMerger(out, format)
	if err := s.writeOwn(merger, envoyOnly); err != nil {
		s.metrics.failures.WithLabelValues("agent").Inc()
		s.cfg.Logger.Warn("the agent's own metrics are incomplete", "err", err)
	}
	for _, p := range inOrder(parts, time.Now().Add(limit/2)) {
		if err := s.hand(ctx, merger, p); err != nil {
			// The answer must not look complete: close its connection.
			panic(http.ErrAbortHandler)
		}
	}
	if merger.Close() == nil {
		_ = end() // a disconnected scraper needs no answer
	}
}

// inOrder returns the parts in their order, but parts that do not answer in time last:
// a hanging part must not delay the others.
func inOrder(parts []*part, until time.Time) []*part {
	var quick, slow []*part
	for _, p := range parts {
		if p.answered(time.Until(until)) {
			quick = append(quick, p)
		} else {
			slow = append(slow, p)
		}
	}
	return append(quick, slow...)
}

// scrapeTime returns how long a scrape may take, given the scraper's timeout in seconds.
func scrapeTime(header string) time.Duration {
	seconds, err := strconv.ParseFloat(header, 64)
	// The comparison is false for NaN.
	if err != nil || !(seconds > 0 && seconds < maxScrape.Seconds()) {
		return maxScrape
	}
	limit := time.Duration(seconds * float64(time.Second))
	return limit - min(limit/10, scrapeMargin)
}

// writeOwn writes the agent's metrics, or only its version.
func (s *Server) writeOwn(merger *exposition.Merger, versionOnly bool) error {
	if s.cfg.Gatherer == nil {
		return nil
	}
	// Gather returns the gathered families even with an error.
	families, err := s.cfg.Gatherer.Gather()
	families = slices.DeleteFunc(families, func(f *dto.MetricFamily) bool { return versionOnly && f.GetName() != "istio_build" })
	return errors.Join(err, merger.Families(families))
}

// hand writes a part. An error means that nothing more can be written.
func (s *Server) hand(ctx context.Context, merger *exposition.Merger, p *part) error {
	<-p.done
	err := p.err
	if err == nil {
		merge := merger.Copy
		if p.source.kind == envoyKind {
			merge = merger.CopyEnvoy
		}
		err = merge(p.body, p.contentType)
	}
	if err == nil {
		p.source.failing.Store(false)
		return nil
	}
	if errors.Is(err, exposition.ErrGone) || errors.Is(ctx.Err(), context.Canceled) {
		return err // the scraper has disconnected, or was aborted
	}
	s.missing(p.source, err)
	if errors.Is(err, exposition.ErrTorn) {
		return err
	}
	return nil
}

// missing counts a source whose metrics are missing from a scrape, and logs the first time.
func (s *Server) missing(from *source, err error) {
	s.metrics.failures.WithLabelValues(from.kind).Inc()
	if !from.failing.Swap(true) {
		s.cfg.Logger.Warn("metrics are missing from scrapes until they can be fetched again", "source", from.kind, "address", from.url, "err", err)
	}
}

// part is a running fetch. The fields after source may be read once done is closed.
type part struct {
	source      *source
	done        chan struct{}
	body        io.ReadCloser
	contentType string
	err         error
}

// begin starts a fetch.
func (s *source) begin(ctx context.Context, f fetcher) *part {
	p := &part{source: s, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		p.body, p.contentType, p.err = f.fetch(ctx, s.url)
	}()
	return p
}

// answered waits for the beginning of an answer, at most for within.
func (p *part) answered(within time.Duration) bool {
	select {
	case <-p.done:
		return true
	default:
	}
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case <-p.done:
		return true
	case <-timer.C:
		return false
	}
}

// discard releases a fetch whose context has ended.
func (p *part) discard() {
	<-p.done
	if p.err == nil {
		_ = p.body.Close() // only read: nothing can be lost
	}
}

// fetcher fetches from sources, in the format that the scraper requests.
type fetcher struct {
	client *http.Client
	accept string
	asked  *http.Request
	// stall is how long a source may pause in the middle of its answer, so that
	// there is time left for the others.
	stall time.Duration
}

// newScrapeClient returns a client that uses no proxies of the environment and keeps no
// idle connections. It follows only redirects to the same host and port, so that an
// application cannot direct the agent elsewhere.
func newScrapeClient() *http.Client {
	return &http.Client{
		Transport: &http.Transport{DisableKeepAlives: true, DisableCompression: true},
		CheckRedirect: func(req *http.Request, via []*http.Request) error {
			if req.URL.Host != via[0].URL.Host || req.URL.Scheme != via[0].URL.Scheme || len(via) >= 5 {
				return http.ErrUseLastResponse
			}
			return nil
		},
	}
}

func (f fetcher) fetch(ctx context.Context, url string) (body io.ReadCloser, contentType string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, "", fmt.Errorf("make a request for its metrics: %w", err)
	}
	if query := f.asked.URL.RawQuery; query != "" {
		req.URL.RawQuery = strings.TrimPrefix(req.URL.RawQuery+"&"+query, "&")
	}
	req.Header.Set("Accept", f.accept)
	for _, name := range []string{"User-Agent", timeoutHeader} {
		if value := f.asked.Header.Get(name); value != "" {
			req.Header.Set(name, value)
		}
	}
	resp, err := f.client.Do(req)
	if err != nil {
		return nil, "", fmt.Errorf("fetch its metrics: %w", err)
	}
	if body, err = plain(resp); err != nil {
		_ = resp.Body.Close() // the body is not used
		return nil, "", err
	}
	return &patient{ReadCloser: body, stall: f.stall}, resp.Header.Get("Content-Type"), nil
}

// patient reads a body, and closes it if a single read takes too long. The timer runs
// only during reads.
type patient struct {
	io.ReadCloser
	timer *time.Timer // nil before the first read
	stall time.Duration
}

// Read implements io.Reader.
func (p *patient) Read(b []byte) (int, error) {
	if p.timer == nil {
		p.timer = time.AfterFunc(p.stall, func() { _ = p.Close() })
	} else {
		p.timer.Reset(p.stall)
	}
	defer p.timer.Stop()
	return p.ReadCloser.Read(b)
}

// plain returns the decoded body of a successful answer. The request asks for no
// encoding, but some applications compress every answer.
func plain(resp *http.Response) (io.ReadCloser, error) {
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("it returned %s", resp.Status)
	}
	switch encoding := resp.Header.Get("Content-Encoding"); encoding {
	case "", "identity":
		return resp.Body, nil
	case "gzip":
		zipped, err := gzip.NewReader(resp.Body)
		if err != nil {
			return nil, fmt.Errorf("read its metrics, which it compressed: %w", err)
		}
		return struct {
			io.Reader
			io.Closer
		}{zipped, resp.Body}, nil
	default:
		return nil, fmt.Errorf("it responded in the encoding %q, which was not requested", encoding)
	}
}
