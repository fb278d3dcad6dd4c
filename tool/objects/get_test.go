// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package objects

import (
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/outrigger-mesh/outrigger/controlplane/config"
	"github.com/outrigger-mesh/outrigger/controlplane/config/file"
)

// TestNarrowTerminal checks that the tables of get fit a terminal, and are in full elsewhere.
func TestNarrowTerminal(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	long := "a." + strings.Repeat("long.", 12) + "example"
	file := s.file("two.yaml", "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: outside}\nspec: {hosts: ["+long+", b.example, c.example, d.example], ports: [{number: 80, name: http, protocol: HTTP}], resolution: DNS}\n---\n"+
		"apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: outside}\nspec: {host: "+long+"}\n")
	if code, _, errs := s.run("apply", "-f", file); code != 0 {
		t.Fatal(errs)
	}
	for _, width := range []int{20, 33, 60, 80} {
		s.width = width
		_, out, _ := s.run("get", "all", "-A")
		for line := range strings.Lines(out) {
			if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > width && !strings.HasPrefix(line, "…") && !strings.HasPrefix(line, "The terminal") {
				t.Errorf("a line has %d characters, want at most %d: %s", n, width, line)
			}
		}
		for _, word := range []string{"NAMESPACE", "HOSTS", "RESOLUTION", "AGE", "-o wide"} {
			if width > 20 && !strings.Contains(out, word) {
				t.Errorf("of a terminal with %d columns, %s is missing without a word:\n%s", width, word, out)
			}
		}
		if _, out, _ := s.run("get", "all", "-A", "-o", "wide"); strings.Count(out, long) != 2 || strings.Contains(out, "…") {
			t.Errorf("-o wide prints\n%s", out)
		}
	}
	s.width = 0
	if _, out, _ := s.run("get", "all", "-A"); strings.Count(out, long) != 2 || !strings.Contains(out, "d.example") {
		t.Errorf("without a terminal get prints\n%s", out)
	}
}

// TestDocuments checks JSON and YAML of commands that find nothing, or what is wrong.
func TestDocuments(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	s.file("good.yaml", entry)
	s.file("bad.yaml", mistaken)
	s.want("get all -A -o yaml", 0, "apiVersion: v1\nitems: []\nkind: List\n", "no objects found\n")
	s.want("validate -f DIR/good.yaml -o json", 0, "{\n  \"valid\": 2,\n  \"errors\": 0,\n  \"warnings\": 0,\n  \"skipped\": 0,\n  \"problems\": []\n}\n", "")
	if code, out, errs := s.run("validate", "-f", filepath.Join(s.dir, "bad.yaml"), "-o", "yaml"); code != 1 || errs != "" || !strings.Contains(out, "\n  source: bad.yaml:4\n") || !strings.Contains(out, "did you mean") {
		t.Errorf("validate -o yaml: got exit code %d\n%s%s", code, out, errs)
	}
}

// TestGetUnreadableFile checks that a list names the files that may have more objects.
func TestGetUnreadableFile(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	s.file("config/broken.yaml", "kind: [\n")
	dir := filepath.Join(s.dir, "config")
	s.open = func(string) (config.Store, error) { return file.New(file.Config{Dir: dir, Name: "fs://config"}) }
	s.want("get dr", 1, "", "error: config/broken.yaml:1: this is not YAML: did not find expected node content; the list may lack its objects\n")
}
