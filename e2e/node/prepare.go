// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

//go:build linux

package node

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"github.com/outrigger-mesh/outrigger/e2e/kube/parts"
	"github.com/outrigger-mesh/outrigger/packaging/images/debian"
)

// files contains the paths of a node's files.
type files struct {
	KubeNode   string   // program
	Root       string   // directory with the usr of the node
	Repository string   // directory of this repository
	Images     []string // archives of Outrigger's images
	GatewayAPI string   // directory of the Gateway API's module, which has its definitions
	Visible    []string // directories that the node sees where they are
}

// prepare builds and downloads what is missing in the caches. make and go write to standard error.
func prepare(ctx context.Context) (f files, err error) {
	if f.Repository, err = filepath.Abs("../.."); err != nil {
		return f, err
	}
	if _, err := os.Stat(filepath.Join(f.Repository, "packaging", "images")); err != nil {
		return f, fmt.Errorf("find the repository: %w: run the tests in e2e/node", err)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return f, fmt.Errorf("find a directory for programs: %w: set HOME or XDG_CACHE_HOME", err)
	}
	cache = filepath.Join(cache, "outrigger")
	if _, err := parts.Get(ctx, os.Stderr); err != nil {
		return f, err
	}
	if f.KubeNode, err = parts.GetNode(ctx, os.Stderr); err != nil {
		return f, err
	}
	if f.Root, err = debianRoot(ctx, filepath.Join(cache, "node")); err != nil {
		return f, fmt.Errorf("unpack the node's Debian packages: %w", err)
	}
	images := filepath.Join(f.Repository, "bin", "node-images")
	for _, command := range [][]string{
		{"make", "-s", "-C", f.Repository, "images", "IMAGE_ARCHES=" + runtime.GOARCH, "IMAGEFLAGS=--out " + images + " --version " + imageTag},
		{"go", "-C", f.Repository, "build", "-tags=grpcnotrace", "-trimpath", "-ldflags=-s -w", "-o", f.program("bookinfo"), "./examples/bookinfo"},
		{"go", "-C", f.Repository, "build", "-tags=grpcnotrace", "-trimpath", "-ldflags=-s -w", "-o", f.program("outrigger"), "./cmd/outrigger"},
		{"go", "build", "-trimpath", "-ldflags=-s -w", "-o", f.program("app"), "./app"},
		{"go", "build", "-tags=grpcnotrace", "-trimpath", "-ldflags=-s -w", "-o", f.program("echo-server"), "istio.io/istio/pkg/test/echo/cmd/server"},
		{"go", "build", "-tags=grpcnotrace", "-trimpath", "-ldflags=-s -w", "-o", f.program("echo-client"), "istio.io/istio/pkg/test/echo/cmd/client"},
	} {
		cmd := exec.CommandContext(ctx, command[0], command[1:]...)
		// The jobs of a make that runs the tests are not for this one.
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "MAKEFLAGS=")
		cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
		if err := cmd.Run(); err != nil {
			return f, fmt.Errorf("%s: %w", strings.Join(command, " "), err)
		}
	}
	for _, name := range []string{"proxy", "control", "cni"} {
		f.Images = append(f.Images, filepath.Join(images, name+"-"+runtime.GOARCH+".tar"))
	}
	program, err := os.Executable()
	if err != nil {
		return f, err
	}
	list := exec.CommandContext(ctx, "go", "-C", f.Repository, "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/gateway-api")
	list.Stderr = os.Stderr
	out, err := list.Output()
	if err != nil {
		return f, fmt.Errorf("find the definitions of the Gateway API: %w", err)
	}
	f.GatewayAPI = strings.TrimSpace(string(out))
	f.Visible = []string{f.Repository, cache, filepath.Dir(program), f.GatewayAPI}
	return f, nil
}

// program returns the path of a program of the tests' Pods.
func (f files) program(name string) string { return filepath.Join(f.Repository, "bin", "node-"+name) }

const lockFile = "debian.lock"

// debianRoot returns a directory with the usr of the pinned packages.
func debianRoot(ctx context.Context, cache string) (string, error) {
	text, err := os.ReadFile(lockFile)
	if err != nil {
		return "", err
	}
	hash := sha256.Sum256(append(text, strings.Join(unneeded, " ")...))
	root := filepath.Join(cache, "root-"+hex.EncodeToString(hash[:8]))
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", err
	}
	lock, err := os.OpenFile(filepath.Join(cache, "lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return "", err
	}
	defer func() { _ = lock.Close() }() // nothing was written
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", err
	}
	if _, err := os.Stat(root); err == nil {
		return root, nil
	}
	pinned, err := debian.ReadLock(lockFile)
	if err != nil {
		return "", err
	}
	archive := debian.Archive{Cache: filepath.Join(cache, "packages")}
	fmt.Fprintf(os.Stderr, "node: unpacking %d Debian packages, once\n", len(pinned))
	temporary := root + ".new"
	if err := os.RemoveAll(temporary); err != nil {
		return "", err
	}
	for _, p := range pinned {
		if p.Arch != runtime.GOARCH {
			continue
		}
		found, err := archive.Files(ctx, p)
		if err != nil {
			return "", err
		}
		for name, file := range found {
			if slices.ContainsFunc(unneeded, func(prefix string) bool { return strings.HasPrefix(name, prefix) }) {
				continue
			}
			if err := writeFile(filepath.Join(temporary, name), file); err != nil {
				return "", err
			}
		}
	}
	return root, os.Rename(temporary, root)
}

// unneeded contains the prefixes of paths in packages that the node does not need.
var unneeded = []string{"etc/", "usr/share/", "usr/lib/systemd/", "usr/bin/containerd-stress", "usr/lib/x86_64-linux-gnu/gconv/", "usr/lib/aarch64-linux-gnu/gconv/"}

func writeFile(path string, f debian.File) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if f.Link != "" {
		return os.Symlink(f.Link, path)
	}
	return os.WriteFile(path, f.Content, os.FileMode(f.Mode))
}
