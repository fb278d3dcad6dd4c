// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package jwks

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// web serves the responses of several issuers, by host, without sockets.
type web struct {
	mu    sync.Mutex
	hosts map[string]func(context.Context) (status int, body string, err error)
	asked map[string]int
}

func newWeb() *web {
	return &web{hosts: map[string]func(context.Context) (int, string, error){}, asked: map[string]int{}}
}

func (w *web) serve(host, body string) {
	w.set(host, func(context.Context) (int, string, error) { return http.StatusOK, body, nil })
}

func (w *web) set(host string, answer func(context.Context) (int, string, error)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hosts[host] = answer
}

func (w *web) count(host string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.asked[host]
}

func down(context.Context) (int, string, error) { return 0, "", errors.New("no route to host") }

func hang(ctx context.Context) (int, string, error) {
	<-ctx.Done()
	return 0, "", ctx.Err()
}

// RoundTrip implements http.RoundTripper.
func (w *web) RoundTrip(r *http.Request) (*http.Response, error) {
	w.mu.Lock()
	w.asked[r.URL.Host]++
	answer := w.hosts[r.URL.Host]
	w.mu.Unlock()
	if answer == nil {
		answer = down
	}
	status, body, err := answer(r.Context())
	if err != nil {
		return nil, err
	}
	return &http.Response{StatusCode: status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(body)), Request: r}, nil
}

// followerOf runs a follower until stop is called or the test ends. It calls changed with the
// objects of each change.
func followerOf(t *testing.T, dir string, w *web, changed func([]model.Key)) (f *Follower, stop func()) {
	t.Helper()
	f, err := NewFollower(FollowerConfig{
		Dir: dir, Transport: w, OnChange: changed, Logger: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = f.Run(ctx) }() // always returns nil
	stop = func() { cancel(); <-done }
	t.Cleanup(stop)
	return f, stop
}

func wantedOf(hosts ...string) []Wanted {
	var out []Wanted
	for _, h := range hosts {
		out = append(out, Wanted{Source: Source{URL: "https://" + h + "/jwks"}, Objects: []model.Key{{Kind: model.RequestAuthentication, Name: h}}})
	}
	return out
}

func (f *Follower) of(host string) Keys { return f.Sets().Of(Source{URL: "https://" + host + "/jwks"}) }

// TestFollower follows issuers of which some are down, hang, or send invalid responses. These must
// not delay the others.
func TestFollower(t *testing.T) {
	t.Parallel()
	good, other := keySetText(t), keySetText(t)
	synctest.Test(t, func(t *testing.T) {
		w := newWeb()
		w.serve("good", good)
		w.serve("html", "<html>")
		w.serve("empty", `{"keys":[]}`)
		w.set("hangs", hang)
		var changes []string
		var mu sync.Mutex
		f, _ := followerOf(t, "", w, func(objects []model.Key) {
			mu.Lock()
			defer mu.Unlock()
			for _, o := range objects {
				changes = append(changes, o.Name)
			}
		})
		f.Follow(wantedOf("hangs", "down", "html", "empty", "good"))
		synctest.Wait()
		select {
		case <-f.Tried():
			t.Error("Tried() is closed although an issuer hangs")
		default:
		}
		if k := f.of("good"); len(k.List) != 1 || k.Problem != "" {
			t.Errorf("keys of good: got %+v", k)
		}
		time.Sleep(6 * time.Second)
		<-f.Tried()
		for host, want := range map[string]string{
			"down": "no route to host", "html": "invalid character", "empty": "contains no public key", "hangs": "no complete response within 5s",
		} {
			if k := f.of(host); len(k.List) != 0 || !strings.Contains(k.Problem, want) || !strings.Contains(k.Problem, "refused") {
				t.Errorf("%s: %+v, want a problem with %q", host, k, want)
			}
		}
		// Attempts with the same result change nothing.
		time.Sleep(10 * time.Minute)
		mu.Lock()
		slices.Sort(changes)
		if want := []string{"down", "empty", "good", "hangs", "html"}; !slices.Equal(changes, want) {
			t.Errorf("changes of %v, want %v", changes, want)
		}
		changes = nil
		mu.Unlock()
		// The back-off is bounded, and separate for each issuer.
		if n := w.count("down"); n < 10 || n > 30 || w.count("good") != 1 {
			t.Errorf("%d requests to an issuer that is down, and %d to one that is not; want 10 to 30, and 1", n, w.count("good"))
		}
		// Recovery and key rotation.
		w.serve("down", good)
		time.Sleep(2 * time.Minute)
		before := f.of("good")
		w.serve("good", other)
		time.Sleep(defaultRefresh)
		synctest.Wait()
		if k := f.of("down"); len(k.List) != 1 || k.Problem != "" {
			t.Errorf("keys after the recovery: got %+v", k)
		}
		if k := f.of("good"); k.Version == before.Version {
			t.Error("the rotated keys are not in use")
		}
		mu.Lock()
		if want := []string{"down", "good"}; !slices.Equal(changes, want) {
			t.Errorf("changes of %v, want %v", changes, want)
		}
		mu.Unlock()
		// A response without keys replaces nothing.
		for _, body := range []string{"", "{}", `{"keys":[]}`, "<html>", `{"keys":[{"kty":"oct","k":"AAAA"}]}`} {
			before := f.of("good")
			w.serve("good", body)
			time.Sleep(2 * defaultRefresh)
			if k := f.of("good"); k.Version != before.Version {
				t.Errorf("after the response %q: %+v", body, k)
			}
		}
		// After this time, it is a problem.
		if k := f.of("good"); !strings.Contains(k.Problem, "stay in use") {
			t.Errorf("problem: got %q, want that the keys stay in use", k.Problem)
		}
		// A source that no object names is not fetched, but its keys are available again when one
		// does.
		f.Follow(wantedOf("down"))
		synctest.Wait()
		asked := w.count("good")
		time.Sleep(24 * time.Hour)
		if w.count("good") != asked || len(f.of("good").List) != 1 || f.of("good").Problem != "" {
			t.Errorf("%d requests for an unused source, keys: got %+v", w.count("good")-asked, f.of("good"))
		}
		time.Sleep(7 * 24 * time.Hour)
		if len(f.of("good").List) != 0 || len(f.of("down").List) != 1 {
			t.Error("unused keys were not removed, or used ones were")
		}
	})
}

// TestTimeout checks that the timeout of the objects applies.
// TestRefreshNow has an issuer that replaces its keys long before they are fetched again.
func TestRefreshNow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		before, after := keySetText(t), keySetText(t)
		w := newWeb()
		w.serve("a.example", before)
		w.serve("b.example", before)
		f, _ := followerOf(t, t.TempDir(), w, nil)
		wanted := wantedOf("a.example", "b.example")
		f.Follow(wanted)
		synctest.Wait()
		w.serve("a.example", after)
		first := f.of("a.example").Version
		sources := []Source{wanted[0].Source, {URL: "https://unknown.example/jwks"}}
		f.Refresh(sources)
		if synctest.Wait(); f.of("a.example").Version != first {
			t.Error("keys were fetched again at once")
		}
		time.Sleep(defaultMinRefresh)
		for range 100 {
			f.Refresh(sources)
		}
		if synctest.Wait(); f.of("a.example").Version == first {
			t.Error("the new keys were not fetched")
		}
		for range 6000 {
			f.Refresh(sources)
			time.Sleep(10 * time.Millisecond)
		}
		if n := w.count("a.example"); n < 7 || n > 8 {
			t.Errorf("a minute of unknown keys caused %d fetches, want one every 10 s", n-2)
		}
		if n := w.count("b.example"); n != 1 {
			t.Errorf("the keys of the other issuer were fetched %d times, want once", n)
		}
		f.Follow(wanted[1:])
		f.Refresh(sources)
	})
}

