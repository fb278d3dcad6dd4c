// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package analyze

import (
	"os"
	"path/filepath"
	"testing"
)

// FuzzRun analyzes any text. Each finding must have an object or a source, a message and a cure.
func FuzzRun(f *testing.F) {
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(files) == 0 {
		f.Fatalf("%d files, error %v", len(files), err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(text), false)
	}
	f.Fuzz(func(t *testing.T, text string, partial bool) {
		read := Read(nil, []File{{"a.yaml", []byte(text)}}, "", true)
		in := Input{Objects: read.Objects, Manifests: read.Manifests, Problems: read.Problems, Partial: partial}
		in.Build(nil)
		for _, found := range Run(in).Findings {
			if !Known(found.Code) || found.Message == "" || found.Cure == "" || found.Text(80) == "" {
				t.Errorf("the finding is %+v", found)
			}
		}
	})
}
