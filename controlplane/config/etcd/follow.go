// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package etcd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v4"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

const (
	// pageSize is how many objects are read at once.
	pageSize = 1000
	// maxHistory bounds how many versions of a key are tried.
	maxHistory = 20
	// firstWait and longestWait bound the time between two tries.
	firstWait   = 100 * time.Millisecond
	longestWait = 5 * time.Second
)

var (
	errEnded = errors.New("etcd ended the watch")
	// errSilent is no trouble yet: whether there is any, the next load finds
	// out. A watch that etcd's client resumed says nothing before the next
	// change, because it waits for a revision that is not there yet.
	errSilent = errors.New("the watch received nothing")
)

// follow keeps the cache up to date with etcd. Each round reads everything
// and then follows the changes for as long as that works: whatever went
// wrong, the next round finds what is different.
func (s *Store) follow(ctx context.Context) error {
	defer s.conn.close()
	wait := backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(firstWait), backoff.WithMaxInterval(longestWait), backoff.WithMaxElapsedTime(0))
	r := &round{store: s, works: wait.Reset, logged: map[string]bool{}}
	for {
		err := r.run(ctx)
		if ctx.Err() != nil {
			return nil
		}
		switch {
		case errors.Is(err, errSilent):
			continue
		case errors.Is(err, rpctypes.ErrCompacted):
			s.log.Info("etcd has compacted changes that were missed; reading all objects", "name", s.Name())
		default:
			r.trouble(err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait.NextBackOff()):
		}
	}
}

// round is one load and the watch behind it.
type round struct {
	store *Store
	// works is called when changes can be followed.
	works func()
	// logged are the classes of the faults since it last worked.
	logged map[string]bool
}

// trouble records that etcd cannot be watched, and logs it once.
func (r *round) trouble(err error) {
	r.store.WatchError(fmt.Errorf("config source %s: %w", r.store.Name(), err))
	if c := class(err); !r.logged[c] {
		r.logged[c] = true
		r.store.log.Warn("etcd cannot be watched; known objects stay in force, retrying", "name", r.store.Name(), "err", err)
	}
}

func (r *round) run(ctx context.Context) error {
	s := r.store
	client, err := s.conn.get(ctx)
	if err != nil {
		return err
	}
	revision, err := s.load(ctx)
	if err != nil {
		if f := (*fault)(nil); errors.As(err, &f) && f.credentials {
			s.conn.forget(client, err)
		}
		return err
	}
	if len(r.logged) > 0 {
		clear(r.logged)
		s.log.Info("etcd can be watched again", "name", s.Name())
	}
	s.Loaded()
	return s.watch(ctx, client, revision, r.works)
}

// load reads all objects as they were at one revision, and gives it.
func (s *Store) load(ctx context.Context) (int64, error) {
	prefix := s.conn.prefix
	var revision int64
	there, states := map[string]bool{}, []observed(nil)
	for from, more := prefix, true; more; {
		options := []clientv3.OpOption{clientv3.WithRange(clientv3.GetPrefixRangeEnd(prefix)), clientv3.WithLimit(pageSize), clientv3.WithRev(revision)}
		var page *clientv3.GetResponse
		err := s.conn.request(ctx, true, func(ctx context.Context, client *clientv3.Client) (err error) {
			page, err = client.Get(ctx, from, options...)
			return err
		})
		if err != nil {
			return 0, err
		}
		if revision == 0 {
			revision = page.Header.Revision
			if s.wentBack(revision) {
				s.log.Warn("etcd is at a lower revision than before, as after a restore; its objects replace the known ones", "name", s.Name())
			}
		}
		for _, kv := range page.Kvs {
			path := strings.TrimPrefix(string(kv.Key), prefix)
			from = string(kv.Key) + "\x00"
			if strings.HasPrefix(path, ownDirectory) {
				continue
			}
			there[path] = true
			known := s.entry(path)
			if known.revision >= kv.ModRevision {
				continue
			}
			state := s.read(path, kv)
			if state.object == nil && known.object == nil {
				if state.before, err = s.lastGood(ctx, path, kv); err != nil {
					return 0, err
				}
			}
			states = append(states, state)
		}
		more = page.More
	}
	s.replace(revision, there, states)
	s.passed(revision)
	return revision, nil
}

