// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	rpmutils "github.com/sassoftware/go-rpmutils"
)

var (
	programs     = flag.String("programs", "../../bin", "directory with the programs for each architecture")
	envoyVersion = flag.String("envoy-version", "", "version of the envoy among them")
	from         = flag.String("from", "", "revision that TestJoinMachines upgrades from; the newest older one of scripts/older if empty")
)

// leaveOut skips a test and prints why, also where go test does not.
func leaveOut(t *testing.T, format string, arguments ...any) {
	t.Helper()
	reason := fmt.Sprintf(format, arguments...)
	fmt.Printf("== packages: %s is left out: %s\n", t.Name(), reason)
	t.Skip(reason)
}

// native returns the directory of the programs for this machine.
func native(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(*programs, "linux-"+runtime.GOARCH)
	if _, err := os.Stat(filepath.Join(dir, "envoy")); err != nil {
		t.Fatalf("%v: run make test-machine, which builds the programs", err)
	}
	return dir
}

// script returns the script in place of a program.
func script(arch string, k kind) string { return "#!/bin/sh\n# " + k.program + " for " + arch + "\n" }

// small returns a directory with small scripts in place of the programs of two architectures.
func small(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, arch := range []string{"amd64", "arm64"} {
		if err := os.Mkdir(filepath.Join(dir, "linux-"+arch), 0o755); err != nil {
			t.Fatal(err)
		}
		for _, k := range kinds {
			if err := os.WriteFile(filepath.Join(dir, "linux-"+arch, k.program), []byte(script(arch, k)), 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	return dir
}

// makePackages writes packages and returns where.
func makePackages(t *testing.T, arguments ...string) string {
	t.Helper()
	out := t.TempDir()
	arguments = append([]string{"--native", native(t), "--repository", "../..", "--out", out, "--created", "1700000000"}, arguments...)
	var table bytes.Buffer
	if err := run(t.Context(), arguments, &table); err != nil {
		t.Fatal(err)
	}
	t.Logf("\n%s", &table)
	return out
}

// TestEqual makes all packages twice: the files are the same.
func TestEqual(t *testing.T) {
	t.Parallel()
	programs := small(t)
	// A large file is compressed in many blocks.
	large, err := os.ReadFile(filepath.Join(native(t), "outrigger-agent"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(programs, "linux-arm64", "envoy"), large, 0o755); err != nil {
		t.Fatal(err)
	}
	sums := func() map[string]string {
		out := makePackages(t, "--programs", programs, "--version", "v1.2.3", "--envoy-version", "1.39.3")
		entries, err := os.ReadDir(out)
		if err != nil {
			t.Fatal(err)
		}
		found := map[string]string{}
		for _, entry := range entries {
			content, err := os.ReadFile(filepath.Join(out, entry.Name()))
			if err != nil {
				t.Fatal(err)
			}
			found[entry.Name()] = fmt.Sprintf("%x", sha256.Sum256(content))
		}
		return found
	}
	first, second := sums(), sums()
	if want := 2 * 2 * len(kinds); len(first) != want {
		t.Errorf("there are %d files, want %d", len(first), want)
	}
	if !maps.Equal(first, second) {
		t.Errorf("two runs differ:\n%v\n%v", first, second)
	}
	for _, name := range []string{
		"outrigger-agent_1.2.3_arm64.deb", "outrigger-agent-1.2.3-1.aarch64.rpm", "outrigger-envoy_1.39.3_amd64.deb", "outrigger-envoy-1.39.3-1.x86_64.rpm",
	} {
		if first[name] == "" {
			t.Errorf("%s is missing among %v", name, slices.Sorted(maps.Keys(first)))
		}
	}
}

// TestRPM reads the packages for rpm with a library: there may be no rpm here.
func TestRPM(t *testing.T) {
	t.Parallel()
	out := makePackages(t, "--programs", small(t), "--version", "v1.2.3-4-gabcdef0", "--envoy-version", "1.39.3", "--arch", "amd64")
	for _, k := range kinds {
		version := "1.2.3+4.gabcdef0"
		if k.envoy {
			version = "1.39.3"
		}
		f, err := os.Open(filepath.Join(out, k.name+"-"+version+"-1.x86_64.rpm"))
		if err != nil {
			t.Fatal(err)
		}
		r, err := rpmutils.ReadRpm(f)
		if err != nil {
			t.Fatal(err)
		}
		requires, err := r.Header.GetStrings(rpmutils.REQUIRENAME)
		if err != nil && len(k.depends) > 0 {
			t.Error(err)
		}
		for _, d := range k.depends {
			if !slices.Contains(requires, d.rpm) {
				t.Errorf("%s requires %q, not %s", k.name, requires, d.rpm)
			}
		}
		list, err := r.Header.GetFiles()
		if err != nil {
			t.Fatal(err)
		}
		settings := 0
		for _, file := range list {
			const config, noReplace = 1, 1 << 4
			if file.Flags()&config != 0 {
				settings++
				if file.Flags()&noReplace == 0 || !k.isSetting(file.Name()) {
					t.Errorf("%s has the setting %s with the flags %o", k.name, file.Name(), file.Flags())
				}
			}
			if file.UserName() != "root" || file.Mode()&0o022 != 0 {
				t.Errorf("%s has %s with the owner %s and mode %o", k.name, file.Name(), file.UserName(), file.Mode())
			}
		}
		if settings != len(k.settings) {
			t.Errorf("%s has %d settings, want %q", k.name, settings, k.settings)
		}
		payload, err := r.PayloadReaderExtended()
		if err != nil {
			t.Fatal(err)
		}
		found := map[string]string{}
		for {
			file, err := payload.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			content, err := io.ReadAll(payload)
			if err != nil {
				t.Fatal(err)
			}
			found[file.Name()] = string(content)
		}
		if !strings.HasPrefix(found[k.path], script("amd64", k)) {
			t.Errorf("%s has another file at %s; there are %q", k.name, k.path, slices.Sorted(maps.Keys(found)))
		}
		for path, name := range k.sources {
			if want, err := os.ReadFile(filepath.Join("../..", name)); err != nil || found[path] != string(want) {
				t.Errorf("%s has %d bytes at %s, want %s, %v", k.name, len(found[path]), path, name, err)
			}
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
		if rpm, err := exec.LookPath("rpm"); err != nil {
			continue // TestMachine has one
		} else if output, err := exec.CommandContext(t.Context(), rpm, "--query", "--package", "--list", "--scripts", f.Name()).CombinedOutput(); err != nil {
			t.Errorf("rpm: %v\n%s", err, output)
		}
	}
}

// TestLintian runs lintian, if it is installed.
func TestLintian(t *testing.T) {
	t.Parallel()
	lintian, err := exec.LookPath("lintian")
	if err != nil {
		leaveOut(t, "lintian is not installed")
	}
	out := makePackages(t, "--programs", small(t), "--version", "v1.2.3", "--envoy-version", *envoyVersion, "--arch", runtime.GOARCH, "--compression", "gzip", "--format", "deb")
	debs, err := filepath.Glob(filepath.Join(out, "*.deb"))
	if err != nil || len(debs) != len(kinds) {
		t.Fatalf("there are %q, %v", debs, err)
	}
	arguments := append([]string{"--allow-root", "--fail-on", "error,warning"}, debs...)
	if output, err := exec.CommandContext(t.Context(), lintian, arguments...).CombinedOutput(); err != nil {
		t.Errorf("lintian: %v\n%s", err, output)
	}
}

func TestPackageVersion(t *testing.T) {
	t.Parallel()
	created := time.Date(2026, 11, 27, 7, 5, 0, 0, time.UTC)
	for version, want := range map[string]string{
		"v1.2.3":                       "1.2.3",
		"1.2.3":                        "1.2.3",
		"v1.2.3-dirty":                 "1.2.3+dirty",
		"v1.2.3-rc.1":                  "1.2.3~rc.1",
		"v1.2.3-4-gabcdef0":            "1.2.3+4.gabcdef0",
		"v1.2.3-rc.1-4-gabcdef0-dirty": "1.2.3~rc.1+4.gabcdef0.dirty",
		"45a983bd":                     "0+20261127070500.45a983bd",
		"45a983bd-dirty":               "0+20261127070500.45a983bd.dirty",
		"dev":                          "0+20261127070500.dev",
		"":                             "0+20261127070500",
		"release/one two":              "0+20261127070500.release.one.two",
	} {
		if got := packageVersion(version, created); got != want {
			t.Errorf("%q becomes %q, want %q", version, got, want)
		}
	}
	// dpkg orders them by age.
	dpkg, err := exec.LookPath("dpkg")
	if err != nil {
		t.Log("the order is not compared: dpkg is not installed")
		return
	}
	ordered := []string{"abcdef0", "v0.1.0", "v1.2.3-rc.1", "v1.2.3-rc.1-4-gabcdef0", "v1.2.3", "v1.2.3-4-gabcdef0", "v1.2.4-rc.1"}
	for i := 1; i < len(ordered); i++ {
		older, newer := packageVersion(ordered[i-1], created), packageVersion(ordered[i], created)
		if output, err := exec.CommandContext(t.Context(), dpkg, "--compare-versions", older, "lt", newer).CombinedOutput(); err != nil {
			t.Errorf("%s is not older than %s: %v %s", older, newer, err, output)
		}
	}
}

func TestArguments(t *testing.T) {
	t.Parallel()
	for want, arguments := range map[string][]string{
		"--created":        {"--created", "today", "--envoy-version", "1.39.3"},
		"--envoy-version":  {},
		"unexpected":       {"--envoy-version", "1.39.3", "more"},
		"linux-riscv/outr": {"--envoy-version", "1.39.3", "--arch", "riscv", "--native", native(t), "--repository", "../..", "--out", t.TempDir()},
		"--native":         {"--envoy-version", "1.39.3", "--native", t.TempDir(), "--repository", "../..", "--out", t.TempDir()},
	} {
		if err := run(t.Context(), arguments, io.Discard); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", arguments, err, want)
		}
	}
}
