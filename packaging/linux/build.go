// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/deb" // registers the format
	contents "github.com/goreleaser/nfpm/v2/files"
	_ "github.com/goreleaser/nfpm/v2/rpm" // registers the format
)

const maintainer = "The Outrigger Authors <outrigger-mesh@users.noreply.github.com>"

// A builder writes packages. It keeps generated files in a temporary directory.
type builder struct {
	options
	dir string
}

// write writes a package, and returns its path.
func (b *builder) write(ctx context.Context, k kind, arch, format string) (string, error) {
	info, err := b.info(ctx, k, arch, format)
	if err != nil {
		return "", err
	}
	packager, err := nfpm.Get(format)
	if err != nil {
		return "", err
	}
	info = nfpm.WithDefaults(info)
	if err := nfpm.PrepareForPackager(info, format); err != nil {
		return "", err
	}
	path := filepath.Join(b.out, packager.ConventionalFileName(info))
	f, err := os.Create(path)
	if err != nil {
		return "", err
	}
	if err := packager.Package(info, f); err != nil {
		_ = f.Close() // the first error counts
		return "", err
	}
	return path, f.Close()
}

// info describes a package for nfpm.
func (b *builder) info(ctx context.Context, k kind, arch, format string) (*nfpm.Info, error) {
	version := packageVersion(b.version, b.created)
	if k.envoy {
		version = b.envoyVersion
	}
	info := &nfpm.Info{
		Name: k.name, Arch: arch, Platform: "linux", Version: version, VersionSchema: "none",
		Section: "net", Priority: "optional", Maintainer: maintainer,
		Description: k.summary + "\n" + k.details, Homepage: "https://github.com/outrigger-mesh/outrigger", License: "Apache-2.0",
		MTime: b.created, DisableGlobbing: true,
	}
	info.Deb.Compression, info.RPM.Compression = b.compression, b.compression
	info.RPM.Summary, info.RPM.BuildHost, info.RPM.Group = k.summary, "localhost", "Unspecified"
	for _, d := range k.depends {
		info.Depends = append(info.Depends, d.spell(format))
	}
	files, err := b.contents(ctx, k, arch, format)
	if err != nil {
		return nil, err
	}
	for _, path := range slices.Sorted(maps.Keys(files)) {
		kind := contents.TypeFile
		if k.isSetting(path) {
			kind = contents.TypeConfigNoReplace
		}
		source := files[path]
		info.Contents = append(info.Contents, &contents.Content{Source: source.path, Destination: path, Type: kind, FileInfo: b.fileInfo(source.mode)})
	}
	scripts, err := k.scripts()
	if err != nil {
		return nil, err
	}
	for name, script := range scripts {
		path, err := b.keep(k.name+"."+name, script)
		if err != nil {
			return nil, err
		}
		switch name {
		case "postinst":
			info.Scripts.PostInstall = path
		case "prerm":
			info.Scripts.PreRemove = path
		case "postrm":
			info.Scripts.PostRemove = path
		}
	}
	return info, nil
}

func (b *builder) fileInfo(mode fs.FileMode) *contents.ContentFileInfo {
	return &contents.ContentFileInfo{Owner: "root", Group: "root", Mode: mode, MTime: b.created}
}

// spell returns a dependency as a format has it.
func (d dependency) spell(format string) string {
	name, version := d.deb, " (>= "+d.version+")"
	if format == "rpm" {
		name, version = d.rpm, " >= "+d.version
	}
	if d.version == "" {
		return name
	}
	return name + version
}

// A source is the file that becomes a file of a package.
type source struct {
	path string
	mode fs.FileMode
}

