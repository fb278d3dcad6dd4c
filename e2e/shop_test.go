// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// The addresses of the example shop.
const (
	controlReady = "http://127.1.0.1:8080/ready"
	frontend     = "127.1.0.2"
	catalogV1    = "127.1.0.3"
	catalogV2    = "127.1.0.4"
	orders       = "127.1.0.5"
	// readmeLine is in the README and in the output of outrigger up.
	readmeLine = "curl -x http://127.1.0.2:15080 http://catalog:8080/"
)

// repository is the directory of the repository.
func repository(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// envoyBinary returns the path of the Envoy that the tests run: the one that ENVOY
// names, else the one of `make envoy`.
func envoyBinary(t *testing.T) string {
	t.Helper()
	if path := os.Getenv("ENVOY"); path != "" {
		return path
	}
	return filepath.Join(repository(t), "bin", "envoy")
}

// build builds the programs and gets Envoy as a user does, once for all tests.
var build = sync.OnceValue(func() error {
	cmd := exec.Command("make", "-s", "-C", "..", "build", "envoy")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("make build envoy: %w\n%s", err, out)
	}
	return nil
})

// shop is the example shop, run by outrigger up on a copy of its files.
type shop struct {
	t      *testing.T
	dir    string // the copy of examples/shop
	bin    string // the programs
	tmp    string // TMPDIR of all programs
	home   string // HOME of all programs
	cmd    *exec.Cmd
	out    *output
	exited chan error
	flags  []string // of outrigger up
	userns int      // number of users of a user namespace for outrigger up; 0 means none
}

// startShop copies the example and starts it. It waits until all is ready, and stops it at the end
// of the test if it still runs. The command line may be wrapped: it is appended to wrap.
func startShop(t *testing.T, wrap ...string) *shop {
	t.Helper()
	s := newShop(t)
	s.start(wrap...)
	s.waitFor("Ctrl-C ends it", time.Minute)
	return s
}

func newShop(t *testing.T) *shop {
	t.Helper()
	return newExample(t, "shop")
}

// newExample copies an example and the programs that it needs.
func newExample(t *testing.T, name string) *shop {
	t.Helper()
	if err := build(); err != nil {
		t.Fatal(err)
	}
	base := t.TempDir()
	s := &shop{
		t: t, dir: filepath.Join(base, "examples", name), bin: filepath.Join(base, "bin"),
		tmp: filepath.Join(base, "tmp"), home: filepath.Join(base, "home"),
		flags: []string{"--isolate=none"},
	}
	for _, dir := range []string{s.dir, s.bin, s.tmp, s.home} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	// outrigger searches for the other programs in its directory, so it is a copy; the others are
	// links.
	for _, program := range []string{"outrigger-agent", "outrigger-control", "envoy", name} {
		err := os.Symlink(filepath.Join(repository(t), "bin", program), filepath.Join(s.bin, program))
		if err != nil {
			t.Fatal(err)
		}
	}
	b, err := os.ReadFile(filepath.Join(repository(t), "bin", "outrigger"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(s.bin, "outrigger"), b, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(s.dir, os.DirFS(filepath.Join(repository(t), "examples", name))); err != nil {
		t.Fatal(err)
	}
	return s
}

// setenv sets an environment variable of one program, which outrigger up would not pass on.
func (s *shop) setenv(program, name, value string) {
	s.t.Helper()
	link := filepath.Join(s.bin, program)
	path, err := filepath.EvalSymlinks(link)
	if err != nil {
		s.t.Fatal(err)
	}
	if err := os.Remove(link); err != nil {
		s.t.Fatal(err)
	}
	script := fmt.Sprintf("#!/bin/sh\n%s='%s' exec %s \"$@\"\n", name, value, path)
	if err := os.WriteFile(link, []byte(script), 0o755); err != nil {
		s.t.Fatal(err)
	}
}

// start runs outrigger up without waiting until it is ready.
func (s *shop) start(wrap ...string) {
	s.t.Helper()
	args := slices.Concat(wrap, []string{filepath.Join(s.bin, "outrigger"), "up", "-f", filepath.Join(s.dir, "mesh.yaml")}, s.flags)
	s.cmd = exec.Command(args[0], args[1:]...)
	s.cmd.Env = append(os.Environ(), "TMPDIR="+s.tmp, "HOME="+s.home)
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if s.userns > 0 {
		s.cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWUSER
		s.cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{Size: s.userns}}
		s.cmd.SysProcAttr.GidMappings = s.cmd.SysProcAttr.UidMappings
		s.cmd.SysProcAttr.GidMappingsEnableSetgroups = true
	}
	s.out = &output{grown: make(chan struct{}, 1)}
	s.cmd.Stdout, s.cmd.Stderr = s.out, s.out
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.exited = make(chan error, 1)
	cmd, out, exited := s.cmd, s.out, s.exited
	go func() { exited <- cmd.Wait() }()
	s.t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // fails if the test ended it
		select {
		case err := <-exited:
			s.t.Logf("outrigger up ended with %v", err)
		case <-time.After(2 * time.Minute):
			_ = cmd.Process.Kill()
			s.t.Error("outrigger up did not end within 2 minutes")
		}
		if s.t.Failed() {
			s.t.Logf("output of outrigger up:\n%s", out)
		}
	})
}

