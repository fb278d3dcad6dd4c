// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package replicas

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/outrigger-mesh/outrigger/e2e/ownnet"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(ownnet.Tests(m)) }

// fleet is a set of replicas with given numbers of proxies, which respond without a network.
type fleet struct {
	t    *testing.T
	all  []*member
	here atomic.Bool // does not respond while false
}

type member struct {
	*Balancer
	proxies, shed atomic.Int64
	ready         atomic.Bool
}

func (f *fleet) add(proxies int) *member {
	m := &member{}
	m.proxies.Store(int64(proxies))
	m.ready.Store(true)
	var err error
	m.Balancer, err = New(Config{
		Peers: func(context.Context) (out []string, _ error) {
			for i := range f.all {
				out = append(out, fmt.Sprintf("replica-%d:8080", i))
			}
			return out, nil
		},
		Load:  func() int { return int(m.proxies.Load()) },
		Shed:  func() bool { m.shed.Add(1); m.proxies.Add(-1); return true },
		Ready: m.ready.Load,
	})
	if err != nil {
		f.t.Fatal(err)
	}
	m.client = &http.Client{Transport: f}
	f.all = append(f.all, m)
	return m
}

// RoundTrip implements http.RoundTripper without a network.
func (f *fleet) RoundTrip(r *http.Request) (*http.Response, error) {
	var i int
	if _, err := fmt.Sscanf(r.URL.Host, "replica-%d:8080", &i); err != nil || !f.here.Load() {
		return nil, fmt.Errorf("no route to host")
	}
	w := httptest.NewRecorder()
	f.all[i].ServeHTTP(w, r)
	return w.Result(), nil
}

// run runs a test with a fleet that has completed some rounds.
func run(t *testing.T, loads []int, test func(f *fleet)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := &fleet{t: t}
		f.here.Store(true)
		for _, n := range loads {
			f.add(n)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		for _, m := range f.all {
			go func() { done <- m.Run(ctx) }()
		}
		test(f)
		cancel()
		for range f.all {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	})
}

// TestSurplusIsShed checks that a replica disconnects its surplus above the mean in parts, one each
// round, and that the others disconnect nothing.
func TestSurplusIsShed(t *testing.T) {
	t.Parallel()
	run(t, []int{150, 150, 0}, func(f *fleet) {
		time.Sleep(15 * time.Second) // the first loads were received, but not compared yet
		for _, m := range f.all[:2] {
			if n := m.shed.Load(); n > 8 {
				t.Errorf("%d proxies moved in the first rounds, want at most 8", n)
			}
		}
		for range 60 { // disconnected proxies move to the replica with the fewest
			time.Sleep(5 * time.Second)
			f.all[2].proxies.Store(300 - f.all[0].proxies.Load() - f.all[1].proxies.Load())
		}
		for i, m := range f.all {
			if n := m.proxies.Load(); n < 90 || n > 110 {
				t.Errorf("replica %d has %d of 300 proxies, want about 100", i, n)
			}
		}
		moved := f.all[0].shed.Load() + f.all[1].shed.Load()
		if moved > 100 || f.all[2].shed.Load() > 0 {
			t.Errorf("%d proxies moved to even out 100, or the smallest replica lost some", moved)
		}
		time.Sleep(time.Hour)
		if again := f.all[0].shed.Load() + f.all[1].shed.Load() + f.all[2].shed.Load(); again != moved {
			t.Errorf("%d proxies moved after the loads were even", again-moved)
		}
	})
}

// TestNothingIsShed checks the cases in which no proxy may move.
func TestNothingIsShed(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		loads []int
		turn  func(f *fleet, second int)
	}{
		"alone":               {[]int{300}, func(*fleet, int) {}},
		"nearly even":         {[]int{104, 100, 96}, func(*fleet, int) {}},
		"few":                 {[]int{2, 1}, func(*fleet, int) {}},
		"no response":         {[]int{300, 0}, func(f *fleet, _ int) { f.here.Store(false) }},
		"others not ready":    {[]int{300, 0}, func(f *fleet, _ int) { f.all[1].ready.Store(false) }},
		"replica is stopping": {[]int{300, 0}, func(f *fleet, _ int) { f.all[0].ready.Store(false) }},
		"proxies connect":     {[]int{300, 0}, func(f *fleet, s int) { f.all[0].proxies.Store(int64(300 * (s/4 + 1) * (s/4 + 1))) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run(t, tc.loads, func(f *fleet) {
				for s := range 60 {
					tc.turn(f, s)
					time.Sleep(time.Second)
				}
				for i, m := range f.all {
					if n := m.shed.Load(); n > 0 {
						t.Errorf("replica %d disconnected %d proxies, want none", i, n)
					}
				}
			})
		})
	}
}

// TestInvalidResponses checks that an invalid response counts as missing.
func TestInvalidResponses(t *testing.T) {
	t.Parallel()
	var answer atomic.Value
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, answer.Load()) }))
	t.Cleanup(server.Close)
	address := strings.TrimPrefix(server.URL, "http://")
	b, err := New(Config{
		Peers: func(context.Context) ([]string, error) { return []string{address}, nil },
		Load:  func() int { return 1000 }, Shed: func() bool { return true }, Ready: func() bool { return true },
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{
		"", "no", "{}", `{"id":"","proxies":1,"ready":true}`, `{"id":"x","proxies":-5,"ready":true}`, `{"id":"x","proxies":1e99,"ready":true}`,
		`{"id":"` + strings.Repeat("x", 1<<20) + `","proxies":0,"ready":true}`,
	} {
		answer.Store(text)
		for range 3 {
			if n := b.surplus(t.Context()); n != 0 {
				t.Errorf("surplus() = %d with the response %.60q, want 0", n, text)
			}
		}
	}
	good, err := json.Marshal(Load{ID: "other", Proxies: 0, Ready: true})
	if err != nil {
		t.Fatal(err)
	}
	answer.Store(string(good))
	b.surplus(t.Context())
	if n := b.surplus(t.Context()); n != 50 {
		t.Errorf("surplus() = %d of 1000 proxies, want 50", n)
	}
}

func TestResolve(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{"istiod", ":8080", "istiod:0", "istiod:http", "istiod:70000"} {
		if _, err := Resolve([]string{bad}); err == nil || !strings.Contains(err.Error(), bad) {
			t.Errorf("Resolve(%q) = %v, want an error with the name", bad, err)
		}
	}
	find, err := Resolve([]string{"127.77.53.2:8080", "127.77.53.3:8080", "127.77.53.2:8080", "[::1]:8080"})
	if err != nil {
		t.Fatal(err)
	}
	got, err := find(t.Context())
	if err != nil || fmt.Sprint(got) != "[127.77.53.2:8080 127.77.53.3:8080 [::1]:8080]" {
		t.Errorf("got %v, error %v", got, err)
	}
	find, err = Resolve([]string{"none.invalid:8080"})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := find(t.Context()); err == nil {
		t.Errorf("a name that does not exist resolves to %v", got)
	}
}
