// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package file

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/outrigger-mesh/outrigger/controlplane/config"
	"github.com/outrigger-mesh/outrigger/controlplane/config/codec"
	"github.com/outrigger-mesh/outrigger/controlplane/config/edit"
	"github.com/outrigger-mesh/outrigger/controlplane/config/field"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// Create adds an object; see [config.Store]. If its source is a file of the
// directory, which may be gone, it becomes the last object there, unless that file
// cannot be edited. Else it has a file of its own, <namespace>/<kind>-<name>.yaml.
// A creation time that it has is kept, to the second.
func (s *Store) Create(ctx context.Context, c *model.Config) (version string, err error) {
	const verb = "create"
	next, err := config.CheckWrite(verb, s, c)
	if err != nil {
		return "", err
	}
	next.Created = config.Creation(next)
	err = s.locked(ctx, verb, c.Key, func(readOnly bool) error {
		now, err := s.fresh(ctx, c.Key)
		switch {
		case err != nil:
			return err
		case now.object != nil:
			return config.ErrExists
		case readOnly:
			return config.ErrReadOnly
		}
		for _, p := range s.Problems() {
			if p.Object == c.Key && !p.Warning {
				return malformed(p)
			}
		}
		if err := s.saveStatus(c.Key, nil); err != nil {
			return err
		}
		path, f, err := s.sourceOf(ctx, c)
		if err != nil {
			return err
		}
		if f != nil && filepath.Ext(f.path) != jsonExt { // one object is all that a JSON text has
			version, err = s.rewrite(ctx, f, rewriting{key: c.Key, now: next, added: true})
			if err == nil || !errors.Is(err, config.ErrMalformed) {
				return err
			}
		}
		for n := 1; path == "" || exists(path); n++ {
			path = s.place(c.Key, n)
		}
		doc, err := encodeDocument(path, next)
		if err != nil {
			return err
		}
		after := decodeContent(context.WithoutCancel(ctx), path, doc)
		if err := acceptable(content{}, after, c.Key, true); err != nil {
			return err
		}
		if err := makeDirs(s.cfg.Dir, filepath.Dir(path)); err != nil {
			return err
		}
		if err := replaceFile(path, nil, doc); err != nil {
			return err
		}
		version = s.adopt(ctx, path, after, c.Key)
		return nil
	})
	return version, err
}

// sourceOf looks at the file that an object comes from if it is one of the
// directory. It returns nil, and the path, for one that is gone.
func (s *Store) sourceOf(ctx context.Context, c *model.Config) (path string, f *file, err error) {
	path = c.Source
	if i := strings.LastIndexByte(path, ':'); i >= 0 && strings.Trim(path[i+1:], "0123456789") == "" {
		path = path[:i]
	}
	s.mu.Lock()
	if s.tree.files[path] != nil {
		info, err := os.Stat(path)
		s.tree.look(context.WithoutCancel(ctx), path, info, err, true)
		s.publish()
	}
	f = s.tree.files[path]
	held, there := f != nil && f.held(), len(s.index.holders[c.Key]) > 0
	s.mu.Unlock()
	in, err := filepath.Rel(s.cfg.Dir, path)
	switch {
	case there:
		return "", nil, errChanged
	case held:
		return "", nil, errHeld
	case f != nil, err != nil, !filepath.IsLocal(in), strings.Contains("/"+in, "/."), !isConfigName(filepath.Base(in)):
		return "", f, nil
	}
	root, rootErr := filepath.EvalSymlinks(s.cfg.Dir)
	dir, dirErr := filepath.EvalSymlinks(filepath.Dir(path))
	if rootErr != nil || dirErr != nil || dir != filepath.Dir(filepath.Join(root, in)) {
		return "", nil, nil // a link may lead out of the directory
	}
	return path, nil, nil
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, fs.ErrNotExist)
}

// encodeDocument returns the text of an object in a file with a path.
func encodeDocument(path string, c *model.Config) ([]byte, error) {
	bare := *c
	bare.UID, bare.ResourceVersion, bare.Generation, bare.Status = "", "", 0, nil
	if filepath.Ext(path) != jsonExt {
		return codec.EncodeYAML(&bare)
	}
	text, err := codec.EncodeJSON(&bare)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	err = json.Indent(&out, text, "", "  ")
	return append(out.Bytes(), '\n'), err
}

