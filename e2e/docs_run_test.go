// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// stepLimit bounds the wait for one step of a page, on a busy machine.
const stepLimit = 2 * time.Minute

// TestDocumentCommands executes the steps of the pages for users, and compares the output.
func TestDocumentCommands(t *testing.T) {
	for _, page := range userPages(t) {
		t.Run(page, func(t *testing.T) {
			all, err := steps(document(t, page))
			if err != nil {
				t.Fatal(err)
			}
			r := newReader(t)
			ran := 0
			for _, s := range all {
				if s.skipped != "" {
					t.Run(fmt.Sprintf("line %d", s.line), func(t *testing.T) { t.Skip(s.skipped) })
					continue
				}
				if err := r.do(s); err != nil {
					t.Fatalf("%s:%d: %v", page, s.line, err)
				}
				ran++
			}
			if err := r.interrupt(); err != nil {
				t.Fatal(err)
			}
			t.Logf("%d of %d steps were run", ran, len(all))
			if len(all) == 0 && filepath.Base(page) != "README.md" || ran == 0 && page == "README.md" {
				t.Error("the page has nothing to run")
			}
		})
	}
}

// userPages are the documents whose commands a reader types.
func userPages(t *testing.T) []string {
	t.Helper()
	pages := []string{"README.md", "docs/getting-started.md"}
	for _, file := range walk(t, ".md") {
		if filepath.Dir(file) == filepath.Join("docs", "tasks") {
			pages = append(pages, file)
		}
	}
	return pages
}

// reader simulates the reader of a page: a directory that looks like a clone after make build, a
// shell whose variables and directory persist from step to step, and a second terminal in which a
// mesh runs.
type reader struct {
	t        *testing.T
	dir      string   // of the clone
	state    string   // directory for the state of the shell
	env      []string // of every command
	terminal *exec.Cmd
	shown    *output // in the terminal
	exited   chan error
}

