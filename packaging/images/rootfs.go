// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"context"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/outrigger-mesh/outrigger/packaging/images/debian"
)

// proxyUser is the user of all images: the one that redirect rules exempt and
// that injected pods run their proxy as.
const proxyUser = 1337

// A file is a regular file, a symbolic link or a directory of an image.
type file struct {
	content []byte
	source  string // path of the content, instead of content
	link    string // target of a symbolic link
	dir     bool
	mode    int64
	owner   int // user and group
}

// A kind is one of the images that are made.
type kind struct {
	name, title string
	programs    []string          // the first is the entrypoint
	links       map[string]string // name in /usr/local/bin, program
	envoy       bool
	ports       []string
}

// kinds are the images. The links are the names that Istio's images have.
var kinds = []kind{
	{
		name: "proxy", title: "Envoy with the agent that runs it", envoy: true,
		programs: []string{"outrigger-agent"}, links: map[string]string{"pilot-agent": "outrigger-agent"},
		ports: []string{"15001/tcp", "15006/tcp", "15020/tcp", "15021/tcp", "15090/tcp"},
	},
	{
		name: "control", title: "The control plane",
		programs: []string{"outrigger-control"}, links: map[string]string{"pilot-discovery": "outrigger-control"},
		ports: []string{"8080/tcp", "15010/tcp", "15012/tcp", "15014/tcp", "15017/tcp"},
	},
	{
		name: "cni", title: "The CNI plugin and what installs it", programs: []string{"outrigger-cni"}, links: map[string]string{"install-cni": "outrigger-cni"},
		ports: []string{"15014/tcp"},
	},
	{name: "outrigger", title: "The command-line tool", programs: []string{"outrigger"}},
}

// baseFiles returns what every image has: users, directories, certificates of
// public authorities.
func baseFiles(ctx context.Context, o options, arch string, pinned []debian.Package) (map[string]file, error) {
	files := map[string]file{
		"etc/passwd": {mode: 0o644, content: fmt.Appendf(nil,
			"root:x:0:0:root:/root:/sbin/nologin\nistio-proxy:x:%d:%d:proxy:/home/istio-proxy:/sbin/nologin\nnobody:x:65534:65534:nobody:/nonexistent:/sbin/nologin\n", proxyUser, proxyUser)},
		"etc/group":         {mode: 0o644, content: fmt.Appendf(nil, "root:x:0:\nistio-proxy:x:%d:\nnogroup:x:65534:\n", proxyUser)},
		"etc/nsswitch.conf": {mode: 0o644, content: []byte("passwd: files\ngroup: files\nhosts: files dns\n")},
		"home/istio-proxy":  {dir: true, mode: 0o755, owner: proxyUser},
		"tmp":               {dir: true, mode: 0o1777},
	}
	authorities, err := filesOf(ctx, o, arch, "ca-certificates", pinned)
	if err != nil {
		return nil, err
	}
	var bundle []byte
	for _, name := range slices.Sorted(maps.Keys(authorities)) {
		if strings.HasPrefix(name, "usr/share/ca-certificates/mozilla/") {
			bundle = append(bundle, authorities[name].content...)
		}
	}
	if len(bundle) == 0 {
		return nil, fmt.Errorf("package ca-certificates contains no certificate")
	}
	files["etc/ssl/certs/ca-certificates.crt"] = file{content: bundle, mode: 0o644}
	copyright(files, authorities, "ca-certificates")
	return files, nil
}

// libraryFiles returns the C library, without the tables of character sets.
func libraryFiles(ctx context.Context, o options, arch string, pinned []debian.Package) (map[string]file, error) {
	// Debian has /lib and /lib64 as links since usr was merged.
	files := map[string]file{"lib": {link: "usr/lib"}}
	if arch == "amd64" {
		files["lib64"] = file{link: "usr/lib64"}
	}
	found, err := filesOf(ctx, o, arch, "libc6", pinned)
	if err != nil {
		return nil, err
	}
	for p, f := range found {
		if strings.HasPrefix(p, "usr/lib") && !strings.Contains(p, "/gconv/") && !strings.Contains(p, "/audit/") {
			files[p] = f
		}
	}
	copyright(files, found, "libc6")
	return files, nil
}

// copyright adds the terms of a package.
func copyright(files, found map[string]file, name string) {
	p := path.Join("usr/share/doc", name, "copyright")
	if f, ok := found[p]; ok && f.link == "" {
		files[p] = f
	}
}

// filesOf returns the files of a pinned package.
func filesOf(ctx context.Context, o options, arch, name string, pinned []debian.Package) (map[string]file, error) {
	for _, p := range pinned {
		if p.Arch != arch || p.Name != name {
			continue
		}
		found, err := o.archive.Files(ctx, p)
		files := make(map[string]file, len(found))
		for path, f := range found {
			files[path] = file{content: f.Content, link: f.Link, mode: f.Mode}
		}
		return files, err
	}
	return nil, fmt.Errorf("%s pins no package %s for %s: run make images-lock", o.lock, name, arch)
}

// proxyDirs are the directories that the agent writes to. With a read-only root
// they are volumes.
var proxyDirs = []string{"etc/istio", "etc/istio/proxy", "etc/istio/pod", "etc/certs", "var/lib/istio", "var/lib/istio/data", "var/lib/outrigger", "var/log/istio", "var/run/secrets"}
