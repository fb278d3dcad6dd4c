// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package objects

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// BenchmarkValidate validates 10,000 objects in ten files.
func BenchmarkValidate(b *testing.B) {
	dir := b.TempDir()
	for i := range 10 {
		var text strings.Builder
		for j := range 500 {
			fmt.Fprintf(&text, "---\napiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: s%[1]d-%[2]d, namespace: shop}\n"+
				"spec:\n  hosts: [s%[1]d-%[2]d]\n  http:\n  - match: [{headers: {x-version: {exact: v2}}}]\n    route: [{destination: {host: s%[1]d-%[2]d, subset: v2}}]\n  - route: [{destination: {host: s%[1]d-%[2]d}}]\n"+
				"---\napiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: s%[1]d-%[2]d, namespace: shop}\nspec: {host: s%[1]d-%[2]d, subsets: [{name: v2, labels: {version: v2}}]}\n", i, j)
		}
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%d.yaml", i)), []byte(text.String()), 0o600); err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		root := &cobra.Command{Use: "outrigger", SilenceErrors: true, SilenceUsage: true}
		root.AddCommand(Commands(Config{Past: past{}.of})...)
		var out bytes.Buffer
		root.SetOut(&out)
		root.SetErr(&out)
		root.SetArgs([]string{"validate", "-f", dir})
		if err := root.ExecuteContext(b.Context()); err != nil || !strings.HasPrefix(out.String(), "10000 objects valid") {
			b.Fatalf("%v: %s", err, out.String())
		}
	}
}
