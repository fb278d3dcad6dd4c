// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package lastgood

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/durable"
)

// flushAt is how much is written at once, in bytes.
const flushAt = 64 << 10

// slack is how much of a file may be of no use anymore before it is written
// anew, beside as much as is of use; in bytes.
const slack = 1 << 20

// log is the file that this process appends to. It takes the place of the
// last one with its first commit.
type log struct {
	state // its end is that of the last commit

	path      string // where it is
	place     string // where it belongs
	size      int64  // what is written
	buf       []byte // what follows and is not written yet
	plain     []byte // used again for each resource
	batch     uint32 // the last one
	compactAt int64  // the size at which it is written anew, if that is worth it
	// suspect says that a sync failed: the next one may not tell what was lost.
	suspect bool
}

// createFile makes the file of a log.
func createFile(dir string) (storage, string, error) {
	f, err := os.CreateTemp(dir, stateFile+temporary+"*") // mode 0600
	if err != nil {
		return nil, "", err
	}
	return f, f.Name(), nil
}

// newLog begins a log with what another one or an earlier process kept.
func (s *Store) newLog(old *state) (_ *log, err error) {
	seal, err := s.owner.newSealer(kindState)
	if err != nil {
		return nil, err
	}
	f, path, err := s.create(s.cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("make a file in %s: %w", s.cfg.Dir, err)
	}
	l := &log{
		state: state{index: index{sets: map[string]set{}}, file: f, seal: seal},
		path:  path, place: filepath.Join(s.cfg.Dir, stateFile), buf: slices.Clone(seal.header),
	}
	defer func() {
		if err != nil {
			_ = f.Close() // the error that counts is the first
			_ = os.Remove(path)
		}
	}()
	if old == nil {
		return l, l.flush()
	}
	c := commit{time: old.from.UnixNano()}
	var changes [][]change
	for typeURL, resources := range old.sets {
		l.batch++
		moved, err := l.copy(old, resources)
		if err != nil {
			return nil, err
		}
		c.batches = append(c.batches, batchRef{batch: l.batch, typeURL: typeURL, flags: flagReplace})
		changes = append(changes, moved)
	}
	return l, l.commit(c, changes)
}

// copy appends the resources of another file to the last batch.
func (l *log) copy(old *state, resources set) ([]change, error) {
	changes := make([]change, 0, len(resources))
	for k, at := range resources {
		changes = append(changes, change{k, opPut, at})
	}
	slices.SortFunc(changes, func(a, b change) int { return cmp.Compare(a.loc.at, b.loc.at) })
	var b buffers
	for i := range changes {
		p, err := old.readPut(&b, changes[i].loc)
		if err != nil {
			return nil, err
		}
		if p.flags = changes[i].loc.flags; p.flags&flagWithheld != 0 {
			p.body = nil
		}
		if changes[i].loc, err = l.put(p, l.batch); err != nil {
			return nil, err
		}
		b.trim()
	}
	return changes, nil
}

// put appends a resource.
func (l *log) put(p *put, batch uint32) (loc, error) {
	p.batch = batch
	l.plain = p.append(l.plain[:0])
	at, err := l.append(l.plain)
	if cap(l.plain) > maxKept {
		l.plain = nil
	}
	at.flags, at.version, at.sum = p.flags, p.version, p.sum()
	return at, err
}

// append appends a record, which may wait for flush.
func (l *log) append(plain []byte) (loc, error) {
	at := loc{at: l.size + int64(len(l.buf)), size: uint32(len(plain) + sealSize)}
	l.buf = l.seal.seal(l.buf, at.at, plain)
	if len(l.buf) < flushAt {
		return at, nil
	}
	return at, l.flush()
}

// flush writes what waits.
func (l *log) flush() error {
	if _, err := l.file.WriteAt(l.buf, l.size); err != nil {
		return fmt.Errorf("write %s: %w", l.path, err)
	}
	l.size += int64(len(l.buf))
	if l.buf = l.buf[:0]; cap(l.buf) > 2*flushAt {
		l.buf = nil
	}
	return nil
}

// rollback takes back what was appended after the file had a size. Should
// that not work, the next record is written over it.
func (l *log) rollback(size int64) {
	l.buf, l.size = l.buf[:0], size
	_ = l.file.Truncate(size) // what does not open is not read
}

// commit appends a commit and makes it last. What it names counts from then
// on.
func (l *log) commit(c commit, changes [][]change) error {
	at, err := l.append(c.append(nil))
	if err != nil {
		return err
	}
	if err := l.flush(); err != nil {
		return err
	}
	if err := l.file.Sync(); err != nil {
		l.suspect = true
		return fmt.Errorf("sync %s: %w", l.path, err)
	}
	if l.path != l.place {
		if err := os.Rename(l.path, l.place); err != nil {
			return fmt.Errorf("replace %s: %w", l.place, err)
		}
		l.path = l.place
		if err := durable.SyncDir(filepath.Dir(l.place)); err != nil {
			return err
		}
	}
	for i, ref := range c.batches {
		l.apply(ref, changes[i])
	}
	l.count()
	l.buf, l.plain = nil, nil // it will be quiet for a while
	l.from, l.end = time.Unix(0, c.time), at.at+lenSize+int64(at.size)
	return nil
}

// wasteful says whether it is worth to write the file anew.
func (l *log) wasteful() bool { return l.suspect || l.size > max(2*l.live+slack, l.compactAt) }

// discard closes a log, and removes it if it has no commit.
func (l *log) discard() {
	_ = l.file.Close() // what counts is synced
	if l.path != l.place {
		_ = os.Remove(l.path)
	}
}