// jsonExt is the end of the names of files in JSON, which stay JSON.
const jsonExt = ".json"

// spelled reports whether the text of a file is of the format that its name says.
func spelled(path string, data []byte) bool {
	if filepath.Ext(path) == jsonExt {
		for d := range codec.Documents(data) {
			text := bytes.TrimSpace(bytes.TrimPrefix(d.Text, []byte("---")))
			if len(text) > 0 && !json.Valid(text) {
				return false
			}
		}
	}
	return true
}

// acceptable returns why a file must not be changed like this.
func acceptable(before, after content, key model.Key, there bool) error {
	for _, p := range after.problems {
		if there && p.Object == key && !p.Warning {
			return &config.InvalidError{Key: key, Faults: []field.Error{{Text: p.Reason}}}
		}
	}
	if err := checkEdit(before, after, key, there); err != nil {
		return fmt.Errorf("%w (its file cannot be changed in place: %w: change it by hand)", config.ErrMalformed, err)
	}
	return nil
}

// adopt makes a file visible that was just written, and returns the version of the
// object in it, or "" if the file was removed.
func (s *Store) adopt(ctx context.Context, path string, written content, key model.Key) (version string) {
	ctx = context.WithoutCancel(ctx) // it was written
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tree.known = written
	is := func(c *model.Config) bool { return c.Key == key }
	if f := s.tree.files[path]; f != nil && !slices.ContainsFunc(written.objects, is) {
		// Else a document that nobody can read would keep it in force, also if the
		// file was read since it was written.
		f.objects, f.read = slices.DeleteFunc(slices.Clone(f.objects), is), false
	}
	info, err := os.Stat(path)
	s.tree.look(ctx, path, info, err, true)
	s.tree.known = content{}
	s.publish()
	if i := slices.IndexFunc(written.objects, is); i >= 0 {
		return s.tree.status.dress(written.objects[i]).ResourceVersion
	}
	return ""
}

func (s *Store) saveStatus(key model.Key, status any) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.tree.status.save(key, status)
	s.publish()
	return err
}

// Update replaces the document of an object in its file; see [config.Store].
func (s *Store) Update(ctx context.Context, c *model.Config) (version string, err error) {
	const verb = "update"
	next, err := config.CheckWrite(verb, s, c)
	if err != nil {
		return "", err
	}
	err = s.locked(ctx, verb, c.Key, func(readOnly bool) error {
		now, err := s.fresh(ctx, c.Key)
		if err != nil {
			return err
		}
		if err := config.CompareVersion(now.object, c.ResourceVersion); err != nil {
			return err
		}
		mended := now.fault != model.Problem{}
		if mended && c.ResourceVersion != "" {
			// Who read the last good version has not seen what stands there.
			return malformed(now.fault)
		}
		next, err := config.Successor(now.object, next)
		if err != nil {
			return err
		}
		if config.SameContent(now.object, next) && now.object.APIVersion == next.APIVersion && !mended {
			version = now.object.ResourceVersion
			return nil
		}
		if readOnly {
			return config.ErrReadOnly
		}
		change := rewriting{key: c.Key, now: next}
		if !mended {
			change.was = now.object
		}
		version, err = s.rewrite(ctx, now.file, change)
		return err
	})
	return version, err
}

// rewriting is a change of an object in a file. Was is the object that its
// document holds, nil if the document is to be written again; now is nil if the
// object goes. Added is true for an object that the file does not hold yet.
type rewriting struct {
	key      model.Key
	was, now *model.Config
	added    bool
}

// text returns the text of a file after the change and what it holds then. If it
// can, it changes only the fields that differ.
func (r rewriting) text(ctx context.Context, path string, data []byte, before content) ([]byte, content, error) {
	var was, now []byte
	var err error
	if r.now != nil {
		if now, err = encodeDocument(path, r.now); err != nil {
			return nil, content{}, err
		}
	}
	if r.was != nil && r.now != nil {
		if was, err = encodeDocument(path, r.was); err != nil {
			return nil, content{}, err
		}
		if next, err := edit.Fields(data, r.key, was, now); err == nil && spelled(path, next) {
			after := decodeContent(ctx, path, next)
			if r.reached(after) && acceptable(before, after, r.key, true) == nil {
				return next, after, nil
			}
		}
	}
	var next []byte
	if r.added {
		next = slices.Concat(data, []byte("---\n"), now)
		if len(data) > 0 && data[len(data)-1] != '\n' {
			next = slices.Concat(data, []byte("\n---\n"), now)
		}
	} else if next, err = edit.Object(data, r.key, now); err != nil {
		return nil, content{}, fmt.Errorf("%w (%s: %w: change it by hand)", config.ErrMalformed, path, err)
	}
	after := decodeContent(ctx, path, next)
	return next, after, acceptable(before, after, r.key, r.now != nil)
}

