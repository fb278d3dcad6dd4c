// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package etcd

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v4"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/outrigger-mesh/outrigger/controlplane/config"
)

// ownDirectory is what the store keeps for itself behind the prefix. No group of
// objects can be called so.
const ownDirectory = ".outrigger/"

// leaseTime is after how long another replica takes over from one that was
// killed.
const leaseTime = 10 * time.Second

var _ config.Elector = (*Store)(nil)

// Lead implements [config.Elector] by a lease of etcd's and the election of its
// client library. The user needs the right to write below the prefix.
func (s *Store) Lead(ctx context.Context, name, identity string, work func(context.Context) error) error {
	if name == "" || identity == "" || strings.Contains(name, "/") {
		return errors.New("lease: it needs a name without slashes, and an identity")
	}
	wait := backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(firstWait), backoff.WithMaxInterval(longestWait), backoff.WithMaxElapsedTime(0))
	for ctx.Err() == nil {
		led, err := s.term(ctx, name, identity, work)
		if led {
			wait.Reset()
		}
		if err != nil && ctx.Err() == nil {
			s.log.Warn("leadership was not acquired or has ended; retrying", "name", name, "err", err)
		}
		pause := time.NewTimer(wait.NextBackOff())
		// Cases: the end; the pause is over.
		select {
		case <-ctx.Done():
		case <-pause.C:
		}
		pause.Stop()
	}
	return nil
}

// term waits until this replica is the leader, and works until it does not any more.
func (s *Store) term(ctx context.Context, name, identity string, work func(context.Context) error) (led bool, err error) {
	client, err := s.conn.get(ctx)
	if err != nil {
		return false, err
	}
	// The client waits for a server without a limit unless a leader is there.
	session, err := concurrency.NewSession(client, concurrency.WithTTL(int(leaseTime/time.Second)), concurrency.WithContext(clientv3.WithRequireLeader(ctx)))
	if err != nil {
		return false, s.conn.explain(err)
	}
	defer func() { _ = session.Close() }() // the lease ends by itself, too
	election := concurrency.NewElection(session, s.conn.prefix+ownDirectory+"leases/"+name)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		// Cases: the lease is lost; the term is over.
		select {
		case <-session.Done():
			cancel(fmt.Errorf("the lease %s is lost", name))
		case <-stop:
		}
	}()
	if err := election.Campaign(ctx, identity); err != nil {
		return false, s.conn.explain(err)
	}
	s.log.Info("this replica is the leader", "name", name, "identity", identity)
	defer func() {
		last, end := context.WithTimeout(context.WithoutCancel(ctx), requestTime)
		defer end()
		_ = election.Resign(last) // the lease ends by itself, too
	}()
	return true, work(ctx)
}
