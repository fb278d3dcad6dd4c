// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package wasm

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// moduleKey names a module: whence it comes, and which of its versions.
type moduleKey struct {
	Module   string `json:"module"`   // sha256 of the module's name, hex
	Checksum string `json:"checksum"` // of the module, or of its image's manifest
}

// module is one file of the cache.
type module struct {
	moduleKey
	SHA256 string `json:"sha256"` // of the file, hex
	Size   int64  `json:"size"`

	used    time.Time
	checked bool // the file was compared with SHA256 in this run
}

// source is what an origin gave last.
type source struct {
	Checksum string            `json:"checksum"`
	Versions map[string]string `json:"versions,omitempty"` // of plugins, by resource, that were served
}

// good is what a resource was converted to last.
type good struct {
	resource []byte
	key      moduleKey
}

const (
	maxSources  = 1024
	maxVersions = 64
	maxGood     = 512
	// maxGoodBytes is the size of a resource that is remembered.
	maxGoodBytes = 256 << 10

	dirMode   = 0o755 // Envoy reads the modules, maybe as another user
	fileMode  = 0o644
	indexMode = 0o600
)

type storeConfig struct {
	dir      string
	maxBytes int64
	log      *slog.Logger
	metrics  *metrics
}

// store is the modules on disk and what is known of them.
type store struct {
	storeConfig

	mu      sync.Mutex // guards what follows, and the changes of the directory
	modules map[moduleKey]*module
	sources map[string]source // by origin
	good    map[string]good   // by resource; its module is in use and stays
	bytes   int64             // on disk, with what is being written
}

func newStore(cfg storeConfig) *store {
	s := &store{
		storeConfig: cfg,
		modules:     map[moduleKey]*module{}, sources: map[string]source{}, good: map[string]good{},
	}
	s.load()
	return s
}

func (s *store) path(k moduleKey) string {
	return filepath.Join(s.dir, k.Module, k.Checksum+".wasm")
}

// lookup returns the module that serves the request, if it is there.
func (s *store) lookup(r request) (moduleKey, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := moduleKey{Module: digest(r.module), Checksum: r.checksum}
	if _, ok := s.modules[k]; !ok || r.checksum == "" {
		from, ok := s.sources[r.origin()]
		if !ok || r.checksum == "" && r.always && from.Versions[r.resource] != r.version {
			return k, false
		}
		k.Checksum = from.Checksum
	}
	return k, s.use(k)
}

// known reports whether the module is there, and then marks it as used.
func (s *store) known(k moduleKey) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.use(k)
}

// use marks a module as used. A file that is gone or was changed is none.
func (s *store) use(k moduleKey) bool {
	m, ok := s.modules[k]
	if !ok {
		return false
	}
	path := s.path(k)
	info, err := os.Lstat(path)
	if err == nil && (!info.Mode().IsRegular() || info.Size() != m.Size) {
		err = fmt.Errorf("it has %d bytes, not %d", info.Size(), m.Size)
	}
	if err == nil && !m.checked {
		err = checkFile(path, m.SHA256)
	}
	if err != nil {
		s.log.Warn("a Wasm module of the cache is damaged or gone, it is fetched again", "path", path, "err", err)
		s.remove(m)
		return false
	}
	m.checked, m.used = true, time.Now()
	// The next agent goes by the file's time. One that is not set makes it
	// purge the file too early, and fetch it again.
	_ = os.Chtimes(path, m.used, m.used)
	return true
}

// serve remembers what an origin gave for a request.
func (s *store) serve(r request, k moduleKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	from, ok := s.sources[r.origin()]
	if ok && from.Checksum == k.Checksum && from.Versions[r.resource] == r.version {
		return
	}
	if from.Checksum != k.Checksum || len(from.Versions) >= maxVersions {
		from = source{Checksum: k.Checksum}
	}
	versions := map[string]string{r.resource: r.version}
	for name, version := range from.Versions {
		if name != r.resource {
			versions[name] = version
		}
	}
	from.Versions = versions
	for name := range s.sources { // any one: it costs a download at most
		if len(s.sources) < maxSources {
			break
		}
		delete(s.sources, name)
	}
	s.sources[r.origin()] = from
	s.save()
}

// remember keeps what a resource was converted to; its module stays as long.
// It reports false if the module had to make room for another just now.
func (s *store) remember(resource string, b []byte, k moduleKey) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.modules[k]; !ok {
		return false
	}
	delete(s.good, resource)
	if len(b) > maxGoodBytes {
		b = nil // the module stays nevertheless
	}
	for name := range s.good {
		if len(s.good) < maxGood {
			break
		}
		delete(s.good, name)
	}
	s.good[resource] = good{resource: b, key: k}
	return true
}

// forget drops what a resource was converted to.
func (s *store) forget(resource string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.good, resource)
}

// lastGood returns what a resource was converted to, if its module is there.
func (s *store) lastGood(resource string) ([]byte, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	g, ok := s.good[resource]
	if !ok || g.resource == nil || !s.use(g.key) {
		return nil, false
	}
	return g.resource, true
}

// reserve makes room for n bytes more, where old modules have to go.
func (s *store) reserve(n int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var inUse map[moduleKey]bool
	for s.bytes+n > s.maxBytes {
		if inUse == nil {
			inUse = s.inUse()
		}
		oldest := s.oldest(inUse)
		if oldest == nil {
			return fmt.Errorf("the cache is full: %d bytes are in use, and its limit is %d; raise the limit or use fewer modules", s.bytes, s.maxBytes)
		}
		s.log.Info("a Wasm module makes room for another", "path", s.path(oldest.moduleKey))
		s.remove(oldest)
	}
	s.count(n)
	return nil
}

// release frees what was reserved.
func (s *store) release(n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count(-n)
}

// purge deletes what was not used since then, and is not in use now.
func (s *store) purge(since time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	inUse := s.inUse()
	for k, m := range s.modules {
		if m.used.Before(since) && !inUse[k] {
			s.log.Info("a Wasm module that nothing used is deleted", "path", s.path(k))
			s.remove(m)
		}
	}
	s.save()
}

// inUse are the modules of what was converted in this run.
func (s *store) inUse() map[moduleKey]bool {
	keys := map[moduleKey]bool{}
	for _, g := range s.good {
		keys[g.key] = true
	}
	return keys
}

func (s *store) oldest(except map[moduleKey]bool) *module {
	var oldest *module
	for k, m := range s.modules {
		if !except[k] && (oldest == nil || m.used.Before(oldest.used)) {
			oldest = m
		}
	}
	return oldest
}

// remove deletes a module and what says that it is there.
func (s *store) remove(m *module) {
	delete(s.modules, m.moduleKey)
	for origin, from := range s.sources {
		if from.Checksum == m.Checksum {
			delete(s.sources, origin)
		}
	}
	s.count(-m.Size)
	if err := os.Remove(s.path(m.moduleKey)); err != nil && !os.IsNotExist(err) {
		s.log.Warn("a Wasm module cannot be deleted", "path", s.path(m.moduleKey), "err", err)
	}
	// Others of the same name may be left in it; then it stays.
	_ = os.Remove(filepath.Join(s.dir, m.Module))
}

func (s *store) count(n int64) {
	s.bytes += n
	s.metrics.bytes.Set(float64(s.bytes))
	s.metrics.entries.Set(float64(len(s.modules)))
}