func TestTimeout(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWeb()
		w.set("hangs", hang)
		f, _ := followerOf(t, "", w, nil)
		wanted := wantedOf("hangs")
		wanted[0].Timeout = 20 * time.Second
		f.Follow(wanted)
		start := time.Now()
		<-f.Tried()
		if took := time.Since(start); took != 20*time.Second {
			t.Errorf("the attempt ended after %s, want 20 s", took)
		}
		wanted[0].Timeout = time.Hour
		f.Follow(wanted)
		time.Sleep(2 * time.Minute)
		if p := f.of("hangs").Problem; !strings.Contains(p, "within 1m0s") {
			t.Errorf("problem: got %q, want the timeout of 1m0s", p)
		}
	})
}

// TestOneHost checks that the number of concurrent requests to a host with many key sets is
// limited.
func TestOneHost(t *testing.T) {
	t.Parallel()
	text := keySetText(t)
	synctest.Test(t, func(t *testing.T) {
		w := newWeb()
		w.serve("other", text)
		running, most := 0, 0
		var mu sync.Mutex
		w.set("one", func(ctx context.Context) (int, string, error) {
			mu.Lock()
			running++
			most = max(most, running)
			mu.Unlock()
			defer func() { mu.Lock(); running--; mu.Unlock() }()
			return hang(ctx)
		})
		f, _ := followerOf(t, "", w, nil)
		wanted := wantedOf("other")
		for i := range 100 {
			wanted = append(wanted, Wanted{Source: Source{URL: fmt.Sprintf("https://one/%d", i)}})
		}
		f.Follow(wanted)
		synctest.Wait()
		if len(f.of("other").List) != 1 {
			t.Error("a host with many key sets delays another host")
		}
		time.Sleep(time.Minute)
		if mu.Lock(); most != maxPerHost {
			t.Errorf("%d concurrent requests, want %d", most, maxPerHost)
		}
		mu.Unlock()
	})
}

