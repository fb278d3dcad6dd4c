// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/outrigger-mesh/outrigger/packaging/images/sbom"
)

// programs are those of an archive, beside Envoy.
var programs = []string{"outrigger", "outrigger-agent", "outrigger-cni", "outrigger-control"}

// writeArchive writes the archive of the programs for an architecture, and the list of what is inside.
func (o options) writeArchive(arch string) error {
	base := "outrigger-" + strings.TrimPrefix(o.version, "v") + "-linux-" + arch
	dir := filepath.Join(o.programs, "linux-"+arch)
	document := sbom.New(base, "make release", o.created)
	whole := document.Add(document.ID, sbom.Package{Name: "outrigger", Version: o.version})
	w, err := o.create(base + ".tar.gz")
	if err != nil {
		return err
	}
	for _, name := range append(programs, "envoy") {
		path := filepath.Join(dir, name)
		if name == "envoy" {
			err = document.AddEnvoy(whole, path, o.envoyVersion)
		} else {
			err = document.AddProgram(whole, path, o.version)
		}
		w.addFile(base+"/"+name, path, 0o755)
		if err := errors.Join(err, w.err); err != nil {
			return err
		}
	}
	list, err := document.Encode("release")
	if err != nil {
		return err
	}
	for _, name := range []string{"LICENSE", "THIRD_PARTY_NOTICES", "README.md"} {
		w.addFile(base+"/"+name, filepath.Join(o.repository, name), 0o644)
	}
	w.add(base+"/ENVOY", []byte("Envoy "+o.envoyVersion+", https://github.com/envoyproxy/envoy\nCopyright Envoy Project Authors\nApache License 2.0, see LICENSE.\n"), 0o644)
	w.add(base+"/"+base+".spdx.json", list, 0o644)
	return errors.Join(w.close(), os.WriteFile(filepath.Join(o.out, base+".spdx.json"), list, 0o644))
}

// versionLines are those of Chart.yaml that name the version.
var versionLines = regexp.MustCompile(`(?m)^(version|appVersion): .*$`)

// writeChart writes the archive of the chart, with the version of the release.
func (o options) writeChart() error {
	version := strings.TrimPrefix(o.version, "v")
	w, err := o.create("outrigger-chart-" + version + ".tgz")
	if err != nil {
		return err
	}
	dir := filepath.Join(o.repository, "charts", "outrigger")
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(filepath.Dir(dir), path)
		if err != nil {
			return err
		}
		if name == filepath.Join("outrigger", "Chart.yaml") {
			if n := len(versionLines.FindAll(content, -1)); n != 2 {
				return fmt.Errorf("%s has %d lines with a version; it must have two, version and appVersion", path, n)
			}
			content = versionLines.ReplaceAll(content, []byte("${1}: "+version))
		}
		w.add(filepath.ToSlash(name), content, 0o644)
		return w.err
	})
	return errors.Join(err, w.close())
}

// An archive is a compressed tar file whose bytes depend on its contents alone. Its first error
// stays in err, and later calls do nothing.
type archive struct {
	options
	file *os.File
	zip  *gzip.Writer
	tar  *tar.Writer
	err  error
}

func (o options) create(name string) (*archive, error) {
	file, err := os.Create(filepath.Join(o.out, name))
	if err != nil {
		return nil, err
	}
	zip := gzip.NewWriter(file)
	return &archive{options: o, file: file, zip: zip, tar: tar.NewWriter(zip)}, nil
}

func (a *archive) addFile(name, path string, mode int64) {
	if a.err != nil {
		return
	}
	var content []byte
	if content, a.err = os.ReadFile(path); a.err == nil {
		a.add(name, content, mode)
	}
}

func (a *archive) add(name string, content []byte, mode int64) {
	if a.err != nil {
		return
	}
	a.err = a.tar.WriteHeader(&tar.Header{
		Typeflag: tar.TypeReg, Name: name, Mode: mode, Size: int64(len(content)), ModTime: a.created, Format: tar.FormatPAX,
	})
	if a.err == nil {
		_, a.err = a.tar.Write(content)
	}
}

func (a *archive) close() error {
	return errors.Join(a.err, a.tar.Close(), a.zip.Close(), a.file.Close())
}
