// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package credentials

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/outrigger-mesh/outrigger/internal/filetree"
)

const (
	defaultRescan = 30 * time.Second
	quiet         = 50 * time.Millisecond
	// busy is the longest time for which a directory that changes continuously is not read.
	busy    = 10 * quiet
	maxFile = 4 << 20
	// othersMay are the permission bits that let others than the owner and its group read a file,
	// or the group write it.
	othersMay fs.FileMode = 0o027
	// othersWrite are those that let others than the owner write it.
	othersWrite fs.FileMode = 0o022
)

// FileConfig configures a FileSource.
type FileConfig struct {
	Dir        string                // read recursively: *.yaml and *.yml
	Links      []string              // directories, beside Dir, that links may lead to; "/" allows all
	Namespace  string                // of Secrets without one; empty means default
	Rescan     time.Duration         // interval of full scans, in case an event was lost; zero means 30 s
	Logger     *slog.Logger          // nil means slog.Default()
	Registerer prometheus.Registerer // nil disables metrics
}

// FileSource is the Source of a directory with Secrets in YAML, which it watches. It ignores
// documents of other kinds than Secret and ConfigMap. Only the owner and the group of a file with
// Secrets may have read permission.
type FileSource struct {
	*Table
	// Maps are the ConfigMaps in the directory.
	Maps RootMaps

	cfg FileConfig
	// seen is the last state of each file, valid or not. Run's goroutine owns it.
	seen map[string]*seenFile
	// trouble maps the paths that the last scan could not read to the reasons.
	trouble map[string]string
}

// seenFile is the state of a file when it was last read.
type seenFile struct {
	sum     [sha256.Size]byte
	mode    fs.FileMode
	secrets []secret // of the last valid version
	err     error
}

// NewFileSource returns the source of a directory, which must exist.
func NewFileSource(cfg FileConfig) (*FileSource, error) {
	info, err := os.Stat(cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("open directory of credentials: %w", err)
	}
	if !info.IsDir() {
		return nil, fmt.Errorf("open directory of credentials %s: it is a file; name its directory", cfg.Dir)
	}
	if cfg.Namespace == "" {
		cfg.Namespace = "default"
	}
	if cfg.Rescan <= 0 {
		cfg.Rescan = defaultRescan
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	table, err := NewTable(cfg.Logger, cfg.Registerer)
	if err != nil {
		return nil, err
	}
	maps, err := NewRootMaps(true, cfg.Logger, cfg.Registerer)
	if err != nil {
		return nil, err
	}
	return &FileSource{Table: table, Maps: maps, cfg: cfg, seen: map[string]*seenFile{}}, nil
}

// Run reads and watches the directory until ctx is done.
func (s *FileSource) Run(ctx context.Context) error {
	var events chan fsnotify.Event
	var faults chan error
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		s.cfg.Logger.Warn("the credentials directory cannot be watched; it is polled instead", "path", s.cfg.Dir, "err", err)
	} else {
		defer func() { _ = watcher.Close() }() // an error has no effect any more
		events, faults = watcher.Events, watcher.Errors
	}
	timer := time.NewTimer(s.cfg.Rescan)
	defer timer.Stop()
	for {
		s.scan(ctx, watcher)
		s.SetSynced()
		s.Maps.SetSynced()
		timer.Reset(s.cfg.Rescan)
		var since time.Time
	wait:
		for {
			// Cases: ctx is done; a file event; an error, by which events may be lost; the
			// directory is quiet, or a full scan is due.
			select {
			case <-ctx.Done():
				return nil
			case <-events:
			case err := <-faults:
				s.cfg.Logger.Debug("error while watching the credentials directory; rescanning it", "path", s.cfg.Dir, "err", err)
			case <-timer.C:
				break wait
			}
			if since.IsZero() {
				since = time.Now()
			}
			timer.Reset(min(quiet, max(0, busy-time.Since(since))))
		}
	}
}

