// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package jwks

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
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/durable"
	"github.com/outrigger-mesh/outrigger/internal/filetree"
)

const (
	diskSuffix = ".json"
	// maxStored is the maximum number of sets that are read from disk.
	maxStored = 2 * MaxSources
)

// disk has the last good keys in a directory, one file for each source. The time of a file is that
// of its last use. A nil disk has none.
type disk struct {
	dir string
	log *slog.Logger
	// broken is true after an error that was logged.
	broken atomic.Bool
}

// stored is the content of a file.
type stored struct {
	URL     string            `json:"url,omitempty"`
	Issuer  string            `json:"issuer,omitempty"`
	Fetched time.Time         `json:"fetched"`
	Keys    []json.RawMessage `json:"keys"`
}

// openDisk creates the directory. It returns nil if that is not possible: keys are then fetched
// after each start.
func openDisk(dir string, log *slog.Logger) *disk {
	if dir == "" {
		return nil
	}
	err := os.MkdirAll(dir, 0o700)
	if err == nil {
		err = os.Chmod(dir, 0o700) //nolint:gosec // a directory needs the execute bit
	}
	if err != nil {
		log.Warn("the keys of token issuers are not stored; after a restart of the control plane tokens are refused while an issuer is down", "path", dir, "err", err)
		return nil
	}
	return &disk{dir: dir, log: log}
}

func (d *disk) path(source Source) string {
	sum := sha256.Sum256([]byte(source.URL + "\x00" + source.Issuer))
	return filepath.Join(d.dir, hex.EncodeToString(sum[:16])+diskSuffix)
}

// load reads all files. It removes files that were not used for long, and the remains of writes
// that did not end.
func (d *disk) load(now time.Time) map[Source]*entry {
	out := map[Source]*entry{}
	if d == nil {
		return out
	}
	names, err := os.ReadDir(d.dir)
	if err != nil {
		d.log.Warn("the stored keys of token issuers cannot be read", "path", d.dir, "err", err)
		return out
	}
	files := make([]fs.FileInfo, 0, len(names))
	for _, name := range names {
		info, err := name.Info()
		switch {
		case err != nil || !info.Mode().IsRegular():
		case strings.Contains(name.Name(), durable.Suffix), now.Sub(info.ModTime()) > keepUnused:
			_ = os.Remove(filepath.Join(d.dir, name.Name())) // it harms nobody
		case strings.HasSuffix(name.Name(), diskSuffix):
			files = append(files, info)
		}
	}
	slices.SortFunc(files, func(a, b fs.FileInfo) int { return b.ModTime().Compare(a.ModTime()) })
	for _, info := range files[:min(len(files), maxStored)] {
		source, e, err := d.read(filepath.Join(d.dir, info.Name()))
		if err != nil {
			d.log.Warn("stored keys of a token issuer cannot be read; they are fetched again", "path", filepath.Join(d.dir, info.Name()), "err", err)
			continue
		}
		e.used = info.ModTime()
		out[source] = e
	}
	return out
}

func (d *disk) read(path string) (Source, *entry, error) {
	text, _, err := filetree.Boundary{Root: d.dir}.ReadFile(path, MaxSet)
	if err != nil {
		return Source{}, nil, err
	}
	var s stored
	if err := json.Unmarshal(text, &s); err != nil {
		return Source{}, nil, err
	}
	source := Source{URL: s.URL, Issuer: s.Issuer}
	if d.path(source) != path {
		return Source{}, nil, fmt.Errorf("it has the keys of another issuer, %s", source)
	}
	body, err := json.Marshal(map[string]any{"keys": s.Keys})
	if err != nil {
		return Source{}, nil, err
	}
	set, err := Parse(body, true)
	if err != nil {
		return Source{}, nil, err
	}
	keys := newKeys(set)
	if len(keys.List) == 0 {
		return Source{}, nil, errors.New("it has no keys for signatures")
	}
	return source, &entry{set: set, keys: keys, fetched: s.Fetched, saved: keys.Version}, nil
}

// save writes the keys of a source. It reports whether that succeeded.
func (d *disk) save(source Source, keys *Keys, fetched time.Time) bool {
	if d == nil {
		return true
	}
	s := stored{URL: source.URL, Issuer: source.Issuer, Fetched: fetched}
	for _, key := range keys.List {
		s.Keys = append(s.Keys, json.RawMessage(key))
	}
	text, err := json.Marshal(s)
	if err == nil {
		err = durable.Replace(d.path(source), text, 0o600)
	}
	if err == nil {
		d.touch(source, fetched)
		d.broken.Store(false)
		return true
	}
	if !d.broken.Swap(true) {
		d.log.Warn("the keys of a token issuer cannot be stored; after a restart of the control plane its tokens are refused while it is down", "source", source.String(), "err", err)
	}
	return false
}

// touch records that the keys of a source are used.
func (d *disk) touch(source Source, now time.Time) {
	if d != nil {
		_ = os.Chtimes(d.path(source), now, now) // a missing file is written by the next save
	}
}

func (d *disk) remove(source Source) {
	if d != nil {
		_ = os.Remove(d.path(source)) // load removes it later
	}
}
