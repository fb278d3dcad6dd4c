// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package objectstatus

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	metav1alpha1 "istio.io/api/meta/v1alpha1"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/config/memory"
	"github.com/outrigger-mesh/outrigger/controlplane/discovery"
	"github.com/outrigger-mesh/outrigger/controlplane/health"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// store is an in-memory store that counts status writes. Tests can make them fail or conflict.
type store struct {
	*memory.Store
	// late delays the result of a write until its event was delivered.
	late     bool
	writes   atomic.Int64
	mu       sync.Mutex // guards the fields below
	before   func(n int64) error
	problems []model.Problem
}

func newStore() *store { return &store{Store: memory.New("memory://")} }

func (s *store) UpdateStatus(ctx context.Context, c *model.Config) (string, error) {
	n := s.writes.Add(1)
	s.mu.Lock()
	before := s.before
	s.mu.Unlock()
	if before != nil {
		if err := before(n); err != nil {
			return "", err
		}
	}
	version, err := s.Store.UpdateStatus(ctx, c)
	if s.late {
		time.Sleep(time.Millisecond)
	}
	return version, err
}

func (s *store) Problems() []model.Problem {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.problems
}

func (s *store) set(before func(int64) error, problems ...model.Problem) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.before, s.problems = before, problems
}

// replica is a control plane: a writer with its connected proxies.
type replica struct {
	*Writer
	t        *testing.T
	sequence uint64
	proxies  atomic.Pointer[[]discovery.ProxyStanding]
	log      *safe
}

// safe is a buffer that is safe for concurrent use.
type safe struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safe) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safe) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// newReplica returns a replica. It receives the events of the store once the store runs.
func newReplica(t *testing.T, s *store, change ...func(*Config)) *replica {
	t.Helper()
	r := &replica{t: t, log: &safe{}}
	r.proxies.Store(&[]discovery.ProxyStanding{})
	cfg := Config{
		Store: s, InForce: func(k model.Kind) bool { return k != model.EnvoyFilter }, Limits: Limits{Workers: 10, QPS: 1000, Burst: 1000},
		Distribution: func() *discovery.Distribution {
			return discovery.NewDistribution(append([]discovery.ProxyStanding(nil), *r.proxies.Load()...))
		},
		Logger: slog.New(slog.NewTextHandler(r.log, nil)),
	}
	for _, c := range change {
		c(&cfg)
	}
	var err error
	if r.Writer, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	s.RegisterEventHandler(r.Hear)
	return r
}

// publish builds a snapshot with the changes so far.
func (r *replica) publish(problems ...model.Problem) {
	synctest.Wait()
	r.sequence++
	r.Building(model.Change{All: true})
	r.Published(r.sequence, model.Change{All: true}, problems)
}

// at sets the progress of the proxies.
func (r *replica) at(proxies ...discovery.ProxyStanding) {
	r.proxies.Store(&proxies)
	r.Wake()
}

// had returns proxies that have acknowledged everything up to a sequence number.
func had(n int, sequence uint64) []discovery.ProxyStanding {
	list := make([]discovery.ProxyStanding, n)
	for i := range list {
		list[i] = discovery.ProxyStanding{ID: fmt.Sprintf("p%d", i), Settled: sequence}
	}
	return list
}

func rejects(id string, sequence uint64, words string) discovery.ProxyStanding {
	return discovery.ProxyStanding{ID: id, Settled: sequence, Rejections: []discovery.Rejection{{Type: "lds", After: sequence - 1, UpTo: sequence, Reason: words}}}
}

// inBubble runs a test in a synctest bubble.
func inBubble(t *testing.T, test func(t *testing.T, run func(...func(context.Context) error))) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		defer wg.Wait()
		defer cancel()
		test(t, func(parts ...func(context.Context) error) {
			for _, p := range parts {
				wg.Go(func() {
					if err := p(ctx); err != nil {
						t.Error(err)
					}
				})
			}
			synctest.Wait()
		})
	})
}

func rule(name, port string) *model.Config {
	return &model.Config{
		Key: model.Key{Kind: model.DestinationRule, Namespace: "shop", Name: name},
		Spec: &networkingv1alpha3.DestinationRule{
			Host: "web.shop.svc.cluster.local", Subsets: []*networkingv1alpha3.Subset{{Name: port, Labels: map[string]string{"v": port}}},
		},
	}
}

// create writes a new object.
func (s *store) create(t *testing.T, c *model.Config) model.Key {
	t.Helper()
	if _, err := s.Create(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	return c.Key
}

// change writes a new spec.
func (s *store) change(t *testing.T, c *model.Config) {
	t.Helper()
	if _, err := s.Update(t.Context(), c); err != nil {
		t.Fatal(err)
	}
}

// says returns a condition as text: status, reason, generation and message.
func (s *store) says(t *testing.T, key model.Key, kind string) string {
	t.Helper()
	synctest.Wait()
	c := conditionOf(statusOf(s.Get(key)), kind)
	if c == nil {
		return ""
	}
	return fmt.Sprintf("%s %s %d: %s", c.GetStatus(), c.GetReason(), c.GetObservedGeneration(), c.GetMessage())
}

func (s *store) want(t *testing.T, key model.Key, kind, text string) {
	t.Helper()
	got := s.says(t, key, kind)
	if text == "" && got != "" || !strings.Contains(got, text) {
		t.Errorf("condition %s of %s: got %q, want %q", kind, key, got, text)
	}
}

func (s *store) wantWrites(t *testing.T, n int64) {
	t.Helper()
	synctest.Wait()
	if got := s.writes.Load(); got != n {
		t.Errorf("%d status writes, want %d", got, n)
	}
}

func foreignStatus() *metav1alpha1.IstioStatus {
	return &metav1alpha1.IstioStatus{Conditions: []*metav1alpha1.IstioCondition{{Type: "Theirs", Status: "True", Message: "of others"}}}
}

// speaks sets the health that an agent reports.
func speaks(v health.Verdict) func(*Config) {
	return func(c *Config) { c.Health = func(model.Key) (health.Verdict, bool) { return v, true } }
}

const second = time.Second
