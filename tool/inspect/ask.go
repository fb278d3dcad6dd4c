// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/outrigger-mesh/outrigger/internal/lru"
	"github.com/outrigger-mesh/outrigger/internal/output"
	"github.com/outrigger-mesh/outrigger/mesh"
)

const (
	maxAnswer  = 64 << 20 // bytes
	atOnce     = 16       // maximum number of concurrent requests
	maxErrText = 500      // bytes of an error response
)

// answer is the response of one control plane.
type answer[T any] struct {
	address string
	value   T
	err     error
	// stale is set if the value is an earlier one, because the control plane does not answer since
	// a time.
	stale error
	since time.Time
}

// question is a question to control planes.
type question struct {
	path   string
	fields url.Values
	form   bool // the fields are sent in the body, because they do not belong into a URL
	memory *memory
}

// memory are the last answers to a command that asks the same again and again. A nil *memory knows none.
type memory struct {
	mu    sync.Mutex
	last  *lru.Map[string, remembered] // by address and path
	retry time.Duration                // what a control plane that is too busy asked for since the last use
}

// maxRemembered is the limit of last answers: the addresses of forwarded ports change.
const maxRemembered = 64

func newMemory() *memory { return &memory{last: lru.New[string, remembered](maxRemembered)} }

// remembered is the answer to the question at a URL, with its tag.
type remembered struct {
	url, tag string
	raw      []byte
}

// of returns the last answer to a question, if it was the same one.
func (m *memory) of(address, path, url string) (last remembered) {
	if m == nil {
		return last
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if last, _ = m.last.Get(address + " " + path); last.url != url {
		return remembered{}
	}
	return last
}

// note records an answer.
func (m *memory) note(address, path string, next remembered) {
	if m == nil || next.tag == "" {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.last.Put(address+" "+path, next)
}

// noteBusy records the header Retry-After of an answer.
func (m *memory) noteBusy(after string) {
	n, err := strconv.ParseUint(after, 10, 8)
	if m == nil || err != nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.retry = max(m.retry, time.Duration(n)*time.Second)
}

// busy returns when a control plane that is too busy may be asked again; 0 if none was since the last call.
func (m *memory) busy() time.Duration {
	if m == nil {
		return 0
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	after := m.retry
	m.retry = 0
	return after
}

// ask queries control planes concurrently. The answers are in the order of the addresses.
func ask[T any](ctx context.Context, addresses []string, q question, timeout time.Duration) []answer[T] {
	// Use no proxy: the request is meant for this particular control plane.
	client := &http.Client{Timeout: timeout, Transport: &http.Transport{DisableKeepAlives: true}}
	out := make([]answer[T], len(addresses))
	var g errgroup.Group
	g.SetLimit(atOnce)
	for i, address := range addresses {
		g.Go(func() error {
			out[i].address = address
			out[i].err = get(ctx, client, address, q, &out[i].value)
			return nil
		})
	}
	_ = g.Wait() // each answer has its own error
	return out
}

func get(ctx context.Context, client *http.Client, address string, q question, into any) error {
	base := address
	if !strings.Contains(base, "://") {
		base = "http://" + base
	}
	u, err := url.Parse(base)
	if err != nil || u.Host == "" {
		return fmt.Errorf("%q is not an address: write host:port", address)
	}
	u = u.JoinPath("debug", q.path)
	method, body := http.MethodGet, ""
	if q.form {
		method, body = http.MethodPost, q.fields.Encode()
	} else {
		u.RawQuery = q.fields.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, method, u.String(), strings.NewReader(body))
	if err != nil {
		return fmt.Errorf("%q is not an address: %w", address, err)
	}
	if q.form {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	before := q.memory.of(address, q.path, u.String())
	if before.tag != "" && !q.form { // the first answer is what is so now
		req.Header.Set("If-None-Match", before.tag)
		req.Header.Set("Cache-Control", "max-age=1") // shared with others that watch
	}
	resp, err := client.Do(req)
	var failed *url.Error
	if errors.As(err, &failed) {
		err = failed.Err // without the URL, which has the whole question
	}
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }() // read-only: closing cannot lose data
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	switch {
	case err != nil:
		return fmt.Errorf("read the response: %w", err)
	case resp.StatusCode == http.StatusNotModified && before.tag != "":
		raw = before.raw
	case resp.StatusCode != http.StatusOK:
		q.memory.noteBusy(resp.Header.Get("Retry-After"))
		text := strings.TrimSpace(string(raw[:min(len(raw), maxErrText)]))
		if resp.StatusCode == http.StatusNotFound && strings.HasPrefix(text, "404 page") {
			text = "nothing at " + u.Path + ": it is not a control plane of Outrigger, or its ENABLE_DEBUG_ON_HTTP is false"
		}
		return &answerError{resp.StatusCode, localTimes(text, time.Now())}
	case len(raw) > maxAnswer:
		return fmt.Errorf("the response has more than %d bytes", maxAnswer)
	default:
		q.memory.note(address, q.path, remembered{u.String(), resp.Header.Get("ETag"), raw})
	}
	if err := json.Unmarshal(raw, into); err != nil {
		return fmt.Errorf("read the response of %s: %w", u.Host, err)
	}
	return nil
}

// timestamp matches the times in the texts of control planes.
var timestamp = regexp.MustCompile(`\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)`)

// localTimes writes the times in a text of a control plane, whose zone is another one, as the tables do.
func localTimes(text string, now time.Time) string {
	return timestamp.ReplaceAllStringFunc(text, func(s string) string {
		at, err := time.Parse(time.RFC3339, s)
		if err != nil {
			return s
		}
		return output.Clock(at, now)
	})
}

// answerError is an answer of a control plane that is an error.
type answerError struct {
	code int
	text string
}

func (e *answerError) Error() string {
	if e.code == http.StatusBadRequest { // it is about the question
		return e.text
	}
	return fmt.Sprintf("it returned %d: %s", e.code, e.text)
}

// noAnswer returns the error of a control plane for a command that prints no other one.
func noAnswer(address string, err error) error {
	var said *answerError
	switch {
	case !errors.As(err, &said):
		return fmt.Errorf("control plane %s: %w: is it running? Name others with --control%s", address, err, mesh.OtherControls(useControl))
	case said.code == http.StatusBadRequest:
		return err
	}
	return fmt.Errorf("control plane %s: %w", address, err)
}