// reached reports whether a file holds the object as it is meant to be.
func (r rewriting) reached(c content) bool {
	i := slices.IndexFunc(c.objects, func(o *model.Config) bool { return o.Key == r.key })
	return i >= 0 && config.SameContent(c.objects[i], r.now) && c.objects[i].APIVersion == r.now.APIVersion
}

// rewrite changes an object in a file, and returns its new version.
func (s *Store) rewrite(ctx context.Context, f *file, change rewriting) (version string, err error) {
	path, err := filepath.EvalSymlinks(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", errChanged
	}
	if err != nil {
		return "", err
	}
	data, _, err := s.tree.boundary.ReadFile(path, codec.MaxFileSize+1)
	if err != nil {
		return "", err
	}
	s.mu.Lock()
	same, before := f.read && sha256.Sum256(data) == f.sum, content{objects: f.written, problems: f.problems}
	s.mu.Unlock()
	if !same {
		return "", errChanged
	}
	next, after, err := change.text(context.WithoutCancel(ctx), f.path, data, before)
	if err != nil {
		return "", err
	}
	if change.now != nil || !onlyMarkers(next) {
		if err := replaceFile(path, data, next); err != nil {
			return "", err
		}
		return s.adopt(ctx, f.path, after, change.key), nil
	}
	if err := replaceFile(path, data, nil); err != nil {
		return "", err
	}
	if path != f.path {
		_ = os.Remove(f.path) // a link that leads nowhere now; fails where a directory on the way is the link
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tree.drop(f)
	s.publish()
	return "", nil
}

// UpdateStatus replaces the status of an object, which is kept in
// the state directory, or in memory without one; see [config.Store].
func (s *Store) UpdateStatus(ctx context.Context, c *model.Config) (version string, err error) {
	const verb = "update the status of"
	status, err := config.CheckStatus(verb, s, c)
	if err != nil {
		return "", err
	}
	err = s.locked(ctx, verb, c.Key, func(bool) error {
		now, err := s.fresh(ctx, c.Key)
		if err != nil {
			return err
		}
		if err := config.CompareVersion(now.object, c.ResourceVersion); err != nil {
			return err
		}
		if !model.SameSpec(now.object.Status, status) {
			if err := s.saveStatus(c.Key, status); err != nil {
				return err
			}
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		bare := s.index.winner(c.Key).object
		if bare == nil {
			return errChanged // it went while its status was written
		}
		version = s.tree.status.dress(bare).ResourceVersion
		return nil
	})
	return version, err
}

// Patch changes the newest state of an object; see [config.Store].
func (s *Store) Patch(ctx context.Context, key model.Key, change func(*model.Config) error) (string, error) {
	if s.Get(key) == nil {
		if _, err := s.fresh(ctx, key); err != nil && !errors.Is(err, errHeld) {
			return "", fmt.Errorf("patch %s: %w", key, err)
		}
	}
	return config.PatchByUpdate(ctx, s, key, change)
}

// Delete removes the document of an object, and its file when it holds nothing
// else; see [config.Store].
func (s *Store) Delete(ctx context.Context, key model.Key, resourceVersion string) error {
	const verb = "delete"
	removed := false
	return s.locked(ctx, verb, key, func(readOnly bool) error {
		for {
			now, err := s.fresh(ctx, key)
			switch {
			case err != nil:
				return err
			case removed && now.object == nil:
				return s.saveStatus(key, nil)
			}
			if !removed {
				if err := config.CompareVersion(now.object, resourceVersion); err != nil {
					return err
				}
			}
			if readOnly {
				return config.ErrReadOnly
			}
			// The same object may be in several files.
			if _, err := s.rewrite(ctx, now.file, rewriting{key: key}); err != nil {
				return err
			}
			removed = true
		}
	})
}
