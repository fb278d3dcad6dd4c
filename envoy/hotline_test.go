// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package envoy

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

func TestLineArguments(t *testing.T) {
	t.Parallel()
	l := &line{sockets: "/run/hr", baseID: 7, shutdown: 45 * time.Second}
	want := []string{"--base-id", "7", "--restart-epoch", "4", "--socket-path", "/run/hr", "--parent-shutdown-time-s", "45"}
	if got := l.args(4); !slices.Equal(got, want) {
		t.Errorf("arguments %q, want %q", got, want)
	}
	if got := l.socket("parent", 4); got != "/run/hr_parent_71" {
		t.Errorf("socket %s", got)
	}
	if got := (*line)(nil).args(0); got != nil {
		t.Errorf("arguments without a line: %q", got)
	}
	seen := map[uint32]bool{}
	for range 100 {
		l, err := newLine("/run/hr", time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if seen[l.baseID] || l.baseID >= 1<<27 {
			t.Errorf("base id %d", l.baseID)
		}
		seen[l.baseID] = true
	}
}

// TestSharedMemory checks the fields of the shared memory. The layout depends on the size of a
// mutex: 40 bytes on x86-64, 48 on aarch64.
func TestSharedMemory(t *testing.T) {
	t.Parallel()
	for machine, size := range map[string]int{"x86-64": 104, "aarch64": 120} {
		t.Run(machine, func(t *testing.T) {
			t.Parallel()
			l := &line{shared: filepath.Join(t.TempDir(), "shared")}
			if _, err := l.version(); err == nil {
				t.Error("a version without a file")
			}
			memory := make([]byte, size)
			binary.NativeEndian.PutUint64(memory, uint64(size))
			binary.NativeEndian.PutUint64(memory[8:], 11)
			binary.NativeEndian.PutUint64(memory[size-8:], flagInitializing)
			if err := os.WriteFile(l.shared, memory, 0o600); err != nil {
				t.Fatal(err)
			}
			if version, err := l.version(); err != nil || version != fmt.Sprintf("11.%d", size) {
				t.Errorf("version %s, %v", version, err)
			}
			if is, known := l.initializing(); !is || !known {
				t.Errorf("initializing: %t, %t", is, known)
			}
			if err := l.initialized(); err != nil {
				t.Error(err)
			}
			if is, known := l.initializing(); is || !known {
				t.Errorf("initializing: %t, %t after the repair", is, known)
			}
			// Another Envoy may use a different layout, so it must not be changed.
			binary.NativeEndian.PutUint64(memory, uint64(size)+8)
			for what, other := range map[string][]byte{"another size": append(memory, make([]byte, 8)...), "a size that is not its own": memory, "nothing": nil} {
				if err := os.WriteFile(l.shared, other, 0o600); err != nil {
					t.Fatal(err)
				}
				if _, known := l.initializing(); known {
					t.Errorf("memory with %s was accepted", what)
				}
			}
		})
	}
}

// TestCleanSockets checks that the files of a killed agent are removed, and no others.
func TestCleanSockets(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "a[b]c")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	sockets := filepath.Join(dir, "hr")
	l, err := newLine(sockets, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	theirs := []string{sockets + "_parent_x", sockets + "_notes_10", filepath.Join(dir, "XDS")}
	ours := []string{l.shared}
	for epoch := range socketRing {
		for _, role := range []string{"parent", "child", "udp_parent", "udp_child"} {
			ours = append(ours, l.socket(role, epoch))
		}
	}
	for _, path := range slices.Concat(ours, theirs) {
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cleanSockets(sockets)
	for _, path := range ours {
		if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is left: %v", path, err)
		}
	}
	for _, path := range theirs {
		if _, err := os.Stat(path); err != nil {
			t.Error(err)
		}
	}
}

func TestHotRestartConfig(t *testing.T) {
	t.Parallel()
	good := Config{Binary: "envoy", Logger: testLogger(t), Admin: NewAdmin("127.0.0.1:1"), HotRestart: HotRestart{Sockets: "/run/hr"}}
	for want, edit := range map[string]func(*Config){
		"has 86 characters; at most 85 are allowed": func(c *Config) { c.HotRestart.Sockets = strings.Repeat("a", maxSockets+1) },
		"contains a brace":                          func(c *Config) { c.HotRestart.Sockets = "/run/{}" },
		"needs envoy's admin port":                  func(c *Config) { c.Admin = nil },
		"negative":                                  func(c *Config) { c.HotRestart.Timeout = -1 },
	} {
		cfg := good
		edit(&cfg)
		if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("New() = %v, want %q", err, want)
		}
	}
	p, err := New(good)
	if err != nil {
		t.Fatal(err)
	}
	if p.hot.Drain != time.Second || !p.HotRestart("one") || p.HotRestart("two") {
		t.Error("one request should wait, and the drain be a second or more")
	}
	off, _ := shell(t, "", nil)
	if off.HotRestart("the test") {
		t.Error("a hot restart waits although there are none")
	}
}

// requests returns datagrams recorded from a real Envoy, and the number of the request in each.
func requests() map[string]protowire.Number {
	return map[string]protowire.Number{
		"\x00\x00\x00\x00\x00\x00\x00\x04\n\x02\x12\x00":                             requestAdmin,
		"\x00\x00\x00\x00\x00\x00\x00\x1e\n\x1c\n\x1a\n\x18tcp://127.77.40.250:8080": requestListen,
		"\x00\x00\x00\x00\x00\x00\x00\x04\n\x02\x1a\x00":                             requestStats,
		"\x00\x00\x00\x00\x00\x00\x00\x04\n\x02\"\x00":                               4, // drain
		"\x00\x00\x00\x00\x00\x00\x00\x04\n\x02*\x00":                                requestGoodbye,
		"\x00\x00\x00\x00\x00\x00\x00\x06\x12\x04\n\x02\x08\x18":                     0, // a reply
		"": 0, "\x00\x00": 0, "\x00\x00\x00\x00\x00\x00\x00\x04\n\x7f": 0,
	}
}

func TestRequestOf(t *testing.T) {
	t.Parallel()
	for datagram, want := range requests() {
		if got := requestOf([]byte(datagram)); got != want {
			t.Errorf("requestOf(%q) = %d, want %d", datagram, got, want)
		}
	}
	if got, want := fmt.Sprintf("%q", emptyStats()), `"\x00\x00\x00\x00\x00\x00\x00\x04\x12\x02\x1a\x00"`; got != want {
		t.Errorf("reply %s, want %s", got, want)
	}
}

func FuzzRequestOf(f *testing.F) {
	for datagram := range requests() {
		f.Add([]byte(datagram))
	}
	f.Fuzz(func(t *testing.T, datagram []byte) {
		if got := requestOf(datagram); got < 0 {
			t.Errorf("requestOf(%q) = %d", datagram, got)
		}
	})
}
