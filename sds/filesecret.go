// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package sds

import (
	"fmt"
	"maps"
	"slices"
)

// maxFileSecrets is the maximum number of secrets of named files that are followed.
const maxFileSecrets = 1000

// fileSecret is a secret from named files.
type fileSecret struct {
	group *group
	users int       // streams that subscribe to it
	value *material // nil until the files have been read
}

// loader returns the files that a resource names, and the function that parses their
// contents.
func (r resource) loader() (paths []string, parse func([][]byte) (*material, error)) {
	switch r.kind {
	case kindFileCert:
		return slices.Clone(r.paths), fileCertificate
	case kindFileRoots:
		return slices.Clone(r.paths), fileRoots
	default:
		return []string{systemBundle()}, systemFileRoots
	}
}

// acquire follows the files of a name. Each call needs a call of release.
func (f *Files) acquire(name string, r resource) error {
	f.mu.Lock()
	s := f.secrets[name]
	if s != nil {
		s.users++
		f.mu.Unlock()
		return nil
	}
	if len(f.secrets) >= maxFileSecrets {
		f.mu.Unlock()
		return fmt.Errorf("secrets of %d other files are followed, which is the limit", maxFileSecrets)
	}
	paths, parse := r.loader()
	s = &fileSecret{users: 1}
	s.group = &group{paths: paths, take: func(contents [][]byte) error {
		value, err := parse(contents)
		if err == nil {
			f.put(s, value)
		}
		return err
	}}
	f.secrets[name] = s
	f.mu.Unlock()
	f.follow(s.group)
	return nil
}

// put sets the value of a secret and notifies waiters.
func (f *Files) put(s *fileSecret, value *material) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s.value = value
	close(f.changed)
	f.changed = make(chan struct{})
}

func (f *Files) release(name string) {
	f.mu.Lock()
	s := f.secrets[name]
	s.users--
	if s.users > 0 {
		f.mu.Unlock()
		return
	}
	delete(f.secrets, name)
	f.mu.Unlock()
	f.unfollow(s.group)
}

// get returns the current value of an acquired name.
func (f *Files) get(name string) *material {
	f.mu.Lock()
	defer f.mu.Unlock()
	if s := f.secrets[name]; s != nil {
		return s.value
	}
	return nil
}

// next returns a channel that is closed at the next change of any secret.
func (f *Files) next() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.changed
}

// all returns the current values by name.
func (f *Files) all() map[string]*material {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := map[string]*material{}
	for _, name := range slices.Sorted(maps.Keys(f.secrets)) {
		if v := f.secrets[name].value; v != nil {
			out[name] = v
		}
	}
	return out
}

// load reads the files of a resource once.
func (r resource) load() (*material, error) {
	paths, parse := r.loader()
	contents, err := readFiles(paths)
	if err != nil {
		return nil, err
	}
	return parse(contents)
}

// acquired are the names that one stream has acquired. The goroutine of the stream owns
// it.
type acquired struct {
	files *Files           // nil if secrets of files are not served
	names map[string]error // an error means that the name could not be acquired
}

// get returns the current value of a name, which it acquires if necessary.
func (h *acquired) get(name string, r resource) (m *material, served bool) {
	if h.files == nil {
		return nil, false
	}
	err, ok := h.names[name]
	if !ok {
		err = h.files.acquire(name, r)
		h.names[name] = err
	}
	if err != nil {
		return nil, false
	}
	return h.files.get(name), true
}

// keep releases all names except the given ones.
func (h *acquired) keep(names map[string]string) {
	for name, err := range h.names {
		if _, ok := names[name]; ok {
			continue
		}
		delete(h.names, name)
		if err == nil {
			h.files.release(name)
		}
	}
}

func (h *acquired) release() { h.keep(nil) }

// changed returns a channel that is closed at the next change of a secret of files, or
// nil if there is none to wait for.
func (h *acquired) changed() <-chan struct{} {
	if h.files == nil {
		return nil
	}
	return h.files.next()
}
