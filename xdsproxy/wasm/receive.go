// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package wasm

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
)

// download is a module in the cache's directory that has not been added to the cache yet.
type download struct {
	file   *os.File
	sha256 string
	size   int64
	store  *store
}

// discard abandons a download.
func (d *download) discard() {
	_ = d.file.Close() // may be closed already, if adding it failed
	_ = os.Remove(d.file.Name())
	d.store.release(d.size)
}

const (
	wasmMagic = "\x00asm"
	minModule = 8 // size of magic and version
	gzipMagic = "\x1f\x8b"
	// The magic of a tar archive, in its first block.
	tarMagic   = "ustar"
	tarMagicAt = 257
	headBytes  = 512
	// maxWraps is the maximum depth of nested archives.
	maxWraps  = 4
	copyBytes = 64 << 10
)

var errNoModule = errors.New("it is not a WebAssembly module: it does not begin with 00 61 73 6d")

// receive writes a module to a file and checks that it is valid.
func (c *Cache) receive(r io.Reader) (*download, error) {
	f, err := c.store.part()
	if err != nil {
		return nil, fmt.Errorf("keep the module: %w", err)
	}
	d := &download{file: f, store: c.store}
	sum := sha256.New()
	if err := d.write(io.TeeReader(limit(r, c.maxModule), sum)); err != nil {
		d.discard()
		return nil, err
	}
	d.sha256 = hex.EncodeToString(sum.Sum(nil))
	return d, nil
}

func (d *download) write(r io.Reader) error {
	b := bufio.NewReaderSize(r, copyBytes)
	head, err := b.Peek(minModule)
	if errors.Is(err, io.EOF) || err == nil && !bytes.HasPrefix(head, []byte(wasmMagic)) {
		return errNoModule
	}
	if err != nil {
		return err
	}
	_, err = io.Copy(d, b)
	return err
}

// Write appends to the file after reserving space for the data.
func (d *download) Write(p []byte) (int, error) {
	if err := d.store.reserve(int64(len(p))); err != nil {
		return 0, err
	}
	d.size += int64(len(p))
	n, err := d.file.Write(p)
	if err != nil {
		return n, fmt.Errorf("keep the module: %w", err)
	}
	return n, nil
}

// unwrap unpacks gzip and tar around a module, detected by content. It returns the first file of an
// archive.
func (c *Cache) unwrap(r io.Reader) (io.Reader, error) {
	for range maxWraps {
		b := bufio.NewReaderSize(limit(r, c.maxModule), headBytes)
		head, err := b.Peek(headBytes)
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		switch {
		case bytes.HasPrefix(head, []byte(gzipMagic)):
			if r, err = gzip.NewReader(b); err != nil {
				return nil, err
			}
		case len(head) == headBytes && bytes.HasPrefix(head[tarMagicAt:], []byte(tarMagic)):
			if r, err = fileOf(b, func(*tar.Header) bool { return true }); err != nil {
				return nil, err
			}
		default:
			return b, nil
		}
	}
	return nil, errors.New("it is wrapped in too many archives")
}

// fileOf returns the first file of an archive for which want returns true.
func fileOf(r io.Reader, want func(*tar.Header) bool) (io.Reader, error) {
	t := tar.NewReader(r)
	for {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return nil, errors.New("the archive has no such file")
		}
		if err != nil {
			return nil, fmt.Errorf("read the archive: %w", err)
		}
		if h.Typeflag == tar.TypeReg && want(h) {
			return t, nil
		}
	}
}

// limited reads up to a limit and returns an error, rather than EOF, beyond it.
type limited struct {
	r    io.Reader
	left int64
	max  int64
}

func limit(r io.Reader, n int64) io.Reader { return &limited{r: r, left: n, max: n} }

func (l *limited) Read(p []byte) (int, error) {
	if int64(len(p)) > l.left+1 {
		p = p[:l.left+1]
	}
	n, err := l.r.Read(p)
	if int64(n) > l.left {
		return int(l.left), fmt.Errorf("it is larger than %d bytes", l.max)
	}
	l.left -= int64(n)
	return n, err
}
