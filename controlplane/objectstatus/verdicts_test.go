// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package objectstatus

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/outrigger-mesh/outrigger/controlplane/config"
	"github.com/outrigger-mesh/outrigger/controlplane/gatewayapi"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

var verdictClass = model.Key{Kind: model.GatewayClass, Name: "istio"}

// classSays returns a status with one condition.
func classSays(message string) *gatewayv1.GatewayClassStatus {
	return &gatewayv1.GatewayClassStatus{Conditions: []metav1.Condition{{Type: "Accepted", Status: metav1.ConditionTrue, Reason: "Accepted", Message: message}}}
}

// verdicts runs Verdicts over a store with one GatewayClass, in a synctest bubble.
func verdicts(t *testing.T, alter func(*VerdictsConfig)) (*store, *Verdicts, *bytes.Buffer) {
	t.Helper()
	s, log := newStore(), &bytes.Buffer{}
	if _, err := s.Create(t.Context(), &model.Config{Key: verdictClass, Spec: &gatewayv1.GatewayClassSpec{ControllerName: gatewayapi.Controller}}); err != nil {
		t.Fatal(err)
	}
	cfg := VerdictsConfig{
		Store: s, Merge: gatewayapi.Merge, Limits: Limits{Workers: 2, QPS: 1000, Burst: 1000},
		Logger: slog.New(slog.NewTextHandler(log, nil)),
	}
	if alter != nil {
		alter(&cfg)
	}
	v, err := NewVerdicts(cfg)
	if err != nil {
		t.Fatal(err)
	}
	s.RegisterEventHandler(v.Hear, model.GatewayClass)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 2)
	go func() { done <- s.Run(ctx) }()
	go func() { done <- v.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		for range 2 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	})
	return s, v, log
}

func (s *store) classMessage() string {
	status, _ := s.Get(verdictClass).Status.(*gatewayv1.GatewayClassStatus)
	if status == nil || len(status.Conditions) == 0 {
		return ""
	}
	return status.Conditions[0].Message
}

// TestVerdictsWriteOnce checks that a verdict is written once, and again only if it changes or
// another controller overwrites it.
func TestVerdictsWriteOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, v, _ := verdicts(t, nil)
		says := func(text string) { v.Set(map[model.Key]any{verdictClass: classSays(text)}) }
		want := func(text string, writes int64) {
			t.Helper()
			time.Sleep(time.Minute)
			synctest.Wait()
			if got := s.classMessage(); got != text || s.writes.Load() != writes {
				t.Fatalf("the status is %q after %d writes, want %q after %d", got, s.writes.Load(), text, writes)
			}
		}
		says("one")
		want("one", 1)
		says("one")
		want("one", 1)
		says("two")
		want("two", 2)
		other := s.Get(verdictClass).Clone()
		other.Status = classSays("somebody else")
		if _, err := s.Store.UpdateStatus(t.Context(), other); err != nil {
			t.Fatal(err)
		}
		want("two", 3)
		v.Set(map[model.Key]any{verdictClass: classSays("two"), {Kind: model.GatewayClass, Name: "gone"}: classSays("x")})
		want("two", 3)
	})
}

// TestOnlyLeaderWritesVerdicts checks that only the leader writes, and that a new leader writes all
// verdicts.
func TestOnlyLeaderWritesVerdicts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		leads := make(chan struct{})
		s, v, _ := verdicts(t, func(cfg *VerdictsConfig) {
			cfg.Lead = func(ctx context.Context, work func(context.Context) error) error {
				select {
				case <-ctx.Done():
					return nil
				case <-leads:
				}
				return work(ctx)
			}
		})
		v.Set(map[model.Key]any{verdictClass: classSays("one")})
		time.Sleep(time.Minute)
		if s.writes.Load() != 0 {
			t.Fatal("a replica that does not lead wrote a status")
		}
		close(leads)
		time.Sleep(time.Minute)
		if got := s.classMessage(); got != "one" {
			t.Errorf("the status is %q, want that of the leader", got)
		}
	})
}

