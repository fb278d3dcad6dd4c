// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package kube

import (
	"context"
	"errors"
	"math"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
)

// Durations of a lease; they equal Istio's.
const (
	leaseDuration = 30 * time.Second
	renewDeadline = 15 * time.Second
	retryPeriod   = 7500 * time.Millisecond
	// leaseJitter is the factor by which a replica that waits for a lease varies its delays.
	leaseJitter = 1.2
)

// Lease identifies a lease for leader election among replicas.
type Lease struct {
	Namespace string
	Name      string
	Identity  string // identity of this replica, for example the name of its pod
	// Duration is the time after which another replica takes over from one that was killed; zero
	// means 30 s. It is written in whole seconds, rounded up.
	Duration time.Duration
}

// Lead runs work whenever this replica holds the lease, until ctx is done. The context of work is
// cancelled when the lease is lost; Lead waits for work to return, then releases the lease. It
// requires permission to get, create and update leases.coordination.k8s.io in the namespace.
func (c *Client) Lead(ctx context.Context, lease Lease, work func(context.Context) error) error {
	if lease.Namespace == "" || lease.Name == "" || lease.Identity == "" {
		return errors.New("lease: it needs a namespace, a name and an identity")
	}
	e := &election{
		Lease: lease, leases: c.api.leases(lease.Namespace),
		duration: leaseDuration, deadline: renewDeadline, retry: retryPeriod,
	}
	if d := lease.Duration; d > 0 {
		e.duration, e.deadline, e.retry = d, d/2, d/4
	}
	c.metrics.leads(lease.Name, false)
	failed := false
	for ctx.Err() == nil {
		led, err := e.take(ctx)
		if err != nil && !raced(err) && !failed && ctx.Err() == nil {
			c.log.Warn("the lease of the leader cannot be read or written; retrying", "name", lease.Name, "err", err)
		}
		failed = err != nil
		if led {
			c.metrics.leads(lease.Name, true)
			c.log.Info("this replica is the leader", "name", lease.Name, "identity", lease.Identity)
			err = e.term(ctx, work)
			c.metrics.leads(lease.Name, false)
			if err != nil && ctx.Err() == nil {
				c.log.Warn("the work of the leader ended; retrying", "name", lease.Name, "err", err)
			}
		}
		pause(ctx, wait.Jitter(e.retry, leaseJitter))
	}
	return nil
}

// election competes for a lease as client-go's leader election does, with which it shares leases.
// A clock of another replica does not matter: a lease has expired when it was seen unchanged for
// its duration.
type election struct {
	Lease

	leases                    objects[*coordinationv1.Lease, *coordinationv1.LeaseList]
	duration, deadline, retry time.Duration

	held *coordinationv1.Lease    // as this replica wrote it; nil if it must be read
	seen coordinationv1.LeaseSpec // of the last lease that was read
	at   time.Time                // when seen changed
}

// take acquires or renews the lease. It returns false without an error if another replica holds it.
func (e *election) take(ctx context.Context) (held bool, err error) {
	now := metav1.NowMicro()
	next := e.held
	e.held = nil
	if next == nil {
		next, err = e.leases.Get(ctx, e.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			next = &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: e.Namespace, Name: e.Name}}
			e.sign(&next.Spec, now)
			return e.wrote(e.leases.Create(ctx, next, metav1.CreateOptions{}))
		}
		if err != nil {
			return false, err
		}
		if !same(&next.Spec, &e.seen) {
			e.seen, e.at = *next.Spec.DeepCopy(), now.Time
		}
		if holder(&next.Spec) != e.Identity && !e.free(now.Time) {
			return false, nil
		}
	}
	next = next.DeepCopy()
	e.sign(&next.Spec, now)
	return e.wrote(e.leases.Update(ctx, next, metav1.UpdateOptions{}))
}

func (e *election) wrote(lease *coordinationv1.Lease, err error) (held bool, _ error) {
	if err != nil {
		return false, err
	}
	e.held = lease
	return true, nil
}

// raced reports whether another replica wrote the lease between a read and a write.
func raced(err error) bool { return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) }

// free reports whether nobody holds the lease that was seen.
func (e *election) free(now time.Time) bool {
	var seconds int32
	if e.seen.LeaseDurationSeconds != nil {
		seconds = *e.seen.LeaseDurationSeconds
	}
	return holder(&e.seen) == "" || now.Sub(e.at) >= time.Duration(seconds)*time.Second
}

// sign makes this replica the holder.
func (e *election) sign(spec *coordinationv1.LeaseSpec, now metav1.MicroTime) {
	if holder(spec) != e.Identity {
		var changes int32
		if spec.AcquireTime != nil {
			changes = 1
		}
		if spec.LeaseTransitions != nil {
			changes += *spec.LeaseTransitions
		}
		spec.HolderIdentity, spec.AcquireTime, spec.LeaseTransitions = &e.Identity, &now, &changes
	}
	seconds := int32(math.Ceil(e.duration.Seconds()))
	spec.RenewTime, spec.LeaseDurationSeconds = &now, &seconds
}

// term runs work and renews the lease until work returns. It cancels work if the lease could not
// be renewed before the deadline, so that two replicas never lead at once.
func (e *election) term(ctx context.Context, work func(context.Context) error) error {
	renewing := context.WithoutCancel(ctx)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- work(ctx) }()
	renew := time.NewTicker(e.retry)
	defer renew.Stop()
	until := time.Now().Add(e.deadline)
	for lost := false; ; {
		select {
		case err := <-done:
			if !lost {
				e.release(renewing)
			}
			return err
		case <-renew.C:
		}
		if lost {
			continue
		}
		try, stop := context.WithDeadline(renewing, until)
		begin := time.Now()
		held, err := e.take(try)
		stop()
		switch {
		case held:
			until = begin.Add(e.deadline)
		case err == nil || !time.Now().Before(until):
			lost = true
			cancel()
		}
	}
}

// release lets another replica take the lease at once. Without it the lease expires.
func (e *election) release(ctx context.Context) {
	if e.held == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, e.deadline)
	defer cancel()
	next := e.held.DeepCopy()
	e.held = nil
	nobody, second := "", int32(1)
	next.Spec.HolderIdentity, next.Spec.LeaseDurationSeconds = &nobody, &second
	_, _ = e.leases.Update(ctx, next, metav1.UpdateOptions{}) // if it fails, the lease expires
}

func holder(spec *coordinationv1.LeaseSpec) string {
	if spec.HolderIdentity == nil {
		return ""
	}
	return *spec.HolderIdentity
}

// same reports whether a lease was not renewed between two reads.
func same(a, b *coordinationv1.LeaseSpec) bool {
	return holder(a) == holder(b) && a.RenewTime.Equal(b.RenewTime)
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