// contents returns the files of a package by their paths.
func (b *builder) contents(ctx context.Context, k kind, arch, format string) (map[string]source, error) {
	found := map[string]source{k.path: {filepath.Join(b.programs, "linux-"+arch, k.program), 0o755}}
	for path, name := range k.contents {
		content, err := text(name)
		if err != nil {
			return nil, err
		}
		kept, err := b.keep(name, content)
		if err != nil {
			return nil, err
		}
		mode := fs.FileMode(0o644)
		if name == "machine" {
			mode = 0o755
		}
		found[path] = source{kept, mode}
	}
	for path, name := range k.sources {
		found[path] = source{filepath.Join(b.repository, name), 0o644}
	}
	terms, err := b.terms(k, format)
	if err != nil {
		return nil, err
	}
	found["/usr/share/doc/"+k.name+"/copyright"] = source{terms, 0o644}
	if format == "deb" {
		if err := b.forDebian(k, found); err != nil {
			return nil, err
		}
	}
	if !k.envoy {
		found["/usr/share/doc/"+k.name+"/THIRD_PARTY_NOTICES"] = source{filepath.Join(b.repository, "THIRD_PARTY_NOTICES"), 0o644}
	}
	if k.commands {
		// They are the same on all architectures.
		for _, shell := range []string{"bash", "zsh"} {
			completion, err := exec.CommandContext(ctx, filepath.Join(b.native, k.program), "completion", shell).Output()
			if err != nil {
				return nil, fmt.Errorf("completions of %s: %w: --native must name a directory with the programs for this machine", k.program, err)
			}
			if _, err := b.keep(k.program+"."+shell, completion); err != nil {
				return nil, err
			}
		}
		pages := filepath.Join(b.dir, k.program+".man")
		if err := os.MkdirAll(pages, 0o755); err != nil {
			return nil, err
		}
		if out, err := exec.CommandContext(ctx, filepath.Join(b.native, k.program), "collateral", "--man", "--outputDir", pages).CombinedOutput(); err != nil {
			return nil, fmt.Errorf("man pages of %s: %w: %s", k.program, err, out)
		}
		entries, err := os.ReadDir(pages)
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			page, err := os.ReadFile(filepath.Join(pages, e.Name()))
			if err != nil {
				return nil, err
			}
			path, err := b.keepCompressed(e.Name()+".gz", page)
			if err != nil {
				return nil, err
			}
			found["/usr/share/man/man1/"+e.Name()+".gz"] = source{path, 0o644}
		}
		zsh := "/usr/share/zsh/vendor-completions/_"
		if format == "rpm" {
			zsh = "/usr/share/zsh/site-functions/_"
		}
		found["/usr/share/bash-completion/completions/"+k.program] = source{filepath.Join(b.dir, k.program+".bash"), 0o644}
		found[zsh+k.program] = source{filepath.Join(b.dir, k.program+".zsh"), 0o644}
	}
	return found, nil
}

// terms writes the file of the terms of a package.
func (b *builder) terms(k kind, format string) (string, error) {
	text := "Outrigger, https://github.com/outrigger-mesh/outrigger\nCopyright 2026 The Outrigger Authors\n\n"
	if k.envoy {
		text = "Envoy " + b.envoyVersion + ", https://github.com/envoyproxy/envoy\nCopyright 2016-2026 Envoy Project Authors\n\n"
	}
	if format == "deb" {
		text += "License: Apache-2.0, see /usr/share/common-licenses/Apache-2.0\n"
	} else {
		license, err := os.ReadFile(filepath.Join(b.repository, "LICENSE"))
		if err != nil {
			return "", err
		}
		text += string(license)
	}
	return b.keep(k.name+".copyright", []byte(text))
}

// forDebian adds what the policy of Debian asks for: a changelog, and the reasons for what lintian
// reports.
func (b *builder) forDebian(k kind, found map[string]source) error {
	version := packageVersion(b.version, b.created)
	if k.envoy {
		version = b.envoyVersion
	}
	changes := fmt.Sprintf("%s (%s) unstable; urgency=medium\n\n  * See https://github.com/outrigger-mesh/outrigger/releases\n\n -- %s  %s\n",
		k.name, version, maintainer, b.created.Format(time.RFC1123Z))
	path, err := b.keepCompressed(k.name+".changelog.gz", []byte(changes))
	if err != nil {
		return err
	}
	found["/usr/share/doc/"+k.name+"/changelog.gz"] = source{path, 0o644}
	if k.envoy {
		return nil
	}
	overrides := "# Programs of Go need no libraries.\n" + k.name + ": statically-linked-binary\n"
	if k.restart != "" {
		overrides += "# The scripts are those of the package for rpm, too: they use no debhelper.\n" + k.name + ": maintainer-script-calls-systemctl\n"
	}
	path, err = b.keep(k.name+".overrides", []byte(overrides))
	found["/usr/share/lintian/overrides/"+k.name] = source{path, 0o644}
	return err
}

// keepCompressed is keep for a file that becomes smaller, with the same bytes each time.
func (b *builder) keepCompressed(name string, content []byte) (string, error) {
	var out bytes.Buffer
	w, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		return "", err
	}
	_, err = w.Write(content)
	if err := errors.Join(err, w.Close()); err != nil {
		return "", err
	}
	return b.keep(name, out.Bytes())
}

// keep writes a file to the temporary directory, and returns its path.
func (b *builder) keep(name string, content []byte) (string, error) {
	path := filepath.Join(b.dir, name)
	return path, os.WriteFile(path, content, 0o644)
}
