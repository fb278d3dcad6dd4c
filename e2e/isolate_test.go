// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/nftables"
)

// needsIsolation skips a test where the system has no namespaces.
func needsIsolation(t *testing.T) {
	t.Helper()
	if err := build(); err != nil {
		t.Fatal(err)
	}
	out, _ := exec.Command(filepath.Join(repository(t), "bin", "outrigger"), "up", "-f", "/no/mesh.yaml", "--isolate=netns").CombinedOutput() // it always fails
	if problem := regexp.MustCompile(`(?m)^  --isolate=netns: .*`).Find(out); problem != nil {
		t.Skipf("%s", problem)
	}
}

// isolatedWorkloads are added to those of the shop. SELF is the test binary.
const isolatedWorkloads = `
- name: asker
  command: [SELF]
  env: {OUTRIGGER_TEST_APP: asker}
  port: 19001
  servicePort: 80
- name: greeter
  command: [SELF]
  env: {OUTRIGGER_TEST_APP: greeter}
  port: 19002
  servicePort: 5432
  protocol: TCP
- name: health
  namespace: back
  command: [SELF]
  env: {OUTRIGGER_TEST_APP: health}
  port: 19003
  servicePort: 9090
  protocol: GRPC
`

// isolatedConfig has services of the machine: with TLS of the application, and with TLS of Envoy.
const isolatedConfig = `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: secure, namespace: default}
spec:
  hosts: [secure.example.com]
  location: MESH_EXTERNAL
  resolution: STATIC
  ports: [{number: 443, name: tls, protocol: TLS, targetPort: SECURE}, {number: 80, name: http, protocol: HTTP, targetPort: SECURE}]
  endpoints: [{address: 10.1.0.1}]
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: secure, namespace: default}
spec:
  host: secure.example.com
  trafficPolicy: {portLevelSettings: [{port: {number: 80}, tls: {mode: SIMPLE, insecureSkipVerify: true}}]}
`

// newIsolated returns the example shop with three more applications, in namespaces.
func newIsolated(t *testing.T) *shop {
	t.Helper()
	needsIsolation(t)
	s := newShop(t)
	s.flags = nil // the default of root
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	const last = `command: [../../bin/shop, orders, --listen, "127.0.0.1:$(PORT)"]
  port: 18083
  servicePort: 8080
  ready: {path: /healthz}
`
	s.replace("mesh.yaml", last, last+strings.ReplaceAll(isolatedWorkloads, "SELF", self))
	return s
}

// replace replaces a text in a file of the example, once.
func (s *shop) replace(name, old, replacement string) {
	s.t.Helper()
	path := filepath.Join(s.dir, name)
	b, err := os.ReadFile(path)
	if err != nil || !strings.Contains(string(b), old) {
		s.t.Fatalf("%s has no %q: %v", path, old, err)
	}
	if err := os.WriteFile(path, []byte(strings.Replace(string(b), old, replacement, 1)), 0o644); err != nil {
		s.t.Fatal(err)
	}
}

// asks runs an action in the application "asker", and waits until the response contains a text.
func (s *shop) asks(t *testing.T, what, value, want string) {
	t.Helper()
	eventually(t, 2*time.Minute, func() string {
		_, body, err := request(t.Context(), http.DefaultClient, "http://127.0.0.1:19001/ask?"+url.Values{what: {value}}.Encode(), "")
		if err != nil || !strings.Contains(body, want) {
			return fmt.Sprintf("%s %s: %q, %v; want %q", what, value, body, err, want)
		}
		return ""
	})
}

