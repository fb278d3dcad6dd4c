// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// badInput is one mistake. The program runs as in a pod, in its own directory and with a script as
// Envoy.
type badInput struct {
	name string
	// args replace `proxy sidecar`.
	args []string
	// config contains additional fields of PROXY_CONFIG. In it and in env and files, {dir} and
	// {address} are replaced by those of the case.
	config string
	env    []string
	// files are written below the directory; a name that ends with a slash is a directory.
	files   map[string]string
	prepare func(t *testing.T, dir, address string)
	// want contains parts of the single error line: the setting, its value, the expected form.
	want []string
	// left are files that remain, as documented, in addition to the directories of the sockets.
	left []string
}

// goodEnvoy is an Envoy that starts and does nothing.
const goodEnvoy = "#!/bin/sh\nif [ \"$1\" = --version ]; then echo 'envoy  version: 0123/1.39.3/Clean/RELEASE/BoringSSL'; exit 0; fi\nexec sleep 600\n"

// goodFiles returns the files of a valid pod.
func goodFiles(t *testing.T) map[string]string {
	t.Helper()
	return map[string]string{
		"envoy": goodEnvoy, "var/run/secrets/istio/root-cert.pem": string(newControlPlane(t).rootPEM()),
		"var/run/secrets/tokens/istio-token": "the-token\n", "etc/istio/pod/labels": "app=\"shop\"\n",
	}
}

// run runs the agent until it ends, and returns its exit code and output.
func (tc badInput) run(t *testing.T, dir, address string) (code int, out string) {
	t.Helper()
	replace := strings.NewReplacer("{dir}", dir, "{address}", address).Replace
	args := tc.args
	if args == nil {
		args = []string{"proxy", "sidecar"}
	}
	cmd := exec.Command(os.Args[0])
	for _, arg := range args {
		cmd.Args = append(cmd.Args, replace(arg))
	}
	cmd.Dir = dir
	config := tc.config
	for field, value := range map[string]string{
		"discoveryAddress": "{address}:1", // nothing listens there, because no case may need the control plane
		"binaryPath":       "{dir}/envoy", "terminationDrainDuration": "0s",
	} {
		if !strings.Contains(config, field) {
			config += fmt.Sprintf(",%q:%q", field, value)
		}
	}
	cmd.Env = []string{
		"OUTRIGGER_TEST_ROLE=agent", "POD_NAME=shop-1", "POD_NAMESPACE=default", "SERVICE_ACCOUNT=shop", "INSTANCE_IP=" + address,
		"OUTRIGGER_BIND_ADDRESS=" + address, "ISTIO_META_INTERCEPTION_MODE=NONE",
		replace("PROXY_CONFIG={" + strings.TrimPrefix(config, ",") + "}"),
	}
	for _, entry := range tc.env {
		cmd.Env = append(cmd.Env, replace(entry))
	}
	var b lockedBuffer
	cmd.Stdout, cmd.Stderr = &b, &b
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	timer := time.AfterFunc(2*time.Minute, func() { _ = cmd.Process.Kill() }) // kills a program that accepts the input; its exit code is -1
	defer timer.Stop()
	_ = cmd.Wait() // the caller checks the exit code
	return cmd.ProcessState.ExitCode(), b.String()
}

// tree lists the files below a directory, except those that are documented to outlive the agent.
func tree(t *testing.T, dir string) []string {
	t.Helper()
	var paths []string
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if rel == "var/lib" {
			return fs.SkipDir
		}
		paths = append(paths, rel+" "+entry.Type().String())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return paths
}

// processesIn lists the processes whose working directory is dir.
func processesIn(t *testing.T, dir string) []string {
	t.Helper()
	links, err := filepath.Glob("/proc/[0-9]*/cwd")
	if err != nil || len(links) == 0 {
		t.Fatalf("processes: %v", err)
	}
	return slices.DeleteFunc(links, func(link string) bool {
		cwd, err := os.Readlink(link)
		return err != nil || cwd != dir // the process has exited or belongs to another user
	})
}