// lastGood looks for the last value of a key that can be read in etcd's
// history, as far as that goes; nil when there is none.
func (s *Store) lastGood(ctx context.Context, path string, kv *mvccpb.KeyValue) (*model.Config, error) {
	for range maxHistory {
		if kv.ModRevision <= kv.CreateRevision {
			return nil, nil // it was born so
		}
		var answer *clientv3.GetResponse
		err := s.conn.request(ctx, true, func(ctx context.Context, client *clientv3.Client) (err error) {
			answer, err = client.Get(ctx, s.conn.prefix+path, clientv3.WithRev(kv.ModRevision-1))
			return err
		})
		switch {
		case errors.Is(err, rpctypes.ErrCompacted):
			return nil, nil
		case err != nil:
			return nil, err
		case len(answer.Kvs) == 0:
			return nil, nil
		}
		kv = answer.Kvs[0]
		if state := s.read(path, kv); state.object != nil {
			return state.object, nil
		}
	}
	return nil, nil
}

// watch follows the changes from a revision on until that does not work any
// more, and says why. Etcd's client resumes a watch whose connection broke.
func (s *Store) watch(ctx context.Context, client *clientv3.Client, revision int64, works func()) error {
	// Without a leader a member may be cut off from the others.
	ctx, cancel := context.WithCancelCause(clientv3.WithRequireLeader(ctx))
	defer cancel(nil)
	silent := time.AfterFunc(silence, func() { cancel(errSilent) })
	defer silent.Stop()
	// A watcher of its own shares no stream with one that hangs.
	watcher := clientv3.NewWatcher(client)
	defer func() { _ = watcher.Close() }() // it is of no use any more
	ask := time.NewTicker(probeEvery)
	defer ask.Stop()
	// From the revision that is known, not the next: etcd tells no progress to
	// who waits for a revision that is not there yet.
	responses := watcher.Watch(ctx, s.conn.prefix, clientv3.WithPrefix(), clientv3.WithRev(revision),
		clientv3.WithProgressNotify(), clientv3.WithFragment(), clientv3.WithCreatedNotify())
	reached := s.highest()
	for {
		// Cases: etcd says something, or the watch has ended; time to ask
		// how far it has come.
		select {
		case r, ok := <-responses:
			if !ok {
				return ended(ctx)
			}
			if err := r.Err(); err != nil {
				return s.conn.explain(err)
			}
			s.changes(r.Events)
			if r.IsProgressNotify() {
				s.passed(r.Header.Revision)
			}
			// An etcd that is behind what it said before shows no sign of
			// life: the next load finds out what happened to it.
			if r.Header.Revision >= reached {
				silent.Reset(silence)
				works()
				reached = s.highest()
			}
		case <-ask.C:
			if err := watcher.RequestProgress(ctx); err != nil {
				return s.conn.explain(cmp.Or(context.Cause(ctx), err))
			}
		}
	}
}

// ended says why a watch ended without an error.
func ended(ctx context.Context) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	return errEnded
}

// changes makes the events of a watch visible.
func (s *Store) changes(events []*clientv3.Event) {
	if len(events) == 0 {
		return
	}
	states := make([]observed, 0, len(events))
	for _, e := range events {
		path := strings.TrimPrefix(string(e.Kv.Key), s.conn.prefix)
		switch {
		case strings.HasPrefix(path, ownDirectory):
		case e.Type == clientv3.EventTypeDelete:
			states = append(states, observed{path: path, revision: e.Kv.ModRevision, gone: true})
		default:
			states = append(states, s.read(path, e.Kv))
		}
	}
	last := events[len(events)-1].Kv.ModRevision
	s.observe(last, states...)
	s.passed(last)
}
