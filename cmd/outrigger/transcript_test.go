// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"cmp"
	"errors"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/e2e/goldentest"
	"github.com/outrigger-mesh/outrigger/e2e/meshtest"
	"github.com/outrigger-mesh/outrigger/tool/objects"
)

// transcripts are the golden files of the commands: what an operator types, and what is printed on a
// terminal. Those in mesh ask a running mesh.
const (
	transcripts     = "testdata/output/*.txt"
	meshTranscripts = "testdata/output/mesh/*.txt"
)

// unprinted are outputs that no transcript has, with the reason.
var unprinted = map[string]string{
	"join":        "success needs a machine with systemd: packaging/linux",
	"join create": "success needs a control plane of a machine: tool/machine",
	"leave":       "success needs a machine with systemd: packaging/linux",
	"uninstall":   "success needs a cluster: e2e/kube/chart",
}

// newShell returns a shell in a directory of its own, whose path has the same length each time, with a copy
// of the files of testdata/shop.
func newShell(t *testing.T) *goldentest.Shell {
	t.Helper()
	const placeholder = "/tmp/outrigger-XXXXXXXXXX"
	dir, err := os.MkdirTemp("/tmp", "outrigger-")
	if err != nil {
		t.Fatal(err)
	}
	if missing := len(placeholder) - len(dir); missing > 0 {
		padded := dir + strings.Repeat("x", missing)
		if err := os.Rename(dir, padded); err != nil {
			t.Fatal(err)
		}
		dir = padded
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	program, err := filepath.Abs(os.Args[0])
	if err := errors.Join(err, os.CopyFS(dir, os.DirFS("testdata/shop")), os.Mkdir(filepath.Join(dir, "bin"), 0o700), os.Symlink(program, filepath.Join(dir, "bin", "outrigger"))); err != nil {
		t.Fatal(err)
	}
	return &goldentest.Shell{
		Dir: dir, Replace: []goldentest.Replacement{{Text: dir, By: placeholder}, {Text: filepath.Dir(program) + "/outrigger-", By: "/usr/bin/outrigger-"}},
		Env: []string{
			"OUTRIGGER_TEST_ROLE=outrigger", "PATH=" + filepath.Join(dir, "bin") + ":/usr/bin:/bin", "HOME=" + dir, "TMPDIR=" + dir, "TERM=xterm", "TZ=UTC", "LC_ALL=C",
		},
	}
}

// TestOutput plays the transcripts of commands that need no mesh.
func TestOutput(t *testing.T) {
	t.Parallel()
	for _, file := range listed(t, transcripts) {
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			s := newShell(t)
			s.Env = append(s.Env, "OUTRIGGER_STORE=fs://"+s.Dir+"/store")
			s.Play(t, file)
		})
	}
}

func listed(t *testing.T, pattern string) []string {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		t.Fatalf("there are no transcripts %s: %v", pattern, err)
	}
	return files
}

// TestMeshOutput plays the transcripts of commands that ask a mesh, one after the other.
func TestMeshOutput(t *testing.T) {
	t.Parallel()
	if out, err := exec.Command("make", "-s", "-C", "../..", "build", "envoy").CombinedOutput(); err != nil {
		t.Fatalf("make build envoy: %v\n%s", err, out)
	}
	s := newShell(t)
	bin, err := filepath.Abs("../../bin")
	if err := errors.Join(err, os.Symlink(bin, filepath.Join(s.Dir, "programs"))); err != nil {
		t.Fatal(err)
	}
	s.Env = append(s.Env, "ENVOY="+cmp.Or(os.Getenv("ENVOY"), filepath.Join(bin, "envoy")))
	meshtest.Run(t, bin, s.Dir)
	host, err := os.Hostname()
	built, readErr := os.ReadFile(filepath.Join(bin, ".version"))
	if err := errors.Join(err, readErr); err != nil {
		t.Fatal(err)
	}
	s.Replace = append(s.Replace, goldentest.Replacement{Text: host + "-", By: "control-"}, goldentest.Replacement{Text: strings.TrimSpace(string(built)), By: "v1.2.3"})
	proxy := &http.Client{Transport: &http.Transport{Proxy: http.ProxyURL(&url.URL{Scheme: "http", Host: "127.1.0.2:15080"}), DisableKeepAlives: true}}
	s.Request = func() {
		r, err := proxy.Get("http://catalog:8080/")
		if err != nil {
			t.Error(err)
			return
		}
		_ = r.Body.Close() // only the request matters
	}
	for _, file := range listed(t, meshTranscripts) {
		t.Run(filepath.Base(file), func(t *testing.T) { s.Play(t, file) })
	}
}

// TestEveryOutput checks that the transcripts have each command: a success, a failure, and each format of
// the output.
func TestEveryOutput(t *testing.T) {
	t.Parallel()
	all := commands(t)
	slices.SortFunc(all, func(a, b []string) int { return len(b) - len(a) }) // explain request before explain
	seen := map[string][]string{}
	for _, file := range slices.Concat(listed(t, transcripts), listed(t, meshTranscripts)) {
		for _, step := range goldentest.Read(t, file) {
			for _, run := range strings.Split(step.Command, "outrigger ")[1:] {
				for _, path := range all {
					name := strings.Join(path, " ")
					if run != name && !strings.HasPrefix(run, name+" ") {
						continue
					}
					how := map[bool]string{true: "failure", false: "success"}[step.Failed()]
					seen[name] = append(seen[name], how)
					if form := outputForm.FindStringSubmatch(run); form != nil {
						seen[name] = append(seen[name], form[1])
					}
					break
				}
			}
		}
	}
	for _, path := range all {
		name := strings.Join(path, " ")
		want := []string{"success", "failure"}
		if objects.WithoutOutput("outrigger "+name) == "" {
			want = append(want, "json", "yaml")
			if cmd, _, err := newRootCommand(environment{}, nil, nil).Find(path); err == nil && strings.Contains(cmd.Flag("output").Usage, "wide") {
				want = append(want, "wide")
			}
		}
		for _, what := range want {
			if slices.Contains(seen[name], what) {
				continue
			}
			if reason := unprinted[name]; reason != "" && what != "failure" {
				t.Logf("%s: no %s in the transcripts: %s", name, what, reason)
				continue
			}
			t.Errorf("outrigger %s: no transcript of testdata/output has it with %s: add one, and run the test with -update", name, map[bool]string{true: "a " + what, false: "-o " + what}[len(what) > 4])
		}
	}
}

var outputForm = regexp.MustCompile(`(?:-o|--output)[ =](\w+)`)
