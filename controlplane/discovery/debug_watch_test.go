// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outrigger-mesh/outrigger/controlplane/discovery/debug"
)

// asks sends requests to a handler for debug queries, from this machine unless they have a token.
type asks struct{ http.Handler }

func (h asks) get(query string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, "http://127.0.0.1/debug/"+query, nil)
	r.RemoteAddr = "127.77.51.3:1"
	for i := 0; i+1 < len(headers); i += 2 {
		if r.Header.Set(headers[i], headers[i+1]); headers[i] == "Authorization" {
			r.RemoteAddr = "192.0.2.1:1"
		}
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// manyProxies returns a server with 1,000 proxies that have what they were sent, and one of them.
func manyProxies(t *testing.T, cfg debug.Config) (*Server, *stream) {
	t.Helper()
	s, _ := benchMesh(t, 20, 1000, cfg)
	var one *stream
	n := int64(0)
	for st := range s.streams {
		for i, typeURL := range order {
			n++
			at := time.Unix(1_700_000_000, n*104_729%1_000_000_000) // one after the other, as in a push
			st.acks.track(&acknowledgement{typeURL: typeURL, sent: uint64(i) + 1, accepted: uint64(i) + 1, since: at})
		}
		one = st
	}
	one.proxy.Namespace = "bank"
	return s, one
}

// change changes what proxies report.
func change(st *stream) {
	a := &acknowledgement{typeURL: order[0], sent: 100, accepted: 99, since: time.Unix(1_700_000_001, 0)}
	st.acks.track(a)
}

// TestWatchSize checks how many bytes one that watches 1,000 proxies receives.
func TestWatchSize(t *testing.T) {
	t.Parallel()
	s, one := manyProxies(t, debug.Config{})
	h := asks{s.DebugHandler()}
	plain := h.get("proxies")
	first := h.get("proxies", "Accept-Encoding", "deflate, gzip", "Cache-Control", "max-age=1")
	again := h.get("proxies", "Accept-Encoding", "gzip", "If-None-Match", first.Header().Get("ETag"))
	change(one)
	changed := h.get("proxies", "Accept-Encoding", "gzip", "If-None-Match", first.Header().Get("ETag"))
	t.Logf("%d bytes, compressed %d", plain.Body.Len(), first.Body.Len())
	if n := first.Body.Len(); n > 100_000 || n > plain.Body.Len()/10 || first.Header().Get("Content-Encoding") != "gzip" {
		t.Errorf("the compressed answer has %d bytes, the plain one %d", n, plain.Body.Len())
	}
	if again.Code != http.StatusNotModified || again.Body.Len() != 0 {
		t.Errorf("nothing has changed: got %d with %d bytes", again.Code, again.Body.Len())
	}
	if changed.Code != http.StatusOK || changed.Header().Get("ETag") == first.Header().Get("ETag") {
		t.Errorf("a proxy has changed: got %d with the tag %s", changed.Code, changed.Header().Get("ETag"))
	}
	unzipped, err := gzip.NewReader(first.Body)
	if err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(unzipped); err != nil || string(text) != plain.Body.String() {
		t.Errorf("the compressed answer is not the plain one: %v", err)
	}
	for _, accept := range []string{"", "br", "gzip;q=0"} {
		if got := h.get("proxies", "Accept-Encoding", accept); got.Header().Get("Content-Encoding") != "" {
			t.Errorf("a client that accepts %q receives %s", accept, got.Header().Get("Content-Encoding"))
		}
	}
}

// TestWatchShared checks which callers share an answer.
func TestWatchShared(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var made atomic.Int64
		s, one := manyProxies(t, debug.Config{Authenticator: bearers{}, Problems: func() []debug.KnownProblem { made.Add(1); return nil }})
		h := asks{s.DebugHandler()}
		watch := func(more ...string) string {
			return h.get("proxies", append([]string{"Accept-Encoding", "gzip", "Cache-Control", "max-age=1"}, more...)...).Header().Get("ETag")
		}
		expect := func(what string, want int64) {
			t.Helper()
			if got := made.Swap(0); got != want {
				t.Errorf("%s: %d answers were made, want %d", what, got, want)
			}
		}
		before := watch()
		change(one)
		if watch() != before {
			t.Error("an answer of less than a second ago is not shared")
		}
		expect("one that watches, twice", 1)
		if now := h.get("proxies", "Accept-Encoding", "gzip").Header().Get("ETag"); now == before {
			t.Error("one that does not watch receives an old answer")
		} else if watch() != now {
			t.Error("one that watches does not receive the newest answer")
		}
		expect("one that does not watch", 1)
		time.Sleep(time.Second + time.Nanosecond)
		var all sync.WaitGroup
		for range 100 {
			all.Go(func() { watch() })
		}
		all.Wait()
		expect("100 that watch", 1)
		root, own := watch("Authorization", "Bearer istio-system"), watch("Authorization", "Bearer default")
		expect("callers of two namespaces", 1) // the root namespace sees what this machine does
		if root != watch() || root == own {
			t.Error("a namespace receives what the root namespace does")
		}
	})
}

