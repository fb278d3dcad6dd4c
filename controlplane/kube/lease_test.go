// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package kube

import (
	"context"
	"errors"
	"math"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
)

// lead runs Lead until the test ends, and returns a flag that is set while the replica leads.
func lead(ctx context.Context, t *testing.T, requests *api, identity string) *atomic.Bool {
	t.Helper()
	leads := &atomic.Bool{}
	done := make(chan struct{})
	go func() {
		defer close(done)
		err := newClient(Config{}, requests, requests).Lead(ctx, Lease{Namespace: "ns", Name: "x", Identity: identity}, func(ctx context.Context) error {
			leads.Store(true)
			<-ctx.Done()
			leads.Store(false)
			return nil
		})
		if err != nil {
			t.Errorf("%s: %v", identity, err)
		}
	}()
	t.Cleanup(func() { <-done })
	return leads
}

// versions makes the fake server reject updates of outdated versions, like an API server.
func versions(t *testing.T, server *fakeServer) {
	t.Helper()
	server.PrependReactor("update", "leases", func(a clienttesting.Action) (bool, runtime.Object, error) {
		next := a.(clienttesting.UpdateAction).GetObject().(*coordinationv1.Lease)
		o, err := server.tracker.Get(a.GetResource(), a.GetNamespace(), next.Name)
		if err != nil {
			return true, nil, err
		}
		if o.(*coordinationv1.Lease).ResourceVersion != next.ResourceVersion {
			return true, nil, apierrors.NewConflict(a.GetResource().GroupResource(), next.Name, errors.New("changed"))
		}
		next = next.DeepCopy()
		next.ResourceVersion += "1"
		return true, next, server.tracker.Update(a.GetResource(), next, a.GetNamespace())
	})
}

// TestLeadOne checks that one of three replicas leads. Another one must lead as soon as the leader
// ends, but only after the duration of the lease if the leader was killed.
func TestLeadOne(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		requests, server := newFake(t)
		versions(t, server)
		all := map[string]*atomic.Bool{}
		ends := map[string]context.CancelFunc{}
		for _, identity := range []string{"a", "b", "c"} {
			ctx, end := context.WithCancel(t.Context())
			all[identity], ends[identity] = lead(ctx, t, requests, identity), end
		}
		leader := func() (name string) {
			synctest.Wait()
			for identity, leads := range all {
				if !leads.Load() {
					continue
				}
				if name != "" {
					t.Errorf("%s and %s lead at the same time", name, identity)
				}
				name = identity
			}
			return name
		}
		time.Sleep(time.Minute)
		first := leader()
		for range 100 {
			time.Sleep(retryPeriod)
			if now := leader(); now != first || now == "" {
				t.Fatalf("the leader is %q, want still %q", now, first)
			}
		}
		ends[first]()
		time.Sleep(3 * retryPeriod)
		second := leader()
		if second == "" || second == first {
			t.Fatalf("the leader is %q after %q has ended", second, first)
		}
		o, err := requests.leases("ns").Get(t.Context(), "x", metav1.GetOptions{})
		if err != nil || *o.Spec.LeaseTransitions != 1 || *o.Spec.HolderIdentity != second || *o.Spec.LeaseDurationSeconds != 30 {
			t.Errorf("lease: got %+v, error %v", o, err)
		}
		for _, end := range ends {
			end()
		}
	})
}

// cutLeases fails all requests while it is cut off.
type cutLeases struct {
	objects[*coordinationv1.Lease, *coordinationv1.LeaseList]

	cut *atomic.Bool
}

func (c cutLeases) Get(ctx context.Context, name string, o metav1.GetOptions) (*coordinationv1.Lease, error) {
	if c.cut.Load() {
		return nil, errNoRoute
	}
	return c.objects.Get(ctx, name, o)
}

func (c cutLeases) Update(ctx context.Context, lease *coordinationv1.Lease, o metav1.UpdateOptions) (*coordinationv1.Lease, error) {
	if c.cut.Load() {
		return nil, errNoRoute
	}
	return c.objects.Update(ctx, lease, o)
}

// TestLeadLost cuts a leader off from the API server. It must stop its work before another replica
// leads, and another replica must lead once the lease has expired.
func TestLeadLost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		requests, server := newFake(t)
		versions(t, server)
		var cut atomic.Bool
		separate := &api{leases: func(namespace string) objects[*coordinationv1.Lease, *coordinationv1.LeaseList] {
			return cutLeases{requests.leases(namespace), &cut}
		}}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		first := lead(ctx, t, separate, "a")
		time.Sleep(time.Minute)
		second := lead(ctx, t, requests, "b")
		time.Sleep(time.Minute)
		if synctest.Wait(); !first.Load() || second.Load() {
			t.Fatalf("before the fault: leading: %v and %v, want only the first", first.Load(), second.Load())
		}
		cut.Store(true)
		begin, stopped := time.Now(), time.Time{}
		for !second.Load() {
			time.Sleep(time.Second)
			synctest.Wait()
			if first.Load() && second.Load() {
				t.Fatal("both replicas lead")
			}
			if !first.Load() && stopped.IsZero() {
				stopped = time.Now()
			}
			if time.Since(begin) > time.Hour {
				t.Fatal("no replica leads")
			}
		}
		if took := stopped.Sub(begin); took > renewDeadline+time.Second {
			t.Errorf("the leader continued for %s without its lease", took)
		}
		// The other replica notices the expiry at most two delays after it.
		delay := retryPeriod + time.Duration(math.Round(leaseJitter*float64(retryPeriod)))
		if took := time.Since(begin); took < leaseDuration-retryPeriod || took > leaseDuration+2*delay+time.Second {
			t.Errorf("the other replica leads after %s, want about the duration of the lease", took)
		}
		cut.Store(false) // the first one competes again
		time.Sleep(time.Minute)
		if synctest.Wait(); first.Load() || !second.Load() {
			t.Errorf("after the fault: leading: %v and %v, want only the second", first.Load(), second.Load())
		}
	})
}

// TestLeadAgain checks that the lease is released when the work returns, and that the replica then
// competes for it again.
func TestLeadAgain(t *testing.T) {
	t.Parallel()
	api, _ := newFake(t)
	c := newClient(Config{}, api, api)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	times := 0
	err := c.Lead(ctx, Lease{Namespace: "ns", Name: "x", Identity: "one", Duration: 200 * time.Millisecond}, func(context.Context) error {
		if times++; times == 3 {
			cancel()
		}
		return errors.New("cannot")
	})
	if err != nil || times != 3 {
		t.Errorf("the work ran %d times, error %v; want 3 times", times, err)
	}
	if err := c.Lead(t.Context(), Lease{Name: "x"}, nil); err == nil {
		t.Error("a lease without a namespace was accepted")
	}
}
