// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/validate"
	spdx "github.com/spdx/tools-golang/json"
)

var (
	programs     = flag.String("programs", "../../bin", "directory with the programs for each architecture")
	arch         = flag.String("arch", runtime.GOARCH, "architecture of the images; another one needs its emulator in binfmt_misc")
	envoyVersion = flag.String("envoy-version", "", "version of the envoy among them")
)

// makeImages writes all images for an architecture and returns where.
func makeImages(t *testing.T) string {
	t.Helper()
	if _, err := os.Stat(filepath.Join(*programs, "linux-"+*arch, "envoy")); err != nil {
		t.Fatalf("%v: run make test-images, which builds the programs", err)
	}
	out := t.TempDir()
	var table bytes.Buffer
	err := run(t.Context(), []string{
		"--programs", *programs, "--out", out, "--cache", filepath.Join(*programs, "packages"), "--lock", "debian.lock",
		"--arch", *arch, "--version", "v1", "--envoy-version", *envoyVersion, "--created", "1700000000",
	}, &table)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("\n%s", &table)
	return out
}

// sums returns the SHA-256 of each file below a directory.
func sums(t *testing.T, dir string) map[string]string {
	t.Helper()
	found := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		found[name] = fmt.Sprintf("%x", sha256.Sum256(content))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// TestImages makes the images twice: the files are the same. It reads them with
// the library's readers, and runs each entrypoint in its unpacked image.
func TestImages(t *testing.T) {
	t.Parallel()
	out := makeImages(t)
	first, second := sums(t, out), sums(t, makeImages(t))
	if len(first) < 3*len(kinds) {
		t.Fatalf("there are %d files only", len(first))
	}
	if !maps.Equal(first, second) {
		t.Errorf("two runs differ:\n%v\n%v", first, second)
	}
	// Every command runs as the user of the image, with its files only.
	commands := map[string][][]string{
		"proxy": {
			{"/usr/local/bin/outrigger-agent", "version"},
			{"/usr/local/bin/pilot-agent", "version", "--short"},
			{"/usr/local/bin/envoy", "--version"},
		},
		"control":   {{"/usr/local/bin/outrigger-control", "version"}, {"/usr/local/bin/pilot-discovery", "version"}},
		"cni":       {{"/usr/local/bin/outrigger-cni", "version"}, {"/usr/local/bin/install-cni", "--help"}},
		"outrigger": {{"/usr/local/bin/outrigger", "version"}},
	}
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			image, err := tarball.ImageFromPath(filepath.Join(out, k.name+"-"+*arch+".tar"), nil)
			if err != nil {
				t.Fatal(err)
			}
			index, err := layout.ImageIndexFromPath(filepath.Join(out, k.name))
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(validate.Image(image), validate.Index(index)); err != nil {
				t.Error(err)
			}
			config, err := image.ConfigFile()
			if err != nil {
				t.Fatal(err)
			}
			if config.Config.User != "1337:1337" || !slices.Equal(config.Config.Entrypoint, []string{"/usr/local/bin/" + k.programs[0]}) {
				t.Errorf("the image runs %q as %s", config.Config.Entrypoint, config.Config.User)
			}
			for label, want := range map[string]string{"title": k.title, "version": "v1", "licenses": "Apache-2.0", "created": "2023-11-14T22:13:20Z"} {
				if got := config.Config.Labels["org.opencontainers.image."+label]; got != want {
					t.Errorf("the label %s is %q, want %q", label, got, want)
				}
			}
			checkForms(t, filepath.Join(out, k.name+"-"+*arch+".tar"), index, k.name)
			root := unpackImage(t, image)
			listed, err := os.Open(filepath.Join(root, "usr/share/doc/outrigger", k.name+".spdx.json"))
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = listed.Close() }()
			document, err := spdx.Read(listed)
			if err != nil {
				t.Fatal(err)
			}
			if len(document.Packages) < 20 {
				t.Errorf("the list names %d packages only", len(document.Packages))
			}
			if len(commands[k.name]) == 0 {
				t.Error("no command is tested")
			}
			for _, command := range commands[k.name] {
				runInside(t, root, command)
			}
		})
	}
}

// checkForms reads what docker load and ctr images import read: the name in the archive, and the
// platform of the image in the layout.
func checkForms(t *testing.T, archive string, index v1.ImageIndex, name string) {
	t.Helper()
	manifest, err := tarball.LoadManifest(func() (io.ReadCloser, error) { return os.Open(archive) })
	if err != nil || len(manifest) != 1 || !slices.Equal(manifest[0].RepoTags, []string{"outrigger/" + name + ":v1"}) {
		t.Errorf("the archive has %+v, %v", manifest, err)
	}
	list, err := index.IndexManifest()
	if err != nil || len(list.Manifests) != 1 || list.Manifests[0].Platform == nil || list.Manifests[0].Platform.String() != "linux/"+*arch {
		t.Errorf("the layout has %+v, %v", list, err)
	}
}

// unpackImage writes the files of an image into a directory. It fails if a file
// belongs to neither root nor the proxy's user, or everybody may write it.
func unpackImage(t *testing.T, image v1.Image) string {
	t.Helper()
	root := t.TempDir()
	if err := os.Chmod(root, 0o755); err != nil {
		t.Fatal(err)
	}
	files := mutate.Extract(image)
	defer func() { _ = files.Close() }()
	for in := tar.NewReader(files); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return root
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Uid != 0 && h.Uid != proxyUser || h.Typeflag != tar.TypeSymlink && h.Mode&0o6002 != 0 && h.Name != "tmp" {
			t.Errorf("%s has mode %o and owner %d", h.Name, h.Mode, h.Uid)
		}
		path := filepath.Join(root, h.Name)
		switch h.Typeflag {
		case tar.TypeDir:
			err = os.MkdirAll(path, 0o755)
		case tar.TypeSymlink:
			err = errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.Symlink(h.Linkname, path))
		default:
			var content []byte
			content, err = io.ReadAll(in)
			err = errors.Join(err, os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, content, fs.FileMode(h.Mode)))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// runInside runs a command in an unpacked image.
func runInside(t *testing.T, root string, command []string) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Log("programs are not run: chroot needs root")
		return
	}
	cmd := exec.CommandContext(t.Context(), command[0], command[1:]...)
	cmd.Dir, cmd.Env = "/", []string{"PATH=/usr/local/bin"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root, Credential: &syscall.Credential{Uid: proxyUser, Gid: proxyUser}}
	if output, err := cmd.CombinedOutput(); err != nil || len(output) == 0 {
		t.Errorf("%s: %v\n%s", strings.Join(command, " "), err, output)
	}
}
