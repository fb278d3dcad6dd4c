// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"encoding/base64"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/controlplane/analyze"
	"github.com/outrigger-mesh/outrigger/controlplane/discovery/debug"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// TestMistakes plants common mistakes, one at a time, and checks that outrigger analyze names each: its
// code and the object that must be changed.
func TestMistakes(t *testing.T) {
	t.Parallel()
	sections := sectionsOf(t, "mistakes.txt")
	cert, key := keyPair(t, 1, time.Now().Add(-time.Hour), time.Now().Add(time.Hour))
	_, other := keyPair(t, 2, time.Now().Add(-time.Hour), time.Now().Add(time.Hour))
	code := base64.StdEncoding.EncodeToString
	keys := strings.NewReplacer("CRT", code([]byte(cert)), "KEY", code([]byte(key)), "OTHER", code([]byte(other)))
	settings := filepath.Join(t.TempDir(), "mesh.yaml")
	if err := os.WriteFile(settings, []byte("accessLogFile: /dev/stdout\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	find := func(t *testing.T, objects string) []analyze.Finding {
		out, errs, code := runWith(t, objects, "analyze", "-", "-o", "json", "--meshConfigFile", settings)
		var r analyze.Result
		if err := json.Unmarshal([]byte(out), &r); err != nil || code > exitFailed {
			t.Fatalf("exit code %d, %v: %s%s", code, err, out, errs)
		}
		return r.Findings
	}
	if found := find(t, sections[0]); len(found) > 0 {
		t.Fatalf("the base has mistakes: %v", found)
	}
	if len(sections) < 51 {
		t.Errorf("%d mistakes, want 50 or more", len(sections)-1)
	}
	for _, section := range sections[1:] {
		name, rest, _ := strings.Cut(section, " --\n")
		want, objects, _ := strings.Cut(rest, "\n")
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var got []string
			for _, f := range find(t, sections[0]+"\n---\n"+keys.Replace(objects)) {
				got = append(got, f.Code+" "+f.Object.String())
			}
			if !slices.Contains(got, want) {
				t.Errorf("found %q, want %s", got, want)
			}
		})
	}
}

// sectionsOf returns the sections of a file of testdata, beginning with the text of the one named base.
func sectionsOf(t *testing.T, name string) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	_, base, _ := strings.Cut(string(text), "\n-- base --\n")
	return strings.Split(base, "\n-- ")
}

// TestMistakenRequests plants mistakes because of which a request fails, and checks that outrigger explain
// request names the cause with its object and line.
func TestMistakenRequests(t *testing.T) {
	t.Parallel()
	sections := sectionsOf(t, "mistaken-requests.txt")
	for _, section := range sections[1:] {
		name, rest, _ := strings.Cut(section, " --\n")
		lines := strings.SplitN(rest, "\n", 3)
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			read := analyze.Read(nil, []analyze.File{{Source: "a.yaml", Data: []byte(sections[0] + "\n---\n" + lines[2])}}, "", false)
			if slices.ContainsFunc(read.Problems, func(p model.Problem) bool { return !p.Warning }) {
				t.Fatal(read.Problems)
			}
			c := startControl(t, "one")
			c.objects = shelf(read.Objects)
			c.Debug(debug.Config{Replica: "one", Objects: c.objects})
			c.push()
			c.proxy(t, "web-1", "")
			out, errs, _ := run(t, append([]string{"explain", "request", "--control", c.http}, strings.Fields(lines[0])...)...)
			for want := range strings.SplitSeq(lines[1], "~") {
				if !strings.Contains(out, want) {
					t.Errorf("%s lacks %q:\n%s%s", lines[0], want, out, errs)
				}
			}
		})
	}
}
