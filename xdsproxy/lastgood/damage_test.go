// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package lastgood

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"
)

// generation returns a state in which all resources have the same detail.
func generation(s *stream, n int) {
	detail := strconv.Itoa(n)
	s.give(clusterType, cluster("a", detail), cluster("b", detail))
	s.give(endpointType, endpoints("a", detail))
	s.give(listenerType, listener("l", detail))
	s.give(routeType, route("r", detail))
}

// generationOf checks that a state is a complete generation.
func generationOf(t testing.TB, c contents) (detail string) {
	t.Helper()
	sizes := map[string]int{clusterType: 2, endpointType: 1, listenerType: 1, routeType: 1}
	if len(c) != len(sizes) {
		t.Fatalf("a part of a state: %v", c)
	}
	for typeURL, resources := range c {
		if len(resources) != sizes[typeURL] {
			t.Fatalf("a part of a state: %v", c)
		}
		for _, d := range resources {
			if detail == "" {
				detail = d
			}
			if d != detail {
				t.Fatalf("the state mixes generations: %v", c)
			}
		}
	}
	return detail
}

// generations saves some states and returns the content of the file.
func generations(t *testing.T, cfg Config, count int) []byte {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		store := open(t, cfg)
		stop := run(t, store)
		defer stop()
		s := newStream(t, store, true)
		for n := range count {
			generation(s, n)
			pass(2 * time.Second)
		}
	})
	b, err := os.ReadFile(filepath.Join(cfg.Dir, snapshotFile))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// loadBytes loads a snapshot from bytes.
func loadBytes(t testing.TB, s *Store, b []byte) (*snapshot, error) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(s.cfg.Dir, snapshotFile), b, 0o600); err != nil {
		t.Fatal(err)
	}
	return s.load(false)
}

// TestTruncated truncates a file at every offset, and appends to it: only the complete file is
// accepted.
func TestTruncated(t *testing.T) {
	t.Parallel()
	cfg := config(t)
	b := generations(t, cfg, 2)
	store := open(t, cfg)
	for size := range len(b) + 1 {
		for _, rest := range [][]byte{nil, make([]byte, 100), bytes.Repeat([]byte{0xff}, 100)} {
			damaged := slices.Concat(b[:size], rest)
			st, err := loadBytes(t, store, damaged)
			if err == nil {
				if got := generationOf(t, contentsOf(t, st)); got != "1" || !bytes.Equal(damaged, b) {
					t.Errorf("%d bytes and %d more: generation %s", size, len(rest), got)
				}
				_ = st.file.Close() // read-only: closing cannot lose data
			} else if reasonOf(err) != reasonDamaged && size > fixedSize+len(cfg.Version) || bytes.Equal(damaged, b) {
				t.Errorf("%d bytes and %d more: %v", size, len(rest), err)
			}
		}
	}
}

// TestBitFlips flips each bit of a file: it is rejected.
func TestBitFlips(t *testing.T) {
	t.Parallel()
	cfg := config(t)
	b := generations(t, cfg, 2)
	store := open(t, cfg)
	reasons := map[string]int{}
	for at := range b {
		bit := byte(1) << (at % 8)
		b[at] ^= bit
		_, err := loadBytes(t, store, b)
		b[at] ^= bit
		if err == nil {
			t.Fatalf("byte %d: it is used", at)
		}
		reasons[reasonOf(err)]++
		if !strings.Contains(err.Error(), store.cfg.Dir) {
			t.Errorf("byte %d: the reason %q does not name the file", at, err)
		}
	}
	for _, want := range []string{reasonDamaged, reasonIdentity, reasonVersion, reasonKey} {
		if reasons[want] == 0 {
			t.Errorf("no file was refused with reason %s: %v", want, reasons)
		}
	}
}

// recordsOf returns the offsets of a file's records.
func recordsOf(b []byte) (header []byte, records [][]byte) {
	size := fixedSize + int(b[fixedSize-1])
	header, b = b[:size], b[size:]
	for len(b) > 0 {
		n := lenSize + int(binary.BigEndian.Uint32(b))
		records, b = append(records, b[:n]), b[n:]
	}
	return header, records
}

// TestRearranged moves, repeats and removes records, and inserts some from another file of the same
// owner: the file is rejected.
func TestRearranged(t *testing.T) {
	t.Parallel()
	cfg := config(t)
	header, records := recordsOf(generations(t, cfg, 2))
	otherCfg := config(t, func(c *Config) { c.KeyDir = cfg.KeyDir })
	_, other := recordsOf(generations(t, otherCfg, 2))
	store := open(t, cfg)
	check := func(what string, records [][]byte) {
		t.Helper()
		if _, err := loadBytes(t, store, slices.Concat(header, slices.Concat(records...))); err == nil || reasonOf(err) != reasonDamaged {
			t.Errorf("%s: %v", what, err)
		}
	}
	for i := range records {
		check("left out", slices.Delete(slices.Clone(records), i, i+1))
		check("repeated", slices.Insert(slices.Clone(records), i, records[i]))
		mixed := slices.Clone(records)
		mixed[i] = other[min(i, len(other)-1)]
		check("of another file", mixed)
		for j := range i {
			swapped := slices.Clone(records)
			swapped[i], swapped[j] = swapped[j], swapped[i]
			check("swapped", swapped)
		}
	}
	st, err := loadBytes(t, store, slices.Concat(header, slices.Concat(records...)))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = st.file.Close() }() // read-only: closing cannot lose data
	if got := generationOf(t, contentsOf(t, st)); got != "1" {
		t.Errorf("unchanged file: generation %s", got)
	}
}

