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

// moduleKey identifies a module by its origin and version.
type moduleKey struct {
	Module   string `json:"module"`   // sha256 of the module's name, in hex
	Checksum string `json:"checksum"` // checksum of the module, or of its image's manifest
}

// module is one file in the cache.
type module struct {
	moduleKey
	SHA256 string `json:"sha256"` // of the file, in hex
	Size   int64  `json:"size"`

	used    time.Time
	checked bool // the file has been compared with SHA256 in this run
}

// source is the last result from an origin.
type source struct {
	Checksum string            `json:"checksum"`
	Versions map[string]string `json:"versions,omitempty"` // versions of the plugins that were served, by resource
}

// good is the last converted version of a resource.
type good struct {
	resource []byte
	key      moduleKey
}

const (
	maxSources  = 1024
	maxVersions = 64
	maxGood     = 512
	// maxGoodBytes is the maximum size of a resource that is stored.
	maxGoodBytes = 256 << 10

	dirMode   = 0o755 // Envoy may run as another user
	fileMode  = 0o644
	indexMode = 0o600
)

type storeConfig struct {
	dir      string
	maxBytes int64
	log      *slog.Logger
	metrics  *metrics
}

// store contains the modules on disk and their state.
type store struct {
	storeConfig

	mu      sync.Mutex // guards the fields below, and changes of the directory
	modules map[moduleKey]*module
	sources map[string]source // by origin
	good    map[string]good   // by resource; their modules are in use and are not removed
	bytes   int64             // size on disk, including downloads in progress
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

// lookup returns the module for the request, if it is cached.
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

// known reports whether the module is cached, and marks it as used.
func (s *store) known(k moduleKey) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.use(k)
}

// use marks a module as used. It returns false if the file is missing or has been modified.
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
		s.log.Warn("a Wasm module of the cache is damaged or missing; it is fetched again", "path", path, "err", err)
		s.remove(m)
		return false
	}
	m.checked, m.used = true, time.Now()
	// The next agent uses the file's modification time. If it cannot be set, the file is removed
	// too early and downloaded again.
	_ = os.Chtimes(path, m.used, m.used)
	return true
}

// serve records the result from an origin for a request.
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
	for name := range s.sources { // any one: this costs at most one download
		if len(s.sources) < maxSources {
			break
		}
		delete(s.sources, name)
	}
	s.sources[r.origin()] = from
	s.save()
}

// remember stores the converted version of a resource, and keeps its module as long. It returns
// false if the module has just been evicted.
func (s *store) remember(resource string, b []byte, k moduleKey) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.modules[k]; !ok {
		return false
	}
	delete(s.good, resource)
	if len(b) > maxGoodBytes {
		b = nil // the module is kept nevertheless
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

// forget removes the converted version of a resource.
func (s *store) forget(resource string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.good, resource)
}

// lastGood returns the last converted version of a resource, if its module is cached.
func (s *store) lastGood(resource string) ([]byte, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	g, ok := s.good[resource]
	if !ok || g.resource == nil || !s.use(g.key) {
		return nil, false
	}
	return g.resource, true
}

// reserve reserves n bytes, evicting old modules if necessary.
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
		s.log.Info("Wasm module evicted from the cache", "path", s.path(oldest.moduleKey))
		s.remove(oldest)
	}
	s.count(n)
	return nil
}

// release releases reserved bytes.
func (s *store) release(n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count(-n)
}

// purge removes the modules that have not been used since the given time and are not in use.
func (s *store) purge(since time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	inUse := s.inUse()
	for k, m := range s.modules {
		if m.used.Before(since) && !inUse[k] {
			s.log.Info("unused Wasm module deleted", "path", s.path(k))
			s.remove(m)
		}
	}
	s.save()
}

// inUse returns the modules of the resources that were converted in this run.
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

// remove removes a module and all references to it.
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
	// The directory remains if it contains other versions of the module.
	_ = os.Remove(filepath.Join(s.dir, m.Module))
}

func (s *store) count(n int64) {
	s.bytes += n
	s.metrics.bytes.Set(float64(s.bytes))
	s.metrics.entries.Set(float64(len(s.modules)))
}
