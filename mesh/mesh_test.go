// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package mesh

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// safeBuffer is a bytes.Buffer that is safe for concurrent use.
type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safeBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// pairFile writes a mesh file with two workloads that run the fake application, on a network used
// only by this test.
func pairFile(t *testing.T, dir string, network int) (file string, port int) {
	t.Helper()
	port = freePort(t)
	file = write(t, fmt.Sprintf(`
network: 127.77.%d.0/24
workloads:
- {name: web, command: [%s/app, "$(NAME)"], port: %d, servicePort: 8080, ready: {path: /}, env: {COLOUR: "blue $(PORT)"}}
- {name: api, command: [%s/app, "$(NAME)"], port: %d, servicePort: 8080, namespace: back}
`, network, dir, port, dir, freePort(t)))
	return file, port
}

// start runs a mesh until the end of the test.
func start(t *testing.T, cfg Config) (stop func() error) {
	t.Helper()
	u, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- u.Run(ctx) }()
	return func() error { cancel(); return <-done }
}

func TestUp(t *testing.T) {
	t.Parallel()
	dir := programs(t)
	file, port := pairFile(t, dir, 1)
	out := &safeBuffer{}
	stateDir := filepath.Join(t.TempDir(), "state")
	stop := start(t, Config{
		File: file, Programs: dir, Envoy: "/none", StateDir: stateDir,
		Environ: append(os.Environ(), "MINE=1"), Display: Display{Out: out},
	})
	eventually(t, "the table", func() bool { return strings.Contains(out.String(), "try:") })
	for _, want := range []string{
		"outrigger: control plane ready in ",
		"outrigger: web: application ready in ",
		"outrigger: api: agent ready in ",
		`control   | msg="invalid config" source=catalog.yaml:3`,
		"web       | app says hello web",
		"WORKLOAD   ADDRESS      ENVOY   IDENTITY",
		"api        127.77.1.3   ready   spiffe://cluster.local/ns/back/sa/api",
		"  curl -x http://127.77.1.2:15080 http://api.back:8080/\n",
		"2030-01-0",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the output lacks %q:\n%s", want, out)
		}
	}
	app := get(fmt.Sprintf("http://127.0.0.1:%d/", port))
	for _, want := range []string{"MINE=1", "HTTP_PROXY=http://127.77.1.2:15080", fmt.Sprintf("COLOUR=blue %d", port)} {
		if !strings.Contains(app, want) {
			t.Errorf("the application's environment lacks %s: %s", want, app)
		}
	}
	for _, clean := range []string{get("http://127.77.1.2:15020/environ"), get("http://127.77.1.1:8080/environ")} {
		if clean == "" || strings.Contains(clean, "MINE=1") {
			t.Errorf("the environment is not clean: %q", clean)
		}
	}

	get("http://127.77.1.2:15020/crash")
	eventually(t, "the agent is back", func() bool { return strings.Contains(out.String(), "web: the agent is ready again") })
	if want := `web: the agent exited with code 137: msg="envoy was killed by signal 9"; starting it again in 200ms`; !strings.Contains(out.String(), want) {
		t.Errorf("the output lacks %q:\n%s", want, out)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	for _, unwanted := range []string{"not to be shown", "agent ends"} {
		if strings.Contains(out.String(), unwanted) {
			t.Errorf("%q is shown", unwanted)
		}
	}
	if left := processes(dir); len(left) > 0 {
		t.Errorf("processes %v are left", left)
	}
	token, err := os.ReadFile(filepath.Join(stateDir, "workloads/web/var/run/secrets/tokens/istio-token"))
	if err != nil || strings.Contains(out.String(), string(token)) {
		t.Errorf("the token is missing or was shown: %v", err)
	}
}

// TestProblemsAreListedBeforeTheStart occupies ports and expects all of them in the list of
// problems.
func TestProblemsAreListedBeforeTheStart(t *testing.T) {
	t.Parallel()
	dir := programs(t)
	file, port := pairFile(t, dir, 2)
	for _, address := range []string{fmt.Sprintf("127.0.0.1:%d", port), "127.77.2.2:8080", "127.77.2.3:15090", "127.77.2.3:15020", "127.77.2.1:15012"} {
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
	}
	_, err := New(Config{File: file, Programs: dir})
	var invalid *Invalid
	if !errors.As(err, &invalid) || len(invalid.Problems) != 4 {
		t.Fatalf("error %v", err)
	}
	for _, want := range []string{
		"the control plane: port 15012 on 127.77.2.1 is in use by another program (ss -ltnp shows it): stop that program or (if",
		fmt.Sprintf(`mesh.yaml:4: workload "web": port %d on 127.0.0.1 is in use by another program (ss -ltnp shows it): stop that program or change port`, port),
		`mesh.yaml:4: workload "web": port 8080 on 127.77.2.2 is in use by another program (ss -ltnp shows it): stop that program or change servicePort`,
		`mesh.yaml:5: workload "api": agent and Envoy: ports 15020, 15090 on 127.77.2.3 are in use`,
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error lacks %q:\n%v", want, err)
		}
	}
}

