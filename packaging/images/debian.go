// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/ulikunitz/xz"
)

// suite is the Debian release that packages are taken from. Its C library must
// not be older than the one that Envoy's builds need, 2.31.
const suite = "trixie"

// maxPackage bounds a package and an index, in bytes, compressed and unpacked.
const maxPackage = 256 << 20

// A debianPackage is one line of the lock file.
type debianPackage struct {
	arch, name, version, path, sha256 string
}

// packagesOf are the packages that images need.
var packagesOf = []string{"ca-certificates", "libc6"}

// readLock reads the lock file: for each package a line with architecture, name,
// version, path in the archive, and SHA-256.
func readLock(file string) ([]debianPackage, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var pinned []debianPackage
	for i, line := range strings.Split(string(text), "\n") {
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		f := strings.Fields(line)
		if len(f) != 5 || len(f[4]) != 2*sha256.Size || strings.Contains(f[3], "..") {
			return nil, fmt.Errorf("%s:%d: want architecture, package, version, path and SHA-256", file, i+1)
		}
		pinned = append(pinned, debianPackage{arch: f[0], name: f[1], version: f[2], path: f[3], sha256: f[4]})
	}
	return pinned, nil
}

// updateLock pins the versions that the archive has now.
func updateLock(ctx context.Context, o options) error {
	var text strings.Builder
	text.WriteString("# The Debian packages inside the images. `make images-lock` writes this file.\n")
	for _, arch := range o.arches {
		url := fmt.Sprintf("%s/dists/%s/main/binary-%s/Packages.xz", o.mirror, suite, arch)
		index, err := get(ctx, url)
		if err != nil {
			return err
		}
		unpacked, err := xz.NewReader(bytes.NewReader(index))
		if err != nil {
			return fmt.Errorf("%s: %w", url, err)
		}
		found, err := readIndex(io.LimitReader(unpacked, maxPackage))
		if err != nil {
			return fmt.Errorf("%s: %w", url, err)
		}
		for _, name := range packagesOf {
			p, ok := found[name]
			if !ok {
				return fmt.Errorf("%s: there is no package %s", url, name)
			}
			fmt.Fprintln(&text, arch, p.name, p.version, p.path, p.sha256)
		}
	}
	return os.WriteFile(o.lock, []byte(text.String()), 0o644)
}

// readIndex returns packagesOf from an index of Debian's format: paragraphs of
// fields, one field a line.
func readIndex(r io.Reader) (map[string]debianPackage, error) {
	found := map[string]debianPackage{}
	var p debianPackage
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		key, value, _ := strings.Cut(lines.Text(), ": ")
		switch key {
		case "Package":
			p.name = value
		case "Version":
			p.version = value
		case "Filename":
			p.path = value
		case "SHA256":
			p.sha256 = value
		case "":
			if slices.Contains(packagesOf, p.name) {
				found[p.name] = p
			}
			p = debianPackage{}
		}
	}
	return found, lines.Err()
}

// errUnavailable means that the archive cannot be reached, or that it no longer
// has a pinned package.
var errUnavailable = errors.New("not available")

// downloadAll downloads the packages of all architectures to the cache.
func downloadAll(ctx context.Context, o options, pinned []debianPackage) error {
	for _, p := range pinned {
		if !slices.Contains(o.arches, p.arch) {
			continue
		}
		if _, err := p.files(ctx, o); err != nil {
			return err
		}
	}
	return nil
}

// files returns the regular files and links of a pinned package, by path without
// a leading slash. It downloads the package unless the cache has it.
func (p debianPackage) files(ctx context.Context, o options) (map[string]file, error) {
	kept := filepath.Join(o.cache, path.Base(p.path))
	body, err := os.ReadFile(kept)
	if errors.Is(err, os.ErrNotExist) {
		if body, err = get(ctx, o.mirror+"/"+p.path); err != nil {
			return nil, fmt.Errorf("package %s %s: %w: %w; if the archive has a newer one, run make images-lock", p.name, p.version, errUnavailable, err)
		}
		err = keep(kept, body)
	}
	if err != nil {
		return nil, err
	}
	if sum := sha256.Sum256(body); hex.EncodeToString(sum[:]) != p.sha256 {
		return nil, fmt.Errorf("package %s: SHA-256 of %s is %x, %s says %s: remove the file", p.name, kept, sum, o.lock, p.sha256)
	}
	found, err := unpack(body)
	if err != nil {
		return nil, fmt.Errorf("package %s: %w", p.name, err)
	}
	return found, nil
}

// keep writes a file at once, for others may read it.
func keep(path string, content []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".package-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(f.Name()) }()
	if _, err := f.Write(content); err != nil {
		return errors.Join(err, f.Close())
	}
	return errors.Join(f.Close(), os.Rename(f.Name(), path))
}

// get downloads a file of the archive.
func get(ctx context.Context, url string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", url, response.Status)
	}
	return io.ReadAll(io.LimitReader(response.Body, maxPackage))
}

// unpack returns the content of a Debian package, which is an ar archive with a
// compressed tar in it (deb(5)).
func unpack(deb []byte) (map[string]file, error) {
	const header = 60
	rest, ok := bytes.CutPrefix(deb, []byte("!<arch>\n"))
	if !ok {
		return nil, errors.New("not an ar archive")
	}
	for len(rest) >= header {
		name := strings.TrimRight(string(rest[:16]), " /")
		size, err := strconv.Atoi(strings.TrimSpace(string(rest[48:58])))
		if err != nil || size < 0 || size > len(rest)-header {
			return nil, fmt.Errorf("member %q is cut off", name)
		}
		member := rest[header : header+size]
		rest = rest[min(len(rest), header+size+size%2):]
		switch name {
		case "data.tar.xz":
			r, err := xz.NewReader(bytes.NewReader(member))
			if err != nil {
				return nil, err
			}
			return untar(io.LimitReader(r, maxPackage))
		case "data.tar.gz", "data.tar.zst":
			return nil, fmt.Errorf("%s: only xz is supported", name)
		}
	}
	return nil, errors.New("there is no data.tar.xz")
}

// untar returns the files and links of a tar.
func untar(r io.Reader) (map[string]file, error) {
	found := map[string]file{}
	for in := tar.NewReader(r); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return found, nil
		}
		if err != nil {
			return nil, err
		}
		name := strings.TrimPrefix(path.Clean(h.Name), "/")
		switch h.Typeflag {
		case tar.TypeReg:
			content, err := io.ReadAll(in)
			if err != nil {
				return nil, err
			}
			found[name] = file{content: content, mode: h.Mode & 0o755}
		case tar.TypeSymlink:
			found[name] = file{link: h.Linkname}
		}
	}
}
