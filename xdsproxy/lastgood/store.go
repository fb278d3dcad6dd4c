// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package lastgood

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/mem"
)

const (
	defaultMaxBytes = 64 << 20
	// backlog is the maximum size of events that wait for a slow disk, in bytes, before events are
	// dropped. A single frame may be larger.
	backlog = 16 << 20
	// eventCost is the memory overhead of an event in the queue, in bytes.
	eventCost = 256
)

// Config is the configuration of a [Store].
type Config struct {
	// Dir contains the stored files and KeyDir the key that seals them. They are created with mode
	// 0700 and belong to one agent.
	Dir    string
	KeyDir string
	// Identity identifies the owner of the configuration: node id, SPIFFE id, cluster. Files of
	// another owner are rejected.
	Identity string
	// Version identifies the writer: at most 255 bytes. Files of another version are rejected.
	Version string
	// MaxAge is the maximum age of served configuration; zero disables the store.
	MaxAge time.Duration
	// MaxBytes limits the size of the snapshot, and of the changes that wait for the next one.
	// While the snapshot is replaced, there are two. Zero means 64 MiB.
	MaxBytes int64
	// Secrets permits storing secrets and resources with private keys.
	Secrets bool
	// KeepIdentity permits storing the workload's private key.
	KeepIdentity bool
	// IdentityKey seals the workload's identity. nil means the key in KeyDir.
	IdentityKey []byte
	// Extensions returns replacements for extension configurations to be served to Envoy, each a
	// serialized google.protobuf.Any, or nil if one is unavailable. Envoy's start waits for it.
	// Optional.
	Extensions func(ctx context.Context, resources [][]byte) [][]byte
	Logger     *slog.Logger
	// Registerer registers the metrics; nil means none.
	Registerer prometheus.Registerer
}

// Store stores the configuration that Envoy has acknowledged.
type Store struct {
	cfg     Config
	owner   *owner
	log     *slog.Logger
	metrics *metrics
	// off is the reason why nothing is stored and served, or nil.
	off error
	// found is the snapshot found by Open; Run takes it over.
	found *snapshot
	// create is os.CreateTemp. Tests replace it to simulate failures.
	create func(dir, pattern string) (*os.File, error)
	files  sync.Mutex    // held while temporary files are removed, or created by PutIdentity
	wake   chan struct{} // capacity 1: the queue is not empty

	mu sync.Mutex // guards the fields below
	// queue contains the events for Run, at most backlog bytes and one frame.
	queue  []event
	queued int
	// from is the time of the configuration that can be served. If there is none, refused is the
	// reason.
	from    time.Time
	refused error
}

// Event kinds.
const (
	eventResponse = iota
	eventRequest
	eventGap   // events were dropped here
	eventClose // the stream ended
)

// event is an event on a stream.
type event struct {
	rec   *Recording
	kind  int
	frame mem.BufferSlice
}

