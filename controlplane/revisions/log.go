// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package revisions

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/report"
	"github.com/outrigger-mesh/outrigger/internal/durable"
	"github.com/outrigger-mesh/outrigger/internal/ratelimit"
)

const (
	// defaultFileSize is the size in bytes at which a file is replaced. There are two files.
	defaultFileSize = 32 << 20
	// settle is how long a start has the processors for itself: comparing 10,000 objects takes a second.
	settle = 5 * time.Second
	// retry is the time between attempts to record after an error.
	retry = time.Minute
	// maxLimited is the number of objects whose rate is limited.
	maxLimited = 4096

	currentFile, previousFile, nextFile, lockFile = "current.jsonl", "previous.jsonl", "next.jsonl", "lock"
)

// errTaken means that the files are those of another control plane.
var errTaken = errors.New("another control plane records versions of objects")

// perObject limits how many versions of one object are kept: an object that changes all the time
// must not displace the versions of the others. Its newest version is always kept in the end.
var perObject = ratelimit.Limit{PerSecond: 1.0 / 30, Burst: 20}

// Config configures a [Log].
type Config struct {
	// Dir is the directory of the files, which is created.
	Dir string
	// FileSize is the size in bytes at which a file is replaced; 0 means 32 MiB.
	FileSize int64
	Source   Source
	Logger   *slog.Logger
}

// Log keeps versions of what a source has. It is safe for concurrent use.
type Log struct {
	cfg    Config
	now    func() time.Time
	wake   chan struct{}
	hurry  chan struct{} // somebody asks before the first comparison
	first  chan struct{} // closed after the first comparison, or an error before it
	asked  func()        // closes first
	limits *ratelimit.Keyed[model.Key]

	mu      sync.Mutex // guards the fields below
	pending map[model.Key]time.Time
	all     time.Time // when any object may have changed; zero if that is not so
	fault   error     // why versions are not recorded
	stopped time.Time // when the fault began
	damaged int       // lines of the files that cannot be read, when they were read last

	files sync.Mutex // held while the files are replaced or opened

	// The fields below belong to Run.
	known    map[model.Key]state // the objects that exist according to the log
	compared bool                // with all objects, since the start
	begun    time.Time
	file     *os.File
	size     int64
}

// state is the newest version of an object in the log.
type state struct {
	report.Version
	present *Present // nil if it has not been compared since the start
}

// New returns a log. [Log.Run] opens its files.
func New(cfg Config) *Log {
	cfg.FileSize = cmp.Or(cfg.FileSize, defaultFileSize)
	first := make(chan struct{})
	return &Log{
		cfg: cfg, now: time.Now, wake: make(chan struct{}, 1), hurry: make(chan struct{}, 1), first: first, asked: sync.OnceFunc(func() { close(first) }),
		limits: ratelimit.NewKeyed[model.Key](maxLimited), pending: map[model.Key]time.Time{}, known: map[model.Key]state{},
	}
}

// Note records that objects have changed, at some time. It does not wait for the disk.
func (l *Log) Note(what model.Change, at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if (what.All || l.fault != nil) && l.all.IsZero() {
		l.all = at
	}
	if l.fault != nil {
		return // all objects are compared after the fault
	}
	for key := range what.Keys {
		if key, ok := l.cfg.Source.Key(key); ok {
			l.pending[key] = at
		}
	}
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// Run writes the versions of changed objects until ctx is done. While it cannot write, for example
// because the disk is full, it tries again at intervals, and then compares all objects as at a start.
func (l *Log) Run(ctx context.Context) error {
	for delay := settle; ; delay = 0 {
		err := l.record(ctx, delay)
		if err == nil {
			return nil
		}
		l.mu.Lock()
		if l.fault == nil {
			l.stopped = l.now()
			l.cfg.Logger.Warn("versions of objects are not recorded", "err", err)
		}
		l.fault = err
		l.pending = map[model.Key]time.Time{}
		l.mu.Unlock()
		l.asked()
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(retry):
		}
		l.mu.Lock()
		l.all = l.now()
		l.mu.Unlock()
	}
}

