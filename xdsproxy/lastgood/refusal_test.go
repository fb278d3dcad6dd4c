// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package lastgood

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"

	"github.com/outrigger-mesh/outrigger/e2e/ownnet"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(ownnet.Tests(m)) }

// TestModes checks that other users can read nothing.
func TestModes(t *testing.T) {
	t.Parallel()
	old := config(t, func(c *Config) { c.KeepIdentity = true })
	if err := os.MkdirAll(old.Dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(old.Dir, 0o777); err != nil { // exists and is accessible to all
		t.Fatal(err)
	}
	store := keep(t, old, something)
	if err := store.PutIdentity([]byte("chain"), []byte("key"), []byte("roots")); err != nil {
		t.Fatal(err)
	}
	seen := map[string]fs.FileMode{}
	for _, dir := range []string{old.Dir, old.KeyDir} {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			info, err := d.Info()
			if err == nil {
				seen[filepath.Base(path)] = info.Mode()
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	want := map[string]fs.FileMode{
		"data": fs.ModeDir | 0o700, "key": 0o600, // the directory of that name comes first
		"snapshot": 0o600, "identity": 0o600, "lock": 0o600,
	}
	for name, mode := range want {
		if seen[name] != mode {
			t.Errorf("%s has mode %s, want %s", name, seen[name], mode)
		}
	}
	if len(seen) != len(want) {
		t.Errorf("files: %v", seen)
	}
	info, err := os.Stat(old.KeyDir)
	if err != nil || info.Mode() != fs.ModeDir|0o700 {
		t.Errorf("%s: %v %v", old.KeyDir, info.Mode(), err)
	}
}

// TestSealed checks that the files contain no plaintext.
func TestSealed(t *testing.T) {
	t.Parallel()
	cfg := config(t, func(c *Config) { c.KeepIdentity = true })
	store := keep(t, cfg, func(s *stream) {
		s.give(clusterType, cluster("the-name", "the-detail"))
		s.give(listenerType, listener("l", "1"))
	})
	if err := store.PutIdentity([]byte("the-chain"), []byte("the-key"), nil); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{snapshotFile, identityFile} {
		b, err := os.ReadFile(filepath.Join(cfg.Dir, name))
		if err != nil {
			t.Fatal(err)
		}
		for _, text := range []string{"the-", "envoy.config", cfg.Identity} {
			if bytes.Contains(b, []byte(text)) {
				t.Errorf("%s has %q in the clear", name, text)
			}
		}
	}
}

type refusedCase struct {
	name   string
	change func(t *testing.T, c *Config)
	reason string
	text   string
	mends  bool // a new state can be stored
}

func refusedCases() []refusedCase {
	do := func(t *testing.T, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	return []refusedCase{
		{"nothing was stored", func(t *testing.T, c *Config) { do(t, os.Remove(filepath.Join(c.Dir, snapshotFile))) }, reasonNone, "nothing was stored so far", true},
		{"another identity", func(_ *testing.T, c *Config) { c.Identity = "other" }, reasonIdentity, `for an identity other than "other"`, true},
		{"another version", func(_ *testing.T, c *Config) { c.Version = "2" }, reasonVersion, `by version "1", but this agent is "2"`, true},
		{"a longer version", func(_ *testing.T, c *Config) { c.Version = "1.2" }, reasonVersion, `by version "1", but this agent is "1.2"`, true},
		{"the key is lost", func(t *testing.T, c *Config) { do(t, os.Remove(filepath.Join(c.KeyDir, keyFile))) }, reasonKey, "sealed with a key other", true},
		{"another key", func(t *testing.T, c *Config) {
			do(t, os.WriteFile(filepath.Join(c.KeyDir, keyFile), make([]byte, keySize), 0o600))
		}, reasonKey, "sealed with a key other", true},
		{"the key is cut off", func(t *testing.T, c *Config) { do(t, os.Truncate(filepath.Join(c.KeyDir, keyFile), 31)) }, reasonKey, "it has 31 bytes", false},
		{"the key is open to others", func(t *testing.T, c *Config) { do(t, os.Chmod(filepath.Join(c.KeyDir, keyFile), 0o640)) }, reasonKey, "its mode 0640 allows access by others", false},
		{"the key is a link", func(t *testing.T, c *Config) {
			path := filepath.Join(c.KeyDir, keyFile)
			do(t, os.Rename(path, path+"2"))
			do(t, os.Symlink(path+"2", path))
		}, reasonKey, "it is a symbolic link", false},
		{"the state is open to others", func(t *testing.T, c *Config) { do(t, os.Chmod(filepath.Join(c.Dir, snapshotFile), 0o604)) }, reasonDirectory, "its mode 0604 allows access by others", true},
		{"the state is a link", func(t *testing.T, c *Config) {
			path := filepath.Join(c.Dir, snapshotFile)
			do(t, os.Rename(path, path+"2"))
			do(t, os.Symlink(path+"2", path))
		}, reasonDirectory, "it is a symbolic link", true},
		{"the state is a pipe", func(t *testing.T, c *Config) {
			path := filepath.Join(c.Dir, snapshotFile)
			do(t, os.Remove(path))
			do(t, syscall.Mkfifo(path, 0o600))
		}, reasonDirectory, "it is not a regular file", true},
		{"the directory is a link", func(t *testing.T, c *Config) {
			do(t, os.Symlink(c.Dir, c.Dir+"2"))
			c.Dir += "2"
		}, reasonDirectory, "it is not a private directory", false},
		{"the directory is a file", func(t *testing.T, c *Config) {
			c.Dir += "2"
			do(t, os.WriteFile(c.Dir, nil, 0o600))
		}, reasonDirectory, "it is not a private directory", false},
		{"the directory is another user's", func(t *testing.T, c *Config) {
			if os.Geteuid() != 0 {
				t.Skip("only root can give a directory to another user")
			}
			do(t, os.Chown(c.Dir, 65534, 65534))
		}, reasonDirectory, "it belongs to another user", false},
		{"the state is another user's", func(t *testing.T, c *Config) {
			if os.Geteuid() != 0 {
				t.Skip("only root can give a file to another user")
			}
			do(t, os.Chown(filepath.Join(c.Dir, snapshotFile), 65534, 65534))
		}, reasonDirectory, "it belongs to another user", true},
		{"too large", func(_ *testing.T, c *Config) { c.MaxBytes = 1000 }, reasonSize, "the limit is 1000", false},
		{"too old", func(_ *testing.T, c *Config) { c.MaxAge = time.Nanosecond }, reasonAge, "at most 1ns are allowed", false},
		{"switched off", func(_ *testing.T, c *Config) { c.MaxAge = 0 }, reasonOff, "switched off", false},
	}
}

// TestRefused checks that unusable files are rejected with a reason, and that the next state which
// Envoy acknowledges is stored if possible.
func TestRefused(t *testing.T) {
	t.Parallel()
	for _, tc := range refusedCases() {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			cfg := config(t)
			keep(t, cfg, something)
			tc.change(t, &cfg)
			reg := prometheus.NewRegistry()
			cfg.Registerer = reg
			store := open(t, cfg)
			err := store.Usable()
			if err == nil || reasonOf(err) != tc.reason || !strings.Contains(err.Error(), tc.text) {
				t.Errorf("refused with %s: %v", reasonOf(err), err)
			}
			if got := testutil.ToFloat64(store.metrics.refused.WithLabelValues(tc.reason)); (got == 1) != (tc.reason != reasonNone && tc.reason != reasonOff) {
				t.Errorf("counted %v times", got)
			}
			if err := store.Serve(t.Context(), true, nil, nil); err == nil || !strings.Contains(err.Error(), tc.text) {
				t.Errorf("served: %v", err)
			}
			stop := run(t, store)
			defer stop()
			s := newStream(t, store, true)
			something(s)
			s.rec.Close()
			if !tc.mends {
				return
			}
			eventually(t, "it is kept again", func() bool { return store.Usable() == nil })
			stop()
			cfg.Registerer = nil
			if err := open(t, cfg).Usable(); err != nil {
				t.Errorf("after storing a new state: %v", err)
			}
		})
	}
}

// TestReadOnly uses a read-only file system.
func TestReadOnly(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("a read-only file system needs the right to mount one: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	cfg := config(t, func(c *Config) { c.Dir, c.KeyDir = filepath.Join(dir, "data"), filepath.Join(dir, "key") })
	keep(t, cfg, something)
	remount := func(flags uintptr) {
		t.Helper()
		if err := syscall.Mount("tmpfs", dir, "tmpfs", syscall.MS_REMOUNT|flags, "size=1m"); err != nil {
			t.Fatal(err)
		}
	}
	remount(syscall.MS_RDONLY)
	store := open(t, cfg)
	stop := run(t, store)
	s := newStream(t, store, true)
	s.give(clusterType, cluster("a", "2"))
	s.give(listenerType, listener("l", "2"))
	d := serve(t, store, true)
	d.send(delta(clusterType, "", nil, nil))
	if _, got := d.incremental(); len(got) != 2 {
		t.Errorf("clusters: %v", got)
	}
	eventually(t, "it is counted", func() bool { return testutil.ToFloat64(store.metrics.refused.WithLabelValues(reasonDisk)) > 0 })
	stop()
	cfg.Dir = filepath.Join(dir, "new")
	if err := open(t, cfg).Usable(); err == nil || reasonOf(err) != reasonDirectory || !strings.Contains(err.Error(), "read-only") {
		t.Errorf("a new directory: %v", err)
	}
}

// TestTwoAgents checks that one agent writes and the other reports that it cannot; both serve. When
// the first one stops, the other takes over.
func TestTwoAgents(t *testing.T) {
	t.Parallel()
	cfg := config(t)
	first, second := open(t, cfg), open(t, cfg)
	stop := run(t, first)
	run(t, second)
	generation(newStream(t, first, true), 1)
	eventually(t, "the first one keeps something", func() bool { return first.Usable() == nil })
	s := newStream(t, second, true)
	generation(s, 2)
	eventually(t, "the second one counts it", func() bool { return testutil.ToFloat64(second.metrics.refused.WithLabelValues(reasonBusy)) > 0 })
	d := serve(t, second, true)
	d.send(delta(clusterType, "", nil, nil))
	if _, got := d.incremental(); got["a"] != "1" {
		t.Errorf("the second one serves %v", got)
	}
	stop()
	eventually(t, "the second one takes over", func() bool { return second.Usable() == nil })
	if got := generationOf(t, stored(t, second)); got != "2" {
		t.Errorf("generation %s", got)
	}
}

// TestKeyIsMadeOnce checks that agents that start concurrently use the same key.
func TestKeyIsMadeOnce(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	keys := make([][]byte, 20)
	var g sync.WaitGroup
	for n := range keys {
		g.Go(func() {
			var err error
			if keys[n], err = nodeKey(dir); err != nil {
				t.Error(err)
			}
		})
	}
	g.Wait()
	for _, k := range keys {
		if len(k) != keySize || !bytes.Equal(k, keys[0]) {
			t.Fatal("agents have different keys")
		}
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) != 1 {
		t.Errorf("files: %v %v", files, err)
	}
}

// TestConfig checks that an invalid configuration is an error.
func TestConfig(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		want   string
		change func(*Config)
	}{
		{"a directory", func(c *Config) { c.Dir = "" }},
		{"another one for the key", func(c *Config) { c.KeyDir = c.Dir + "/" }},
		{"an identity", func(c *Config) { c.Identity = "" }},
		{"more than 255 bytes", func(c *Config) { c.Version = strings.Repeat("1", 256) }},
		{"is negative", func(c *Config) { c.MaxAge = -1 }},
	} {
		if _, err := Open(config(t, tc.change)); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v", tc.want, err)
		}
	}
}

// TestIdentityAge checks that an identity that has not been renewed for a long time is rejected.
func TestIdentityAge(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := open(t, config(t, func(c *Config) { c.KeepIdentity = true }))
		if err := store.PutIdentity([]byte("chain"), []byte("key"), nil); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		if _, err := store.Identity(); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Second)
		if _, err := store.Identity(); err == nil || reasonOf(err) != reasonAge {
			t.Errorf("after an hour and a second: %v", err)
		}
	})
}

