// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package mesh

import (
	"fmt"
	"path/filepath"
)

// Description is the configuration that the control plane of a mesh file reads.
type Description struct {
	// Objects are the objects that register the workloads, as YAML.
	Objects []byte
	// MeshConfig is the mesh config file.
	MeshConfig []byte
	// ConfigDir is the directory of the user's objects, or "" for none.
	ConfigDir string
	// Line returns the line of the mesh file that an object is made from, or 0.
	Line func(kind, namespace, name string) int
}

// Describe reads a mesh file, and starts nothing. The commands of the workloads need not exist.
func Describe(path string) (*Description, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	data, err := readLimited(abs)
	if err != nil {
		return nil, err
	}
	m, problems := decode(data)
	if m != nil {
		m.file, m.isolated, m.described = abs, true, true
		problems = append(problems, m.complete()...)
	}
	if len(problems) > 0 {
		return nil, fmt.Errorf("%s:%d: %s", path, problems[0].Line, problems[0].Text)
	}
	d := &Description{Line: m.objectLine}
	if !m.newConfig {
		d.ConfigDir = m.configDir
	}
	if d.Objects, err = m.generated(); err != nil {
		return nil, err
	}
	d.MeshConfig, err = m.meshConfig("")
	return d, err
}