// record opens the files and writes versions until ctx is done, when it returns nil, or until an
// error. It waits for the delay first.
func (l *Log) record(ctx context.Context, delay time.Duration) error {
	lock, err := l.lock()
	if lock != nil {
		defer func() { _ = durable.Unlock(lock) }() // the file is empty
	}
	if err == nil {
		err = l.open()
	}
	if l.file != nil {
		defer func() { // each record has been written, or its error is returned
			_ = l.file.Close()
			l.file = nil
		}()
	}
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return nil
	case <-l.hurry:
	case <-timer.C:
	}
	for err == nil {
		var wait time.Duration
		if wait, err = l.write(); err != nil {
			break
		}
		if wait > 0 {
			timer.Reset(wait)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-l.wake:
		case <-timer.C:
		}
	}
	return err
}

// lock creates and locks the directory: replicas on one machine may have the same one.
func (l *Log) lock() (*os.File, error) {
	if err := os.MkdirAll(l.cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("create the directory of the versions of objects: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(l.cfg.Dir, lockFile), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the versions of objects: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("%w in %s: %w", errTaken, l.cfg.Dir, err), f.Close())
	}
	return f, nil
}

// wait waits until the objects of the start are recorded, for a moment at most.
func (l *Log) wait() {
	select {
	case l.hurry <- struct{}{}:
	default:
	}
	select {
	case <-l.first:
	case <-time.After(settle):
	}
}

// open reads the files of an earlier run and opens the current one.
func (l *Log) open() error {
	l.files.Lock()
	defer l.files.Unlock()
	l.known, l.compared = map[model.Key]state{}, false
	current, previous := filepath.Join(l.cfg.Dir, currentFile), filepath.Join(l.cfg.Dir, previousFile)
	if info, err := os.Stat(current); err != nil || info.Size() == 0 {
		// A rotation was interrupted: what follows must have all objects before it.
		if err := os.Rename(previous, current); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("open the versions of objects: %w", err)
		}
	}
	var err error
	if l.file, err = os.OpenFile(current, os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600); err != nil {
		return fmt.Errorf("open the versions of objects: %w", err)
	}
	files, err := openReader(l.cfg.Dir)
	if err != nil {
		return err
	}
	defer files.close()
	if err := files.scan(func(e entry) {
		if e.Change == report.Deleted {
			delete(l.known, keyOf(e.Ref))
		} else {
			l.known[keyOf(e.Ref)] = state{Version: e.Version}
		}
	}); err != nil {
		return err
	}
	l.size = files.complete
	if err := l.file.Truncate(l.size); err != nil { // a crash or a full disk has cut the last line
		return fmt.Errorf("open the versions of objects: %w", err)
	}
	l.found(files.damaged)
	if files.damaged > 0 {
		l.cfg.Logger.Warn("damaged versions of objects are left out", "path", l.cfg.Dir, "count", files.damaged)
	}
	l.begun = l.now()
	if !files.begins.IsZero() {
		return nil
	}
	return l.begin(l.file)
}

// begin writes a line after which all objects of the moment follow.
func (l *Log) begin(f *os.File) error {
	line, err := lineOf(report.Version{At: l.begun, Change: begins}, nil)
	if err != nil {
		return err
	}
	return l.append(f, line)
}

// append writes a line in one call, so that readers see no more than the end of it missing.
func (l *Log) append(f *os.File, line []byte) error {
	n, err := f.Write(line)
	l.size += int64(n)
	if err != nil {
		return fmt.Errorf("write the versions of objects: %w", err)
	}
	return nil
}