func newReader(t *testing.T) *reader {
	t.Helper()
	s := newExample(t, "shop")
	dir := filepath.Dir(s.bin)
	for _, example := range []string{"bookinfo", "kubernetes", "limits"} {
		if err := os.CopyFS(filepath.Join(dir, "examples", example), os.DirFS(filepath.Join(repository(t), "examples", example))); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(filepath.Join(repository(t), "bin", "bookinfo"), filepath.Join(s.bin, "bookinfo")); err != nil {
		t.Fatal(err)
	}
	r := &reader{t: t, dir: dir, state: filepath.Join(dir, "tmp", "shell")}
	if err := os.Mkdir(r.state, 0o700); err != nil {
		t.Fatal(err)
	}
	// make, with the programs of this test instead of new ones.
	real, err := exec.LookPath("make")
	if err != nil {
		t.Fatal(err)
	}
	script := fmt.Sprintf("#!/bin/sh\nexec %s -f %s -o build -o envoy \"$@\"\n", real, filepath.Join(repository(t), "Makefile"))
	if err := os.WriteFile(filepath.Join(r.state, "make"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	r.env = append(os.Environ(), "TMPDIR="+s.tmp, "HOME="+s.home, "OUTRIGGER_STORE=", "OUTRIGGER_CONTROL=", "KUBECONFIG=",
		"PATH="+strings.Join([]string{r.state, s.bin, os.Getenv("PATH")}, string(os.PathListSeparator)))
	t.Cleanup(func() {
		if r.terminal == nil {
			return
		}
		if err := r.interrupt(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// mesh is a command that runs until Ctrl-C.
var mesh = regexp.MustCompile(`^(make up|(bin/)?outrigger up\b.*)\n$`)

// do executes one step of a page. A command whose output the page shows is repeated until it prints
// that, because the page shows the final state.
func (r *reader) do(s step) error {
	if s.file != "" {
		path := filepath.Join(r.dir, s.file)
		return errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(s.script), 0o644))
	}
	if mesh.MatchString(s.script) {
		return r.start(s)
	}
	for deadline := time.Now().Add(stepLimit); ; time.Sleep(50 * time.Millisecond) {
		out, err := r.command(s.script).CombinedOutput()
		switch line := missing(s.output, string(out)); {
		case (err != nil) == s.fails && line == "":
			return nil
		case s.output != "" && time.Now().Before(deadline):
		case line != "":
			return fmt.Errorf("%sprints no line %q (ended with %v):\n%s", s.script, line, err, out)
		default:
			return fmt.Errorf("%sended with %v:\n%s", s.script, err, out)
		}
	}
}

// command is a script in the shell of the reader, in a process group of its own.
func (r *reader) command(script string) *exec.Cmd {
	cmd := exec.Command("bash", "-c", `state=$1
if [ -e "$state/env" ]; then . "$state/env"; cd "$(cat "$state/cwd")"; fi
trap 'code=$?; export -p >"$state/env"; pwd >"$state/cwd"; exit $code' EXIT
set -e
eval "$2"`, "bash", r.state, script)
	cmd.Dir, cmd.Env = r.dir, r.env
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return cmd
}

// start runs a mesh in the idle terminal, and waits until it is ready.
func (r *reader) start(s step) error {
	if err := r.interrupt(); err != nil {
		return err
	}
	r.terminal, r.shown, r.exited = r.command("exec "+s.script), &output{grown: make(chan struct{}, 1)}, make(chan error, 1)
	r.terminal.Stdout, r.terminal.Stderr = r.shown, r.shown
	if err := r.terminal.Start(); err != nil {
		r.terminal = nil
		return err
	}
	cmd, exited := r.terminal, r.exited
	go func() { exited <- cmd.Wait() }()
	if !r.shown.wait("Ctrl-C ends it", stepLimit) {
		return fmt.Errorf("%sis not ready after %s:\n%s", s.script, stepLimit, r.shown)
	}
	if line := missing(s.output, r.shown.String()); line != "" {
		return fmt.Errorf("%sprints no line %q:\n%s", s.script, line, r.shown)
	}
	return nil
}

// interrupt sends Ctrl-C to the terminal, and waits until its program exits.
func (r *reader) interrupt() error {
	if r.terminal == nil {
		return nil
	}
	cmd := r.terminal
	r.terminal = nil
	if r.t.Failed() {
		r.t.Logf("the terminal of the mesh:\n%s", r.shown)
	}
	if err := syscall.Kill(-cmd.Process.Pid, syscall.SIGINT); err != nil {
		return fmt.Errorf("Ctrl-C: %w", err)
	}
	select {
	case err := <-r.exited: // make ends with an error
		r.t.Logf("Ctrl-C: %v", err)
		return nil
	case <-time.After(stepLimit):
		return errors.Join(fmt.Errorf("the mesh still runs %s after Ctrl-C:\n%s", stepLimit, r.shown), syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL))
	}
}

// TestSteps tests the runner of the documents itself.
func TestSteps(t *testing.T) {
	t.Parallel()
	page := "Text.\n\n```sh\nmake up\n```\n\n```text\nready in 1.22 s\n```\n\n<!-- fails -->\n```console\n$ false\nno …\n$ true\n```\n" +
		"```yaml\n# a/b.yaml\na: 1\n```\n```yaml\nb: 2\n```\n<!-- not run: no cluster -->\n```sh\nkubectl\n```\n"
	got, err := steps(page)
	want := []step{
		{line: 3, script: "make up\n", output: "ready in 1.22 s\n"},
		{line: 13, script: "false\n", output: "no …\n", fails: true},
		{line: 15, script: "true\n", fails: true},
		{line: 17, file: "a/b.yaml", script: "# a/b.yaml\na: 1\n"},
		{line: 25, script: "kubectl\n", skipped: "no cluster"},
	}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
	for _, bad := range []string{"```bash\nls\n```\n", "```sh\nls\n", "```text\nx\n```\n", "```console\nx\n```\n", "  ```sh\nls\n  ```\n"} {
		if got, err := steps(bad); err == nil {
			t.Errorf("%q is read as %+v", bad, got)
		}
	}
	for _, c := range []struct{ page, output, missing string }{
		{"a 1\nb\n", "a   22\nx\nb\n", ""},
		{"a\nb\n", "b\na\n", "b"},
		{"v1\n", "v2\n", "v1"},
		{"a … z (3s)\n…\n", "a b c z (14s)\n", ""},
		{"a.b\n", "axb\n", "a.b"},
	} {
		if got := missing(c.page, c.output); got != c.missing {
			t.Errorf("missing(%q, %q) is %q, want %q", c.page, c.output, got, c.missing)
		}
	}
}
