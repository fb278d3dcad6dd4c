// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package file

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/outrigger-mesh/outrigger/controlplane/config"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// errHeld means that a file is gone or empty for the moment, perhaps because an
// editor is about to write it again.
var errHeld = errors.New("its file is missing at the moment")

// maxLooked bounds the files that a write looks at again because they hold its
// object. More than one of them counts for nothing but a problem.
const maxLooked = 16

// locked runs a write while nobody else writes, and repeats it when a file
// changed under it. ReadOnly means that the directory takes no writes.
func (s *Store) locked(ctx context.Context, verb string, key model.Key, write func(readOnly bool) error) error {
	select {
	case s.writing <- struct{}{}:
		defer func() { <-s.writing }()
	case <-ctx.Done():
	}
	for {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("%s %s: %w", verb, key, err)
		}
		release, err := lockDir(ctx, s.cfg.Dir)
		switch {
		case isReadOnly(err):
			denied := err
			if err = write(true); errors.Is(err, config.ErrReadOnly) {
				return fmt.Errorf("%s %s: %w (%w)", verb, key, err, denied)
			}
		case err != nil:
			return fmt.Errorf("%s %s: %w", verb, key, err)
		default:
			if !s.swept { // in the turn that writing gives
				sweep(ctx, s.cfg.Dir)
				s.swept = true
			}
			err = write(false)
			release()
		}
		switch {
		case errors.Is(err, errChanged):
		case errors.Is(err, errHeld):
			settled := time.NewTimer(s.cfg.Settle)
			select {
			case <-settled.C:
			case <-ctx.Done():
				settled.Stop()
			}
		case isReadOnly(err):
			return fmt.Errorf("%s %s: %w (%w)", verb, key, config.ErrReadOnly, err)
		case err != nil:
			return fmt.Errorf("%s %s: %w", verb, key, err)
		default:
			return nil
		}
	}
}

// standing is an object as it is on disk now.
type standing struct {
	object *model.Config // with its status; nil when there is none
	file   *file         // that contains it
	// fault is what is wrong with its document; empty when nothing is.
	fault model.Problem
}

// malformed returns the error about an invalid document.
func malformed(p model.Problem) error {
	return fmt.Errorf("%w (%s: %s)", config.ErrMalformed, p.Source, p.Reason)
}

// fresh looks again at the files that hold an object, or would.
func (s *Store) fresh(ctx context.Context, key model.Key) (standing, error) {
	ctx = context.WithoutCancel(ctx) // half a look says wrong things
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.tree
	t.now, t.whole = time.Now(), true
	defer func() { t.whole = false }()
	if !t.loaded {
		t.all = true
		t.refresh(ctx, t.now)
	}
	if !t.loaded {
		s.publish()
		return standing{}, fmt.Errorf("read the config directory %s: %s", s.cfg.Dir, t.trouble[s.cfg.Dir])
	}
	look := func(path string) bool {
		info, err := os.Stat(path)
		t.look(ctx, path, info, err, true)
		return err == nil
	}
	// Those that win come first: what they hold is what counts.
	holders := slices.SortedFunc(slices.Values(s.index.holders[key]), func(a, b holder) int {
		if precedes(a.file, b.file) {
			return -1
		}
		return 1
	})
	held := len(holders) > 0
	for _, h := range holders[:min(maxLooked, len(holders))] {
		look(h.file.path)
	}
	for n := 1; look(s.place(key, n)); n++ {
	}
	t.status.look(t.status.place(key))
	s.publish()
	if held && len(s.index.holders[key]) == 0 {
		// Somebody removed it, or moved it to a file that was not seen yet.
		t.all = true
		t.refresh(ctx, t.now)
		s.publish()
	}
	h := s.index.winner(key)
	switch {
	case h.file == nil:
		return standing{}, nil
	case h.file.held():
		return standing{}, errHeld
	}
	return standing{t.status.dress(h.object), h.file, h.file.fault(key)}, nil
}

// place returns the n-th path, from 1, for the file of a new object: <namespace>/
// <kind>-<name>.yaml below the directory. Further paths are for the case that a
// user's file has that name.
func (s *Store) place(key model.Key, n int) string {
	words := []string{strings.ToLower(string(key.Kind)), key.Name}
	if n > 1 {
		words = append(words, strconv.Itoa(n))
	}
	return filepath.Join(s.cfg.Dir, key.Namespace, fileName(".yaml", "-", words...))
}