// write writes the versions of the changed objects. It returns when those of objects that change too
// often are due; 0 if there are none.
func (l *Log) write() (wait time.Duration, err error) {
	l.mu.Lock()
	pending, all := l.pending, l.all
	l.pending, l.all = map[model.Key]time.Time{}, time.Time{}
	l.mu.Unlock()
	if !all.IsZero() {
		l.addAll(pending, all)
	}
	first := !l.compared && len(l.known) == 0
	keys := slices.SortedFunc(maps.Keys(pending), func(a, b model.Key) int {
		return cmp.Or(pending[a].Compare(pending[b]), a.Compare(b))
	})
	for _, key := range keys {
		due, err := l.compare(key, pending[key], first)
		if err != nil {
			return 0, err
		}
		if due == 0 {
			delete(pending, key)
		} else if wait == 0 || due < wait {
			wait = due
		}
	}
	l.mu.Lock()
	if !l.compared && !all.IsZero() {
		l.compared = true
		l.asked()
		if l.fault != nil {
			l.fault, l.stopped = nil, time.Time{}
			l.cfg.Logger.Info("versions of objects are recorded again")
		}
	}
	maps.Copy(pending, l.pending) // newer times replace those of the objects that are due later
	l.pending = pending
	l.mu.Unlock()
	if l.size > l.cfg.FileSize && l.compared {
		return wait, l.rotate()
	}
	return wait, nil
}

// addAll adds all objects that exist, and those that exist according to the log.
func (l *Log) addAll(pending map[model.Key]time.Time, at time.Time) {
	add := func(key model.Key) {
		if _, ok := pending[key]; !ok {
			pending[key] = at
		}
	}
	for _, key := range l.cfg.Source.Keys() {
		add(key)
	}
	for key := range l.known {
		add(key)
	}
}

// compare writes the version of an object if it differs from the last one. It returns when the
// version is due if the object changes too often, and 0 otherwise.
func (l *Log) compare(key model.Key, at time.Time, first bool) (due time.Duration, err error) {
	now := l.cfg.Source.Get(key)
	old, existed := l.known[key]
	if now.is(old.present) && (now != nil || !existed) {
		return 0, nil
	}
	if due, _ := l.limits.Take(key, perObject, l.now()); due > 0 {
		return due, nil
	}
	next := state{present: now, Version: report.Version{
		Ref: report.Ref{Kind: string(key.Kind), Namespace: key.Namespace, Name: key.Name}, At: at, Change: report.Deleted,
		Unseen: !l.compared && !first,
	}}
	var text []byte
	if now != nil {
		next.Change, next.Source, next.Created, next.Endpoints = report.Created, now.Source, now.Created, now.Endpoints
		if existed {
			next.Change = report.Updated
		} else if now.Always {
			next.Change = report.Found
		}
		if first {
			next.Change, next.At = report.Found, l.begun
		}
		if text, next.Revision, err = now.encode(); err != nil {
			l.cfg.Logger.Warn("a version of an object is not recorded", "object", key.String(), "err", err)
			return 0, nil
		}
	}
	if existed && next.Revision == old.Revision {
		old.present = now
		l.known[key] = old
		return 0, nil
	}
	line, err := lineOf(next.Version, text)
	if err == nil {
		err = l.append(l.file, line)
	}
	if err != nil {
		return 0, err
	}
	if l.known[key] = next; now == nil {
		delete(l.known, key)
	}
	return 0, nil
}

// rotate replaces the older file by the current one, and begins another one with all objects.
func (l *Log) rotate() error {
	path := filepath.Join(l.cfg.Dir, nextFile)
	next, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("write the versions of objects: %w", err)
	}
	l.begun, l.size = l.now(), 0
	err = l.begin(next)
	for key, s := range l.known {
		text, _, failed := s.present.encode()
		if failed != nil {
			continue // it was not recorded either
		}
		s.Change = report.Found
		line, failed := lineOf(s.Version, text)
		if failed == nil {
			failed = l.append(next, line)
		}
		if failed != nil {
			err = fmt.Errorf("%s: %w", key, failed)
			break
		}
	}
	l.files.Lock()
	defer l.files.Unlock()
	current := filepath.Join(l.cfg.Dir, currentFile)
	if err == nil {
		err = next.Sync() // a file that is incomplete after a power failure would follow
	}
	if err == nil {
		err = os.Rename(current, filepath.Join(l.cfg.Dir, previousFile))
	}
	if err == nil {
		err = os.Rename(path, current)
	}
	if err != nil {
		_ = os.Remove(path) // it needs space that may be missing
		return errors.Join(err, next.Close())
	}
	_ = l.file.Close() // each record has been written
	l.file = next
	l.cfg.FileSize = max(l.cfg.FileSize, 2*l.size) // many objects must not replace the files at each change
	return nil
}