// TestIsolated checks what applications see that have a network namespace and no proxy setting.
func TestIsolated(t *testing.T) {
	s := newIsolated(t)
	secure := httptest.NewTLSServer(http.HandlerFunc(whoAsks))
	t.Cleanup(secure.Close)
	_, port, _ := net.SplitHostPort(secure.Listener.Addr().String())
	s.write("isolated.yaml", strings.ReplaceAll(isolatedConfig, "SECURE", port))
	s.replace("mesh.yaml", "config: config\n", "mesh: {accessLogFile: /dev/stdout, accessLogFormat: \"logged %PROTOCOL% %REQ(:AUTHORITY)%\\n\"}\nconfig: config\n")
	before := traces(t)
	s.start()
	s.waitFor("own network namespace; --isolate=none", 2*time.Minute)
	s.waitFor("Ctrl-C ends it", 2*time.Minute)

	for _, c := range []struct{ name, what, value, want string }{
		{"HTTP by name", "get", "http://catalog:8080/", `"caller":"spiffe://cluster.local/ns/default/sa/asker"`},
		{"HTTP by long name", "get", "http://catalog.default.svc.cluster.local:8080/", "sa/asker"},
		{"the server speaks first", "greet", "greeter:5432", "hello\nand back\n"},
		{"gRPC in another namespace", "grpc", "health.back:9090", "SERVING"},
		{"names come from the mesh", "resolve", "greeter", "[240.241."},
		{"TLS of the application", "get", "https://secure.example.com/", "200 host secure.example.com"},
		{"TLS of Envoy", "get", "http://secure.example.com/", "200 host secure.example.com"},
		{"a server of the machine", "get", "http://10.255.255.254:" + s.serveOn(t, "10.255.255.254:0") + "/", "200 host"},
		{"a server of the loopback of the machine", "get", "http://10.1.0.1:" + s.serveOn(t, "127.0.0.1:0") + "/", "200 host"},
		{"not around Envoy over the machine", "get", "http://10.1.0.1:18081/", "502"},
		{"not the debug port of the control plane", "get", "http://10.1.0.1:15014/debug/proxies", "50"},
		{"the key of the authority is hidden", "read", filepath.Join(s.stateDir(), "control/ca/ca-key.pem"), "no such file"},
	} {
		t.Run(c.name, func(t *testing.T) { s.asks(t, c.what, c.value, c.want) })
	}
	t.Run("Envoy logs requests", func(*testing.T) { s.waitFor("logged HTTP/1.1 catalog:8080", 2*time.Minute) })
	t.Run("plaintext is refused at every port", s.plaintextRefused)
	t.Run("connections are recorded", func(t *testing.T) {
		out := s.replays("greeter", `
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: greeter, namespace: default}
spec: {selector: {matchLabels: {app: greeter}}, action: DENY, rules: [{from: [{source: {serviceAccounts: [asker]}}]}]}
`, func() { s.asks(t, "greet", "greeter:5432", "hello\nand back\n") }, `"method":"","path":""`)
		wantAll(t, "replay", out, []string{"0 requests and ", "Now denied: ", "such as  a connection to port 5432", "sa/asker\n", "Envoy decides the same about 1 different request"})
	})
	t.Run("users", s.wantUsers)
	t.Run("commands of the README", s.tries)
	t.Run("Envoy is started again", func(t *testing.T) {
		kill(t, s.find("envoy", "greeter"))
		s.waitFor("greeter: the agent is ready again", 2*time.Minute)
		s.asks(t, "greet", "greeter:5432", "hello\nand back\n")
	})
	s.interrupt(2 * time.Minute)
	s.wantNothingLeft(t)
	if after := traces(t); !slices.Equal(before, after) {
		t.Errorf("the machine had %q and has %q", before, after)
	}
}

// serveOn serves on an address of the machine and returns the port.
func (s *shop) serveOn(t *testing.T, address string) string {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(whoAsks)}
	go func() { _ = server.Serve(l) }() // it ends with the listener
	t.Cleanup(func() { _ = server.Close() })
	_, port, _ := net.SplitHostPort(l.Addr().String())
	return port
}

// plaintextRefused connects to ports of workloads from the machine and from another workload's
// network as the user of its agent, whose connections are not redirected.
func (s *shop) plaintextRefused(t *testing.T) {
	for _, address := range []string{"127.1.0.6:80", catalogV1 + ":8080", orders + ":8080"} {
		if code, body, err := request(t.Context(), http.DefaultClient, "http://"+address+"/", ""); err == nil {
			t.Errorf("%s answers: %d %s", address, code, body)
		}
	}
	if _, err := exec.LookPath("nsenter"); err != nil {
		t.Skipf("the rest needs nsenter (Debian package util-linux): %v", err)
	}
	agent := s.find("outrigger-agent", "greeter")
	user := fmt.Sprint(owner(t, filepath.Join(s.stateDir(), "workloads", "greeter")))
	for path, served := range map[string]bool{"15021/healthz/ready": true, "80/": false, undeclaredPort + "/": false, "19001/": false, "12345/": false} {
		cmd := exec.Command("nsenter", "-t", fmt.Sprint(agent.pid), "-n", "-S", user, "-G", user, "curl", "-fsS", "-m", "60", "http://10.1.0.6:"+path)
		if out, err := cmd.CombinedOutput(); (err == nil) != served {
			t.Errorf("port %s: %s (%v)", path, out, err)
		}
	}
}

