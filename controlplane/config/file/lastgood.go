// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package file

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/outrigger-mesh/outrigger/controlplane/config/codec"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// lastGood stores the last good objects of invalid files on disk, so that they
// survive a restart: one file for each invalid file, removed once that is fixed.
// Write errors are logged; their only effect is that a restart loses the objects.
type lastGood struct {
	dir  string // empty turns it off
	keep bool   // else they are only read
	log  *slog.Logger
}

// place returns where the objects of a file are kept.
func (l lastGood) place(path string) string {
	sum := sha256.Sum256([]byte(path))
	return filepath.Join(l.dir, hex.EncodeToString(sum[:12])+".yaml")
}

// save writes what a file keeps, or removes what it does not keep any more.
func (l lastGood) save(f *file) {
	if l.dir == "" || !l.keep {
		return
	}
	if err := l.write(l.place(f.path), f.path, f.kept); err != nil {
		l.log.Warn("the last good version of objects cannot be stored on disk", "path", f.path, "err", err)
	}
}

func (l lastGood) write(place, path string, objects []*model.Config) error {
	if len(objects) == 0 {
		if err := os.Remove(place); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "# The last valid objects of %s, which is now invalid.\n", path)
	for _, c := range objects {
		doc, err := codec.EncodeJSON(c)
		if err != nil {
			return err
		}
		b.WriteString("---\n")
		b.Write(doc)
		b.WriteString("\n")
	}
	if err := os.MkdirAll(l.dir, stateMode); err != nil {
		return err
	}
	temp, err := writeTemp(l.dir, b.Bytes(), nil)
	if err != nil {
		return err
	}
	if err = os.Rename(temp, place); err != nil {
		_ = os.Remove(temp) // the first error is what matters
	}
	return err
}

// load returns the objects that were kept for a file. Those that are not valid
// any more are left out: another version may have written them.
func (l lastGood) load(path string) []*model.Config {
	if l.dir == "" {
		return nil
	}
	data, err := readFile(l.place(path))
	if err != nil {
		return nil // there are none, as for most files
	}
	objects, problems := codec.Decode(path, data)
	for _, p := range problems {
		l.log.Warn("a last good version on disk is invalid", "source", l.place(path), "reason", p.Reason)
	}
	for _, c := range objects {
		c.Source = path // not the line of the copy
	}
	return objects
}

// prune removes what was kept for files that are gone.
func (l lastGood) prune(files map[string]*file) {
	if l.dir == "" || !l.keep {
		return
	}
	places := map[string]bool{}
	for path := range files {
		places[l.place(path)] = true
	}
	kept, err := filepath.Glob(filepath.Join(l.dir, "*.yaml"))
	if err != nil {
		return
	}
	for _, place := range kept {
		if !places[place] {
			_ = os.Remove(place) // it harms nobody
		}
	}
}
