// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package envoy

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestParseVersion(t *testing.T) {
	t.Parallel()
	for out, want := range map[string]Version{
		"\nenvoy  version: 6eb0d2d9/1.39.3/Clean/RELEASE/BoringSSL\n":               {1, 39, 3, "1.39.3", "Clean/RELEASE"},
		"/opt/v2.0/envoy  version: 816188b8/1.26.0-dev/Clean/RELEASE/BoringSSL":     {1, 26, 0, "1.26.0-dev", "Clean/RELEASE"},
		"envoy  version: 0000000000000000000000000000000000000000/2.0.10/Modified/": {2, 0, 10, "2.0.10", ""},
	} {
		got, err := parseVersion(out)
		if err != nil || got != want {
			t.Errorf("parseVersion(%q) = %+v, %v, want %+v", out, got, err, want)
		}
	}
	for _, out := range []string{"", "hello", "version 1.39.3", "/1.39/", "/999999.1.1/"} {
		if got, err := parseVersion(out); err == nil {
			t.Errorf("parseVersion(%q) = %+v, want an error", out, got)
		}
	}
}

func TestCheckVersion(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		says string
		fail bool
		want []string // parts of the error; none means no error
	}{
		"new enough": {says: "envoy  version: abc/1.36.10/Clean/RELEASE/BoringSSL"},
		"unsafe": {
			says: "envoy  version: abc/1.36.0/Clean/RELEASE/BoringSSL",
			want: []string{"CVE-2026-73511", "1.36.10", "--allow-unsafe-envoy"},
		},
		"next major": {says: "envoy  version: abc/2.0.0/Clean/RELEASE/BoringSSL"},
		"too old": {
			says: "envoy  version: abc/1.35.9/Clean/RELEASE/BoringSSL",
			want: []string{"is version 1.35.9", "1.36 or newer is needed", "binaryPath"},
		},
		"no envoy": {says: "GNU bash", want: []string{`"GNU bash" names no version`, "is it an envoy?"}},
		"fails":    {says: "no such library", fail: true, want: []string{"--version: exit status 3", "no such library"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			binary := fakeVersion(t, c.says, c.fail)
			_, err := CheckVersion(t.Context(), binary, false)
			if (err != nil) != (c.want != nil) {
				t.Fatalf("error = %v, want one: %t", err, c.want != nil)
			}
			for _, part := range c.want {
				if !strings.Contains(err.Error(), part) || !strings.Contains(err.Error(), binary) {
					t.Errorf("error %q does not name %q and %q", err, part, binary)
				}
			}
		})
	}
}

func TestCheckVersionWithoutBinary(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "nothing")
	if _, err := CheckVersion(t.Context(), path, false); err == nil || !strings.Contains(err.Error(), "there is no envoy at "+path) {
		t.Errorf("error = %v, want one that names %s", err, path)
	}
}

// TestCheckVersionEndsWithItsContext checks that the check ends with its context. A script instead
// of Envoy may start a program that keeps its output open.
func TestCheckVersionEndsWithItsContext(t *testing.T) {
	t.Parallel()
	script := filepath.Join(t.TempDir(), "envoy")
	if err := os.WriteFile(script, []byte("#!/bin/sh\nsleep 60 &\necho $! > \"$0.pid\"\nwait\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error, 1)
	go func() {
		_, err := CheckVersion(ctx, script, false)
		result <- err
	}()
	pid := 0
	eventually(t, "the script has started a program", func() bool {
		text, err := os.ReadFile(script + ".pid")
		if err == nil {
			pid, err = strconv.Atoi(strings.TrimSpace(string(text)))
		}
		return err == nil
	})
	t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGKILL) })
	cancel()
	select {
	case err := <-result:
		if !errors.Is(err, context.Canceled) || strings.Contains(err.Error(), "no answer within") {
			t.Errorf("error = %v, want one that says it was cut short", err)
		}
	case <-time.After(2 * time.Minute):
		t.Error("the check goes on after the end of its context")
	}
}

func TestCheckVersionOfRealEnvoy(t *testing.T) {
	t.Parallel()
	v, err := CheckVersion(t.Context(), findEnvoy(t), true)
	if err != nil {
		t.Fatal(err)
	}
	if v.Major < minMajor || v.Full == "" {
		t.Errorf("version = %+v", v)
	}
}

// fakeVersion returns a program, the test binary under another name, that prints the text instead
// of a version.
func fakeVersion(t *testing.T, text string, fail bool) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	binary := filepath.Join(t.TempDir(), "envoy")
	if err := os.Symlink(self, binary); err != nil {
		t.Fatal(err)
	}
	for name, on := range map[string]bool{".says": true, ".fails": fail} {
		if !on {
			continue
		}
		if err := os.WriteFile(binary+name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return binary
}

func TestUntested(t *testing.T) {
	t.Parallel()
	for out, want := range map[string]string{
		"/1.36.0/Clean/RELEASE/BoringSSL":      "",
		"/1.40.7/Clean/RELEASE/BoringSSL-FIPS": "",
		"/1.41.0/Clean/RELEASE/BoringSSL":      "versions 1.36 to 1.40 are tested",
		"/2.0.0/Clean/RELEASE/BoringSSL":       "versions 1.36 to 1.40 are tested",
		"/1.39.0-dev/Clean/RELEASE/BoringSSL":  "it is a pre-release",
		"/1.38.3/Modified/RELEASE/BoringSSL":   `its build is "Modified/RELEASE", that of a release is "Clean/RELEASE"`,
		"/1.39.3/Clean/DEBUG/BoringSSL":        `its build is "Clean/DEBUG", that of a release is "Clean/RELEASE"`,
		"/1.39.3/":                             `its build is "", that of a release is "Clean/RELEASE"`,
	} {
		v, err := parseVersion("envoy  version: abc" + out)
		if err != nil || v.Untested() != want {
			t.Errorf("%s: %q, %v, want %q", out, v.Untested(), err, want)
		}
	}
}

// TestUnsafe checks that the error for a version with a known vulnerability names the vulnerability
// or the version that fixes it.
func TestUnsafe(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"1.36.2": "CVE-2026-26308", "1.36.5": "CVE-2026-73511", "1.36.9": "1.36.10", "1.37.0": "1.37.6", "1.38.3": "1.38.4", "1.39.0": "1.39.1",
		"1.36.10": "", "1.37.6": "", "1.38.4": "", "1.39.1": "", "1.39.3": "", "1.40.0": "", "2.36.0": "",
	} {
		v, err := parseVersion("envoy  version: 0123/" + text + "/Clean/RELEASE/BoringSSL")
		if err != nil {
			t.Fatal(err)
		}
		if err := v.Unsafe(); (err != nil) != (want != "") || err != nil && (!strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "--allow-unsafe-envoy")) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}