// waitFor waits until the output contains a text, from where the last call of waitFor stopped.
func (s *shop) waitFor(text string, limit time.Duration) {
	s.t.Helper()
	if !s.out.wait(text, limit) {
		s.t.Fatalf("outrigger up did not print %q within %s:\n%s", text, limit, s.out)
	}
}

// interrupt sends Ctrl-C and returns how long the exit took.
func (s *shop) interrupt(limit time.Duration) time.Duration {
	s.t.Helper()
	began := time.Now()
	if err := s.cmd.Process.Signal(os.Interrupt); err != nil {
		s.t.Fatal(err)
	}
	select {
	case err := <-s.exited:
		s.exited <- nil // for the cleanup
		if err != nil {
			s.t.Errorf("outrigger up ended with %v, want 0", err)
		}
	case <-time.After(limit):
		s.t.Fatalf("outrigger up still runs %s after Ctrl-C", limit)
	}
	return time.Since(began)
}

// stateDir is the state directory of outrigger up.
func (s *shop) stateDir() string {
	s.t.Helper()
	dirs, err := filepath.Glob(filepath.Join(s.tmp, "outrigger-up-*"))
	if err != nil || len(dirs) != 1 {
		s.t.Fatalf("found the state directories %v, %v; want one", dirs, err)
	}
	return dirs[0]
}

// write replaces a file of the user's configuration, as an editor does that
// writes a new file and renames it.
func (s *shop) write(name, content string) {
	s.t.Helper()
	file := filepath.Join(s.dir, "config", name)
	if err := os.WriteFile(file+"~", []byte(content), 0o644); err != nil {
		s.t.Fatal(err)
	}
	if err := os.Rename(file+"~", file); err != nil {
		s.t.Fatal(err)
	}
}

// read returns a file of the user's configuration.
func (s *shop) read(name string) string {
	s.t.Helper()
	b, err := os.ReadFile(filepath.Join(s.dir, "config", name))
	if err != nil {
		s.t.Fatal(err)
	}
	return string(b)
}