// TestIdentityStays checks that storing an identity again does not make it younger, as when an
// agent repeatedly starts with it. It does not become too old while the control plane responds to
// the workload.
func TestIdentityStays(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := open(t, config(t, func(c *Config) { c.KeepIdentity = true }))
		stop := run(t, store)
		defer stop()
		put := func(key string) {
			t.Helper()
			if err := store.PutIdentity([]byte("chain"), []byte(key), nil); err != nil {
				t.Fatal(err)
			}
		}
		put("key")
		time.Sleep(50 * time.Minute)
		put("key")
		time.Sleep(11 * time.Minute)
		if _, err := store.Identity(); err == nil || reasonOf(err) != reasonAge {
			t.Errorf("after storing the identity again: %v", err)
		}
		put("new key")
		if id, err := store.Identity(); err != nil || string(id.Key) != "new key" {
			t.Errorf("%v, %v", id, err)
		}
		s := newStream(t, store, true)
		something(s)
		pass(3 * time.Hour)
		if _, err := store.Identity(); err != nil {
			t.Errorf("on a stream that lasts: %v", err)
		}
		s.rec.Close()
		time.Sleep(time.Hour + time.Minute)
		if _, err := store.Identity(); err == nil || reasonOf(err) != reasonAge {
			t.Errorf("an hour after the stream: %v", err)
		}
	})
}

