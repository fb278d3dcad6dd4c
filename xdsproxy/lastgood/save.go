// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package lastgood

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/durable"
)

// spool stores the changes that wait for the next snapshot. Its file has no name and disappears
// with the process.
type spool struct {
	file  *os.File
	seal  *sealer
	size  int64  // total size
	buf   []byte // data at the end that has not been written yet
	plain []byte // reused for each record
}

// flushAt is the number of bytes written to the spool at once.
const flushAt = 64 << 10

func (s *Store) newSpool() (*spool, error) {
	seal, err := s.owner.newSealer(kindSpool)
	if err != nil {
		return nil, err
	}
	f, err := s.create(s.cfg.Dir, "spool"+temporary+"*") // mode 0600
	if err != nil {
		return nil, fmt.Errorf("make a file in %s: %w", s.cfg.Dir, err)
	}
	if err := os.Remove(f.Name()); err != nil {
		_ = f.Close() // return the first error
		return nil, fmt.Errorf("make a file in %s: %w", s.cfg.Dir, err)
	}
	return &spool{file: f, seal: seal}, nil
}

// put appends a resource. It may be buffered until flush.
func (s *spool) put(r *resource) (change, error) {
	s.plain = r.append(s.plain[:0])
	before := len(s.buf)
	s.buf = s.seal.seal(s.buf, s.size, s.plain)
	c := change{op: opPut, at: s.size, size: uint32(len(s.buf) - before)}
	if s.size += int64(c.size); cap(s.plain) > maxKept {
		s.plain = nil
	}
	if len(s.buf) < flushAt {
		return c, nil
	}
	return c, s.flush()
}

// flush writes the buffered data.
func (s *spool) flush() error {
	_, err := s.file.WriteAt(s.buf, s.size-int64(len(s.buf)))
	if s.buf = s.buf[:0]; cap(s.buf) > 2*flushAt {
		s.buf = nil
	}
	if err != nil {
		return fmt.Errorf("write a temporary file: %w", err)
	}
	return nil
}

// rollback removes everything that was put after the spool had the given size.
func (s *spool) rollback(size int64) { s.size, s.buf = size, s.buf[:0] }

