// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// fakeEnvoy writes a program that says the version of an Envoy.
func fakeEnvoy(t *testing.T, dir, version string) string {
	t.Helper()
	path := filepath.Join(dir, "envoy")
	script := fmt.Sprintf("#!/bin/sh\necho 'envoy  version: abc/%s/Clean/RELEASE/BoringSSL'\n", version)
	if err := os.WriteFile(path, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestFindEnvoy(t *testing.T) {
	beside, onPath := t.TempDir(), t.TempDir()
	fromFlag, fromEnv := fakeEnvoy(t, t.TempDir(), "1.39.3"), fakeEnvoy(t, t.TempDir(), "1.36.0")
	old := fakeEnvoy(t, t.TempDir(), "1.35.9")
	t.Setenv("PATH", onPath+":/bin:/usr/bin")
	for _, c := range []struct {
		name, flag, env string
		before          func()
		want, problem   string
	}{
		{name: "none", problem: "make envoy"},
		{name: "path", before: func() { fakeEnvoy(t, onPath, "1.40.0") }, want: filepath.Join(onPath, "envoy")},
		{name: "beside", before: func() { fakeEnvoy(t, beside, "1.39.3") }, want: filepath.Join(beside, "envoy")},
		{name: "env", env: fromEnv, want: fromEnv},
		{name: "flag", flag: fromFlag, env: fromEnv, want: fromFlag},
		{name: "too old", env: old, problem: "1.36"},
		{name: "missing", env: "/no/such/envoy", problem: "/no/such/envoy"},
	} {
		if c.before != nil {
			c.before()
		}
		got, err := findEnvoy(t.Context(), c.flag, c.env, beside)
		switch {
		case c.problem != "" && (err == nil || !strings.Contains(err.Error(), c.problem)):
			t.Errorf("%s: error %v does not name %s", c.name, err, c.problem)
		case c.problem == "" && (err != nil || got != c.want):
			t.Errorf("%s: %s, %v, want %s", c.name, got, err, c.want)
		}
	}
}

func TestCommandLine(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args []string
		want string // in the output
		err  string // in the error
	}{
		{args: []string{"version"}, want: version + "\n"},
		{args: []string{"--help"}, want: "outrigger up -f examples/shop/mesh.yaml"},
		{args: []string{"up", "--help"}, want: "--state-dir"},
		{args: []string{"up", "-f", "/no/mesh.yaml", "--envoy", "/no/envoy"}, err: "open /no/mesh.yaml"},
		{args: []string{"up", "extra"}, err: "unknown command"},
		{args: []string{"upp"}, err: `unknown command "upp"`},
	} {
		root := newRootCommand(environment{}, nil)
		var out bytes.Buffer
		root.SetOut(&out)
		root.SetArgs(c.args)
		err := root.ExecuteContext(t.Context())
		if c.err == "" && err != nil || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
			t.Errorf("%v: error %v, want %q", c.args, err, c.err)
		}
		if !strings.Contains(out.String(), c.want) {
			t.Errorf("%v: output %q lacks %q", c.args, out.String(), c.want)
		}
	}
}