// scan reads all files and updates the table.
func (s *FileSource) scan(ctx context.Context, watcher *fsnotify.Watcher) {
	found := map[string]bool{}
	trouble := map[string]string{}
	_, err := filetree.Walk{
		Boundary: s.boundary(),
		Wanted:   func(name string) bool { ext := filepath.Ext(name); return ext == ".yaml" || ext == ".yml" },
		Enter: func(dir string) bool {
			if watcher != nil {
				// Adding the watch before reading ensures that no change is missed. Without the
				// watch, changes are found by the next full scan.
				_ = watcher.Add(dir)
			}
			return true
		},
		File: func(path string, _ fs.FileInfo) { found[path] = true; s.read(path) },
		Trouble: func(path, reason string) {
			if trouble[path] = reason; s.trouble[path] == reason {
				return
			}
			s.cfg.Logger.Warn("a path in the credentials directory cannot be read; the previous credentials stay in force", "path", path, "reason", reason)
		},
	}.Run(ctx)
	if err != nil {
		return
	}
	s.trouble = trouble
	for path := range s.seen {
		if found[path] {
			continue
		}
		if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) { // otherwise it is temporarily unreadable
			delete(s.seen, path)
		}
	}
	s.publish()
}

// read updates the state of one file. It logs each error once.
func (s *FileSource) read(path string) {
	f := s.seen[path]
	if f == nil {
		f = &seenFile{}
		s.seen[path] = f
	}
	data, mode, err := s.readFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		delete(s.seen, path)
		return
	}
	sum := sha256.Sum256(data)
	if err == nil && f.err == nil && f.sum == sum && f.mode == mode {
		return
	}
	var secrets []secret
	if err == nil {
		secrets, err = decode(data, s.cfg.Namespace)
	}
	holdsKeys := slices.ContainsFunc(secrets, func(s secret) bool { return s.roots == nil })
	switch {
	case err != nil || len(secrets) == 0:
	case holdsKeys && mode&othersMay != 0:
		err = fmt.Errorf("its mode is %#o, so that others may read or change the keys in it; set it to 0600", mode)
	case mode&othersWrite != 0:
		err = fmt.Errorf("its mode is %#o, so that others may change the roots in it; set it to 0644", mode)
	}
	if err != nil {
		if !sameText(err, f.err) {
			s.cfg.Logger.Warn("credentials file rejected; its previous credentials stay in force", "path", path, "err", err)
		}
		f.err = err
		return
	}
	f.sum, f.mode, f.secrets, f.err = sum, mode, secrets, nil
}

// boundary returns the directories that links may lead to.
func (s *FileSource) boundary() filetree.Boundary {
	return filetree.Boundary{Root: s.cfg.Dir, Also: s.cfg.Links, Cure: "move the files, or allow it with ?links=/directory at the end of the source's URL"}
}

func (s *FileSource) readFile(path string) (data []byte, mode fs.FileMode, err error) {
	data, info, err := s.boundary().ReadFile(path, maxFile+1)
	if err != nil {
		return nil, 0, err
	}
	if len(data) > maxFile {
		err = fmt.Errorf("it has more than %d bytes", maxFile)
	}
	return data, info.Mode().Perm(), err
}

// publish updates the tables with the contents of the files. If several Secrets or ConfigMaps have
// the same name, the one in the first file wins.
func (s *FileSource) publish() {
	paths := make([]string, 0, len(s.seen))
	for path := range s.seen {
		paths = append(paths, path)
	}
	slices.Sort(paths)
	held, maps := map[key]bool{}, map[key]bool{}
	for _, path := range paths {
		for _, secret := range s.seen[path].secrets {
			k := secret.key
			switch {
			case secret.roots != nil && !maps[k]:
				maps[k] = true
				s.Maps.Set(k.namespace, k.name, secret.roots)
			case secret.roots == nil && !held[k]:
				held[k] = true
				s.Set(k.namespace, k.name, secret.data)
			}
		}
	}
	s.keep(held)
	s.Maps.keep(maps)
}

var _ Source = (*FileSource)(nil)
