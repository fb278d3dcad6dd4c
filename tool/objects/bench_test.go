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
	k8syaml "sigs.k8s.io/yaml"
)

// BenchmarkValidate validates 10,000 objects in one file, in ten, or in one each, as YAML and JSON.
func BenchmarkValidate(b *testing.B) {
	const all = 10_000
	object := func(i int, yaml bool) string {
		text := fmt.Sprintf(`{"apiVersion": "networking.istio.io/v1", "kind": "DestinationRule", "metadata": {"name": "s%[1]d", "namespace": "shop"}, "spec": {"host": "s%[1]d", "subsets": [{"name": "v2", "labels": {"version": "v2"}}]}}`+"\n", i)
		if i%2 == 0 {
			text = fmt.Sprintf(`{"apiVersion": "networking.istio.io/v1", "kind": "VirtualService", "metadata": {"name": "s%[1]d", "namespace": "shop"}, "spec": {"hosts": ["s%[1]d"], "http": [`+
				`{"match": [{"headers": {"x-version": {"exact": "v2"}}}], "route": [{"destination": {"host": "s%[1]d", "subset": "v2"}}]}, {"route": [{"destination": {"host": "s%[1]d"}}]}]}}`+"\n", i)
		}
		if !yaml {
			return text
		}
		block, err := k8syaml.JSONToYAML([]byte(text))
		if err != nil {
			b.Fatal(err)
		}
		return string(block)
	}
	for _, layout := range []struct {
		name  string
		files int
		yaml  bool
	}{{"yaml-one", 1, true}, {"yaml-ten", 10, true}, {"yaml-each", all, true}, {"json-one", 1, false}, {"json-each", all, false}} {
		b.Run(layout.name, func(b *testing.B) {
			dir := b.TempDir()
			for i := range layout.files {
				var texts []string
				for j := range all / layout.files {
					texts = append(texts, object(i*all/layout.files+j, layout.yaml))
				}
				name, text := fmt.Sprintf("%d.yaml", i), strings.Join(texts, "---\n")
				if !layout.yaml {
					name, text = fmt.Sprintf("%d.json", i), `{"apiVersion": "v1", "kind": "List", "items": [`+strings.Join(texts, ",")+"]}"
				}
				if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
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
					b.Fatalf("%v: %.2000s", err, out.String())
				}
			}
		})
	}
}
