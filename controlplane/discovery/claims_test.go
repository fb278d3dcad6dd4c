// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/bootstrap/node"
)

// Each field of a node's metadata has a row in the table of claims, and what the
// table calls unread is not read.
func TestClaimsAreDocumented(t *testing.T) {
	t.Parallel()
	document, err := os.ReadFile("../../docs/operations/security.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(document), "## What a proxy says about itself\n")
	section, _, _ = strings.Cut(section, "\n## ")
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	var source strings.Builder
	for _, file := range append(files, "../../bootstrap/node/id.go") {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		source.Write(b)
	}
	fields := reflect.TypeFor[node.Metadata]()
	for i := range fields.NumField() {
		key, _, _ := strings.Cut(fields.Field(i).Tag.Get("json"), ",")
		if key == "-" {
			continue
		}
		row := ""
		for line := range strings.Lines(section) {
			if claim, _, _ := strings.Cut(strings.TrimPrefix(line, "| "), " | "); strings.Contains(claim, "`"+key+"`") {
				row = line
			}
		}
		isRead := regexp.MustCompile(`\bm(eta)?\.`+fields.Field(i).Name+`\b`).MatchString(source.String()) || strings.Contains(source.String(), `GetFields()["`+key+`"]`)
		switch unread := strings.Contains(row, "not read"); {
		case row == "":
			t.Errorf("docs/operations/security.md has no row for the claim %s", key)
		case unread && isRead:
			t.Errorf("docs/operations/security.md says that %s is not read, but it is", key)
		case !unread && !isRead:
			t.Errorf("docs/operations/security.md says that something depends on %s, but it is not read", key)
		}
	}
}
