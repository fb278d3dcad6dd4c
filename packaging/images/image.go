// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/outrigger-mesh/outrigger/packaging/images/debian"
	"github.com/outrigger-mesh/outrigger/packaging/images/sbom"
)

// A built image is one row of the table.
type built struct {
	arch, archive    string
	size, compressed int64 // bytes
}

// build writes an image of all architectures: NAME/ is its OCI layout,
// NAME-ARCH.tar its archives, NAME-ARCH.spdx.json what is inside.
func build(ctx context.Context, o options, k kind, pinned []debian.Package) ([]built, error) {
	var results []built
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, arch := range o.arches {
		image, inside, err := assemble(ctx, o, k, arch, pinned)
		if err != nil {
			return nil, err
		}
		result := built{arch: arch, archive: filepath.Join(o.out, k.name+"-"+arch+".tar")}
		if result.size, result.compressed, err = sizes(image); err != nil {
			return nil, err
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{
			Platform:    &v1.Platform{OS: "linux", Architecture: arch},
			Annotations: map[string]string{"org.opencontainers.image.ref.name": o.version},
		}})
		if err := os.MkdirAll(o.out, 0o755); err != nil {
			return nil, err
		}
		tag, err := name.NewTag(o.prefix+"/"+k.name+":"+o.version, name.WeakValidation)
		if err != nil {
			return nil, err
		}
		if err := tarball.WriteToFile(result.archive, tag, image); err != nil {
			return nil, err
		}
		if err := os.WriteFile(filepath.Join(o.out, k.name+"-"+arch+".spdx.json"), inside, 0o644); err != nil {
			return nil, err
		}
		results = append(results, result)
	}
	dir := filepath.Join(o.out, k.name)
	if err := os.RemoveAll(dir); err != nil {
		return nil, err
	}
	_, err := layout.Write(dir, index)
	return results, err
}

// assemble returns an image for one architecture and the list of its parts in
// SPDX, which is also a file of the image.
func assemble(ctx context.Context, o options, k kind, arch string, pinned []debian.Package) (v1.Image, []byte, error) {
	base, err := baseFiles(ctx, o, arch, pinned)
	if err != nil {
		return nil, nil, err
	}
	layers := []map[string]file{base}
	if k.envoy {
		library, err := libraryFiles(ctx, o, arch, pinned)
		if err != nil {
			return nil, nil, err
		}
		library["usr/local/bin/envoy"] = file{source: o.programPath(arch, "envoy"), mode: 0o755}
		layers = append(layers, library)
	}
	inside, err := partsList(o, k, arch, pinned)
	if err != nil {
		return nil, nil, err
	}
	// The programs change with each version, so that they come last.
	last := map[string]file{"usr/share/doc/outrigger/" + k.name + ".spdx.json": {content: inside, mode: 0o644}}
	for _, p := range k.programs {
		last["usr/local/bin/"+p] = file{source: o.programPath(arch, p), mode: 0o755}
	}
	for alias, p := range k.links {
		last["usr/local/bin/"+alias] = file{link: p}
	}
	if k.envoy {
		for _, dir := range proxyDirs {
			last[dir] = file{dir: true, mode: 0o755, owner: proxyUser}
		}
	}
	layers = append(layers, last)

	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	for _, files := range layers {
		layer, err := layerOf(files, o.created)
		if err != nil {
			return nil, nil, err
		}
		image, err = mutate.Append(image, mutate.Addendum{Layer: layer, History: v1.History{Created: v1.Time{Time: o.created}, CreatedBy: "make images"}})
		if err != nil {
			return nil, nil, err
		}
	}
	image, err = mutate.ConfigFile(image, configOf(image, o, k, arch))
	return image, inside, err
}

