// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package codec

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/e2e/goldentest"
)

// TestDecodeGolden decodes testdata/*.yaml and compares the objects and problems, as users see
// them, with the .want file of the same name.
func TestDecodeGolden(t *testing.T) {
	t.Parallel()
	paths, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(paths) == 0 {
		t.Fatalf("golden files: %v, %v", paths, err)
	}
	for _, path := range paths {
		t.Run(filepath.Base(path), func(t *testing.T) {
			t.Parallel()
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			objects, problems := Decode(filepath.Base(path), data)
			var b strings.Builder
			for _, c := range objects {
				fmt.Fprintf(&b, "%s: %s\n", c.Source, c.Key)
			}
			for _, p := range problems {
				if p.Warning {
					b.WriteString("warning: ")
				}
				fmt.Fprintln(&b, p)
			}
			want := strings.TrimSuffix(path, ".yaml") + ".want"
			goldentest.Check(t, want, b.String())
		})
	}
}