var statusIDs = regexp.MustCompile(`(?m)^(Uid|Gid|CapEff|CapPrm|CapBnd):\s+(\w+)`)

// wantUsers checks users and capabilities of the processes.
func (s *shop) wantUsers(t *testing.T) {
	seen, ids := map[string]int{}, map[string]bool{}
	for _, p := range s.processes() {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.pid))
		if err != nil {
			continue // it ended
		}
		want := map[string]string{"CapEff": "0000000000000000", "CapPrm": "0000000000000000", "CapBnd": "0000000000000000"}
		switch {
		case strings.HasPrefix("outrigger-control", p.name):
			continue
		case strings.HasPrefix("outrigger-agent", p.name), p.name == "envoy":
			if dir, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", p.pid)); err == nil {
				id := fmt.Sprint(owner(t, filepath.Join(s.stateDir(), "workloads", filepath.Base(dir))))
				want["Uid"], want["Gid"] = id, id
				ids[id] = true
			}
		}
		seen[p.name]++
		for _, m := range statusIDs.FindAllStringSubmatch(string(b), -1) {
			if w, ok := want[m[1]]; ok && m[2] != w {
				t.Errorf("%s: %s is %s, want %s", p.name, m[1], m[2], w)
			}
		}
	}
	if len(ids) != 7 {
		t.Errorf("agents run as the users %v, want one for each workload", ids)
	}
	if seen["envoy"] != 7 || seen["shop"] != 4 {
		t.Errorf("processes: %v", seen)
	}
	info, err := os.Stat(filepath.Join(s.stateDir(), "workloads", "frontend"))
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("directory of an agent: %v, %v", info, err)
	}
}

// owner returns the user who owns a directory.
func owner(t *testing.T, dir string) uint32 {
	t.Helper()
	info, err := os.Stat(dir)
	if err != nil {
		t.Fatal(err)
	}
	return info.Sys().(*syscall.Stat_t).Uid
}

// traces lists interfaces and tables of nftables.
func traces(t *testing.T) (all []string) {
	t.Helper()
	links, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		all = append(all, l.Name)
	}
	tables, err := (&nftables.Conn{}).ListTables()
	if err != nil {
		t.Fatal(err)
	}
	for _, table := range tables {
		all = append(all, "table "+table.Name)
	}
	return all
}

// TestShopIsolated runs the steps of TestShop in namespaces. The applications run as nobody.
func TestShopIsolated(t *testing.T) {
	needsIsolation(t)
	s := newShop(t)
	s.flags = []string{"--isolate=netns"}
	s.makePublic(t)
	s.start()
	s.waitFor("Ctrl-C ends it", 2*time.Minute)
	for _, p := range s.processes() {
		info, err := os.Stat(fmt.Sprintf("/proc/%d", p.pid))
		if err != nil || p.name != "shop" {
			continue
		}
		if uid := info.Sys().(*syscall.Stat_t).Uid; uid != 65534 {
			t.Errorf("an application has the user %d, want nobody", uid)
		}
	}
	if out, err := s.tool("status"); err != nil || !strings.Contains(out, "\nEach workload has its own network namespace on this machine.\n") {
		t.Errorf("status: %v\n%s", err, out)
	}
	s.everything(t)
}

