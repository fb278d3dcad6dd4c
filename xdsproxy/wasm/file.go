// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package wasm

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// fetchFile copies a module from the directory that file URLs may point to.
// The copy is what was checked, whatever happens to the file later.
func (c *Cache) fetchFile(r request) (moduleKey, error) {
	fail := func(err error) (moduleKey, error) { return moduleKey{}, &fetchError{downloadFailure, err} }
	if c.cfg.FileDir == "" {
		return fail(errors.New("no directory is configured that file URLs may point to"))
	}
	if r.url.Host != "" && r.url.Host != "localhost" {
		return fail(fmt.Errorf("the file is on another host, %s", r.url.Host))
	}
	path, err := filepath.Rel(c.cfg.FileDir, r.url.Path)
	if err != nil || !filepath.IsLocal(path) {
		return fail(fmt.Errorf("the file is not below %s", c.cfg.FileDir))
	}
	root, err := os.OpenRoot(c.cfg.FileDir) // no link leads out of it
	if err != nil {
		return fail(err)
	}
	defer func() { _ = root.Close() }()                              // only read: nothing can be lost
	f, err := root.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe without a writer must not block
	if err != nil {
		return fail(err)
	}
	defer func() { _ = f.Close() }() // only read: nothing can be lost
	info, err := f.Stat()
	if err != nil {
		return fail(err)
	}
	if !info.Mode().IsRegular() {
		return fail(errors.New("it is no regular file"))
	}
	inner, err := c.unwrap(f)
	if err != nil {
		return fail(err)
	}
	d, err := c.receive(inner)
	if err != nil {
		return fail(err)
	}
	return c.keep(r, d)
}
