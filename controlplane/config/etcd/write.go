// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package etcd

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/outrigger-mesh/outrigger/controlplane/config"
	"github.com/outrigger-mesh/outrigger/controlplane/config/codec"
	"github.com/outrigger-mesh/outrigger/controlplane/config/field"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// change is one write: next returns the state that follows the stored one, or
// the reason why none may. A nil state removes the object.
type change struct {
	verb string
	key  model.Key
	next func(stored entry) (*model.Config, error)
}

func (c change) failed(err error) error {
	return fmt.Errorf("%s %s: %w", c.verb, c.key, err)
}

// Create writes a new object; see [config.Store].
func (s *Store) Create(ctx context.Context, c *model.Config) (string, error) {
	const verb = "create"
	next, err := config.CheckWrite(verb, s, c)
	if err != nil {
		return "", err
	}
	next.Generation, next.Status = 1, nil
	next.Created = config.Creation(next)
	return s.write(ctx, change{verb, next.Key, func(stored entry) (*model.Config, error) {
		if stored.there() {
			return nil, fmt.Errorf("%s %s: %w", verb, next.Key, config.ErrExists)
		}
		return next, nil
	}})
}

// Update replaces an object; see [config.Store].
func (s *Store) Update(ctx context.Context, c *model.Config) (string, error) {
	const verb = "update"
	next, err := config.CheckWrite(verb, s, c)
	if err != nil {
		return "", err
	}
	return s.write(ctx, change{verb, next.Key, func(stored entry) (*model.Config, error) {
		if err := stored.check(verb, next.Key, c.ResourceVersion); err != nil {
			return nil, err
		}
		return successor(verb, stored, next)
	}})
}

// successor returns the state that follows the stored one.
func successor(verb string, stored entry, next *model.Config) (*model.Config, error) {
	next, err := config.Successor(stored.basis(), next)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", verb, err)
	}
	return next, nil
}

// UpdateStatus replaces the status of an object; see [config.Store].
func (s *Store) UpdateStatus(ctx context.Context, c *model.Config) (string, error) {
	const verb = "update the status of"
	state, err := config.CheckStatus(verb, s, c)
	if err != nil {
		return "", err
	}
	key, version := c.Key, c.ResourceVersion
	return s.write(ctx, change{verb, key, func(stored entry) (*model.Config, error) {
		if stored.bad() && stored.object != nil && version == stored.object.ResourceVersion {
			version = "" // the status tells of what is in force, and harms nothing
		}
		if err := stored.check(verb, key, version); err != nil {
			return nil, err
		}
		next := stored.basis().Clone()
		next.Status = state
		return next, nil
	}})
}

// Patch changes the newest state of an object; see [config.Store].
func (s *Store) Patch(ctx context.Context, key model.Key, alter func(*model.Config) error) (string, error) {
	const verb = "patch"
	return s.write(ctx, change{verb, key, func(stored entry) (*model.Config, error) {
		if err := stored.check(verb, key, ""); err != nil {
			return nil, err
		}
		next := stored.basis().Clone()
		if err := alter(next); err != nil {
			return nil, fmt.Errorf("%s %s: %w", verb, key, err)
		}
		next.Key = key
		next, err := config.CheckWrite(verb, s, next)
		if err != nil {
			return nil, err
		}
		return successor(verb, stored, next)
	}})
}

// Delete removes an object; see [config.Store].
func (s *Store) Delete(ctx context.Context, key model.Key, resourceVersion string) error {
	const verb = "delete"
	_, err := s.write(ctx, change{verb, key, func(stored entry) (*model.Config, error) {
		if stored.bad() && resourceVersion == "" {
			return nil, nil // the way to get rid of it
		}
		return nil, stored.check(verb, key, resourceVersion)
	}})
	return err
}

// there reports whether the key exists.
func (e entry) there() bool { return e.revision > 0 && !e.gone }

// bad reports whether the key exists and holds something else than what is in
// force.
func (e entry) bad() bool { return e.there() && e.problem != nil && !e.problem.Warning }

// basis is what a change is made to: what the key holds, valid or not.
func (e entry) basis() *model.Config {
	if e.bad() {
		return e.invalid
	}
	return e.object
}

// check is [config.CheckVersion] for what etcd holds. Who read the last good
// version has not seen what the key holds now; who names no version mends it.
func (e entry) check(verb string, key model.Key, version string) error {
	switch {
	case e.bad() && e.invalid == nil:
		return fmt.Errorf("%s %s: %w (%s): delete it and create it again", verb, key, config.ErrMalformed, e.problem.Reason)
	case e.bad() && version != "" && version != e.invalid.ResourceVersion:
		return fmt.Errorf("%s %s: %w (%s)", verb, key, config.ErrMalformed, e.problem.Reason)
	}
	return config.CheckVersion(verb, key, e.basis(), version)
}

