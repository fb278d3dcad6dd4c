// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package ca

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// maxFile is the maximum size of a plugged-in file in bytes.
const maxFile = 8 << 20

// PluggedIn reports whether a directory contains the key of an authority, valid or not. If so, Open
// does not depend on its Store.
func PluggedIn(dir string) bool {
	for _, l := range layouts() {
		if _, err := os.Stat(filepath.Join(dir, l.key)); dir != "" && err == nil {
			return true
		}
	}
	return false
}

// plugin is the directory of a plugged-in authority. It is guarded by the mu of the authority.
type plugin struct {
	dir         string
	trustDomain string
	hash        string  // of the files that were read last
	rejected    string  // hash of files that were read but are not in use
	good        *signer // from the last valid files; nil if there never were any
	crl         []byte  // content of the file
}

// read reads the files and reports whether the plugged-in authority changed. After an error, the
// last valid one remains in use.
func (p *plugin) read() (changed bool, err error) {
	m, err := p.files()
	if err != nil {
		p.rejected = err.Error()
		return false, err
	}
	hash := m.hash()
	if hash == p.hash {
		p.rejected = ""
		return false, nil
	}
	s, err := p.load(m)
	if err != nil {
		p.rejected = hash
		return false, err
	}
	p.hash, p.rejected, p.crl = hash, "", m.text(crlFile)
	if s != nil {
		p.good = s
	}
	return true, nil
}

func (p *plugin) load(m Material) (*signer, error) {
	for _, l := range layouts() {
		s, err := loadSigner(m, l, p.trustDomain)
		if errors.Is(err, errNone) {
			continue
		}
		if err != nil {
			return nil, err
		}
		s.kind = kindPlugged
		return s, nil
	}
	if p.good != nil {
		return nil, errors.New("its files are missing: restore them; removing a plugged-in authority takes effect when the control plane starts again")
	}
	return nil, nil
}

// paths returns the paths of the files of all layouts.
func (p *plugin) paths() []string {
	names := []string{crlFile}
	for _, l := range layouts() {
		names = append(names, l.key, l.cert, l.chain, l.root)
	}
	var paths []string
	for _, name := range names {
		if name != "" {
			paths = append(paths, filepath.Join(p.dir, name))
		}
	}
	return paths
}

// files reads the files of all layouts. A missing directory is treated as empty.
func (p *plugin) files() (Material, error) {
	m := Material{}
	for _, path := range p.paths() {
		name := filepath.Base(path)
		info, err := os.Stat(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if !info.Mode().IsRegular() || info.Size() > maxFile {
			return nil, fmt.Errorf("%s is not a file, or has more than %d bytes: replace it", name, maxFile)
		}
		if m[name], err = os.ReadFile(path); err != nil {
			return nil, err
		}
	}
	return m, nil
}
