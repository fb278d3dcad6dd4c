// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package sds_test

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/certs"
	"github.com/outrigger-mesh/outrigger/sds"
)

func newOutput(t *testing.T, cfg sds.OutputConfig) {
	t.Helper()
	o, err := sds.NewOutput(cfg)
	if err != nil {
		t.Fatal(err)
	}
	run(t, o)
}

// written reports whether the files contain the identity.
func written(dir string, id *sds.Identity) bool {
	for name, want := range map[string][]byte{keyFile: id.KeyPEM, chainFile: id.ChainPEM, rootsFile: id.RootsPEM} {
		if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || !bytes.Equal(got, want) {
			return false
		}
	}
	return true
}

// TestOutput checks that every identity is written completely and with the right mode, although no
// stream requests it. Only files that differ are written, and changed roots are.
func TestOutput(t *testing.T) {
	t.Parallel()
	a, dir := newAuthority(t), t.TempDir()
	a.set(nil, 2*time.Second)
	leftover := filepath.Join(dir, "key.pem.tmp.123")
	write(t, leftover, []byte("half a key"))
	w := newWorkload(t, a, nil)
	newOutput(t, sds.OutputConfig{Dir: dir, Workload: w, Logger: quiet()})
	run(t, w)
	var first *sds.Identity
	eventually(t, "the files of the first identity", func() bool {
		first = w.Current()
		return first != nil && written(dir, first)
	})
	before := stat(t, filepath.Join(dir, rootsFile))
	for name := range map[string]bool{keyFile: true, chainFile: true, rootsFile: true} {
		if mode := stat(t, filepath.Join(dir, name)).Mode(); mode != 0o600 {
			t.Errorf("%s has mode %s, want 0600", name, mode)
		}
	}
	for range 2 {
		eventually(t, "the files of the next identity", func() bool {
			id := w.Current()
			return id.NotAfter != first.NotAfter && written(dir, id)
		})
		first = w.Current()
	}
	if !os.SameFile(before, stat(t, filepath.Join(dir, rootsFile))) {
		t.Error("unchanged roots were written again")
	}
	a.set(nil, time.Hour)
	if err := w.SetAnchors([][]byte{certs.EncodeChain(newAuthority(t).root)}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "new roots", func() bool { return len(w.Current().Roots()) == 2 && written(dir, w.Current()) })
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 3 {
		t.Errorf("files: got %v, error %v; want 3", entries, err)
	}
	if _, err := os.Stat(leftover); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file left by an earlier run was not removed: %v", err)
	}
}

func stat(t *testing.T, path string) os.FileInfo {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info
}