// output is the output of a program.
type output struct {
	mu    sync.Mutex // guards the fields below
	b     bytes.Buffer
	at    int // where the last wait stopped
	grown chan struct{}
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	select {
	case o.grown <- struct{}{}:
	default:
	}
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

func (o *output) wait(text string, limit time.Duration) bool {
	timeout := time.After(limit)
	for {
		o.mu.Lock()
		i := bytes.Index(o.b.Bytes()[o.at:], []byte(text))
		if i >= 0 {
			o.at += i + len(text)
		}
		o.mu.Unlock()
		if i >= 0 {
			return true
		}
		select {
		case <-o.grown:
		case <-timeout:
			return false
		}
	}
}

// process is a process that descends from outrigger up.
type process struct {
	pid    int
	parent int
	name   string // of the program, at most 15 bytes
	args   string
}

// processes returns all descendants of outrigger up.
func (s *shop) processes() []process {
	s.t.Helper()
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		s.t.Fatal(err)
	}
	var all []process
	for _, dir := range dirs {
		stat, err := os.ReadFile(filepath.Join(dir, "stat"))
		if err != nil {
			continue // it has ended
		}
		text := string(stat)
		open, end := strings.IndexByte(text, '('), strings.LastIndexByte(text, ')')
		fields := strings.Fields(text[end+1:])
		args, _ := os.ReadFile(filepath.Join(dir, "cmdline")) // it may have exited
		p := process{name: text[open+1 : end], args: string(bytes.ReplaceAll(args, []byte{0}, []byte{' '}))}
		p.pid, _ = strconv.Atoi(filepath.Base(dir))
		p.parent, _ = strconv.Atoi(fields[1])
		all = append(all, p)
	}
	family := map[int]bool{s.cmd.Process.Pid: true}
	var out []process
	for grew := true; grew; {
		grew = false
		for _, p := range all {
			if family[p.parent] && !family[p.pid] {
				family[p.pid], grew = true, true
				out = append(out, p)
			}
		}
	}
	return out
}

// find returns the one process of a program whose directory ends with a
// workload's name; no workload means any directory.
func (s *shop) find(program, workload string) process {
	s.t.Helper()
	for _, p := range s.processes() {
		dir, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", p.pid))
		if strings.HasPrefix(program, p.name) && p.name != "" && err == nil && (workload == "" || filepath.Base(dir) == workload) {
			return p
		}
	}
	s.t.Fatalf("no process %s of %s among %v", program, workload, s.processes())
	return process{}
}

// statusField returns a field of /proc/PID/status, in kB.
func statusField(t *testing.T, p process, field string) int {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.pid))
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`(?m)^` + field + `:\s+(\d+) kB$`).FindSubmatch(b)
	if m == nil {
		t.Fatalf("the status of %v has no %s", p, field)
	}
	n, err := strconv.Atoi(string(m[1]))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func kill(t *testing.T, p process) {
	t.Helper()
	if err := syscall.Kill(p.pid, syscall.SIGKILL); err != nil {
		t.Fatalf("kill %v: %v", p, err)
	}
}

// gone reports whether a process has ended.
func gone(p process) bool {
	_, err := os.Stat(fmt.Sprintf("/proc/%d", p.pid))
	return errors.Is(err, fs.ErrNotExist)
}

// throughProxy returns a client that reaches the mesh through the Envoy of a
// workload, as an application with HTTP_PROXY set does.
func throughProxy(t *testing.T, address string) *http.Client {
	t.Helper()
	transport := &http.Transport{
		Proxy:               http.ProxyURL(&url.URL{Scheme: "http", Host: address + ":15080"}),
		MaxIdleConnsPerHost: 50,
	}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: time.Minute}
}

var versionField = regexp.MustCompile(`"version": ?"(v[0-9])"`)

// get makes one request and returns the status, the body and the catalog's
// version in it.
func get(ctx context.Context, c *http.Client, address string, header http.Header) (code int, body, version string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return 0, "", "", err
	}
	for k, v := range header {
		req.Header[k] = v
	}
	resp, err := c.Do(req)
	if err != nil {
		return 0, "", "", err
	}
	defer func() { _ = resp.Body.Close() }() // it was read to its end
	b, err := io.ReadAll(resp.Body)
	if m := versionField.FindSubmatch(b); m != nil {
		version = string(m[1])
	}
	return resp.StatusCode, string(b), version, err
}
