// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package sds

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/outrigger-mesh/outrigger/certs"
)

func newCRL(t testing.TB) []byte {
	t.Helper()
	key, err := certs.NewKey(certs.ECDSAP256)
	if err != nil {
		t.Fatal(err)
	}
	issuer := &x509.Certificate{SerialNumber: big.NewInt(1), KeyUsage: x509.KeyUsageCRLSign, SubjectKeyId: []byte{1}}
	der, err := x509.CreateRevocationList(rand.Reader, &x509.RevocationList{
		Number: big.NewInt(1), ThisUpdate: time.Unix(1e9, 0), NextUpdate: time.Unix(2e9, 0),
	}, issuer, key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "X509 CRL", Bytes: der})
}

func TestParseCRL(t *testing.T) {
	t.Parallel()
	crl := newCRL(t)
	for name, tc := range map[string]struct {
		data    []byte
		wantErr string
	}{
		"one":       {data: crl},
		"two":       {data: slices.Concat(crl, []byte("# the next\n"), crl)},
		"none":      {wantErr: "0 of 0"},
		"cut short": {data: slices.Concat(crl, crl[:len(crl)-30]), wantErr: "1 of 2"},
		"other":     {data: []byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"), wantErr: "not X509 CRL"},
		"broken":    {data: []byte("-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n"), wantErr: "list 1"},
	} {
		next, err := NextUpdate(tc.data)
		if tc.wantErr != "" {
			if err == nil || !strings.Contains(err.Error(), tc.wantErr) {
				t.Errorf("%s: got error %v, want one with %q", name, err, tc.wantErr)
			}
		} else if err != nil || next.Unix() != 2e9 {
			t.Errorf("%s: got %s, error %v", name, next, err)
		}
	}
}

func FuzzParseCRL(f *testing.F) {
	f.Add(newCRL(f))
	f.Add([]byte("-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n-----BEGIN X"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if _, err := NextUpdate(data); err == nil {
			if _, err := NextUpdate(slices.Concat(data, []byte("\n"), data)); err != nil {
				t.Fatalf("two copies of an accepted list are rejected: %v", err)
			}
		}
	})
}

// TestReadFileDoesNotWait checks that pipes, directories and files that are too large are rejected,
// and that reading does not block on them.
func TestReadFileDoesNotWait(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	pipe, large := filepath.Join(dir, "pipe"), filepath.Join(dir, "large")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(large, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(large, maxFile+1); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{pipe: "not a regular file", dir: "not a regular file", large: "at most"} {
		if _, err := ReadFile(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got error %v, want one with %q", path, err, want)
		}
	}
}

// TestOnlyRequestedFilesAreWatched checks that files are followed once, however many streams
// request them, and only as long as one of them does. It also checks the limit on their number.
func TestOnlyRequestedFilesAreWatched(t *testing.T) {
	t.Parallel()
	f, err := NewFiles(FilesConfig{})
	if err != nil {
		t.Fatal(err)
	}
	a, b := &acquired{files: f, names: map[string]error{}}, &acquired{files: f, names: map[string]error{}}
	get := func(h *acquired, name string, want bool) {
		t.Helper()
		r, err := parseName(name)
		if err != nil {
			t.Fatal(err)
		}
		if _, served := h.get(name, r); served != want {
			t.Errorf("%s is served: %v, want %v", name, served, want)
		}
	}
	get(a, "file-root:/x", true)
	get(a, "file-root:/x", true)
	get(b, "file-root:/x", true)
	get(b, "file-root:/y", true)
	if len(f.groups) != 2 {
		t.Errorf("%d groups of files are followed, want 2", len(f.groups))
	}
	a.release()
	b.keep(map[string]string{"file-root:/x": ""})
	if len(f.groups) != 1 || len(f.secrets) != 1 {
		t.Errorf("%d groups of files are followed, want 1", len(f.groups))
	}
	b.release()
	if len(f.groups) != 0 || len(f.secrets) != 0 {
		t.Errorf("%d groups of files are followed, want none", len(f.groups))
	}
	for n := range maxFileSecrets {
		get(a, "file-root:/"+strings.Repeat("x", n+1), true)
	}
	get(a, "file-root:/y", false)
	a.release()
	get(b, "file-root:/y", true)
}

// TestWatchIsRemoved checks that a directory is no longer watched when no group needs it.
func TestWatchIsRemoved(t *testing.T) {
	t.Parallel()
	w := newWatch(fsnotify.NewWatcher)
	defer w.close()
	dir := t.TempDir()
	one := &group{paths: []string{filepath.Join(dir, "a", "missing", "file"), filepath.Join(dir, "file")}}
	if err := w.set(one); err != nil {
		t.Fatal(err)
	}
	if got := w.fs.WatchList(); !slices.Equal(got, []string{dir}) {
		t.Errorf("watched directories: %v, want %s", got, dir)
	}
	if err := os.MkdirAll(filepath.Join(dir, "a", "missing"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := w.set(one); err != nil {
		t.Fatal(err)
	}
	if got := w.fs.WatchList(); len(got) != 2 {
		t.Errorf("watched directories: %v, want 2", got)
	}
	w.remove(one)
	if got := w.fs.WatchList(); len(got) != 0 {
		t.Errorf("watched directories: %v, want none", got)
	}
}

// TestWithoutWatching checks that changes are noticed with a delay if the system cannot watch
// files.
func TestWithoutWatching(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	f, err := NewFiles(FilesConfig{Debounce: time.Hour, Rescan: time.Hour, Registerer: reg, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	f.open = func() (*fsnotify.Watcher, error) { return nil, syscall.EMFILE }
	path := filepath.Join(t.TempDir(), "crl.pem")
	took := make(chan string, 1)
	f.follow(&group{paths: []string{path}, optional: true, take: func(c [][]byte) error { took <- string(c[0]); return nil }})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	for _, want := range []string{"a", "b"} {
		if err := os.WriteFile(path, []byte(want), 0o600); err != nil {
			t.Fatal(err)
		}
		select {
		case got := <-took:
			if got != want {
				t.Errorf("got %q, want %q", got, want)
			}
		case <-time.After(2 * time.Minute):
			t.Error("the change was not noticed within 2 minutes")
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var failures float64
	for _, f := range families {
		if f.GetName() == "istio_agent_num_file_watcher_failures_total" {
			failures = f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	if failures < 2 {
		t.Errorf("watcher failures = %v, want at least 2, one for each change", failures)
	}
}
