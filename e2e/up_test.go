// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package e2e

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestStartIsQuick shows that a mesh for which everything is built is ready
// within a minute, however slow the machine is; make bench measures it.
func TestStartIsQuick(t *testing.T) {
	const limit = time.Minute
	var best time.Duration
	for range 3 {
		s := newShop(t)
		began := time.Now()
		s.start()
		s.waitFor("Ctrl-C ends it", time.Minute)
		took := time.Since(began)
		s.interrupt(15 * time.Second)
		t.Logf("ready after %s", took)
		if best == 0 || took < best {
			best = took
		}
		if best <= limit {
			return
		}
	}
	t.Errorf("the quickest start took %s, want %s or less", best, limit)
}

// TestWithoutPrivilegesOrNetwork runs the shop with no capability, in a
// network namespace that has nothing but its loopback interface.
func TestWithoutPrivilegesOrNetwork(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root to make a network namespace and to give root up")
	}
	for _, tool := range []string{"unshare", "setpriv", "ip"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("needs %s (Debian packages util-linux and iproute2)", tool)
		}
	}
	s := startShop(t, "unshare", "--net", "sh", "-c",
		`ip link set lo up && exec setpriv --no-new-privs --bounding-set=-all --inh-caps=-all "$@"`, "sh")
	s.interrupt(15 * time.Second)
	s.wantNothingLeft(t)
}

// TestKilledUpLeavesNoProcess kills outrigger up itself: nothing that it
// started outlives it, and the next start removes what it left on disk.
func TestKilledUpLeavesNoProcess(t *testing.T) {
	s := startShop(t)
	family := s.processes()
	if err := s.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := <-s.exited; err == nil {
		t.Error("outrigger up was killed and ended with 0")
	}
	s.exited <- nil // for the cleanup
	eventually(t, 10*time.Second, func() string {
		for _, p := range family {
			if !gone(p) {
				return p.name + " is still there"
			}
		}
		return ""
	})
	s.start()
	s.waitFor("Ctrl-C ends it", time.Minute)
	s.interrupt(15 * time.Second)
	s.wantNothingLeft(t)
}

// TestForkedProcessesEnd shows that Ctrl-C also ends what an application
// started in a session of its own.
func TestForkedProcessesEnd(t *testing.T) {
	s := newShop(t)
	file := filepath.Join(s.dir, "mesh.yaml")
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	const plain = `command: [../../bin/shop, orders, --listen, "127.0.0.1:$(PORT)"]`
	forking := strings.Replace(string(b), plain, `command: [sh, -c, "setsid sleep 4711 & exec ../../bin/shop orders --listen 127.0.0.1:$(PORT)"]`, 1)
	if forking == string(b) {
		t.Fatalf("mesh.yaml has no line %q", plain)
	}
	if err := os.WriteFile(file, []byte(forking), 0o644); err != nil {
		t.Fatal(err)
	}
	s.start()
	s.waitFor("Ctrl-C ends it", time.Minute)
	var forked []process
	for _, p := range s.processes() {
		if p.args == "sleep 4711 " {
			forked = append(forked, p)
		}
	}
	if len(forked) != 1 {
		t.Fatalf("found %v, want the one process that orders forked", forked)
	}
	s.interrupt(15 * time.Second)
	eventually(t, 5*time.Second, func() string { // the system's first process reaps it
		if !gone(forked[0]) {
			return forked[0].name + " is still there"
		}
		return ""
	})
}

// TestUpRefuses shows that what is wrong with a mesh file is reported before
// anything starts.
func TestUpRefuses(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:18081")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }() // the test is over then
	for name, tc := range map[string]struct {
		old, replacement string
		says             []string
	}{
		"unknown field":   {"  servicePort: 8080", "  servicePrt: 8080", []string{"mesh.yaml:", "servicePrt", "servicePort"}},
		"missing command": {"  command: [../../bin/shop, orders", "  command: [../../bin/no-such-program", []string{"orders", "no-such-program"}},
		"port in use":     {"", "", []string{"catalog-v1", "18081", "in use"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newShop(t)
			file := filepath.Join(s.dir, "mesh.yaml")
			b, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, []byte(strings.Replace(string(b), tc.old, tc.replacement, 1)), 0o644); err != nil {
				t.Fatal(err)
			}
			s.start()
			select {
			case err := <-s.exited:
				s.exited <- nil // for the cleanup
				var exit *exec.ExitError
				if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).ExitStatus() != 1 {
					t.Errorf("ended with %v, want exit code 1", err)
				}
			case <-time.After(2 * time.Minute):
				t.Fatal("still runs after 2 minutes")
			}
			for _, text := range tc.says {
				if !strings.Contains(s.out.String(), text) {
					t.Errorf("does not say %q:\n%s", text, s.out)
				}
			}
			s.wantNothingLeft(t)
		})
	}
}
