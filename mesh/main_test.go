// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package mesh

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/outrigger-mesh/outrigger/e2e/ownnet"
)

// TestMain also runs the programs that the tests start: they are links to the test binary,
// distinguished by name.
func TestMain(m *testing.M) {
	switch filepath.Base(os.Args[0]) {
	case "outrigger-control":
		os.Exit(fakeControl(os.Args[1:]))
	case "outrigger-agent":
		os.Exit(fakeAgent())
	case "app":
		os.Exit(fakeApp(os.Args[1:]))
	case "runner":
		os.Exit(fakeRunner(os.Args[1:]))
	}
	goleak.VerifyTestMain(ownnet.Tests(m))
}

// serveUntilSignal serves HTTP until it receives a signal, and then exits successfully.
func serveUntilSignal(address string, h http.Handler) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	l, err := net.Listen("tcp", address)
	if err != nil {
		fmt.Println(err)
		return 7
	}
	s := &http.Server{Handler: h}
	go func() { _ = s.Serve(l) }()
	<-ctx.Done()
	_ = s.Close()
	return 0
}

// fakeControl serves /ready and writes a root certificate. It fails if a file requests it.
func fakeControl(args []string) int {
	fmt.Println(`time=now level=INFO msg="not to be shown"`)
	fmt.Println(`time=now level=WARN msg="invalid config" source=catalog.yaml:3`)
	var rule struct{ Issuer, Jwks string }
	if err := json.Unmarshal([]byte(os.Getenv("JWT_RULE")), &rule); err != nil || rule.Jwks == "" {
		fmt.Println("no JWT_RULE")
		return 6
	}
	address := args[slices.Index(args, "--httpAddr")+1]
	root := filepath.Join(os.Getenv("OUTRIGGER_STATE_DIR"), "root-cert.pem")
	if err := writeFile(root, []byte("root")); err != nil {
		fmt.Println(err)
		return 5
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/ready", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("/environ", func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, os.Environ()) })
	return serveUntilSignal(address, mux)
}

func fakeAgent() int {
	ip := os.Getenv("OUTRIGGER_BIND_ADDRESS")
	for _, file := range []string{
		"etc/istio/pod/labels", "var/run/secrets/tokens/istio-token", "var/run/secrets/istio/root-cert.pem",
	} {
		info, err := os.Stat(file)
		if err != nil || info.Mode().Perm() != 0o600 {
			fmt.Println("not as it should be:", file, err)
			return 4
		}
	}
	admin, err := net.Listen("tcp", ip+":15000")
	if err != nil {
		fmt.Println(err)
		return 7
	}
	go func() {
		_ = http.Serve(admin, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = fmt.Fprintf(w, `{"certificates":[{"cert_chain":[{"subject_alt_names":[{"uri":"spiffe://cluster.local/ns/%s/sa/%s"}],`+
				`"expiration_time":"2030-01-02T03:04:05Z"}]}]}`, os.Getenv("POD_NAMESPACE"), os.Getenv("SERVICE_ACCOUNT"))
		}))
	}()
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz/ready", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("/crash", func(http.ResponseWriter, *http.Request) {
		fmt.Println(`time=now level=ERROR msg="envoy was killed by signal 9"`)
		os.Exit(137)
	})
	mux.HandleFunc("/environ", func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, os.Environ()) })
	code := serveUntilSignal(ip+":15020", mux)
	fmt.Println(`time=now level=WARN msg="agent ends"`)
	return code
}

// fakeApp serves on $PORT; its arguments select faulty behaviour.
func fakeApp(args []string) int {
	mode := append(args, "")[0]
	fmt.Println("app says hello", strings.Join(args, " "))
	switch mode {
	case "exit":
		fmt.Print("no line end")
		return 3
	case "deaf":
		signal.Ignore(syscall.SIGTERM)
		for { // an empty select is a deadlock for the runtime
			time.Sleep(time.Hour)
		}
	case "parent": // leaves a child behind, which prints its pid
		c := exec.Command("/bin/sleep", "300")
		if err := c.Start(); err != nil {
			return 1
		}
		fmt.Println("child", c.Process.Pid)
		return 0
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, os.Environ()) })
	return serveUntilSignal("127.0.0.1:"+os.Getenv("PORT"), mux)
}

// fakeRunner is outrigger up without flags. Its arguments are the programs directory and the mesh
// file.
func fakeRunner(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	u, err := New(Config{
		Programs: args[0], File: args[1], Envoy: "/none", Environ: os.Environ(),
		Display: Display{Out: os.Stdout},
	})
	if err == nil {
		err = u.Run(ctx)
	}
	if err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}

// programs creates a directory with the fake programs.
func programs(t *testing.T) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, name := range []string{"outrigger-control", "outrigger-agent", "app", "runner"} {
		if err := os.Symlink(self, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// freePort returns a port on 127.0.0.1 that is neither in use nor assigned to another test.
func freePort(t *testing.T) int {
	t.Helper()
	port, err := ownnet.FreePort("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	number, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	return number
}

// eventually waits until yes returns true.
func eventually(t *testing.T, what string, yes func() bool) {
	t.Helper()
	deadline := time.Now().Add(2 * time.Minute)
	for !yes() {
		if time.Now().After(deadline) {
			t.Fatalf("not within 2 minutes: %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// get returns the body of a page, or "" on any error.
func get(url string) string {
	client := newClient()
	resp, err := client.Get(url)
	if err != nil {
		return ""
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return ""
	}
	return string(body)
}