// each calls fn for the resources of the changes, in the order of the spool.
func (s *spool) each(changes []change, fn func(*resource) error) error {
	slices.SortFunc(changes, func(a, b change) int { return cmp.Compare(a.at, b.at) })
	var sealed, plain []byte
	for _, c := range changes {
		sealed = grow(sealed, int(c.size))
		if _, err := s.file.ReadAt(sealed, c.at); err != nil {
			return unreadable(err)
		}
		var err error
		if plain, err = s.seal.open(grow(plain, int(c.size))[:0], c.at, sealed[lenSize:]); err != nil {
			return err
		}
		r, _, err := readRecord(plain)
		if err == nil && r == nil {
			err = errRecord
		}
		if err == nil {
			err = fn(r)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// due saves the recording if it is due, and returns the time until the next check.
func (w *worker) due(now time.Time) (time.Duration, error) {
	r := w.active
	var at time.Time
	switch {
	case r == nil, !r.pending() && w.saved == nil:
		return math.MaxInt64, nil
	case r.pending():
		if at = r.last.Add(quiet); at.After(r.first.Add(longest)) {
			at = r.first.Add(longest)
		}
		// As long as the spool has room, large snapshots are written less often.
		if next := w.written.Add(w.spacing()); at.Before(next) && (w.spool == nil || w.spool.size < w.store.cfg.MaxBytes/2) {
			at = next
		}
	default:
		at = w.store.From().Add(confirmEvery)
		if at.After(now.Add(confirmEvery)) {
			at = now // the clock was set back
		}
	}
	if wait := at.Sub(now); wait > 0 {
		return wait, nil
	}
	if !r.settled(now, w.saved, false) {
		return lookAgain, nil
	}
	return 0, w.save(r, now)
}

// spacing returns the minimum interval between snapshots.
func (w *worker) spacing() time.Duration {
	if w.saved == nil {
		return 0
	}
	return time.Duration(w.saved.size) * time.Second / writeRate
}

// save writes the state that Envoy has acknowledged on a stream as the snapshot. It ends a
// recording whose state is unknown or too large.
func (w *worker) save(r *Recording, now time.Time) error {
	if w.lock == nil {
		f, err := lock(w.store.cfg.Dir)
		if err != nil {
			return err
		}
		w.lock = f
		w.store.files.Lock()
		removeTemporary(w.store.cfg.Dir)
		w.store.files.Unlock()
	}
	changed, err := w.changed(r)
	switch {
	case err != nil:
	case changed:
		err = w.write(r, now)
	default:
		err = w.confirm(now)
	}
	switch reason := reasonOf(err); {
	case err != nil && reason == reasonDamaged:
		w.dropSaved() // an unreadable snapshot cannot be merged
		w.lose(r, err)
		return nil
	case err != nil && reason == reasonSize:
		w.lose(r, err)
		return nil
	case err != nil:
		return err
	}
	for _, t := range r.types {
		t.saved()
	}
	w.closeSpool()
	r.first = time.Time{}
	w.saved.from = now
	w.store.mu.Lock()
	first := w.store.from.IsZero()
	w.store.from = now
	w.store.mu.Unlock()
	w.store.metrics.bytes.Set(float64(w.saved.size))
	if w.failing {
		w.failing = false
		w.retry.Reset()
		w.store.log.Info("the last good configuration can be stored again")
	}
	if first {
		w.store.log.Info("envoy can start without the control plane from now on", "path", w.store.cfg.Dir)
	}
	return nil
}

// confirm records that the snapshot is still the control plane's state.
func (w *worker) confirm(now time.Time) error {
	plain := binary.BigEndian.AppendUint64(slices.Clone(w.saved.seal.salt()), uint64(now.UnixNano()))
	return w.store.writeSealed(w.store.owner, confirmedFile, kindConfirmed, plain)
}

// errChanged terminates a scan.
var errChanged = errors.New("the snapshot has another resource")

// changed reports whether Envoy's state differs from the snapshot.
func (w *worker) changed(r *Recording) (bool, error) {
	if w.saved == nil || !maps.Equal(w.types(r), w.types(nil)) {
		return true, nil
	}
	if len(r.puts()) > 0 {
		return true, nil
	}
	_, err := w.saved.scan(func(res *resource) error {
		if !r.keeps(res) {
			return errChanged
		}
		return nil
	})
	if errors.Is(err, errChanged) {
		return true, nil
	}
	return w.saved.withheld, err
}

// types returns the types of the next snapshot: those that a recording keeps and those that it
// adds.
func (w *worker) types(r *Recording) map[string]struct{} {
	types := map[string]struct{}{}
	if w.saved != nil {
		for typeURL := range w.saved.types {
			if r == nil || r.keepsType(typeURL) {
				types[typeURL] = struct{}{}
			}
		}
	}
	if r != nil {
		for typeURL, t := range r.types {
			if t.full {
				types[typeURL] = struct{}{}
			}
		}
	}
	return types
}

// puts returns the changes in the spool to which Envoy still subscribes.
func (r *Recording) puts() (puts []change) {
	for _, t := range r.types {
		for name, c := range t.changes {
			if c.op == opPut && t.covers(name) {
				puts = append(puts, c)
			}
		}
	}
	return puts
}

// write merges the snapshot and the changes of a recording into a new snapshot and replaces the old
// one.
func (w *worker) write(r *Recording, now time.Time) (err error) {
	s := w.store
	seal, err := s.owner.newSealer(kindSnapshot)
	if err != nil {
		return err
	}
	f, err := s.create(s.cfg.Dir, snapshotFile+temporary+"*") // mode 0600
	if err != nil {
		return fmt.Errorf("make a file in %s: %w", s.cfg.Dir, err)
	}
	next := newSnapshot(seal, s.cfg.Secrets, true)
	e := &end{time: now, types: slices.Sorted(maps.Keys(w.types(r)))}
	if err = w.merge(r, next, f, e); err == nil {
		next.file, err = os.Open(f.Name())
	}
	if err != nil {
		_ = durable.Discard(f) // return the first error
		return err
	}
	if err := durable.Commit(f, filepath.Join(s.cfg.Dir, snapshotFile), 0o600); err != nil {
		_ = next.file.Close() // read-only: closing cannot lose data
		return err
	}
	w.dropSaved()
	w.saved, w.written = next, now
	return nil
}

// merge writes the merged snapshot to a file.
func (w *worker) merge(r *Recording, next *snapshot, f *os.File, e *end) error {
	out := bufio.NewWriterSize(f, flushAt)
	next.size = int64(len(next.seal.header))
	if _, err := out.Write(next.seal.header); err != nil {
		return fmt.Errorf("write %s: %w", f.Name(), err)
	}
	for _, typeURL := range e.types {
		next.types[typeURL] = 0
	}
	var plain, sealed []byte
	record := func(p []byte) error {
		sealed = next.seal.seal(grow(sealed, 0), next.size, p)
		if next.size += int64(len(sealed)); next.size > w.store.cfg.MaxBytes {
			return refuse(reasonSize, "the configuration needs more than %d bytes", w.store.cfg.MaxBytes)
		}
		if _, err := out.Write(sealed); err != nil {
			return fmt.Errorf("write %s: %w", f.Name(), err)
		}
		return nil
	}
	put := func(res *resource) error {
		e.count++
		next.add(res)
		plain = res.append(grow(plain, 0))
		return record(plain)
	}
	if w.saved != nil {
		_, err := w.saved.scan(func(res *resource) error {
			if !r.keeps(res) {
				return nil
			}
			return put(res)
		})
		if err != nil {
			return err
		}
	}
	if w.spool != nil {
		if err := w.spool.each(r.puts(), put); err != nil {
			return err
		}
	}
	if err := record(e.append(nil)); err != nil {
		return err
	}
	if err := out.Flush(); err != nil {
		return fmt.Errorf("write %s: %w", f.Name(), err)
	}
	return nil
}