// TestLegacy checks that the log of an earlier version is removed, with one log message.
func TestLegacy(t *testing.T) {
	t.Parallel()
	var log syncBuffer
	cfg := config(t, func(c *Config) { c.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	open(t, cfg) // creates the directories
	path := filepath.Join(cfg.Dir, legacyFile)
	if err := os.WriteFile(path, []byte(magic+"\x00\x01\x01"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := open(t, cfg).Usable(); err == nil || reasonOf(err) != reasonNone {
			t.Errorf("with a log of an earlier version: %v", err)
		}
	}
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the log was not removed: %v", err)
	}
	if n := strings.Count(log.String(), "of an earlier version is removed"); n != 1 {
		t.Errorf("logged %d times, want once:\n%s", n, log.String())
	}
}

// TestKilled repeatedly kills a process while it writes.
func TestKilled(t *testing.T) {
	t.Parallel()
	if dir := os.Getenv("LASTGOOD_WRITE"); dir != "" {
		writeForEver(t, dir)
	}
	cfg := config(t)
	newest := 0
	for n := range 15 {
		cmd := exec.Command(os.Args[0], "-test.run=^TestKilled$")
		cmd.Env = append(os.Environ(), "LASTGOOD_WRITE="+filepath.Dir(cfg.Dir))
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		before := newest
		eventually(t, "a newer state than "+strconv.Itoa(before), func() bool {
			store := open(t, cfg)
			if store.found == nil {
				return false
			}
			defer func() { _ = store.found.file.Close() }() // read-only: closing cannot lose data
			got, err := strconv.Atoi(generationOf(t, contentsOf(t, store.found)))
			if err != nil {
				t.Fatal(err)
			}
			newest = max(newest, got)
			return newest > before
		})
		time.Sleep(time.Duration(rand.IntN(20)) * time.Millisecond) // any time is suitable
		if err := cmd.Process.Signal(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait() // it was killed
		store := open(t, cfg)
		if store.found == nil {
			t.Fatalf("run %d: %v", n, store.Usable())
		}
		got, err := strconv.Atoi(generationOf(t, contentsOf(t, store.found)))
		if err != nil || got < newest {
			t.Fatalf("run %d: generation %d, there was %d: %v", n, got, newest, err)
		}
		newest = got
		_ = store.found.file.Close() // read-only: closing cannot lose data
	}
	left, err := filepath.Glob(filepath.Join(cfg.Dir, "*"+temporary+"*"))
	if err != nil || len(left) > 1 {
		t.Errorf("files are left: %v %v", left, err)
	}
}

// writeForEver saves one generation after the other.
func writeForEver(t *testing.T, dir string) {
	store := open(t, config(t, func(c *Config) { c.Dir, c.KeyDir = filepath.Join(dir, "data"), filepath.Join(dir, "key") }))
	first := 0
	w := newWorker(store)
	if w.saved != nil {
		n, err := strconv.Atoi(generationOf(t, contentsOf(t, w.saved)))
		if err != nil {
			t.Fatal(err)
		}
		first = n + 1
	}
	s := newStream(t, store, true)
	for n := first; ; n++ {
		generation(s, n)
		if _, err := w.work(time.Now()); err != nil {
			t.Fatal(err)
		}
		if err := w.save(s.rec, time.Now()); err != nil {
			t.Fatal(err)
		}
	}
}

// disk simulates a failing disk.
type disk struct {
	files  atomic.Int64 // number of files that can still be created
	writes bool         // fail writes instead of creation
}

// on makes a store create its temporary files on the disk.
func (d *disk) on(s *Store) {
	s.create = func(dir, pattern string) (*os.File, error) {
		f, err := os.CreateTemp(dir, pattern)
		if err != nil || d.files.Add(-1) >= 0 {
			return f, err
		}
		_ = f.Close() // nothing was written
		if d.writes {
			return os.Open(f.Name()) // read-only
		}
		return nil, errors.Join(errors.New("input/output error"), os.Remove(f.Name()))
	}
}

// TestFaults makes the disk fail at each point, for a while. The stored state is always a previous
// one, and the newest one after the fault.
func TestFaults(t *testing.T) {
	t.Parallel()
	for n := range 8 {
		for _, writes := range []bool{true, false} {
			t.Run(fmt.Sprintf("file %d, writes=%t", n, writes), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					var log syncBuffer
					store := open(t, config(t, func(c *Config) { c.Logger = slog.New(slog.NewTextHandler(&log, nil)) }))
					f := &disk{writes: writes}
					f.files.Store(int64(n))
					f.on(store)
					stop := run(t, store)
					defer stop()
					s := newStream(t, store, true)
					for i := range 3 {
						generation(s, i)
						pass(3 * time.Second)
						if st, err := store.load(false); err == nil {
							generationOf(t, contentsOf(t, st))
							_ = st.file.Close() // read-only: closing cannot lose data
						}
					}
					f.files.Store(1_000_000)
					pass(3 * time.Minute)
					if got := generationOf(t, stored(t, store)); got != "2" {
						t.Errorf("after the fault: generation %s", got)
					}
					stop()
					if left, err := filepath.Glob(filepath.Join(store.cfg.Dir, "*"+temporary+"*")); err != nil || len(left) > 0 {
						t.Errorf("files are left: %v, %v", left, err)
					}
					if warnings := strings.Count(log.String(), "cannot be updated"); warnings > 1 || n < 6 && warnings == 0 {
						t.Errorf("%d warnings:\n%s", warnings, log.String())
					}
				})
			})
		}
	}
}