// configOf returns the configuration of an image with its layers.
func configOf(image v1.Image, o options, k kind, arch string) *v1.ConfigFile {
	config, err := image.ConfigFile()
	if err != nil {
		panic(err) // the image is in memory
	}
	config = config.DeepCopy()
	config.Architecture, config.OS = arch, "linux"
	config.Created = v1.Time{Time: o.created}
	config.Config = v1.Config{
		User:       fmt.Sprintf("%d:%d", proxyUser, proxyUser),
		WorkingDir: "/",
		Entrypoint: []string{"/usr/local/bin/" + k.programs[0]},
		Env:        []string{"PATH=/usr/local/bin", "SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt"},
		Labels: map[string]string{
			"org.opencontainers.image.title":    k.title,
			"org.opencontainers.image.version":  o.version,
			"org.opencontainers.image.licenses": "Apache-2.0",
			"org.opencontainers.image.created":  o.created.Format(time.RFC3339),
		},
		ExposedPorts: map[string]struct{}{},
	}
	for _, p := range k.ports {
		config.Config.ExposedPorts[p] = struct{}{}
	}
	return config
}

// layerOf returns a layer of files, with the directories above them.
func layerOf(files map[string]file, created time.Time) (v1.Layer, error) {
	all := maps.Clone(files)
	for p := range files {
		for dir := path.Dir(p); dir != "."; dir = path.Dir(dir) {
			if _, ok := all[dir]; !ok {
				all[dir] = file{dir: true, mode: 0o755}
			}
		}
	}
	var buffer bytes.Buffer
	out := tar.NewWriter(&buffer)
	for _, p := range slices.Sorted(maps.Keys(all)) {
		if err := writeFile(out, p, all[p], created); err != nil {
			return nil, err
		}
	}
	if err := out.Close(); err != nil {
		return nil, err
	}
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(buffer.Bytes())), nil
	}, tarball.WithMediaType(types.OCILayer), tarball.WithCompressedCaching)
}

// writeFile adds one file to a layer.
func writeFile(out *tar.Writer, p string, f file, created time.Time) error {
	h := &tar.Header{Name: p, Mode: f.mode, Uid: f.owner, Gid: f.owner, ModTime: created, Format: tar.FormatPAX}
	switch {
	case f.link != "":
		h.Typeflag, h.Linkname, h.Mode = tar.TypeSymlink, f.link, 0o777
	case f.dir:
		h.Typeflag, h.Name = tar.TypeDir, p+"/"
	default:
		h.Typeflag = tar.TypeReg
		if f.source != "" {
			var err error
			if f.content, err = os.ReadFile(f.source); err != nil {
				return err
			}
		}
		h.Size = int64(len(f.content))
	}
	if err := out.WriteHeader(h); err != nil {
		return err
	}
	_, err := out.Write(f.content)
	return err
}

// sizes returns how many bytes an image takes, unpacked and as it is moved.
func sizes(image v1.Image) (unpacked, compressed int64, err error) {
	layers, err := image.Layers()
	if err != nil {
		return 0, 0, err
	}
	for _, l := range layers {
		n, err := l.Size()
		if err != nil {
			return 0, 0, err
		}
		compressed += n
		r, err := l.Uncompressed()
		if err != nil {
			return 0, 0, err
		}
		n, err = io.Copy(io.Discard, r)
		if err != nil {
			return 0, 0, err
		}
		unpacked += n
	}
	return unpacked, compressed, nil
}

// partsList returns what an image contains, in SPDX: its programs with the Go
// modules in them, Envoy, and the Debian packages.
func partsList(o options, k kind, arch string, pinned []debian.Package) ([]byte, error) {
	document := sbom.New(o.prefix+"/"+k.name+":"+o.version+" "+arch, "make images", o.created)
	image := document.Add(document.ID, sbom.Package{Name: k.name, Version: o.version})
	for _, name := range k.programs {
		if err := document.AddProgram(image, o.programPath(arch, name), o.version); err != nil {
			return nil, err
		}
	}
	if k.envoy {
		if err := document.AddEnvoy(image, o.programPath(arch, "envoy"), o.envoyVersion); err != nil {
			return nil, err
		}
	}
	for _, p := range pinned {
		if p.Arch == arch && (k.envoy || p.Name != "libc6") {
			document.Add(image, sbom.Package{
				Name: p.Name, Version: p.Version, Checksums: []sbom.Checksum{{Algorithm: "SHA256", Value: p.SHA256}},
				Refs: sbom.URL(fmt.Sprintf("pkg:deb/debian/%s@%s?arch=%s", p.Name, strings.ReplaceAll(p.Version, "+", "%2B"), arch)),
			})
		}
	}
	return document.Encode(k.name)
}
