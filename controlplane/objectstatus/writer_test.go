// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package objectstatus

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	analysisv1alpha1 "istio.io/api/analysis/v1alpha1"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/config"
	"github.com/outrigger-mesh/outrigger/controlplane/discovery"
	"github.com/outrigger-mesh/outrigger/controlplane/health"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// TestReconciled checks that an object that all proxies acknowledge in time causes one write.
// Missing acknowledgments must be written within two seconds. Once the object is in force, nothing
// must be written until it changes.
func TestReconciled(t *testing.T) {
	t.Parallel()
	for name, late := range map[string]bool{"answer before event": false, "event before answer": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testReconciled(t, late)
		})
	}
}

func testReconciled(t *testing.T, late bool) {
	t.Helper()
	inBubble(t, func(t *testing.T, run func(...func(context.Context) error)) {
		s := newStore()
		s.late = late
		r := newReplica(t, s)
		key := s.create(t, rule("a", "1"))
		run(s.Run, r.Run)
		r.at(had(12, 0)...)
		r.publish()
		time.Sleep(patience - 10*time.Millisecond)
		s.want(t, key, reconciledType, "")
		time.Sleep(2*second - patience)
		s.want(t, key, reconciledType, "False NotAcknowledged 1: 12 of 12 proxies have not acknowledged it yet")
		r.at(append(had(9, 1), had(3, 0)...)...)
		time.Sleep(2 * second)
		s.wantWrites(t, 1) // a change of the numbers is not written yet
		time.Sleep(recount)
		s.want(t, key, reconciledType, "3 of 12 proxies have not")
		r.at(had(12, 1)...)
		time.Sleep(second)
		s.want(t, key, reconciledType, "True Acknowledged 1: in force in all proxies: acknowledged by the 12 that were connected")
		s.wantWrites(t, 3)
		for n := range 20 { // proxies connect and disconnect, some of them without configuration
			r.at(append(had(n, 1), had(1, 0)...)...)
			time.Sleep(second)
		}
		s.wantWrites(t, 3)
		s.change(t, rule("a", "2"))
		r.at(had(5, 2)...)
		r.publish()
		time.Sleep(2 * second)
		s.want(t, key, reconciledType, "True Acknowledged 2: in force in all proxies: acknowledged by the 5")
		s.wantWrites(t, 4)
		if got := statusOf(s.Get(key)).GetObservedGeneration(); got != 2 {
			t.Errorf("ObservedGeneration = %d, want 2", got)
		}
		if p, missing, known := r.Distribution(key); !known || p.Acknowledged != 5 || len(missing) > 0 {
			t.Errorf("Distribution() = %+v, %v, %v", p, missing, known)
		}
	})
}

func TestRejectedObject(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, run func(...func(context.Context) error)) {
		s := newStore()
		r := newReplica(t, s)
		key := s.create(t, rule("a", "1"))
		run(s.Run, r.Run)
		r.at(had(2, 0)...)
		r.publish()
		q := rejects("q", 1, "no such filter \xff")
		q.Identity = "spiffe://cluster.local/ns/shop/sa/q"
		r.at(append(had(1, 1), q)...)
		time.Sleep(2 * second)
		s.want(t, key, reconciledType, "False Rejected 1: rejected by 1 of 2 proxies: q (spiffe://cluster.local/ns/shop/sa/q) reports for LDS: no such filter \\xff")
		if _, missing, _ := r.Distribution(key); len(missing) != 1 || missing[0].ID != "q" {
			t.Errorf("missing proxies: got %v, want q", missing)
		}
		// Later objects are not affected.
		other := s.create(t, rule("b", "1"))
		r.at(had(1, 2)[0], discovery.ProxyStanding{ID: "q", Settled: 2, Rejections: rejects("q", 1, "no such filter").Rejections})
		r.publish()
		time.Sleep(2 * second)
		s.want(t, other, reconciledType, "True Acknowledged")
		s.want(t, key, reconciledType, "False Rejected")
		r.at(had(2, 3)...)
		time.Sleep(2 * second)
		s.want(t, key, reconciledType, "True Acknowledged")
		s.wantWrites(t, 3)
	})
}