// Open reads the stored files. It returns an error if the configuration is invalid. Files that are
// unusable for another reason are rejected; see [Store.Usable]. Recording starts with Run.
func Open(cfg Config) (*Store, error) {
	switch {
	case cfg.Dir == "" || cfg.KeyDir == "" || filepath.Clean(cfg.Dir) == filepath.Clean(cfg.KeyDir):
		return nil, errors.New("last good needs a directory for its state and another one for the key")
	case cfg.Identity == "":
		return nil, errors.New("last good needs an identity")
	case len(cfg.Version) > maxVersion:
		return nil, fmt.Errorf("last good: version %q has more than %d bytes", cfg.Version, maxVersion)
	case cfg.IdentityKey != nil && len(cfg.IdentityKey) != keySize:
		return nil, fmt.Errorf("last good: the key of the identity has %d bytes, want %d", len(cfg.IdentityKey), keySize)
	case cfg.MaxAge < 0:
		return nil, fmt.Errorf("last good: age %s is negative; 0 switches it off", cfg.MaxAge)
	}
	if cfg.MaxBytes <= 0 {
		cfg.MaxBytes = defaultMaxBytes
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	s := &Store{cfg: cfg, log: cfg.Logger, create: os.CreateTemp, wake: make(chan struct{}, 1)}
	s.metrics = newMetrics(cfg.Registerer, s)
	s.open()
	return s, nil
}

func (s *Store) open() {
	if s.cfg.MaxAge == 0 {
		s.off = refuse(reasonOff, "last good is switched off")
		return
	}
	if s.off = s.prepare(); s.off != nil {
		s.refuse(s.off)
		return
	}
	if !s.cfg.KeepIdentity {
		remove(filepath.Join(s.cfg.Dir, identityFile), s.log, "the stored identity is removed: it must no longer be stored")
	}
	remove(filepath.Join(s.cfg.Dir, legacyFile), s.log, "the last good configuration of an earlier version is removed: this version cannot read it")
	st, err := s.load(true)
	if err != nil {
		s.refused = err
		s.refuse(err)
		return
	}
	s.found, s.from = st, st.from
	if err := s.Usable(); err != nil {
		s.refuse(err)
		_ = st.file.Close() // read-only: closing cannot lose data
		s.found = nil
	}
}

// prepare creates the directories and obtains the key.
func (s *Store) prepare() error {
	for _, dir := range []string{s.cfg.Dir, s.cfg.KeyDir} {
		if err := ownDirectory(dir); err != nil {
			return about(dir, err)
		}
	}
	nodeKey, err := nodeKey(s.cfg.KeyDir)
	if err != nil {
		return err
	}
	s.owner = &owner{key: nodeKey, identity: s.cfg.Identity, version: s.cfg.Version}
	return nil
}

// refuse logs and counts the rejection of the snapshot.
func (s *Store) refuse(err error) {
	if reasonOf(err) == reasonNone {
		s.log.Info("there is no last good configuration yet", "path", s.cfg.Dir)
		return
	}
	s.metrics.refused.WithLabelValues(reasonOf(err)).Inc()
	s.log.Warn("last good configuration rejected; the agent continues without it", "reason", err.Error())
}

// Usable returns nil if Serve can answer requests, and otherwise the reason why not.
func (s *Store) Usable() error {
	if s.off != nil {
		return s.off
	}
	s.mu.Lock()
	from, refused := s.from, s.refused
	s.mu.Unlock()
	if from.IsZero() {
		return refused
	}
	return s.tooOld(filepath.Join(s.cfg.Dir, snapshotFile), from)
}

// tooOld rejects a file that is older than MaxAge, or so far in the future, after the clock was set
// back, that its age is unknown.
func (s *Store) tooOld(path string, from time.Time) error {
	age := time.Since(from)
	if age < -s.cfg.MaxAge {
		return about(path, refuse(reasonAge, "it is from %s, which is %s ahead of this machine's clock; correct the clock",
			from.UTC().Format(time.RFC3339), (-age).Round(time.Second)))
	}
	if age > s.cfg.MaxAge {
		return about(path, refuse(reasonAge, "it is from %s and %s old; at most %s are allowed",
			from.UTC().Format(time.RFC3339), age.Round(time.Second), s.cfg.MaxAge))
	}
	return nil
}

// From returns the time at which the configuration that can be served was last confirmed by the
// control plane, or zero if there is none.
func (s *Store) From() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.from
}

// Age returns the age of the configuration that can be served, or zero if there is none.
func (s *Store) Age() time.Duration {
	from := s.From()
	if from.IsZero() {
		return 0
	}
	return max(0, time.Since(from)) // never negative, even if the clock was set back
}

// Record starts the recording of a stream that is connected to the control plane.
func (s *Store) Record(delta bool) *Recording {
	r := &Recording{store: s, delta: delta}
	if s.off != nil {
		r.over.Store(true)
	}
	return r
}

// enqueue passes an event to Run. It does not block: if the queue is full, the event is dropped and
// replaced by a gap.
func (s *Store) enqueue(r *Recording, kind int, frame mem.BufferSlice) {
	if r.over.Load() {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.queued > backlog && kind != eventClose {
		if r.gap {
			return
		}
		r.gap, kind, frame = true, eventGap, nil
	} else {
		r.gap = false
		frame.Ref()
	}
	s.queue = append(s.queue, event{r, kind, frame})
	s.queued += frame.Len() + eventCost
	select {
	case s.wake <- struct{}{}:
	default: // Run has not handled the previous signal yet
	}
}

// peek returns the next event, which remains in the queue until done is called.
func (s *Store) peek() (event, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.queue) == 0 {
		return event{}, false
	}
	return s.queue[0], true
}

// done removes the next event from the queue.
func (s *Store) done() {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.queue[0]
	s.queued -= e.frame.Len() + eventCost
	e.frame.Free()
	s.queue[0] = event{}
	if s.queue = s.queue[1:]; len(s.queue) == 0 {
		s.queue = nil // release the memory of a burst
	}
}
