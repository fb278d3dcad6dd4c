// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package filetree

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"sync/atomic"
	"time"
)

// ErrEmpty is returned for a file that had content and is now empty.
var ErrEmpty = errors.New("it is empty, as a file is while it is written")

// FollowerConfig describes a [Follower].
type FollowerConfig struct {
	Path string // of the file
	// MaxBytes is the maximum size of the file.
	MaxBytes int64
	// Every is the polling interval.
	Every time.Duration
	// Optional allows the file to be missing until it has existed once.
	Optional bool
	// Take receives a text that differs from the last one. It returns an error to reject the text.
	Take func(text []byte) error
	// Report is called by Run with each error that differs from the last one, and with nil when the
	// error is resolved. Optional.
	Report func(err error)
}

// Follower delivers the text of a file whenever it changes. A file that cannot be read, is empty or
// is rejected has no effect.
type Follower struct {
	cfg  FollowerConfig
	last []byte                // the text that was accepted last; nil before the first
	err  atomic.Pointer[error] // result of Run's last check; nil if there was no error
}

// NewFollower returns a Follower that has not read the file yet.
func NewFollower(cfg FollowerConfig) *Follower { return &Follower{cfg: cfg} }

// Path returns the path of the file.
func (f *Follower) Path() string { return f.cfg.Path }

// Look reads the file and delivers its text if it has changed. The error does not name the file.
// Look must not be called concurrently with Run.
func (f *Follower) Look() error {
	// The operator names the file, so its links may lead anywhere.
	text, _, err := Boundary{Root: "/"}.ReadFile(f.cfg.Path, f.cfg.MaxBytes+1)
	switch {
	case f.cfg.Optional && f.last == nil && errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case int64(len(text)) > f.cfg.MaxBytes:
		return fmt.Errorf("it has more than %d bytes", f.cfg.MaxBytes)
	case f.last != nil && bytes.Equal(text, f.last):
		return nil
	case f.last != nil && len(bytes.TrimSpace(text)) == 0:
		return ErrEmpty
	}
	if err := f.cfg.Take(text); err != nil {
		return err
	}
	f.last = append([]byte{}, text...)
	return nil
}

// Run polls the file until ctx is done, and returns nil.
func (f *Follower) Run(ctx context.Context) error {
	tick := time.NewTicker(f.cfg.Every)
	defer tick.Stop()
	for {
		// Events: shutdown; time for the next check.
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		err := f.Look()
		before := f.Err()
		if (err == nil) == (before == nil) && (err == nil || err.Error() == before.Error()) {
			continue
		}
		f.err.Store(&err)
		if f.cfg.Report != nil {
			f.cfg.Report(err)
		}
	}
}

// Err returns the error of Run's last check, or nil if the newest text has been accepted.
func (f *Follower) Err() error {
	if err := f.err.Load(); err != nil {
		return *err
	}
	return nil
}