// TestNoDistribution checks that no distribution is written while no proxy is connected, and never
// for kinds that do not affect proxies.
func TestNoDistribution(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, run func(...func(context.Context) error)) {
		s := newStore()
		r := newReplica(t, s)
		key := s.create(t, rule("a", "1"))
		filter := s.create(t, &model.Config{Key: model.Key{Kind: model.EnvoyFilter, Namespace: "shop", Name: "f"}, Spec: &networkingv1alpha3.EnvoyFilter{}})
		run(s.Run, r.Run)
		r.publish()
		time.Sleep(time.Minute)
		s.wantWrites(t, 0)
		r.at(had(1, 1)...)
		time.Sleep(second)
		s.want(t, key, reconciledType, "acknowledged by the 1 that was")
		s.want(t, filter, reconciledType, "")
	})
}

// TestWritesOfOthersStay checks that concurrent writes of other controllers are kept.
func TestWritesOfOthersStay(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, run func(...func(context.Context) error)) {
		s := newStore()
		r := newReplica(t, s)
		key := s.create(t, rule("a", "1"))
		status := foreignStatus()
		status.ValidationMessages = []*analysisv1alpha1.AnalysisMessageBase{{Type: &analysisv1alpha1.AnalysisMessageBase_Type{Code: "IST0199"}}}
		s.set(func(n int64) error {
			if n > 1 {
				return nil
			}
			// Bypass the counter, so that the writer has an outdated version.
			_, err := s.Store.UpdateStatus(t.Context(), &model.Config{Key: key, Status: status})
			return err
		})
		run(s.Run, r.Run)
		r.at(had(1, 1)...)
		r.publish(model.Problem{Object: key, Reason: "spec.host: there is none", Dangling: true})
		time.Sleep(2 * second)
		s.want(t, key, "Theirs", "of others")
		s.want(t, key, reconciledType, "True")
		var codes []string
		for _, m := range statusOf(s.Get(key)).GetValidationMessages() {
			codes = append(codes, m.GetType().GetCode()+" "+m.GetLevel().String()+" "+m.GetDocumentationUrl())
		}
		if got := strings.Join(codes, ","); got != "IST0199 UNKNOWN ,IST0101 ERROR https://istio.io/latest/docs/reference/config/analysis/ist0101/" {
			t.Errorf("messages: got %s", got)
		}
		s.wantWrites(t, 2) // the first one had an outdated version
		if strings.Contains(r.log.String(), "level=WARN") {
			t.Errorf("unexpected warning:\n%s", r.log)
		}
	})
}

func TestProblems(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, run func(...func(context.Context) error)) {
		s := newStore()
		r := newReplica(t, s)
		key := s.create(t, rule("a", "1"))
		run(s.Run, r.Run)
		r.at(had(1, 9)...)
		gone := model.Problem{Object: key, Source: "x:1", Reason: "spec.host: no service", Dangling: true}
		r.publish(gone, model.Problem{Object: key, Reason: "spec.tunnel has no effect"})
		time.Sleep(2 * second)
		s.want(t, key, analysisType, "False ProblemsFound 1: spec.host: no service; spec.tunnel has no effect")
		s.wantWrites(t, 1) // together with the distribution
		gone.Source = "x:2"
		r.publish(gone, model.Problem{Object: key, Reason: "spec.tunnel has no effect"})
		time.Sleep(2 * second)
		s.wantWrites(t, 1)
		r.publish()
		time.Sleep(2 * second)
		s.want(t, key, analysisType, "")
		if got := statusOf(s.Get(key)).GetValidationMessages(); len(got) > 0 {
			t.Errorf("messages after the correction: got %v, want none", got)
		}
		s.want(t, key, reconciledType, "True")
		s.wantWrites(t, 2)
		// The store contains an invalid version, for which there is no event.
		s.set(nil, model.Problem{Object: key, Reason: "spec.host is empty"})
		time.Sleep(2*poll + second)
		s.want(t, key, analysisType, "spec.host is empty")
		s.wantWrites(t, 3)
	})
}