// TestOutputReplacesPlantedFiles uses a directory that others can write to. Links and pipes in it
// must not prevent the files from being written, and no link may be followed.
func TestOutputReplacesPlantedFiles(t *testing.T) {
	t.Parallel()
	a, dir := newAuthority(t), t.TempDir()
	roots := filepath.Join(t.TempDir(), "roots")
	write(t, roots, certs.EncodeChain(a.root)) // equal to what will be written
	for name, plant := range map[string]func(string) error{
		keyFile:   func(path string) error { return os.Symlink("/dev/zero", path) },
		chainFile: func(path string) error { return syscall.Mkfifo(path, 0o600) },
		rootsFile: func(path string) error { return os.Symlink(roots, path) },
	} {
		if err := plant(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	w := newWorkload(t, a, nil)
	newOutput(t, sds.OutputConfig{Dir: dir, Workload: w, Logger: quiet()})
	run(t, w)
	eventually(t, "the files of the identity", func() bool {
		for _, name := range []string{keyFile, chainFile, rootsFile} {
			if info, err := os.Lstat(filepath.Join(dir, name)); err != nil || info.Mode() != 0o600 {
				return false
			}
		}
		return written(dir, w.Current())
	})
}

// TestOutputRetriesFailedWrites checks that a failed write is logged and retried. The mode is the
// one that Kubernetes uses.
func TestOutputRetriesFailedWrites(t *testing.T) {
	t.Parallel()
	dir, log := t.TempDir(), &syncBuffer{}
	obstacle := filepath.Join(dir, keyFile)
	if err := os.MkdirAll(filepath.Join(obstacle, "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	w := newWorkload(t, newAuthority(t), nil)
	newOutput(t, sds.OutputConfig{Dir: dir, Workload: w, Mode: 0o644, Logger: slog.New(slog.NewTextHandler(log, nil))})
	run(t, w)
	eventually(t, "an error in the log", func() bool { return strings.Contains(log.String(), "writing "+obstacle) })
	if err := os.RemoveAll(obstacle); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the files", func() bool { return written(dir, w.Current()) })
	if mode := stat(t, obstacle).Mode(); mode != 0o644 {
		t.Errorf("the key has mode %s, want 0644", mode)
	}
	if strings.Contains(log.String(), "BEGIN") {
		t.Error("the log contains keys")
	}
}

// TestOutputIsAllOrNothing checks that the key is not written if the chain cannot be: the path of
// the chain's temporary file is too long for the kernel.
func TestOutputIsAllOrNothing(t *testing.T) {
	t.Parallel()
	const longest = 4095 - len("/key.pem.tmp.4294967295")
	dir, log := t.TempDir(), &syncBuffer{}
	for len(dir) < longest {
		dir += "/" + strings.Repeat("d", min(200, max(1, longest-len(dir)-1)))
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	w := newWorkload(t, newAuthority(t), nil)
	newOutput(t, sds.OutputConfig{Dir: dir, Workload: w, Logger: slog.New(slog.NewTextHandler(log, nil))})
	run(t, w)
	eventually(t, "an error in the log", func() bool { return strings.Contains(log.String(), "name too long") })
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		t.Errorf("a key without its chain was written: %v, error %v", entries, err)
	}
}

func TestNewOutputRefuses(t *testing.T) {
	t.Parallel()
	w, file := newWorkload(t, newAuthority(t), nil), filepath.Join(t.TempDir(), "file")
	write(t, file, nil)
	for _, tc := range []struct {
		cfg     sds.OutputConfig
		wantErr string
	}{
		{sds.OutputConfig{Dir: file + ".not", Workload: w}, "OUTPUT_CERTS must name a directory that exists"},
		{sds.OutputConfig{Dir: file, Workload: w}, "is a file"},
		{sds.OutputConfig{Dir: t.TempDir()}, "no workload"},
	} {
		if _, err := sds.NewOutput(tc.cfg); err == nil || !strings.Contains(err.Error(), tc.wantErr) {
			t.Errorf("got error %v, want one with %q", err, tc.wantErr)
		}
	}
}

// TestSavedIdentity checks that the identity written by an earlier run is used at once, without the
// authority, and renewed when it is due. It must not be used if it is invalid or does not match the
// configuration.
func TestSavedIdentity(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		change func(*sds.WorkloadConfig)
		life   time.Duration
		spoil  func(t *testing.T, dir string)
		reason string // why the identity is not used; empty means that it is used
		renews bool   // whether its renewal is due
	}{
		"unchanged": {life: time.Hour},
		"renewal is due": {life: 4 * time.Minute, renews: true, change: func(c *sds.WorkloadConfig) {
			c.GraceRatio = 0.999 // one of its 5 minutes is over
		}},
		"another identity":    {life: time.Hour, change: func(c *sds.WorkloadConfig) { c.ID.ServiceAccount = "other" }, reason: "is not for"},
		"another type of key": {life: time.Hour, change: func(c *sds.WorkloadConfig) { c.KeyType = certs.ECDSAP384 }, reason: "not of type P384"},
		"expired":             {life: time.Millisecond, reason: "already expired"},
		"a file is missing":   {life: time.Hour, spoil: func(t *testing.T, dir string) { remove(t, filepath.Join(dir, rootsFile)) }, reason: "no such file"},
		"an invalid file": {life: time.Hour, reason: "PEM", spoil: func(t *testing.T, dir string) {
			write(t, filepath.Join(dir, chainFile), []byte("nonsense"))
		}},
		"other roots": {life: time.Hour, reason: "checking chain", spoil: func(t *testing.T, dir string) {
			write(t, filepath.Join(dir, rootsFile), certs.EncodeChain(newAuthority(t).root))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, dir, log := newAuthority(t), t.TempDir(), &syncBuffer{}
			csr, key := request(t)
			chain, err := a.Sign(t.Context(), csr, tc.life)
			if err != nil {
				t.Fatal(err)
			}
			for name, data := range map[string][]byte{keyFile: key, chainFile: bytes.Join(chain, nil), rootsFile: chain[1]} {
				write(t, filepath.Join(dir, name), data)
			}
			if tc.spoil != nil {
				tc.spoil(t, dir)
			}
			a.set(errors.New("the authority is down"), 0)
			w := newWorkload(t, a, func(c *sds.WorkloadConfig) {
				c.Saved, c.Logger = dir, slog.New(slog.NewTextHandler(log, nil))
				if tc.change != nil {
					tc.change(c)
				}
			})
			run(t, w)
			if tc.reason != "" {
				eventually(t, "a call of the authority", func() bool { return len(a.times()) > 1 })
				if w.Current() != nil || !strings.Contains(log.String(), tc.reason) {
					t.Errorf("got identity %v and log %q", w.Current(), log.String())
				}
				return
			}
			eventually(t, "an identity", func() bool { return w.Certificate() != nil })
			if got := w.Current(); !bytes.Equal(got.ChainPEM, chain[0]) || !bytes.Equal(got.KeyPEM, key) || !bytes.Equal(got.RootsPEM, chain[1]) {
				t.Error("the identity differs from the saved one")
			}
			if tc.renews {
				eventually(t, "a renewal", func() bool { return len(a.times()) > 2 })
				a.set(nil, 0)
				eventually(t, "another identity", func() bool { return !bytes.Equal(w.Current().ChainPEM, chain[0]) })
			} else if n := len(a.times()); n != 1 {
				t.Errorf("the authority was called %d times, want none", n-1)
			}
		})
	}
}

// request returns a certificate request and its key.
func request(t *testing.T) (csr, keyPEM []byte) {
	t.Helper()
	key, err := certs.NewKey(certs.ECDSAP256)
	if err != nil {
		t.Fatal(err)
	}
	if keyPEM, err = certs.MarshalKey(key); err != nil {
		t.Fatal(err)
	}
	if csr, err = certs.NewCSR(key, web()); err != nil {
		t.Fatal(err)
	}
	return csr, keyPEM
}
