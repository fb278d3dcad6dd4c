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

// download is a module that was written to the cache's directory, and has no
// place in the cache yet.
type download struct {
	file   *os.File
	sha256 string
	size   int64
	store  *store
}

// discard abandons a download.
func (d *download) discard() {
	_ = d.file.Close() // closed already, if the cache could not take it
	_ = os.Remove(d.file.Name())
	d.store.release(d.size)
}

const (
	wasmMagic = "\x00asm"
	minModule = 8 // magic and version
	gzipMagic = "\x1f\x8b"
	// An archive's first block says that it is one.
	tarMagic   = "ustar"
	tarMagicAt = 257
	headBytes  = 512
	// maxWraps is how many archives one within another are opened.
	maxWraps  = 4
	copyBytes = 64 << 10
)

var errNoModule = errors.New("it is no WebAssembly module: it does not begin with 00 61 73 6d")

// receive writes a module to a file and checks that it is one.
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

// Write appends to the file, once there is room for it.
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

// unwrap opens gzip and tar around a module, however it is named. Of an
// archive it takes the first file.
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

// fileOf returns the first file of an archive that is wanted.
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

// limited reads up to a limit; more is an error, not an end.
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