// TestDebugBounds checks what happens to requests beyond the limits.
func TestDebugBounds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		answers := make(chan struct{})
		var made atomic.Int64
		s, _ := manyProxies(t, debug.Config{Authenticator: bearers{}, Problems: func() []debug.KnownProblem { made.Add(1); <-answers; return nil }})
		h := asks{s.DebugHandler()}
		refused := func(w *httptest.ResponseRecorder, why string) {
			t.Helper()
			if w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") == "" || !strings.Contains(w.Body.String(), why) {
				t.Errorf("got %d %s, want %s", w.Code, w.Body, why)
			}
		}
		const most = 128
		codes := make(chan int, most+1)
		for range most {
			go func() { codes <- h.get("proxies", "Accept-Encoding", "gzip").Code }()
		}
		synctest.Wait()
		refused(h.get("list"), "128 queries are being answered or wait")
		go func() { codes <- h.get("list", "Authorization", "Bearer default").Code }()
		time.Sleep(time.Second)
		close(answers)
		for range most + 1 {
			if code := <-codes; code != http.StatusOK {
				t.Fatalf("one within the limit receives %d", code)
			}
		}
		if made.Load() != 2 { // the first one, and one that began after the others came
			t.Errorf("%d answers were made for all that came at once", made.Load())
		}
		upload := make(chan struct{})
		post := func() *httptest.ResponseRecorder {
			r := httptest.NewRequest(http.MethodPost, "http://127.0.0.1/debug/replay", readers(func([]byte) (int, error) { <-upload; return 0, io.EOF }))
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			r.RemoteAddr, r.ContentLength = "127.77.51.3:1", 8<<20
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			return w
		}
		for range 4 {
			go func() { codes <- post().Code }()
		}
		synctest.Wait()
		refused(post(), "too many concurrent queries with large forms")
		close(upload)
		for range 4 {
			if code := <-codes; code != http.StatusBadRequest { // the forms are empty
				t.Errorf("an empty form: got %d", code)
			}
		}
	})
}

// readers is a reader of one function.
type readers func([]byte) (int, error)

func (r readers) Read(p []byte) (int, error) { return r(p) }

// TestDebugTurns checks that a caller whose turn does not come is refused.
func TestDebugTurns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		answers := make(chan struct{})
		s, _ := manyProxies(t, debug.Config{Problems: func() []debug.KnownProblem { <-answers; return nil }})
		h := asks{s.DebugHandler()}
		var all sync.WaitGroup
		for i := range 2 {
			all.Go(func() { h.get(fmt.Sprintf("proxies?proxyID=p%d.default", i)) })
		}
		synctest.Wait()
		for _, query := range []string{"list", "proxies?proxyID=p0.default"} {
			w := h.get(query)
			if w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") != "2" || !strings.Contains(w.Body.String(), "too many concurrent queries: retry in 2s") {
				t.Errorf("%s: got %d %s", query, w.Code, w.Body)
			}
		}
		close(answers)
		all.Wait()
	})
}
