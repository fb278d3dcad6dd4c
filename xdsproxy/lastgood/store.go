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
	// backlog is how much may wait for a slow disk before something is
	// dropped, in bytes. A single frame may be larger.
	backlog = 16 << 20
	// eventCost is what an event of the queue costs beside its frame, in bytes.
	eventCost = 256
)

// Config is what a [Store] needs.
type Config struct {
	// Dir holds what is kept and KeyDir the key under which it is sealed.
	// They are made with mode 0700 and belong to one agent.
	Dir    string
	KeyDir string
	// Identity is whose configuration this is: node id, SPIFFE id, cluster.
	// What was kept for another one is refused.
	Identity string
	// Version is refused if it differs: at most 255 bytes.
	Version string
	// MaxAge is how old what is served may be; zero switches everything off.
	MaxAge time.Duration
	// MaxBytes bounds the snapshot, and the changes that wait for the next one.
	// While it is replaced there are two. Zero means 64 MiB.
	MaxBytes int64
	// Secrets consents to keep secrets and resources with private keys.
	Secrets bool
	// KeepIdentity consents to keep the workload's private key.
	KeepIdentity bool
	// IdentityKey seals the workload's identity. nil: the key in KeyDir does.
	IdentityKey []byte
	// Extensions returns what Envoy is served in place of extension
	// configurations, each a serialized google.protobuf.Any: nil for what
	// cannot be had. Envoy's start waits for it. Optional.
	Extensions func(ctx context.Context, resources [][]byte) [][]byte
	Logger     *slog.Logger
	// Registerer takes the metrics; nil for none.
	Registerer prometheus.Registerer
}

// Store keeps what Envoy acknowledged.
type Store struct {
	cfg     Config
	owner   *owner
	log     *slog.Logger
	metrics *metrics
	// off is why nothing is kept and nothing is served.
	off error
	// found is what Open found; Run takes it over.
	found *snapshot
	// create is os.CreateTemp. Tests have it fail.
	create func(dir, pattern string) (*os.File, error)
	files  sync.Mutex    // held while temporary files are removed, or made by PutIdentity
	wake   chan struct{} // bound 1: there is something in the queue

	mu sync.Mutex // guards what follows
	// queue is what Run has to do, at most backlog bytes and one frame.
	queue  []event
	queued int
	// from is the time of what can be served. Without any, refused says why.
	from    time.Time
	refused error
}

// The kinds of events.
const (
	eventResponse = iota
	eventRequest
	eventGap   // something was dropped here
	eventClose // the stream ended
)

// event is something that happened on a stream.
type event struct {
	rec   *Recording
	kind  int
	frame mem.BufferSlice
}

// Open reads what was kept. An error means that the configuration is wrong;
// what cannot be used for another reason is refused, see [Store.Usable].
// Nothing is recorded before Run.
func Open(cfg Config) (*Store, error) {
	switch {
	case cfg.Dir == "" || cfg.KeyDir == "" || filepath.Clean(cfg.Dir) == filepath.Clean(cfg.KeyDir):
		return nil, errors.New("last good needs a directory for what is kept and another one for the key")
	case cfg.Identity == "":
		return nil, errors.New("last good needs an identity")
	case len(cfg.Version) > maxVersion:
		return nil, fmt.Errorf("last good: version %q has more than %d bytes", cfg.Version, maxVersion)
	case cfg.IdentityKey != nil && len(cfg.IdentityKey) != keySize:
		return nil, fmt.Errorf("last good: the key of the identity has %d bytes, want %d", len(cfg.IdentityKey), keySize)
	case cfg.MaxAge < 0:
		return nil, fmt.Errorf("last good: age %s is less than nothing; 0 switches it off", cfg.MaxAge)
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
		remove(filepath.Join(s.cfg.Dir, identityFile), s.log, "the identity that was kept is removed: it is not to be kept anymore")
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
		_ = st.file.Close() // it was only read from
		s.found = nil
	}
}

// prepare makes the directories and gets the key.
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

// refuse logs and counts that the snapshot is refused.
func (s *Store) refuse(err error) {
	if reasonOf(err) == reasonNone {
		s.log.Info("there is no last good configuration yet", "path", s.cfg.Dir)
		return
	}
	s.metrics.refused.WithLabelValues(reasonOf(err)).Inc()
	s.log.Warn("the last good configuration is refused, the agent goes on without", "reason", err.Error())
}

// Usable returns nil if Serve has something to answer from, and else why not.
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

// tooOld refuses what is older than MaxAge, and what is so far ahead of a clock
// that was set back that nobody knows how old it is.
func (s *Store) tooOld(path string, from time.Time) error {
	age := time.Since(from)
	if age < -s.cfg.MaxAge {
		return about(path, refuse(reasonAge, "it is from %s, which is %s ahead of this machine's clock; set the clock right",
			from.UTC().Format(time.RFC3339), (-age).Round(time.Second)))
	}
	if age > s.cfg.MaxAge {
		return about(path, refuse(reasonAge, "it is from %s and %s old, at most %s are allowed",
			from.UTC().Format(time.RFC3339), age.Round(time.Second), s.cfg.MaxAge))
	}
	return nil
}

// From returns when what can be served was last known to be the control
// plane's word; zero if there is nothing.
func (s *Store) From() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.from
}

// Age returns how old what can be served is; zero if there is nothing.
func (s *Store) Age() time.Duration {
	from := s.From()
	if from.IsZero() {
		return 0
	}
	return max(0, time.Since(from)) // a clock that was set back makes nothing younger than new
}

// Record begins a recording of a stream that is joined to the control plane.
func (s *Store) Record(delta bool) *Recording {
	r := &Recording{store: s, delta: delta}
	if s.off != nil {
		r.over.Store(true)
	}
	return r
}

// enqueue hands an event to Run. It does not block: what does not fit is
// dropped, and a gap takes its place.
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
	default: // Run has not seen the last one yet
	}
}

// peek returns the next event, which stays in the queue until it is done.
func (s *Store) peek() (event, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.queue) == 0 {
		return event{}, false
	}
	return s.queue[0], true
}

// done removes the next event.
func (s *Store) done() {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.queue[0]
	s.queued -= e.frame.Len() + eventCost
	e.frame.Free()
	s.queue[0] = event{}
	if s.queue = s.queue[1:]; len(s.queue) == 0 {
		s.queue = nil // do not keep what a burst needed
	}
}
