// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package mesh

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestDescribe describes a mesh file whose commands do not exist, and one that is wrong.
func TestDescribe(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "mesh.yaml")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("config: config\nworkloads:\n- {name: web, command: [./absent], port: 9000, protocol: TCP}\n")
	d, err := Describe(file)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(d.Objects), "kind: ServiceEntry") || !strings.Contains(string(d.MeshConfig), "trustDomain: cluster.local") ||
		d.ConfigDir != "" || d.Line("WorkloadEntry", "default", "web") != 3 {
		t.Errorf("the description is %+v\n%s%s", d, d.Objects, d.MeshConfig)
	}
	if err := os.Mkdir(filepath.Join(filepath.Dir(file), "config"), 0o700); err != nil {
		t.Fatal(err)
	}
	if d, err = Describe(file); err != nil || filepath.Base(d.ConfigDir) != "config" {
		t.Errorf("the description is %+v, error %v", d, err)
	}
	write("workloads:\n- {name: web, comand: [sh]}\n")
	if _, err := Describe(file); err == nil || !strings.Contains(err.Error(), file+":2: ") {
		t.Errorf("the error is %v", err)
	}
	if _, err := Describe(file + ".absent"); err == nil {
		t.Error("a file that does not exist is described")
	}
}