// TestGeneratedProblems reports problems that are found while generating the configuration of
// proxies, one of them also in the snapshot. They must disappear when they are fixed, without
// another snapshot.
func TestGeneratedProblems(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, run func(...func(context.Context) error)) {
		s := newStore()
		var generated atomic.Pointer[[]model.Problem]
		generated.Store(&[]model.Problem{})
		r := newReplica(t, s, func(c *Config) { c.Generated = func() []model.Problem { return *generated.Load() } })
		key := s.create(t, rule("a", "1"))
		run(s.Run, r.Run)
		r.at(had(1, 9)...)
		both := model.Problem{Object: key, Reason: "spec.host: no service"}
		r.publish(both)
		time.Sleep(2 * second)
		s.wantWrites(t, 1)
		generated.Store(&[]model.Problem{both, {Object: key, Reason: "Envoy refuses it"}})
		r.Wake()
		time.Sleep(2 * second)
		s.want(t, key, analysisType, "False ProblemsFound 1: spec.host: no service; Envoy refuses it")
		s.wantWrites(t, 2)
		generated.Store(&[]model.Problem{})
		r.Wake()
		time.Sleep(2 * second)
		s.want(t, key, analysisType, "False ProblemsFound 1: spec.host: no service")
		s.wantWrites(t, 3)
	})
}

// TestRestart checks that a restart causes no writes, whichever proxies are connected.
func TestRestart(t *testing.T) {
	t.Parallel()
	s := newStore()
	key := s.create(t, rule("a", "1"))
	part := func(test func(r *replica)) {
		inBubble(t, func(t *testing.T, run func(...func(context.Context) error)) {
			// A new process reads the store.
			again := newStore()
			again.create(t, rule("a", "1"))
			if _, err := again.Store.UpdateStatus(t.Context(), &model.Config{Key: key, Status: s.Get(key).Status}); err != nil {
				t.Fatal(err)
			}
			r := newReplica(t, again)
			run(again.Run, r.Run)
			test(r)
			synctest.Wait()
			s = again
		})
	}
	part(func(r *replica) {
		r.at(had(2, 1)...)
		r.publish()
		time.Sleep(2 * second)
	})
	if s.writes.Load() != 1 {
		t.Fatalf("%d writes at the first start, want 1", s.writes.Load())
	}
	part(func(r *replica) {
		r.at(append(had(1, 1), rejects("q", 1, "words"))...)
		r.publish()
		time.Sleep(time.Minute)
	})
	if s.writes.Load() != 0 {
		t.Errorf("%d writes after a restart, want none", s.writes.Load())
	}
}

// TestReplicas checks that two replicas without a lease and with different proxies do not overwrite
// each other: a problem stays until it is fixed in both.
func TestReplicas(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, run func(...func(context.Context) error)) {
		s := newStore()
		a, b := newReplica(t, s), newReplica(t, s)
		key := s.create(t, rule("a", "1"))
		run(s.Run, a.Run, b.Run)
		a.at(had(3, 1)...)
		b.at(rejects("q", 1, "words"))
		a.publish()
		b.publish()
		time.Sleep(takeover / 2)
		s.want(t, key, reconciledType, "False Rejected")
		if n := s.writes.Load(); n > 3 {
			t.Errorf("%d writes of two replicas, want at most 3: one each and one with an outdated version", n)
		}
		b.at(had(1, 1)...)
		time.Sleep(2 * second)
		s.want(t, key, reconciledType, "True")
		n := s.writes.Load()
		time.Sleep(2 * takeover)
		s.wantWrites(t, n)
	})
}

// TestRemovedReplica checks that the verdict of a removed replica is replaced eventually.
func TestRemovedReplica(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, run func(...func(context.Context) error)) {
		s := newStore()
		a := newReplica(t, s)
		key := s.create(t, rule("a", "1"))
		run(s.Run, a.Run)
		a.publish()
		status := content{distribution: verdict{isFalse, reasonRejected, "somebody else's words"}}
		said, _ := status.apply(s.Get(key), time.Now())
		if _, err := s.Store.UpdateStatus(t.Context(), &model.Config{Key: key, Status: said}); err != nil {
			t.Fatal(err)
		}
		a.at(had(3, 1)...)
		time.Sleep(takeover - second)
		s.want(t, key, reconciledType, "somebody else's words")
		time.Sleep(3 * second)
		s.want(t, key, reconciledType, "True")
		s.wantWrites(t, 1)
	})
}