// TestDiskFull fills a file system.
func TestDiskFull(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=256k"); err != nil {
		t.Skipf("a full disk needs the right to mount a small one: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	cfg := config(t, func(c *Config) { c.Dir = filepath.Join(dir, "data") })
	store := open(t, cfg)
	stop := run(t, store)
	s := newStream(t, store, true)
	generation(s, 0)
	eventually(t, "a snapshot", func() bool { return store.Usable() == nil })
	full := filepath.Join(dir, "full")
	f, err := os.Create(full)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(f, endless{}); !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	for n := range 20 {
		s.give(listenerType, listener("l", strings.Repeat("y", 1000)+strconv.Itoa(n)))
	}
	generation(s, 1)
	eventually(t, "the disk is found to be full", func() bool {
		store.mu.Lock()
		defer store.mu.Unlock()
		return len(store.queue) > 0
	})
	if got := generationOf(t, stored(t, open(t, cfg))); got != "0" {
		t.Errorf("on a full disk: generation %s", got)
	}
	since := store.From()
	if err := os.Remove(full); err != nil {
		t.Fatal(err)
	}
	saved(t, store, since)
	if got := generationOf(t, stored(t, store)); got != "1" {
		t.Errorf("with room again: generation %s", got)
	}
	stop()
}

type endless struct{}

func (endless) Read(b []byte) (int, error) { return len(b), nil }

// TestBacklog checks that a disk that hangs delays nothing and costs a bounded amount of memory.
// Dropped events are not reconstructed: the stored state remains unchanged until everything has
// been sent again.
func TestBacklog(t *testing.T) {
	t.Parallel()
	for _, isDelta := range []bool{true, false} {
		t.Run(fmt.Sprintf("delta=%t", isDelta), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store := open(t, config(t))
				f := &disk{}
				f.files.Store(1_000_000)
				f.on(store)
				stop := run(t, store)
				defer stop()
				s := newStream(t, store, isDelta)
				generation(s, 0)
				pass(2 * time.Second)
				f.files.Store(0)
				big := strings.Repeat("x", 1<<20)
				for range 100 {
					s.give(clusterType, cluster("a", big), cluster("b", "lost"))
					synctest.Wait()
				}
				store.mu.Lock()
				if store.queued > backlog+2<<20 || len(store.queue) > 50 {
					t.Errorf("%d bytes, %d items wait", store.queued, len(store.queue))
				}
				store.mu.Unlock()
				f.files.Store(1_000_000)
				pass(5 * time.Minute)
				if got := generationOf(t, stored(t, store)); got != "0" {
					t.Errorf("after something was dropped: generation %s", got)
				}
				generation(s, 1)
				pass(time.Minute)
				want := map[bool]string{true: "0", false: "1"}[isDelta]
				if got := generationOf(t, stored(t, store)); got != want {
					t.Errorf("on the same stream: generation %s, want %s", got, want)
				}
				s.rec.Close()
				generation(newStream(t, store, isDelta), 2)
				pass(time.Minute)
				if got := generationOf(t, stored(t, store)); got != "2" {
					t.Errorf("on a new stream: generation %s", got)
				}
			})
		})
	}
}

// TestTooLarge checks that a state that is too large is not stored and the previous one remains.
func TestTooLarge(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := open(t, config(t, func(c *Config) { c.MaxBytes, c.Logger = 100_000, nil }))
		stop := run(t, store)
		defer stop()
		s := newStream(t, store, true)
		generation(s, 0)
		pass(2 * time.Second)
		s.give(clusterType, cluster("a", strings.Repeat("x", 100_000)))
		generation(s, 1)
		pass(time.Minute)
		if got := generationOf(t, stored(t, store)); got != "0" {
			t.Errorf("generation %s", got)
		}
		var none []proto.Message
		s.give(clusterType, none...)
	})
}
