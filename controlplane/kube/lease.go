// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package kube

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// Durations of a lease; they equal Istio's.
const (
	leaseDuration = 30 * time.Second
	renewDeadline = 15 * time.Second
	retryPeriod   = 7500 * time.Millisecond
)

// Lease identifies a lease for leader election among replicas.
type Lease struct {
	Namespace string
	Name      string
	Identity  string // identity of this replica, for example the name of its pod
	// Duration is the time after which another replica takes over from one that was killed; zero
	// means 30 s.
	Duration time.Duration
}

// Lead runs work whenever this replica holds the lease, until ctx is done. The context of work is
// cancelled when the lease is lost; Lead waits for work to return. It requires permission to get,
// create and update leases.coordination.k8s.io in the namespace.
func (c *Client) Lead(ctx context.Context, lease Lease, work func(context.Context) error) error {
	if lease.Namespace == "" || lease.Name == "" || lease.Identity == "" {
		return errors.New("lease: it needs a namespace, a name and an identity")
	}
	d, renew, retry := leaseDuration, renewDeadline, retryPeriod
	if lease.Duration > 0 {
		d, renew, retry = lease.Duration, lease.Duration/2, lease.Duration/4
	}
	c.metrics.leads(lease.Name, false)
	for ctx.Err() == nil {
		t := &term{done: make(chan struct{})}
		termCtx, cancel := context.WithCancel(ctx)
		elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
			Lock: &resourcelock.LeaseLock{
				LeaseMeta:  metav1.ObjectMeta{Namespace: lease.Namespace, Name: lease.Name},
				Client:     c.api.CoordinationV1(),
				LockConfig: resourcelock.ResourceLockConfig{Identity: lease.Identity},
			},
			LeaseDuration: d, RenewDeadline: renew, RetryPeriod: retry,
			ReleaseOnCancel: true,
			Name:            lease.Name,
			Callbacks: leaderelection.LeaderCallbacks{
				OnStartedLeading: func(ctx context.Context) {
					defer cancel() // release the lease when the work ends
					t.run(ctx, func(ctx context.Context) error {
						c.metrics.leads(lease.Name, true)
						c.log.Info("this replica leads", "name", lease.Name, "identity", lease.Identity)
						return work(ctx)
					})
				},
				OnStoppedLeading: func() {},
			},
		})
		if err != nil {
			cancel()
			return fmt.Errorf("lease %s/%s: %w", lease.Namespace, lease.Name, err)
		}
		elector.Run(termCtx)
		cancel()
		err = t.end()
		c.metrics.leads(lease.Name, false)
		if err != nil && ctx.Err() == nil {
			c.log.Warn("what the leader does ended; this replica tries again", "name", lease.Name, "err", err)
		}
		pause(ctx, retry)
	}
	return nil
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	// Cases: ctx is done; the pause is over.
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// term is the period during which a replica holds the lease. The library starts the work in a
// separate goroutine and does not wait for it.
type term struct {
	mu    sync.Mutex
	begun bool
	over  bool
	err   error         // of work; read after done
	done  chan struct{} // closed when the work has ended
}

func (t *term) run(ctx context.Context, work func(context.Context) error) {
	t.mu.Lock()
	t.begun = !t.over
	begun := t.begun
	t.mu.Unlock()
	if begun {
		t.err = work(ctx)
		close(t.done)
	}
}

// end prevents the work from starting, or waits for it if it has started and returns its error.
func (t *term) end() error {
	t.mu.Lock()
	t.over = true
	begun := t.begun
	t.mu.Unlock()
	if !begun {
		return nil
	}
	<-t.done
	return t.err
}