// errorLines returns the lines that report an error: log lines of level error, and lines that are
// not log lines. It omits the line about the missing certificate, which is not the subject of any
// case.
func errorLines(out string) []string {
	return slices.DeleteFunc(strings.Split(strings.TrimSpace(out), "\n"), func(line string) bool {
		_, level, logged := strings.Cut(line, "Z\t")
		return logged && (!strings.HasPrefix(level, "error\t") || strings.HasPrefix(level, "error\tsds\tno certificate yet"))
	})
}

// TestBadInput checks that each mistake ends the program with one line that contains the setting,
// the value and the cure, and leaves no files or processes behind.
func TestBadInput(t *testing.T) {
	t.Parallel()
	files := goodFiles(t)
	for i, tc := range slices.Concat(badCommandLines(), badProxyConfigs(), badEnvironments(), badFiles(), badMachines()) {
		address := fmt.Sprintf("127.77.42.%d", i+1)
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			dir, err := filepath.EvalSymlinks(t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			writeTree(t, dir, files)
			writeTree(t, dir, tc.files)
			if tc.prepare != nil {
				tc.prepare(t, dir, address)
			}
			before := tree(t, dir)
			code, out := tc.run(t, dir, address)
			out = strings.NewReplacer(dir, "{dir}", address, "{address}").Replace(out) // the name of the directory contains that of the case
			t.Log(out)
			if code != exitError {
				t.Errorf("exit code %d, want %d", code, exitError)
			}

			lines := errorLines(out)
			if len(lines) != 1 {
				t.Errorf("%d error lines, want 1:\n%s", len(lines), strings.Join(lines, "\n"))
			}
			for _, part := range tc.want {
				if len(lines) == 0 || !strings.Contains(lines[len(lines)-1], part) {
					t.Errorf("the error line does not contain %q", part)
				}
			}
			left := append(tc.left, "etc/istio/proxy d---------", "var/run/secrets/workload-spiffe-uds d---------")
			after := slices.DeleteFunc(tree(t, dir), func(path string) bool { return slices.Contains(left, path) && !slices.Contains(before, path) })
			if !slices.Equal(before, after) {
				t.Errorf("files before:\n%s\nafter:\n%s", strings.Join(before, "\n"), strings.Join(after, "\n"))
			}
			if left := processesIn(t, dir); len(left) > 0 {
				t.Errorf("processes remain: %q", left)
			}
		})
	}
}

// writeTree writes files below a directory. The text "-" removes a file.
func writeTree(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(dir, name)
		var err error
		switch {
		case text == "-":
			err = os.RemoveAll(path)
		case strings.HasSuffix(name, "/"):
			err = errors.Join(os.RemoveAll(path), os.MkdirAll(path, 0o755))
		default:
			if err = os.MkdirAll(filepath.Dir(path), 0o755); err == nil {
				err = os.WriteFile(path, []byte(text), 0o755)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func chmod(t *testing.T, path string, mode os.FileMode) {
	t.Helper()
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}

// listen occupies a socket or a port until the test ends.
func listen(t *testing.T, network, address string) {
	t.Helper()
	if network == "unix" {
		if err := os.MkdirAll(filepath.Dir(address), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	l, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
}

// TestBadInputHarness checks that the harness detects what a case leaves behind; otherwise no case
// could fail.
func TestBadInputHarness(t *testing.T) {
	t.Parallel()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	before := tree(t, dir)
	writeTree(t, dir, map[string]string{"a/b": "x"})
	if after := tree(t, dir); slices.Equal(before, after) || !slices.Contains(after, filepath.Join("a", "b")+" ----------") {
		t.Errorf("tree() = %q, want a difference with the new directory", after)
	}
	cmd := exec.Command("sleep", "60")
	cmd.Dir = dir
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if got := processesIn(t, dir); len(got) != 1 {
		t.Errorf("processesIn() = %q, want one", got)
	}
	_ = cmd.Process.Signal(syscall.SIGKILL)
	_ = cmd.Wait() // killed
	if got := errorLines(ownName + ": a\n  and more\n1Z\terror\tb\n1Z\twarn\tc\n"); len(got) != 3 {
		t.Errorf("errorLines() = %q, want 3", got)
	}
}