// TestClock checks times in the future, after the clock was set back: the age of a snapshot far
// ahead is unknown, and one slightly ahead counts as new.
func TestClock(t *testing.T) {
	t.Parallel()
	for ahead, usable := range map[time.Duration]bool{-50 * time.Minute: true, 50 * time.Minute: true, 70 * time.Minute: false, 10000 * time.Hour: false} {
		cfg := config(t, func(c *Config) { c.KeepIdentity = true })
		synctest.Test(t, func(t *testing.T) { // its clock starts in the year 2000
			time.Sleep(24*time.Hour + ahead)
			keep(t, cfg, something)
			if err := open(t, cfg).PutIdentity([]byte("chain"), []byte("key"), nil); err != nil {
				t.Fatal(err)
			}
		})
		synctest.Test(t, func(t *testing.T) {
			time.Sleep(24 * time.Hour)
			store := open(t, cfg)
			err := store.Usable()
			if (err == nil) != usable || err != nil && (reasonOf(err) != reasonAge || !strings.Contains(err.Error(), "clock")) {
				t.Errorf("%s ahead: %v", ahead, err)
			}
			if _, err := store.Identity(); (err == nil) != usable {
				t.Errorf("an identity %s ahead: %v", ahead, err)
			}
			if age := store.Age(); age < 0 {
				t.Errorf("%s ahead: the age is %s", ahead, age)
			}
			stop := run(t, store)
			defer stop()
			generation(newStream(t, store, true), 1)
			pass(3 * time.Second)
			if err := store.Usable(); err != nil || store.From().After(time.Now()) {
				t.Errorf("%s ahead, after storing a new state: %v, from %s", ahead, err, store.From())
			}
		})
	}
}

// TestMetrics checks the gauge of the age.
func TestMetrics(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		reg := prometheus.NewPedanticRegistry()
		store := open(t, config(t, func(c *Config) { c.Registerer = reg }))
		stop := run(t, store)
		defer stop()
		const name = "outrigger_agent_last_good_age_seconds"
		if n, err := testutil.GatherAndCount(reg, name); err != nil || n != 0 {
			t.Errorf("%d gauges, %v while there is nothing", n, err)
		}
		s := newStream(t, store, true)
		generation(s, 1)
		s.rec.Close()
		pass(91 * time.Second)
		want := fmt.Sprintf("# HELP %[1]s Age of the configuration with which Envoy starts if the control plane cannot be reached; absent while there is none.\n# TYPE %[1]s gauge\n%[1]s 91\n", name)
		if err := testutil.GatherAndCompare(reg, strings.NewReader(want), name); err != nil {
			t.Error(err)
		}
		if problems, err := testutil.GatherAndLint(reg); err != nil || len(problems) > 0 {
			t.Errorf("%v %v", problems, err)
		}
	})
}