// write does a change: it compares the revision of the key in a transaction,
// and repeats the change on the newer state when it lost a race. What is known
// may be old: it is the basis of a change, never of a refusal.
func (s *Store) write(ctx context.Context, c change) (string, error) {
	path, err := pathOf(c.key)
	if err != nil {
		return "", c.failed(err)
	}
	stored, fresh := s.entry(path), false
	for {
		next, err := c.next(stored)
		if err != nil {
			if fresh {
				return "", err
			}
			if stored, err = s.fetch(ctx, path); err != nil {
				return "", c.failed(err)
			}
			fresh = true
			continue
		}
		version, newer, err := s.put(ctx, path, stored, next)
		switch {
		case err != nil:
			return "", c.failed(err)
		case newer == nil:
			return version, nil
		}
		stored, fresh = *newer, true
	}
}

// put writes the next state over the stored one and gives its version, or
// what is stored if that is another. A nil state removes the key.
func (s *Store) put(ctx context.Context, path string, stored entry, next *model.Config) (string, *entry, error) {
	key, value := s.conn.prefix+path, []byte(nil)
	op := clientv3.OpDelete(key)
	if next != nil {
		var err error
		if value, err = s.encode(next); err != nil {
			return "", nil, err
		}
		op = clientv3.OpPut(key, string(value))
	}
	revision := int64(0)
	if stored.there() {
		revision = stored.revision
	}
	var answer *clientv3.TxnResponse
	err := s.conn.request(ctx, false, func(ctx context.Context, client *clientv3.Client) (err error) {
		answer, err = client.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(key), "=", revision)).
			Then(op).Else(clientv3.OpGet(key)).Commit()
		return err
	})
	switch {
	case next != nil && tooLarge(err):
		return "", nil, &config.InvalidError{Key: next.Key, Faults: []field.Error{{Text: fmt.Sprintf(
			"it has %d bytes, more than etcd accepts at once (1572864, unless etcd runs with --max-request-bytes): split it into several objects", len(value))}}}
	case err != nil:
		return "", nil, err
	case !answer.Succeeded:
		newer := s.learn(path, answer.Header.Revision, answer.Responses[0].GetResponseRange().Kvs)
		return "", &newer, nil
	}
	at := answer.Header.Revision
	if next == nil {
		s.observe(at, observed{path: path, revision: at, gone: true})
		return "", nil, nil
	}
	created := at
	if stored.there() {
		created, _ = strconv.ParseInt(next.UID, 10, 64) // decode wrote it
	}
	s.observe(at, s.read(path, &mvccpb.KeyValue{Value: value, ModRevision: at, CreateRevision: created}))
	return strconv.FormatInt(at, 10), nil, nil
}

// encode returns the value of an object. What etcd knows itself is left out.
func (s *Store) encode(c *model.Config) ([]byte, error) {
	stripped := *c
	stripped.ResourceVersion, stripped.UID = "", ""
	value, err := codec.EncodeJSON(&stripped)
	if err == nil {
		// What cannot be read again must not get into etcd.
		_, err = codec.DecodeStored(value)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", config.ErrInvalid, err)
	}
	return value, nil
}

// tooLarge reports whether the server refused a request for its size: etcd
// itself, or gRPC before it.
func tooLarge(err error) bool {
	return errors.Is(err, rpctypes.ErrRequestTooLarge) ||
		status.Code(err) == codes.ResourceExhausted && !errors.Is(err, rpctypes.ErrNoSpace) && !errors.Is(err, rpctypes.ErrTooManyRequests)
}

// fetch asks etcd for the newest state of a key.
func (s *Store) fetch(ctx context.Context, path string) (entry, error) {
	var answer *clientv3.GetResponse
	err := s.conn.request(ctx, false, func(ctx context.Context, client *clientv3.Client) (err error) {
		answer, err = client.Get(ctx, s.conn.prefix+path)
		return err
	})
	if err != nil {
		return entry{}, err
	}
	return s.learn(path, answer.Header.Revision, answer.Kvs), nil
}

// learn takes what etcd said of a key at a revision, and returns what is known
// of it now.
func (s *Store) learn(path string, revision int64, kvs []*mvccpb.KeyValue) entry {
	state := observed{path: path, revision: revision, gone: true}
	if len(kvs) > 0 {
		state = s.read(path, kvs[0])
	}
	s.observe(revision, state)
	return s.entry(path)
}
