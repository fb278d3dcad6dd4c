// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package sds

import (
	"errors"
	"fmt"
	"os"
	"strings"
)

// Names of secrets that every workload has.
const (
	NameDefault = "default"                 // chain and key of the workload
	NameRoots   = "ROOTCA"                  // roots of the mesh
	NameSystem  = prefixRoots + systemRoots // roots of the operating system
)

const (
	prefixCert   = "file-cert:" // file-cert:<chain>~<key>
	prefixRoots  = "file-root:" // file-root:<path>, or file-root:system
	systemRoots  = "system"
	builtin      = "builtin://"        // a gateway's name for NameDefault
	builtinRoots = "builtin://-cacert" // and for NameRoots

	// maxPath is the kernel's limit of a path.
	maxPath = 4095
)

// kind is the source of a secret.
type kind int

const (
	kindLeaf kind = iota + 1 // the workload's certificate
	kindRoots
	kindFileCert
	kindFileRoots
	kindSystemRoots
)

// resource is the parsed name of a secret.
type resource struct {
	kind  kind
	paths []string // of kindFileCert: chain, key; of kindFileRoots: the file
}

// ofFiles reports whether the secret is in named files.
func (r resource) ofFiles() bool { return r.kind >= kindFileCert }

// parseName parses the name of a secret. The error says why it is not served.
func parseName(name string) (resource, error) {
	switch name {
	case NameDefault, builtin:
		return resource{kind: kindLeaf}, nil
	case NameRoots, builtinRoots:
		return resource{kind: kindRoots}, nil
	case NameSystem:
		return resource{kind: kindSystemRoots}, nil
	}
	if rest, ok := strings.CutPrefix(name, prefixCert); ok {
		chain, key, ok := strings.Cut(rest, "~")
		if !ok || strings.Contains(key, "~") {
			return resource{}, errors.New("a name with file-cert is of the form file-cert:<chain>~<key>, with one ~")
		}
		return filesOf(kindFileCert, chain, key)
	}
	if path, ok := strings.CutPrefix(name, prefixRoots); ok {
		return filesOf(kindFileRoots, path)
	}
	return resource{}, errors.New("only default, ROOTCA and names with file-cert and file-root are served")
}

// OwnSecret reports whether a secret is the workload's identity or the roots of the mesh.
func OwnSecret(name string) bool {
	r, err := parseName(name)
	return err == nil && !r.ofFiles()
}

// FilesOf returns the files that a secret names, or none.
func FilesOf(name string) []string {
	r, _ := parseName(name) // without paths after an error
	return r.paths
}

func filesOf(k kind, paths ...string) (resource, error) {
	for _, p := range paths {
		switch {
		case p == "":
			return resource{}, errors.New("the path of a file is empty")
		case len(p) > maxPath:
			return resource{}, fmt.Errorf("the path of a file has %d bytes; at most %d are possible", len(p), maxPath)
		case strings.ContainsRune(p, 0):
			return resource{}, errors.New("the path of a file contains a zero byte")
		}
	}
	return resource{kind: k, paths: paths}, nil
}

// systemBundle returns the file with the roots of the operating system: the first
// existing one of those that distributions use.
func systemBundle() string {
	candidates := []string{
		"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem", "/etc/pki/tls/cacert.pem",
		"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", "/etc/ssl/cert.pem", "/usr/local/etc/ssl/cert.pem", "/etc/ssl/certs/ca-certificates",
	}
	for _, path := range candidates {
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			return path
		}
	}
	return candidates[0]
}
