// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package status

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/common/expfmt"
)

const (
	timeoutHeader = "X-Prometheus-Scrape-Timeout-Seconds"
	// maxScrape bounds a scrape that names no timeout of its own.
	maxScrape = 2 * time.Minute
	// scrapeMargin is left of the scraper's time, at most a tenth of it: a scrape
	// without one part that hangs is worth more than none at all.
	scrapeMargin = 500 * time.Millisecond
	// writeGrace is added for a scraper that reads slowly.
	writeGrace = 5 * time.Second
	// maxLine is how long one line of metrics may be. It is all that is held of a part.
	maxLine = 64 << 10
	// textOnly asks every part for the one format that can be put together.
	textOnly = "text/plain;version=0.0.4;q=1,*/*;q=0.1"
)

// errScraperGone says that what was read cannot be handed on; no part is to blame.
var errScraperGone = errors.New("the scraper has gone")

// serveMetrics writes the agent's metrics, then Envoy's, then the application's,
// each as it comes. A part that cannot be had is left out and counted.
func (s *Server) serveMetrics(w http.ResponseWriter, r *http.Request) {
	s.metrics.scrapes.Inc()
	limit := scrapeTime(r.Header.Get(timeoutHeader))
	ctx, cancel := context.WithTimeout(r.Context(), limit)
	// A writer that cannot have a deadline is one of a test.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(limit + writeGrace))

	client := newScrapeClient()
	envoy, app := s.envoy.begin(ctx, client, r.Header), s.app.begin(ctx, client, r.Header)
	defer func() {
		cancel()
		envoy.discard()
		app.discard()
	}()

	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	out := bufio.NewWriterSize(w, maxLine)
	if err := s.writeOwn(out); err != nil {
		s.metrics.failures.WithLabelValues("agent").Inc()
		s.cfg.Logger.Warn("the agent's own metrics are not complete", "err", err)
	}
	first, second := envoy, app
	if !envoy.answered(limit / 2) {
		// An Envoy that hangs must not cost the application's metrics too.
		first, second = app, envoy
	}
	if s.hand(out, first) && s.hand(out, second) {
		_ = out.Flush() // a scraper that has gone needs no answer
	}
}

// scrapeTime returns how long a scrape may take, given the scraper's timeout in seconds.
func scrapeTime(header string) time.Duration {
	seconds, err := strconv.ParseFloat(header, 64)
	// The comparison is false for what is not a number.
	if err != nil || !(seconds > 0 && seconds < maxScrape.Seconds()) {
		return maxScrape
	}
	limit := time.Duration(seconds * float64(time.Second))
	return limit - min(limit/10, scrapeMargin)
}

func (s *Server) writeOwn(out io.Writer) error {
	if s.cfg.Gatherer == nil {
		return nil
	}
	// Families come even with an error: those that could be gathered.
	families, err := s.cfg.Gatherer.Gather()
	encoder := expfmt.NewEncoder(out, expfmt.NewFormat(expfmt.TypeTextPlain))
	for _, family := range families {
		if e := encoder.Encode(family); e != nil {
			return errors.Join(err, e)
		}
	}
	return err
}

// hand writes a part. It returns false when there is nobody left to write to.
func (s *Server) hand(out *bufio.Writer, p *part) bool {
	if p == nil {
		return true
	}
	<-p.done
	err := p.err
	if err == nil {
		err = copyLines(out, p.body)
	}
	switch {
	case errors.Is(err, errScraperGone):
		return false
	case err == nil:
		p.source.failing.Store(false)
		return true
	}
	s.metrics.failures.WithLabelValues(p.source.kind).Inc()
	if !p.source.failing.Swap(true) {
		s.cfg.Logger.Warn("metrics are left out of scrapes until they can be had again", "source", p.source.kind, "address", p.source.url, "err", err)
	}
	return true
}

// copyLines copies whole lines, so that a part that breaks off leaves no half line
// behind, and ends the last line if src does not.
func copyLines(out *bufio.Writer, src io.Reader) error {
	in := bufio.NewReaderSize(src, maxLine)
	for {
		line, err := in.ReadSlice('\n')
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			return fmt.Errorf("a line of its metrics is longer than %d bytes", maxLine)
		case err != nil && !errors.Is(err, io.EOF):
			return fmt.Errorf("read its metrics: %w", err)
		}
		if _, werr := out.Write(line); werr != nil {
			return errScraperGone
		}
		if err == nil {
			continue
		}
		if len(line) > 0 && out.WriteByte('\n') != nil {
			return errScraperGone
		}
		return nil
	}
}

// part is a fetch that has begun. body and err may be read once done is closed.
type part struct {
	source *source
	done   chan struct{}
	body   io.ReadCloser
	err    error
}

// begin starts to fetch. A nil source gives a nil part.
func (s *source) begin(ctx context.Context, client *http.Client, header http.Header) *part {
	if s == nil {
		return nil
	}
	p := &part{source: s, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		p.body, p.err = s.fetch(ctx, client, header)
	}()
	return p
}

// answered waits for the beginning of an answer, for so long.
func (p *part) answered(within time.Duration) bool {
	if p == nil {
		return true
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

// discard ends a fetch whose context has ended, handed on or not.
func (p *part) discard() {
	if p == nil {
		return
	}
	<-p.done
	if p.err == nil {
		_ = p.body.Close() // only read: nothing can be lost
	}
}

// newScrapeClient returns a client without proxies of the environment and without
// connections that it keeps. It follows redirects to the same host and port only:
// what an application answers must not send the agent elsewhere.
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

func (s *source) fetch(ctx context.Context, client *http.Client, header http.Header) (io.ReadCloser, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url, nil)
	if err != nil {
		return nil, fmt.Errorf("make a request for its metrics: %w", err)
	}
	req.Header.Set("Accept", textOnly)
	for _, name := range []string{"User-Agent", timeoutHeader} {
		if value := header.Get(name); value != "" {
			req.Header.Set(name, value)
		}
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("fetch its metrics: %w", err)
	}
	if err := usable(resp); err != nil {
		_ = resp.Body.Close() // it is not wanted
		return nil, err
	}
	return resp.Body, nil
}

// usable tells whether an answer can be put together with others.
func usable(resp *http.Response) error {
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("it answered %s", resp.Status)
	}
	if encoding := resp.Header.Get("Content-Encoding"); encoding != "" && encoding != "identity" {
		return fmt.Errorf("it answered in the encoding %q, which was not asked for", encoding)
	}
	kind, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if err == nil && (kind == "application/openmetrics-text" || kind == "application/vnd.google.protobuf") {
		return fmt.Errorf("it answered with %s although text/plain was asked for, and formats cannot be mixed", kind)
	}
	return nil
}
