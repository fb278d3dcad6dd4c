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

// ErrEmpty is the error of a file that had content and has none now.
var ErrEmpty = errors.New("it is empty, as a file is while it is written")

// FollowerConfig describes a [Follower].
type FollowerConfig struct {
	Path string // of the file
	// MaxBytes is the size of the largest text that is taken, in bytes.
	MaxBytes int64
	// Every is the time between two looks at the file.
	Every time.Duration
	// Optional accepts that the file is missing until it was there once.
	Optional bool
	// Take takes a text that differs from the last one. An error refuses it.
	Take func(text []byte) error
	// Report is called in Run with each error that differs from the last one, and
	// with nil after the last one. Optional.
	Report func(err error)
}

// Follower hands on the text of a file whenever it changes. A file that cannot be
// read, is empty or is refused changes nothing.
type Follower struct {
	cfg  FollowerConfig
	last []byte                // the text that was taken last; nil before
	err  atomic.Pointer[error] // of the last look of Run; nil for none
}

// NewFollower returns a Follower that has not looked at the file yet.
func NewFollower(cfg FollowerConfig) *Follower { return &Follower{cfg: cfg} }

// Path returns the path of the file.
func (f *Follower) Path() string { return f.cfg.Path }

// Look reads the file and takes what changed. The error does not name the file. Look
// must not be called while Run runs.
func (f *Follower) Look() error {
	// An operator names the file: its links may lead anywhere.
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

// Run looks at the file again and again until ctx ends, and returns nil.
func (f *Follower) Run(ctx context.Context) error {
	tick := time.NewTicker(f.cfg.Every)
	defer tick.Stop()
	for {
		// Cases: the end; time for a look.
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

// Err returns why the last look of Run changed nothing; nil if the newest text is
// taken.
func (f *Follower) Err() error {
	if err := f.err.Load(); err != nil {
		return *err
	}
	return nil
}