// TestFailures checks that failed writes are repeated with increasing delays, and that a missing
// permission is logged once.
func TestFailures(t *testing.T) {
	t.Parallel()
	denied := errors.New("forbidden")
	for name, tc := range map[string]struct {
		err    error
		writes int64 // in the first minute
		says   string
	}{
		"away":   {errors.New("connection refused"), 7, "retrying"},
		"denied": {denied, 2, "examples/kubernetes/rbac-config.yaml"},
		"final":  {fmt.Errorf("update: %w", config.ErrReadOnly), 2, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, func(t *testing.T, run func(...func(context.Context) error)) {
				s := newStore()
				r := newReplica(t, s, func(c *Config) { c.Denied = func(err error) bool { return errors.Is(err, denied) } })
				keys := []model.Key{s.create(t, rule("a", "1")), s.create(t, rule("b", "1"))}
				s.set(func(int64) error { return tc.err })
				run(s.Run, r.Run)
				r.at(had(1, 1)...)
				r.publish()
				time.Sleep(time.Minute)
				if n := s.writes.Load(); n < tc.writes || n > 2*tc.writes {
					t.Errorf("%d writes in a minute, want about %d", n, tc.writes)
				}
				if n := strings.Count(r.log.String(), "level=WARN"); tc.says == "" && n != 0 || tc.says != "" && (n != 1 || !strings.Contains(r.log.String(), tc.says)) {
					t.Errorf("log: got\n%s", r.log)
				}
				s.set(nil)
				time.Sleep(deniedTime + second)
				for _, key := range keys {
					if tc.says != "" {
						s.want(t, key, reconciledType, "True")
					}
				}
			})
		})
	}
}

// TestLead checks that only the leader writes the distribution, while each replica writes the
// health that agents report to it.
func TestLead(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, run func(...func(context.Context) error)) {
		s := newStore()
		lead := make(chan struct{})
		said := health.Verdict{Message: "connection refused", At: time.Now()}
		r := newReplica(t, s, speaks(said), func(c *Config) {
			c.Lead = func(ctx context.Context, work func(context.Context) error) error {
				select {
				case <-lead:
					return work(ctx)
				case <-ctx.Done():
					return nil
				}
			}
		})
		key := s.create(t, rule("a", "1"))
		entry := s.create(t, &model.Config{Key: model.Key{Kind: model.WorkloadEntry, Namespace: "shop", Name: "w"}, Spec: &networkingv1alpha3.WorkloadEntry{Address: "10.0.0.1"}})
		run(s.Run, r.Run)
		r.at(had(1, 1)...)
		r.publish()
		time.Sleep(time.Minute)
		s.want(t, key, reconciledType, "")
		s.want(t, entry, reconciledType, "")
		s.want(t, entry, health.ConditionType, "False AgentReport 1: connection refused")
		s.wantWrites(t, 1)
		close(lead)
		time.Sleep(2 * second)
		s.want(t, key, reconciledType, "True")
		s.want(t, entry, reconciledType, "True")
		s.wantWrites(t, 3)
	})
}

// TestPatchesMatched checks that the status of an EnvoyFilter says what its patches match, that counts
// are written at most each 30 s, and that a patch that matches nothing is reported earlier.
func TestPatchesMatched(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, run func(...func(context.Context) error)) {
		s := newStore()
		var now atomic.Pointer[discovery.Matched]
		key := model.Key{Kind: model.EnvoyFilter, Namespace: "shop", Name: "f"}
		r := newReplica(t, s, func(c *Config) {
			c.Matched = func() map[model.Key]discovery.Matched {
				if m := now.Load(); m != nil {
					return map[model.Key]discovery.Matched{key: *m}
				}
				return nil
			}
		})
		s.create(t, &model.Config{Key: key, Spec: &networkingv1alpha3.EnvoyFilter{}})
		run(s.Run, r.Run)
		now.Store(&discovery.Matched{Selected: 1, Idle: 1, Text: "none"})
		r.publish()
		time.Sleep(20 * second)
		s.wantWrites(t, 0) // other proxies may connect
		time.Sleep(20 * second)
		s.want(t, key, matchedType, "False NothingMatched 1: 1 of its patches match nothing: none")
		now.Store(&discovery.Matched{Selected: 1, Text: "1 of 1"})
		time.Sleep(10 * second)
		s.want(t, key, matchedType, "True Matched 1: 1 of 1")
		now.Store(&discovery.Matched{Selected: 2, Text: "2 of 2"})
		time.Sleep(10 * second)
		s.want(t, key, matchedType, "True Matched 1: 1 of 1")
		time.Sleep(30 * second)
		s.want(t, key, matchedType, "True Matched 1: 2 of 2")
		s.wantWrites(t, 3)
		now.Store(nil)
		time.Sleep(time.Minute)
		s.want(t, key, matchedType, "True Matched 1: 2 of 2")
		s.wantWrites(t, 3)
	})
}
