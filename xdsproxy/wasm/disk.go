// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package wasm

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/outrigger-mesh/outrigger/internal/durable"
	"github.com/outrigger-mesh/outrigger/internal/localuser"
)

const (
	indexName    = "index.json"
	partPrefix   = ".part-" // a file that is being written
	indexVersion = 1
	maxIndex     = 16 << 20
	// writable are the mode bits of files that another user may have modified.
	writable = 0o022
)

// index is the file that describes the content of the directory for the next agent.
type index struct {
	Version int               `json:"version"`
	Modules []*module         `json:"modules"`
	Sources map[string]source `json:"sources"`
}

// load adopts the modules of an earlier agent. It removes those that are missing in the index or
// differ from it.
func (s *store) load() {
	idx, err := readIndex(filepath.Join(s.dir, indexName))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.log.Warn("the index of the Wasm modules cannot be read; the cache starts empty", "path", s.dir, "err", err)
	}
	for _, m := range idx.Modules {
		if m == nil || !m.valid() {
			continue
		}
		info, err := os.Lstat(s.path(m.moduleKey))
		if !isRealDir(filepath.Dir(s.path(m.moduleKey))) || err != nil || !info.Mode().IsRegular() || info.Size() != m.Size {
			continue
		}
		m.used = info.ModTime()
		s.modules[m.moduleKey] = m
		s.bytes += m.Size
	}
	for origin, from := range idx.Sources {
		if isDigest(origin) && isDigest(from.Checksum) && len(s.sources) < maxSources {
			s.sources[origin] = from
		}
	}
	s.sweep()
	s.count(0)
}

// valid reports whether an entry of the index can be a module: its fields are used in a path.
func (m *module) valid() bool {
	return isDigest(m.Module) && isDigest(m.Checksum) && isDigest(m.SHA256) && m.Size > 0
}

func isDigest(s string) bool {
	b, err := hex.DecodeString(s)
	return err == nil && len(b) == sha256.Size && s == strings.ToLower(s)
}

func readIndex(path string) (index, error) {
	f, err := localuser.Open(path, writable)
	if err != nil {
		return index{}, err
	}
	defer func() { _ = f.Close() }() // read-only: closing cannot lose data
	var idx index
	if err := json.NewDecoder(io.LimitReader(f, maxIndex)).Decode(&idx); err != nil {
		return index{}, err
	}
	if idx.Version != indexVersion {
		return index{}, fmt.Errorf("it has version %d, not %d", idx.Version, indexVersion)
	}
	return idx, nil
}

// sweep removes files of the cache that are not in the index: partial downloads, and modules of
// other versions of the agent. It touches no other files.
func (s *store) sweep() {
	parts, _ := filepath.Glob(filepath.Join(s.dir, partPrefix+"*"))
	files, _ := filepath.Glob(filepath.Join(s.dir, strings.Repeat("[0-9a-f]", 2*sha256.Size), "*.wasm"))
	for _, path := range append(files, parts...) {
		k := moduleKey{Module: filepath.Base(filepath.Dir(path)), Checksum: strings.TrimSuffix(filepath.Base(path), ".wasm")}
		if _, ok := s.modules[k]; ok {
			continue
		}
		if dir := filepath.Dir(path); dir != s.dir && !isRealDir(dir) {
			_ = os.Remove(dir) // removes a link, but not its target
			continue
		}
		if err := os.Remove(path); err != nil {
			s.log.Warn("a leftover Wasm module cannot be deleted", "path", path, "err", err)
		}
		if dir := filepath.Dir(path); dir != s.dir {
			_ = os.Remove(dir) // only if it is empty
		}
	}
}

// save writes the index. If that fails, the next agent only has to download the modules again.
func (s *store) save() {
	idx := index{Version: indexVersion, Sources: s.sources}
	for _, m := range s.modules {
		idx.Modules = append(idx.Modules, m)
	}
	b, err := json.Marshal(idx)
	if err == nil {
		err = s.writeIndex(b)
	}
	if err != nil {
		s.log.Warn("the index of the Wasm modules cannot be written; they are fetched again after a restart", "path", s.dir, "err", err)
	}
}

func (s *store) writeIndex(b []byte) error {
	f, err := s.part()
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	return s.finish(f, filepath.Join(s.dir, indexName), indexMode, err)
}

// part creates a temporary file, and the directory if necessary.
func (s *store) part() (*os.File, error) {
	if err := makeDir(s.dir); err != nil {
		return nil, err
	}
	return os.CreateTemp(s.dir, partPrefix+"*")
}

// finish atomically renames a completely written and durable file to its final name.
func (s *store) finish(f *os.File, path string, mode os.FileMode, err error) error {
	if err != nil {
		return errors.Join(err, durable.Discard(f))
	}
	return durable.Commit(f, path, mode)
}

// add adds a downloaded module to the cache. Space for it is already reserved.
func (s *store) add(d *download, k moduleKey) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	dir := filepath.Join(s.dir, k.Module)
	if err := makeDir(dir); err != nil {
		return err
	}
	if !isRealDir(dir) {
		return fmt.Errorf("%s is not a directory of the cache: remove it", dir)
	}
	if err := s.finish(d.file, s.path(k), fileMode, nil); err != nil {
		return err
	}
	if old, ok := s.modules[k]; ok {
		s.count(-old.Size) // its file is replaced
	}
	m := &module{moduleKey: k, SHA256: d.sha256, Size: d.size, checked: true}
	s.modules[k] = m
	s.count(0)
	s.use(k)
	s.save()
	return nil
}

// isRealDir reports whether a path is a directory and not a link to one, so that a link created by
// another user cannot redirect writes.
func isRealDir(dir string) bool {
	info, err := os.Lstat(dir)
	return err == nil && info.IsDir()
}

// makeDir creates a directory that Envoy can enter, whatever the umask.
func makeDir(dir string) error {
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	if err := os.MkdirAll(dir, dirMode); err != nil {
		return err
	}
	return os.Chmod(dir, dirMode)
}

// checkFile compares a file with its checksum.
func checkFile(path, want string) error {
	f, err := localuser.Open(path, writable)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // read-only: closing cannot lose data
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return err
	}
	if got := hex.EncodeToString(h.Sum(nil)); got != want {
		return fmt.Errorf("its sha256 is %s, not %s", got, want)
	}
	return nil
}