// TestVerdictsAfterFaults checks that a failed write is repeated. Without permission, it must be
// repeated rarely and logged once; after a conflict, it must be repeated with the newer version.
func TestVerdictsAfterFaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		denied := errors.New("forbidden")
		s, v, log := verdicts(t, func(cfg *VerdictsConfig) { cfg.Denied = func(err error) bool { return errors.Is(err, denied) } })
		fault := func(err error, until int64) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.before = func(n int64) error {
				if n > until {
					return nil
				}
				return err
			}
		}
		fault(errors.New("no answer"), 2)
		v.Set(map[model.Key]any{verdictClass: classSays("one")})
		time.Sleep(time.Minute)
		if got := s.classMessage(); got != "one" || s.writes.Load() != 3 {
			t.Fatalf("the status is %q after %d writes, want one after 3", got, s.writes.Load())
		}
		fault(denied, 5)
		v.Set(map[model.Key]any{verdictClass: classSays("two")})
		time.Sleep(4 * time.Minute)
		if got := s.writes.Load(); got != 4 {
			t.Fatalf("%d writes without permission in four minutes, want 1", got-3)
		}
		time.Sleep(20 * time.Minute)
		if got := s.classMessage(); got != "two" || strings.Count(log.String(), "forbidden") != 1 {
			t.Errorf("with permission the status is %q and the log is %s", got, log)
		}
		fault(fmt.Errorf("write: %w", config.ErrConflict), 7)
		v.Set(map[model.Key]any{verdictClass: classSays("three")})
		time.Sleep(time.Minute)
		if got := s.classMessage(); got != "two" {
			t.Fatalf("after a conflict the status is %q", got)
		}
		newer := s.Get(verdictClass).Clone()
		newer.Labels = map[string]string{"a": "b"}
		if _, err := s.Update(t.Context(), newer); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if got := s.classMessage(); got != "three" {
			t.Errorf("after the newer version the status is %q", got)
		}
	})
}

// TestVerdictsBackOff checks that writes to a store that does not respond back off, and that a
// response resets the back-off.
func TestVerdictsBackOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, v, _ := verdicts(t, nil)
		var broken atomic.Bool
		s.mu.Lock()
		s.before = func(int64) error {
			if broken.Load() {
				return errors.New("no answer")
			}
			return nil
		}
		s.mu.Unlock()
		for _, text := range []string{"one", "two"} {
			broken.Store(true)
			before := s.writes.Load()
			v.Set(map[model.Key]any{verdictClass: classSays(text)})
			time.Sleep(10 * time.Second)
			if n := s.writes.Load() - before; n != 4 { // after 0, 1, 3 and 7 seconds
				t.Errorf("%s: %d writes in 10 s, want 4", text, n)
			}
			time.Sleep(time.Hour)
			if n := s.writes.Load() - before; n < 60 || n > 70 {
				t.Errorf("%s: %d writes in an hour, want about one each minute", text, n)
			}
			broken.Store(false)
			time.Sleep(2 * time.Minute)
			if got := s.classMessage(); got != text {
				t.Errorf("the status is %q, want %q", got, text)
			}
		}
	})
}

// TestVerdictsEndWithLease checks that Run returns the error of the lease.
func TestVerdictsEndWithLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lost := errors.New("no lease")
		v, err := NewVerdicts(VerdictsConfig{
			Store: newStore(), Merge: gatewayapi.Merge, Limits: Limits{Workers: 2, QPS: 1, Burst: 1},
			Lead: func(context.Context, func(context.Context) error) error { return lost },
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := v.Run(t.Context()); !errors.Is(err, lost) {
			t.Errorf("Run() = %v, want the error of the lease", err)
		}
	})
}

func TestVerdictsRefuse(t *testing.T) {
	t.Parallel()
	if _, err := NewVerdicts(VerdictsConfig{Store: newStore(), Merge: gatewayapi.Merge}); err == nil {
		t.Error("NewVerdicts accepted a configuration without workers")
	}
}
