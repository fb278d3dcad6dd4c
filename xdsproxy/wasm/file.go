// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package wasm

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// fetchFile copies a module from the directory that file URLs may refer to. The copy is what is
// verified, so later changes of the file have no effect.
func (c *Cache) fetchFile(r request) (moduleKey, error) {
	fail := func(err error) (moduleKey, error) { return moduleKey{}, &fetchError{downloadFailure, err} }
	if r.url.Host != "" && r.url.Host != "localhost" {
		return fail(fmt.Errorf("the file is on another host, %s", r.url.Host))
	}
	f, err := c.openLocal(r.url.Path)
	if err != nil {
		return fail(err)
	}
	defer func() { _ = f.Close() }() // read-only: closing cannot lose data
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

// openRegular opens a regular file. It does not block on a pipe without a writer.
func openRegular(root *os.Root, path string) (*os.File, error) {
	f, err := root.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New("it is not a regular file")
	}
	if err != nil {
		_ = f.Close() // read-only: closing cannot lose data
		return nil, err
	}
	return f, nil
}