// makePublic makes the application executable for every user.
func (s *shop) makePublic(t *testing.T) {
	t.Helper()
	program := filepath.Join(s.bin, "shop")
	b, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Remove(program), os.WriteFile(program, b, 0o755)); err != nil {
		t.Fatal(err)
	}
	base := filepath.Dir(s.bin)
	for _, dir := range []string{base, filepath.Dir(base)} {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

// TestIsolatedInUserNamespace runs the shop in a user namespace, in which root has no privileges on
// the machine. Without privileges in it, outrigger up reports what is missing.
func TestIsolatedInUserNamespace(t *testing.T) {
	needsIsolation(t)
	s := newShop(t)
	s.flags = []string{"--isolate=netns"}
	s.userns = 65535
	s.start()
	s.waitFor("Ctrl-C ends it", 2*time.Minute)
	code, body, _, err := get(t.Context(), throughProxy(t, frontend), "http://catalog:8080/", nil)
	if err != nil || code != 200 || !strings.Contains(body, "sa/frontend") {
		t.Errorf("%d %s %v", code, body, err)
	}
	s.interrupt(2 * time.Minute)
	s.wantNothingLeft(t)

	few := newShop(t)
	few.flags, few.userns = s.flags, 1
	few.start()
	few.waitFor("--isolate=netns: network namespaces are not available: this user namespace has no user 60706: run outrigger up as root", 2*time.Minute)
	if err := <-few.exited; err == nil {
		t.Error("outrigger up ended with 0")
	}
	few.exited <- nil // for the cleanup
}

// TestIsolationNeedsRoot checks the error of outrigger up for another user.
func TestIsolationNeedsRoot(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root to give root up")
	}
	s := newShop(t)
	s.makePublic(t)
	cmd := exec.Command(filepath.Join(s.bin, "outrigger"), "up", "-f", filepath.Join(s.dir, "mesh.yaml"), "--isolate=netns")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	cmd.Env, cmd.Dir = append(os.Environ(), "TMPDIR=/tmp"), "/"
	out, err := cmd.CombinedOutput()
	if err == nil {
		t.Error("outrigger up ended with 0")
	}
	wantAll(t, "outrigger up", string(out), []string{"--isolate=netns: network namespaces are not available: they need root: run outrigger up as root", "--map-auto", "--isolate=none"})
}

// TestIsolatedKilled kills two meshes that run at once: no process, namespace, interface or rule is
// left.
func TestIsolatedKilled(t *testing.T) {
	first, second := newIsolated(t), newIsolated(t)
	before := traces(t)
	second.replace("mesh.yaml", "config: config\n", "config: config\nnetwork: 127.1.8.0/24\n")
	for i := range 4 {
		second.replace("mesh.yaml", fmt.Sprintf("port: 1808%d", i), fmt.Sprintf("port: 1818%d", i))
	}
	for i := 1; i <= 3; i++ {
		second.replace("mesh.yaml", fmt.Sprintf("port: 1900%d", i), fmt.Sprintf("port: 1910%d", i))
	}
	first.start()
	second.start()
	for _, s := range []*shop{first, second} {
		s.waitFor("Ctrl-C ends it", 2*time.Minute)
	}
	for _, address := range []string{frontend, "127.1.8.2"} {
		eventually(t, 2*time.Minute, func() string {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			code, body, _, err := get(ctx, throughProxy(t, address), "http://catalog:8080/", nil)
			if err != nil || code != 200 || !strings.Contains(body, "sa/frontend") {
				return fmt.Sprintf("%s: %d %s %v", address, code, body, err)
			}
			return ""
		})
	}
	var family []process
	for _, s := range []*shop{first, second} {
		family = append(family, s.processes()...)
		if err := s.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		if err := <-s.exited; err == nil {
			t.Error("outrigger up was killed and ended with 0")
		}
		s.exited <- nil // for the cleanup
	}
	eventually(t, 2*time.Minute, func() string {
		for _, p := range family {
			if !gone(p) {
				return p.name + " is still there"
			}
		}
		// One that started meanwhile has a path of the mesh in its arguments.
		commands, err := filepath.Glob("/proc/[0-9]*/cmdline")
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range commands {
			args, err := os.ReadFile(file) // the process may have ended
			if dirs := []string{filepath.Dir(first.bin), filepath.Dir(second.bin)}; err == nil && slices.ContainsFunc(dirs, func(dir string) bool { return strings.Contains(string(args), dir) }) {
				return fmt.Sprintf("%s is still there: %q", file, args)
			}
		}
		return ""
	})
	if after := traces(t); !slices.Equal(before, after) {
		t.Errorf("the machine had %q and has %q", before, after)
	}
}
