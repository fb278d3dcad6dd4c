// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package file

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/outrigger-mesh/outrigger/controlplane/config"
	"github.com/outrigger-mesh/outrigger/controlplane/config/codec"
	"github.com/outrigger-mesh/outrigger/controlplane/config/schema"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/internal/durable"
)

// stateDir returns a directory below the state directory of a store; empty
// without one.
func stateDir(state, name string) string {
	if state == "" {
		return ""
	}
	return filepath.Join(state, name)
}

// statusDir holds the status of objects, one file each. The mutex of the store
// guards it.
type statusDir struct {
	dir   string // empty keeps status in memory only
	log   *slog.Logger
	byKey map[model.Key]objectStatus
	files map[string]statusFile
	// all asks for a look at the whole directory; dirty at some files.
	all   bool
	dirty map[string]bool
	// changed are the keys whose status is not what was published.
	changed map[model.Key]bool
	// volatile means that the directory cannot be written to, and that the log
	// has said so.
	volatile bool
}

// objectStatus is the status of an object and the hash of it.
type objectStatus struct {
	status  any
	version string
}

type statusFile struct {
	info fs.FileInfo
	key  model.Key
}

// statusDocument is the form of a status in its file.
type statusDocument struct {
	Kind      model.Kind      `json:"kind"`
	Namespace string          `json:"namespace,omitempty"`
	Name      string          `json:"name"`
	Status    json.RawMessage `json:"status"`
}

func newStatusDir(dir string, log *slog.Logger) statusDir {
	return statusDir{
		dir: dir, log: log,
		byKey: map[model.Key]objectStatus{}, files: map[string]statusFile{},
		dirty: map[string]bool{}, changed: map[model.Key]bool{},
	}
}

// place returns the file of a status. Kinds and namespaces hold no dots.
func (d *statusDir) place(key model.Key) string {
	return filepath.Join(d.dir, fileName(".json", ".", string(key.Kind), key.Namespace, key.Name))
}

// dress returns an object with its status. The resource version is that of both.
func (d *statusDir) dress(c *model.Config) *model.Config {
	if c == nil {
		return nil
	}
	s, ok := d.byKey[c.Key]
	if !ok {
		return c
	}
	out := *c
	out.Status = s.status
	out.ResourceVersion += "-" + s.version
	return &out
}

// note remembers what an event asks to look at.
func (d *statusDir) note(path string) bool {
	if filepath.Ext(path) != ".json" {
		return false
	}
	d.dirty[path] = true
	return true
}

// refresh reads what may have changed.
func (d *statusDir) refresh() {
	if d.all {
		entries, err := os.ReadDir(d.dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			d.log.Warn("the status of objects cannot be read", "path", d.dir, "err", err)
			return
		}
		for _, e := range entries {
			d.note(filepath.Join(d.dir, e.Name()))
		}
		for path := range d.files {
			d.dirty[path] = true
		}
		d.all = false
	}
	for path := range d.dirty {
		d.look(path)
	}
	d.dirty = map[string]bool{}
}

// look reads one file if it is new.
func (d *statusDir) look(path string) {
	if d.dir == "" {
		return
	}
	was := d.files[path]
	info, err := os.Stat(path)
	if err != nil {
		if was.key.Name != "" && errors.Is(err, fs.ErrNotExist) {
			delete(d.files, path)
			d.set(was.key, nil)
		}
		return
	}
	if sameFile(was.info, info) && time.Since(info.ModTime()) > racy {
		return
	}
	key, status, err := d.read(path)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			d.log.Warn("the status of an object cannot be read; it is treated as empty", "path", path, "err", err)
		}
		return
	}
	d.files[path] = statusFile{info, key}
	d.set(key, status)
}

func (d *statusDir) read(path string) (model.Key, any, error) {
	raw, err := readFile(path)
	if err != nil {
		return model.Key{}, nil, err
	}
	var doc statusDocument
	if err := json.Unmarshal(raw, &doc); err != nil {
		return model.Key{}, nil, err
	}
	key := model.Key{Kind: doc.Kind, Namespace: doc.Namespace, Name: doc.Name}
	sch, ok := schema.Of(key.Kind)
	if !ok || d.place(key) != path {
		return key, nil, fmt.Errorf("it is about %s: %w", key, config.ErrNoKind)
	}
	status, err := sch.DecodeStatus(doc.Status)
	return key, status, err
}

// set changes what is in memory; nil means no status.
func (d *statusDir) set(key model.Key, status any) {
	was := d.byKey[key].version
	if status == nil {
		delete(d.byKey, key)
	} else {
		raw, err := codec.CanonicalSpec(status)
		if err != nil {
			raw = []byte(err.Error()) // only text that is not UTF-8
		}
		sum := sha256.Sum256(raw)
		d.byKey[key] = objectStatus{status, hex.EncodeToString(sum[:8])}
	}
	if d.byKey[key].version != was {
		d.changed[key] = true
	}
}

// save writes the status of an object, nil for none. If the directory cannot be
// written to, the status is kept in memory.
func (d *statusDir) save(key model.Key, status any) error {
	sch, ok := schema.Of(key.Kind)
	if !ok {
		return config.ErrNoKind
	}
	var raw []byte
	var err error
	if status != nil {
		if raw, err = codec.EncodeSpec(status); err != nil {
			return err
		}
		// As it will be read: times lose what JSON does not hold.
		if status, err = sch.DecodeStatus(raw); err != nil {
			return err
		}
	}
	if d.dir != "" {
		err = d.write(key, raw)
	}
	switch {
	case isReadOnly(err) && !d.volatile:
		d.volatile = true
		d.log.Warn("the state directory cannot be written to: the status of objects is kept in memory only", "path", d.dir)
	case err != nil && !isReadOnly(err):
		return err
	}
	d.set(key, status)
	return nil
}

func (d *statusDir) write(key model.Key, raw []byte) error {
	path := d.place(key)
	if raw == nil {
		delete(d.files, path)
		if err := os.Remove(path); err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			return err
		}
		return durable.SyncDir(d.dir)
	}
	doc, err := json.Marshal(statusDocument{Kind: key.Kind, Namespace: key.Namespace, Name: key.Name, Status: raw})
	if err != nil {
		return err
	}
	if err := os.MkdirAll(d.dir, stateMode); err != nil {
		return err
	}
	temp, err := writeTemp(d.dir, append(doc, '\n'), nil)
	if err != nil {
		return err
	}
	if err := os.Rename(temp, path); err != nil {
		_ = os.Remove(temp) // the first error is what matters
		return err
	}
	return durable.SyncDir(d.dir)
}
