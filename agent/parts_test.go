// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package agent

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestCheckVersion checks that an unknown version does not end a running Envoy, but an old or
// unsafe one does. If Envoy has already ended, an unknown version is an error as well.
func TestCheckVersion(t *testing.T) {
	t.Parallel()
	script := func(version string) string {
		path := filepath.Join(t.TempDir(), "envoy")
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"+version+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		return path
	}
	running, ended := make(chan struct{}), make(chan struct{})
	close(ended)
	old := script("echo 'envoy version: 0123/1.30.1/Clean/RELEASE/BoringSSL'")
	unsafe := script("echo 'envoy version: 0123/1.38.3/Clean/RELEASE/BoringSSL'")
	for name, tc := range map[string]struct {
		binary   string
		ended    <-chan struct{}
		allowed  bool
		err, log string
	}{
		"gone while it runs":    {binary: "/none/envoy", ended: running, log: "its version is unknown"},
		"silent while it runs":  {binary: script("exit 1"), ended: running, log: "its version is unknown"},
		"too old while it runs": {binary: old, ended: running, err: "is version 1.30.1"},
		"too old, ended":        {binary: old, ended: ended, err: "is version 1.30.1"},
		"gone, ended":           {binary: "/none/envoy", ended: ended, err: "there is no envoy at /none/envoy"},
		"unsafe":                {binary: unsafe, ended: running, err: "CVE-2026-73511"},
		"unsafe, allowed":       {binary: unsafe, ended: running, allowed: true, log: "CVE-2026-73511"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out := &bytes.Buffer{}
			err := (&parts{binary: tc.binary, unsafe: tc.allowed}).checkVersion(t.Context(), slog.New(slog.NewTextHandler(out, nil)), tc.ended)
			if (err != nil) != (tc.err != "") || err != nil && !strings.Contains(err.Error(), tc.err) {
				t.Errorf("error %v, want one with %q", err, tc.err)
			}
			if log := out.String(); (log != "") != (tc.log != "") || !strings.Contains(log, tc.log) {
				t.Errorf("log %q, want %q", log, tc.log)
			}
		})
	}
}