func TestStartFails(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		network int
		command string
		timeout time.Duration
		want    []string
	}{
		"ends":        {3, "exit", time.Minute, []string{"bad: the application does not start: it exited with code 3", "| app says hello exit"}},
		"never ready": {4, "deaf", time.Second, []string{"bad: the application is not ready after 1s: it must listen", "| app says hello deaf"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := programs(t)
			file := write(t, fmt.Sprintf("network: 127.77.%d.0/24\nworkloads:\n- {name: bad, command: [%s/app, %s], port: %d, servicePort: 8080}\n",
				c.network, dir, c.command, freePort(t)))
			u, err := New(Config{File: file, Programs: dir, Timeout: c.timeout, Display: Display{Out: &safeBuffer{}}, StateDir: t.TempDir()})
			if err != nil {
				t.Fatal(err)
			}
			err = u.Run(t.Context())
			for _, want := range c.want {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("error lacks %q: %v", want, err)
				}
			}
			if left := processes(dir); len(left) > 0 {
				t.Errorf("processes %v are left", left)
			}
		})
	}
}

// TestNothingOutlivesAKilledRun kills the runner; the next run removes its directory and its
// announcement.
func TestNothingOutlivesAKilledRun(t *testing.T) {
	t.Parallel()
	dir, temp := programs(t), t.TempDir()
	file, _ := pairFile(t, dir, 5)
	run := func() (*exec.Cmd, *safeBuffer) {
		out := &safeBuffer{}
		cmd := exec.Command(filepath.Join(dir, "runner"), dir, file)
		cmd.Env = append(os.Environ(), "TMPDIR="+temp)
		cmd.Stdout = out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the table", func() bool { return strings.Contains(out.String(), "try:") })
		return cmd, out
	}
	states := func() []string {
		dirs, err := filepath.Glob(filepath.Join(temp, "*"))
		if err != nil {
			t.Fatal(err)
		}
		return dirs
	}
	cmd, _ := run()
	first := states()
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("the killed runner ended well")
	}
	eventually(t, "all processes are gone", func() bool { return len(processes(dir)) == 0 })

	cmd, out := run()
	now := states()
	if stays := func(path string) bool { return slices.Contains(first, path) }; len(first) != 2 || len(now) != 2 || slices.ContainsFunc(now, stays) {
		t.Errorf("state directories and files: first %v, now %v", first, now)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	if left := append(states(), fmt.Sprint(processes(dir))); len(left) != 1 || left[0] != "[]" {
		t.Errorf("left: %v", left)
	}
}

func TestScreenInPlace(t *testing.T) {
	t.Parallel()
	out := &safeBuffer{}
	s := newScreen(Display{Out: out, Terminal: true, Color: true}, []string{"web"})
	s.track("web", roleApp, roleAgent)
	s.progress("web", roleApp, "ready in 0.10 s")
	s.child("web", levelError, "oops")
	s.settle()
	s.say(colorRed, "end")
	want := "  web        application \x1b[32mready in 0.10 s\x1b[0m  agent waiting       \n" +
		"\r\x1b[1A\x1b[J\x1b[90mweb       | \x1b[0m\x1b[31moops\x1b[0m\n" +
		"  web        application \x1b[32mready in 0.10 s\x1b[0m  agent waiting       \n" +
		"\x1b[31mend\x1b[0m\n"
	if got := out.String(); got != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	out = &safeBuffer{}
	s = newScreen(Display{Out: out, Terminal: true, Color: true, size: func() (int, int) { return 24, 40 }}, []string{"web"})
	s.track("web", roleApp, roleAgent)
	s.progress("web", roleApp, "ready in 0.10 s")
	s.settle()
	s.say("", "a line of outrigger up that a terminal has no place for")
	want = "  web        application ready in 0.10 …\n" + "a line of outrigger up that a terminal\n  has no place for\n"
	if got := out.String(); got != want {
		t.Errorf("on a narrow terminal: got  %q\nwant %q", got, want)
	}
}

// TestMakesTheConfigDirectory runs a mesh whose configuration directory does not exist.
func TestMakesTheConfigDirectory(t *testing.T) {
	t.Parallel()
	dir := programs(t)
	file := write(t, fmt.Sprintf("config: config\nnetwork: 127.77.6.0/24\nworkloads:\n- {name: web, command: [%s/app], port: %d, servicePort: 8080}\n", dir, freePort(t)))
	out := &safeBuffer{}
	stop := start(t, Config{File: file, Programs: dir, Environ: os.Environ(), Display: Display{Out: out}})
	eventually(t, "the table", func() bool { return strings.Contains(out.String(), "try:") })
	made := filepath.Join(filepath.Dir(file), "config")
	if info, err := os.Stat(made); err != nil || !info.IsDir() || !strings.Contains(out.String(), "made the empty directory "+made) {
		t.Errorf("%v\n%s", err, out)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}

// TestTriesWhatIsServed checks that suggested requests use paths that the applications serve.
func TestTriesWhatIsServed(t *testing.T) {
	t.Parallel()
	mux := http.NewServeMux()
	mux.HandleFunc("/health", func(http.ResponseWriter, *http.Request) {})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	port := server.Listener.Addr().(*net.TCPAddr).Port
	for _, c := range []struct{ ready, protocol, want string }{
		{"/health", "HTTP", fmt.Sprintf("curl http://127.0.0.1:%d/health", port)},
		{"", "HTTP", ""},
		{"/health", "GRPC", ""},
	} {
		m := &meshFile{workloads: []*workload{{name: "web", service: "web", port: port, servicePort: 80, protocol: c.protocol, readyPath: c.ready}}}
		u := &Mesh{mesh: m, client: newClient()}
		var got []string
		for _, line := range u.tries(t.Context()) {
			if strings.Contains(line, "127.0.0.1") {
				got = append(got, strings.TrimSpace(line))
			}
		}
		if strings.Join(got, "\n") != c.want {
			t.Errorf("%+v: %q", c, got)
		}
	}
}
