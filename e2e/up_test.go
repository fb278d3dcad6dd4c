// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package e2e

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestStartIsQuick checks that a built mesh is ready within a minute, also on a slow machine; make
// bench measures it.
func TestStartIsQuick(t *testing.T) {
	const limit = time.Minute
	var best time.Duration
	for range 3 {
		s := newShop(t)
		began := time.Now()
		s.start()
		s.waitFor("Ctrl-C ends it", time.Minute)
		took := time.Since(began)
		s.interrupt(2 * time.Minute)
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
	s.interrupt(2 * time.Minute)
	s.wantNothingLeft(t)
}

// fork makes the application of a workload of the shop start a process in its own session: "sleep 4711",
// and the application itself if all is true. exec replaces the shell.
func (s *shop) fork(all bool) {
	s.t.Helper()
	file := filepath.Join(s.dir, "mesh.yaml")
	b, err := os.ReadFile(file)
	if err != nil {
		s.t.Fatal(err)
	}
	const plain = `command: [../../bin/shop, orders, --listen, "127.0.0.1:$(PORT)"]`
	how := map[bool]string{false: "exec", true: "setsid"}[all]
	forking := strings.Replace(string(b), plain, `command: [sh, -c, "setsid sleep 4711 & `+how+` ../../bin/shop orders --listen 127.0.0.1:$(PORT)"]`, 1)
	if forking == string(b) {
		s.t.Fatalf("mesh.yaml has no line %q", plain)
	}
	if err := os.WriteFile(file, []byte(forking), 0o644); err != nil {
		s.t.Fatal(err)
	}
}

// TestKilledUp kills outrigger up itself: its processes are killed with it, and the next start ends those
// that an application moved out of reach, one of which has a port, and removes the files. It then opens the
// dashboard, and shows a mistake that is made while the mesh runs.
func TestKilledUp(t *testing.T) {
	s := newShop(t)
	s.fork(true)
	opened := filepath.Join(s.tmp, "opened")
	browser := "#!/bin/sh\necho \"$1\" > " + opened + "~ && mv " + opened + "~ " + opened + "\n"
	if err := os.WriteFile(filepath.Join(s.bin, "xdg-open"), []byte(browser), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", s.bin+string(os.PathListSeparator)+os.Getenv("PATH"))
	t.Setenv("DISPLAY", ":4711")
	s.start()
	s.waitFor("Ctrl-C ends it", time.Minute)
	family := s.processes()
	if err := s.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := <-s.exited; err == nil {
		t.Error("outrigger up was killed and ended with 0")
	}
	s.exited <- nil // for the cleanup
	own := func(p process) bool { return p.args == "sleep 4711 " || strings.Contains(p.args, "shop orders") }
	eventually(t, 2*time.Minute, func() string {
		for _, p := range family {
			if !gone(p) && !own(p) {
				return p.name + " is still there"
			}
		}
		return ""
	})
	s.flags = append(s.flags, "--open")
	s.start()
	s.waitFor("an outrigger up that was killed had left something: 2 processes ended, ", time.Minute)
	s.waitFor("Ctrl-C ends it", time.Minute)
	s.waitFor("the dashboard is at http://127.0.0.1:", time.Minute)
	s.write("nobody.yaml", "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: nobody, namespace: default}\nspec: {selector: {matchLabels: {app: nobody}}}\n")
	s.waitFor("config/nobody.yaml:1: AuthorizationPolicy default/nobody: ", time.Minute)
	eventually(t, 2*time.Minute, func() string {
		page, err := os.ReadFile(opened)
		if err != nil {
			return err.Error()
		}
		if body, err := fetch(t, strings.TrimSpace(string(page))); err != nil || !strings.Contains(body, "<title>Outrigger</title>") {
			return fmt.Sprintf("the browser would show %q, %v", body, err)
		}
		return ""
	})
	s.interrupt(2 * time.Minute)
	if err := os.Remove(opened); err != nil {
		t.Error(err)
	}
	s.wantNothingLeft(t)
}

// TestForkedProcessesEnd checks that Ctrl-C also stops processes that an application started in
// their own session.
func TestForkedProcessesEnd(t *testing.T) {
	s := newShop(t)
	s.fork(false)
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
	s.interrupt(2 * time.Minute)
	eventually(t, 2*time.Minute, func() string { // the system's first process reaps it
		if !gone(forked[0]) {
			return forked[0].name + " is still there"
		}
		return ""
	})
}

// TestUpRefuses checks that problems of a mesh file are reported before anything starts.
func TestUpRefuses(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:18081")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }() // the test has ended then
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

// reservedPorts looks up the ports on which agent and Envoy of a workload listen. A mesh file whose
// servicePort is one of them is refused.
func (s *shop) reservedPorts(t *testing.T) {
	table, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		t.Fatal(err)
	}
	const listening = `0200017F:([0-9A-F]{4}) 00000000:0000 0A` // on the address of the frontend
	file, ports := "network: 127.1.15.0/24\nworkloads:\n", map[uint64]bool{}
	for _, m := range regexp.MustCompile(listening).FindAllStringSubmatch(string(table), -1) {
		port, err := strconv.ParseUint(m[1], 16, 16)
		if err != nil {
			t.Fatal(err)
		}
		if port != 8080 && !ports[port] { // the service of the frontend
			ports[port] = true
			file += fmt.Sprintf("- {name: w-%d, command: [sh], servicePort: %d}\n", port, port)
		}
	}
	if len(ports) < 6 {
		t.Fatalf("agent and Envoy listen on the ports %v only:\n%s", ports, table)
	}
	path := filepath.Join(t.TempDir(), "mesh.yaml")
	if err := os.WriteFile(path, []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := s.tool("up", "-f", path)
	if err == nil {
		t.Errorf("outrigger up runs with\n%s", file)
	}
	for port := range ports {
		if want := fmt.Sprintf("servicePort %d is ", port); !strings.Contains(out, want) {
			t.Errorf("outrigger up does not print %q:\n%s", want, out)
		}
	}
	t.Logf("ports: %v", slices.Sorted(maps.Keys(ports)))
}

// tries runs each command that outrigger up suggests. All succeed.
func (s *shop) tries(t *testing.T) {
	s.waitFor("/clusters", 2*time.Minute) // in the last one
	commands := regexp.MustCompile(`(?m)^  curl (.*)$`).FindAllStringSubmatch(s.out.String(), -1)
	if len(commands) < 4 {
		t.Fatalf("outrigger up suggests %q", commands)
	}
	for _, c := range commands {
		cmd := exec.Command("sh", "-c", "curl --fail --silent --show-error --output /dev/null "+c[1])
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", c[0], err, out)
		}
	}
}

// suggestions runs each command of outrigger that explain suggests for an object that does not
// exist. All succeed.
func (s *shop) suggestions(t *testing.T) {
	for _, object := range []string{"svc/none", "vs/none", "gateway/none"} {
		out, err := s.tool("explain", object)
		if err == nil {
			t.Errorf("explain %s succeeds:\n%s", object, out)
		}
		commands := regexp.MustCompile(`outrigger (get \S+ -A)`).FindAllStringSubmatch(out, -1)
		if len(commands) == 0 {
			t.Errorf("explain %s suggests nothing:\n%s", object, out)
		}
		for _, c := range commands {
			if out, err := s.tool(strings.Fields(c[1])...); err != nil {
				t.Errorf("%s: %v\n%s", c[0], err, out)
			}
		}
	}
}
