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
	// busy bounds how long a directory that is never quiet is not read.
	busy    = 10 * quiet
	maxFile = 4 << 20
	// othersMay are the bits of a mode with which others than the owner and its
	// group may read a file, or the group may write it.
	othersMay fs.FileMode = 0o027
)

// FileConfig describes a FileSource.
type FileConfig struct {
	Dir        string                // is read with its subdirectories: *.yaml and *.yml
	Links      []string              // where links may lead to, beside Dir; "/" stands for all
	Namespace  string                // of Secrets that name none; empty means default
	Rescan     time.Duration         // how often the directory is looked at, in case an event was lost; zero means 30 s
	Logger     *slog.Logger          // nil means slog.Default()
	Registerer prometheus.Registerer // nil means no metrics
}

// FileSource is the Source of a directory with the YAML of Secrets, which it
// follows. Documents of other kinds are left to others. A file with Secrets must
// have a mode with which only its owner and its group may read it.
type FileSource struct {
	*Table

	cfg FileConfig
	// seen is what each file last was, good or bad; Run's goroutine owns it.
	seen map[string]*seenFile
	// trouble is what could not be read at the last look, with the reason.
	trouble map[string]string
}

// seenFile is a file as it was read.
type seenFile struct {
	sum     [sha256.Size]byte
	mode    fs.FileMode
	secrets []secret // of the last good version
	err     error
}

// NewFileSource returns the source of a directory, which has to exist.
func NewFileSource(cfg FileConfig) (*FileSource, error) {
	info, err := os.Stat(cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("open directory of credentials: %w", err)
	}
	if !info.IsDir() {
		return nil, fmt.Errorf("open directory of credentials %s: it is a file; name the directory that holds it", cfg.Dir)
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
	return &FileSource{Table: table, cfg: cfg, seen: map[string]*seenFile{}}, nil
}

// Run reads the directory and follows it until ctx is done.
func (s *FileSource) Run(ctx context.Context) error {
	var events chan fsnotify.Event
	var faults chan error
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		s.cfg.Logger.Warn("the directory of credentials cannot be watched; it is only looked at now and then", "path", s.cfg.Dir, "err", err)
	} else {
		defer func() { _ = watcher.Close() }() // nothing is left to do with it
		events, faults = watcher.Events, watcher.Errors
	}
	timer := time.NewTimer(s.cfg.Rescan)
	defer timer.Stop()
	for {
		s.scan(ctx, watcher)
		s.SetSynced()
		timer.Reset(s.cfg.Rescan)
		var since time.Time
	wait:
		for {
			// Cases: the end; something happened; events were lost; it is
			// quiet, or time to look at everything.
			select {
			case <-ctx.Done():
				return nil
			case <-events:
			case err := <-faults:
				s.cfg.Logger.Debug("watching the directory of credentials has trouble; looking at all of it", "path", s.cfg.Dir, "err", err)
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

// scan reads all files and brings the table up to date.
func (s *FileSource) scan(ctx context.Context, watcher *fsnotify.Watcher) {
	found := map[string]bool{}
	trouble := map[string]string{}
	_, err := filetree.Walk{
		Boundary: s.boundary(),
		Wanted:   func(name string) bool { ext := filepath.Ext(name); return ext == ".yaml" || ext == ".yml" },
		Enter: func(dir string) bool {
			if watcher != nil {
				// The watch comes first, so that nothing falls between. Without it
				// changes are seen a little later.
				_ = watcher.Add(dir)
			}
			return true
		},
		File: func(path string, _ fs.FileInfo) { found[path] = true; s.read(path) },
		Trouble: func(path, reason string) {
			if trouble[path] = reason; s.trouble[path] == reason {
				return
			}
			s.cfg.Logger.Warn("a path in the directory of credentials cannot be read; what was read before stays in force", "path", path, "reason", reason)
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
		if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) { // else it cannot be read now
			delete(s.seen, path)
		}
	}
	s.publish()
}

// read brings one file up to date. What is wrong with it is logged once.
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
	if err == nil && len(secrets) > 0 && mode&othersMay != 0 {
		err = fmt.Errorf("its mode is %#o, so that others may read or change the keys in it; set it to 0600", mode)
	}
	if err != nil {
		if !sameText(err, f.err) {
			s.cfg.Logger.Warn("a file with credentials is not taken; what it held before stays in force", "path", path, "err", err)
		}
		f.err = err
		return
	}
	f.sum, f.mode, f.secrets, f.err = sum, mode, secrets, nil
}

// boundary is where links may lead to.
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

// publish puts what the files hold into the table. Of several Secrets of one
// name, the one in the first file counts.
func (s *FileSource) publish() {
	paths := make([]string, 0, len(s.seen))
	for path := range s.seen {
		paths = append(paths, path)
	}
	slices.Sort(paths)
	held := map[key]bool{}
	for _, path := range paths {
		for _, secret := range s.seen[path].secrets {
			if !held[secret.key] {
				held[secret.key] = true
				s.Set(secret.key.namespace, secret.key.name, secret.data)
			}
		}
	}
	for _, k := range s.keys() {
		if !held[k] {
			s.Delete(k.namespace, k.name)
		}
	}
}

var _ Source = (*FileSource)(nil)