// TestRestart checks that the last good keys, and nothing else, survive a restart.
func TestRestart(t *testing.T) {
	t.Parallel()
	text := keySetText(t)
	dir := filepath.Join(t.TempDir(), "jwks")
	synctest.Test(t, func(t *testing.T) {
		w := newWeb()
		w.serve("a", text)
		w.serve("b", text)
		f, stop := followerOf(t, dir, w, nil)
		f.Follow(wantedOf("a", "b", "down"))
		synctest.Wait()
		want := f.of("a")
		stop()
		files, err := os.ReadDir(dir)
		if err != nil || len(files) != 2 {
			t.Fatalf("files: got %v, error %v; want 2", files, err)
		}
		for _, file := range files {
			if info, err := file.Info(); err != nil || info.Mode() != 0o600 {
				t.Errorf("mode of a file: got %v, error %v; want 0600", info.Mode(), err)
			}
		}
		if info, err := os.Stat(dir); err != nil || info.Mode() != fs.ModeDir|0o700 {
			t.Errorf("mode of the directory: got %v, error %v; want 0700", info.Mode(), err)
		}
		// One file is truncated, one is a copy with a wrong name, and one is left of an incomplete
		// write.
		torn := openDisk(dir, slog.New(slog.DiscardHandler)).path(Source{URL: "https://b/jwks"})
		good := openDisk(dir, slog.New(slog.DiscardHandler)).path(Source{URL: "https://a/jwks"})
		whole, err := os.ReadFile(good)
		if err != nil {
			t.Fatal(err)
		}
		for path, text := range map[string]string{torn: string(whole[:len(whole)/2]), filepath.Join(dir, "copy.json"): string(whole), good + ".tmp.1": "x"} {
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		w.set("a", down)
		w.set("b", down)
		f, stop = followerOf(t, dir, w, nil)
		if got := f.of("a"); got.Version != want.Version || len(f.of("b").List) != 0 || len(f.Sets().of) != 1 {
			t.Fatalf("keys after a restart: got %+v", f.Sets().of)
		}
		f.Follow(wantedOf("a"))
		<-f.Tried()
		time.Sleep(48 * time.Hour)
		if got := f.of("a"); got.Version != want.Version || !strings.Contains(got.Problem, "stay in use") {
			t.Errorf("keys after two days: got %+v", got)
		}
		if _, err := os.Stat(good + ".tmp.1"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("a temporary file was not removed: %v", err)
		}
		stop()
		// Keys that no object named for a week are not loaded.
		time.Sleep(6 * 24 * time.Hour)
		f, stop = followerOf(t, dir, w, nil)
		if len(f.of("a").List) != 1 {
			t.Error("keys in use were removed")
		}
		stop()
		time.Sleep(2 * 24 * time.Hour)
		f, _ = followerOf(t, dir, w, nil)
		if len(f.of("a").List) != 0 {
			t.Error("unused keys were loaded")
		}
	})
}

// TestManySources checks that the memory for unused sources is bounded.
func TestManySources(t *testing.T) {
	t.Parallel()
	text := keySetText(t)
	synctest.Test(t, func(t *testing.T) {
		w := newWeb()
		f, _ := followerOf(t, "", w, nil)
		for round := range 4 {
			var hosts []string
			for i := range MaxSources + 1 {
				host := fmt.Sprintf("h%d-%d", round, i)
				w.serve(host, text)
				hosts = append(hosts, host)
			}
			f.Follow(wantedOf(hosts...))
			synctest.Wait()
			if len(f.of(hosts[0]).List) != 1 || len(f.of(hosts[MaxSources-1]).List) != 1 || len(f.of(hosts[MaxSources]).List) != 0 {
				t.Error("the sources that are followed are not the first ones")
			}
		}
		if n := len(f.entries); n > maxStored {
			t.Errorf("%d sources are stored, want at most %d", n, maxStored)
		}
	})
}

// TestUnwritableDirectory checks that keys are used even if they cannot be stored.
func TestUnwritableDirectory(t *testing.T) {
	t.Parallel()
	text := keySetText(t)
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		w := newWeb()
		w.serve("a", text)
		f, _ := followerOf(t, filepath.Join(file, "jwks"), w, nil)
		f.Follow(wantedOf("a"))
		<-f.Tried()
		if len(f.of("a").List) != 1 {
			t.Errorf("keys: got %+v, want one", f.of("a"))
		}
	})
}
