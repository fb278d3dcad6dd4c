// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package debian

import (
	"archive/tar"
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
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

// DefaultMirror is the URL of the Debian archive.
const DefaultMirror = "http://deb.debian.org/debian"

// An Archive is a mirror of the Debian archive with a cache.
type Archive struct {
	Mirror string // URL; empty means DefaultMirror
	Cache  string // directory of downloaded packages
}

// A Package is one line of a lock file.
type Package struct {
	Arch, Name, Version, Path, SHA256 string
}

// A File is a regular file or a symbolic link of a package.
type File struct {
	Content []byte
	Link    string // target of a symbolic link
	Mode    int64
}

// ReadLock reads a lock file: for each package a line with architecture, name,
// version, path in the archive, and SHA-256.
func ReadLock(file string) ([]Package, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var pinned []Package
	for i, line := range strings.Split(string(text), "\n") {
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		f := strings.Fields(line)
		if len(f) != 5 || len(f[4]) != 2*sha256.Size || strings.Contains(f[3], "..") {
			return nil, fmt.Errorf("%s:%d: want architecture, package, version, path and SHA-256", file, i+1)
		}
		pinned = append(pinned, Package{Arch: f[0], Name: f[1], Version: f[2], Path: f[3], SHA256: f[4]})
	}
	return pinned, nil
}

// UpdateLock rewrites a lock file with the versions that the archive has now, of
// the packages and architectures that the file pins. It keeps comments.
func (a Archive) UpdateLock(ctx context.Context, file string) error {
	pinned, err := ReadLock(file)
	if err != nil {
		return err
	}
	names := map[string][]string{} // by architecture
	for _, p := range pinned {
		names[p.Arch] = append(names[p.Arch], p.Name)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var updated strings.Builder
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "#") {
			updated.WriteString(line)
		}
	}
	for _, arch := range slices.Sorted(maps.Keys(names)) {
		found, err := a.index(ctx, arch, names[arch])
		if err != nil {
			return err
		}
		for _, p := range found {
			fmt.Fprintln(&updated, p.Arch, p.Name, p.Version, p.Path, p.SHA256)
		}
	}
	return os.WriteFile(file, []byte(updated.String()), 0o644)
}

// index returns the named packages as the archive has them now.
func (a Archive) index(ctx context.Context, arch string, names []string) ([]Package, error) {
	url := fmt.Sprintf("%s/dists/%s/main/binary-%s/Packages.xz", a.mirror(), suite, arch)
	index, err := get(ctx, url)
	if err != nil {
		return nil, err
	}
	unpacked, err := xz.NewReader(bytes.NewReader(index))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", url, err)
	}
	found, err := readIndex(io.LimitReader(unpacked, maxPackage), names)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", url, err)
	}
	var all []Package
	for _, name := range names {
		p, ok := found[name]
		if !ok {
			return nil, fmt.Errorf("%s: there is no package %s", url, name)
		}
		p.Arch = arch
		all = append(all, p)
	}
	return all, nil
}

func (a Archive) mirror() string { return cmp.Or(a.Mirror, DefaultMirror) }

// readIndex returns the named packages of an index in Debian's format: paragraphs
// of fields, one field a line.
func readIndex(r io.Reader, names []string) (map[string]Package, error) {
	found := map[string]Package{}
	var p Package
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		key, value, _ := strings.Cut(lines.Text(), ": ")
		switch key {
		case "Package":
			p.Name = value
		case "Version":
			p.Version = value
		case "Filename":
			p.Path = value
		case "SHA256":
			p.SHA256 = value
		case "":
			if slices.Contains(names, p.Name) {
				found[p.Name] = p
			}
			p = Package{}
		}
	}
	return found, lines.Err()
}

// ErrUnavailable means that the archive cannot be reached, or that it no longer
// has a pinned package.
var ErrUnavailable = errors.New("not available")

// Files returns the regular files and links of a pinned package, by path without
// a leading slash. It downloads the package unless the cache has it.
func (a Archive) Files(ctx context.Context, p Package) (map[string]File, error) {
	kept := filepath.Join(a.Cache, path.Base(p.Path))
	body, err := os.ReadFile(kept)
	if errors.Is(err, os.ErrNotExist) {
		if body, err = get(ctx, a.mirror()+"/"+p.Path); err != nil {
			return nil, fmt.Errorf("package %s %s: %w: %w; if the archive has a newer one, run make images-lock", p.Name, p.Version, ErrUnavailable, err)
		}
		err = keep(kept, body)
	}
	if err != nil {
		return nil, err
	}
	if sum := sha256.Sum256(body); hex.EncodeToString(sum[:]) != p.SHA256 {
		return nil, fmt.Errorf("package %s: SHA-256 of %s is %x, want %s: remove the file", p.Name, kept, sum, p.SHA256)
	}
	found, err := unpack(body)
	if err != nil {
		return nil, fmt.Errorf("package %s: %w", p.Name, err)
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
func unpack(deb []byte) (map[string]File, error) {
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
func untar(r io.Reader) (map[string]File, error) {
	found := map[string]File{}
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
			found[name] = File{Content: content, Mode: h.Mode & 0o755}
		case tar.TypeSymlink:
			found[name] = File{Link: h.Linkname}
		}
	}
}
