// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/outrigger-mesh/outrigger/certs"
	"github.com/outrigger-mesh/outrigger/controlplane/ca"
	"github.com/outrigger-mesh/outrigger/controlplane/report"
	"github.com/outrigger-mesh/outrigger/controlplane/server"
	"github.com/outrigger-mesh/outrigger/e2e/ownnet"
)

// running is a control plane like that of outrigger up: it reads generated objects and a directory.
type running struct {
	t                             *testing.T
	dir, generated, file, control string
}

// startMesh starts a control plane, and announces it like outrigger up.
func startMesh(t *testing.T, objects string) *running {
	t.Helper()
	const host = "127.77.58.1"
	port, err := ownnet.FreePort(host)
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	m := &running{t, filepath.Join(root, "objects"), filepath.Join(root, "config"), filepath.Join(root, "mesh.yaml"), net.JoinHostPort(host, port)}
	for _, dir := range []string{m.dir, m.generated} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	m.write("objects/all.yaml", objects)
	m.write("config/workloads.yaml", strings.Replace(entry("made", "10.0.0.1"), "{name:", "{annotations: {x: made}, name:", 1)+"---\n"+
		"apiVersion: networking.istio.io/v1\nkind: Sidecar\nmetadata: {name: web, namespace: shop, annotations: {outrigger.mesh/replaceable: 'true'}}\nspec: {egress: [{hosts: ['./*']}]}\n")
	m.write("settings.yaml", fmt.Sprintf("configSources: [{address: fs://%s}, {address: fs://%s}]\n", m.generated, m.dir))
	s, err := server.New(t.Context(), server.Config{
		Version: "test", Domain: "cluster.local", Namespace: "istio-system", Revision: "default", PodName: filepath.Base(root),
		StateDir: filepath.Join(root, "state", "ca"), Mesh: server.MeshConfig{File: filepath.Join(root, "settings.yaml"), NetworksFile: filepath.Join(root, "networks")},
		Cluster:   server.ClusterConfig{Use: server.ClusterAuto, ID: "Kubernetes", NoRegistries: true},
		Listen:    server.ListenConfig{HTTP: m.control, Secure: host + ":0"},
		TLS:       server.TLSConfig{Provider: server.CertProviderIstiod},
		Keepalive: server.KeepaliveConfig{Interval: time.Minute, Timeout: time.Minute}, ConnectionsPerAddress: server.DefaultConnectionsPerAddress,
		Status:   server.StatusConfig{Workers: 1, Burst: 1, QPS: 1},
		Shutdown: time.Second, DebugHTTP: true, DebounceAfter: time.Millisecond, DebounceMax: time.Second, PushWorkers: 1,
		CA: server.CAConfig{
			Enabled: true, PluginDir: filepath.Join(root, "cacerts"), DefaultTTL: time.Hour, MaxTTL: time.Hour,
			Root: ca.RootConfig{TTL: 24 * time.Hour, Check: time.Hour, Grace: 20, KeyType: certs.ECDSAP256}, CallerRate: 10, IdentityRate: 100,
		},
	}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	m.announce()
	return m
}

// announce publishes the mesh to commands, see package mesh.
func (m *running) announce() {
	f, err := os.CreateTemp(os.TempDir(), "outrigger-run-")
	if err == nil {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX)
	}
	if err == nil {
		_, err = fmt.Fprintf(f, "%s\n%s\n%s\nnone\n%s\n4711\n", m.store(), m.control, filepath.Join(filepath.Dir(m.dir), "state", "config"), m.file)
	}
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() { _ = f.Close() }) // the directory is temporary
}

func (m *running) store() string { return "fs://" + m.dir }

// write writes a file of the mesh.
func (m *running) write(name, text string) {
	m.t.Helper()
	if err := os.WriteFile(filepath.Join(filepath.Dir(m.dir), name), []byte(text), 0o600); err != nil {
		m.t.Fatal(err)
	}
}

// text returns the content of all files of the store.
func (m *running) text() (all string) {
	m.t.Helper()
	paths, err := filepath.Glob(m.dir + "/*")
	nested, _ := filepath.Glob(m.dir + "/*/*")
	for _, path := range append(paths, nested...) {
		if raw, e := os.ReadFile(path); e == nil {
			all += strings.TrimPrefix(path, m.dir+"/") + ":\n" + string(raw)
		}
	}
	if err != nil {
		m.t.Fatal(err)
	}
	return all
}

// revisions waits until the history of an object has n versions, and returns their revisions.
func (m *running) revisions(object string, n int) (list []string) {
	m.t.Helper()
	kind, name, _ := strings.Cut(object, "/")
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(10 * time.Millisecond) {
		list = nil
		var h report.History
		if resp, err := http.Get("http://" + m.control + "/debug/history?kind=" + kind + "&name=" + name); err == nil {
			_ = json.NewDecoder(resp.Body).Decode(&h) // it is asked again
			_ = resp.Body.Close()                     // it was read
		}
		for _, v := range h.Versions {
			list = append(list, v.Revision)
		}
		if len(list) == n {
			return list
		}
		if time.Now().After(deadline) {
			m.t.Fatalf("the history of %s has %q, want %d versions", object, list, n)
		}
	}
}

func entry(name, address string) string {
	return "apiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata: {name: " + name + "}\nspec: {address: " + address + "} # of " + name + "\n"
}

// outrigger runs a command and returns its output, and its errors.
func outrigger(t *testing.T, args ...string) (out, errs string) {
	t.Helper()
	root := newRootCommand(environment{}, nil, nil)
	var stdout, stderr bytes.Buffer
	root.SetOut(&stdout)
	root.SetErr(&stderr)
	root.SetArgs(args)
	if err := root.ExecuteContext(t.Context()); err != nil {
		stderr.WriteString(err.Error() + "\n")
	}
	return stdout.String(), stderr.String()
}

// complete returns what a shell offers for the last argument.
func complete(t *testing.T, line string) (list []string) {
	t.Helper()
	root := newRootCommand(environment{}, nil, nil)
	var out bytes.Buffer
	root.SetOut(&out)
	root.SetErr(io.Discard)
	root.SetArgs(append([]string{"__complete"}, strings.Split(line, " ")...))
	if err := root.ExecuteContext(t.Context()); err != nil {
		t.Errorf("complete %s: %v", line, err)
	}
	for line := range strings.Lines(out.String()) {
		if value, _, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t"); !strings.HasPrefix(line, ":") {
			list = append(list, value)
		}
	}
	return list
}

// TestRollbackOfMeshes checks that versions of one mesh stay out of the store of another one, that what
// comes from another place is not written, and that commands say whose history they use.
func TestRollbackOfMeshes(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	a := startMesh(t, entry("one", "10.1.0.1")+"---\n"+entry("two", "10.1.0.9"))
	b := startMesh(t, entry("one", "10.2.0.1"))
	a.revisions("WorkloadEntry/one", 1)
	b.revisions("WorkloadEntry/one", 1)
	a.write("objects/all.yaml", entry("one", "10.1.0.2")+"---\n"+entry("two", "10.1.0.9"))
	b.write("objects/all.yaml", entry("one", "10.2.0.2"))
	ofA, ofB := a.revisions("WorkloadEntry/one", 2), b.revisions("WorkloadEntry/one", 2)
	textA, textB := a.text(), b.text()
	replace := strings.NewReplacer("--store A", "--store "+a.store(), "--store B", "--store "+b.store(), "--control A", "--control "+a.control, "--control B", "--control "+b.control).Replace
	for args, want := range map[string]string{
		"rollback we/one": "several meshes run on this machine: choose one with --store",
		"rollback we/one --store A --control B": "fs://" + a.dir + " is no store of control plane " + b.control + ", whose history this is: name its store with --store " +
			b.store() + ", or the control plane of that store with --control\n",
		"rollback we/one --store A --to " + ofB[0]:                     "workloadentry/one has no revision " + ofB[0] + " in the history of control plane " + a.control + ", which begins at ",
		"rollback we/two --store B":                                    "control plane " + b.control + " knows no version of workloadentry/two: its history begins at ",
		"rollback we/made --store A":                                   "outrigger up makes workloadentry/made from " + a.file + ": change it there; a copy in " + a.store() + " would be a second one\n",
		"rollback we/made --control A":                                 "outrigger up makes workloadentry/made from " + a.file + ": change it there",
		"rollback sidecar/web -n shop --store A":                       "outrigger up makes sidecar/web in shop from " + a.file + ": change it there",
		"rollback we/one --store fs://" + a.generated + " --control A": "workloadentry/one comes from " + a.dir + "/all.yaml:1, not from fs://" + a.generated + ", where it would be a second one: name it with --store " + a.store(),
		"diff --from 1h --store A":                                     "the history does not reach back so far: it begins at ",
		"diff --from 1h --to 2h --control A":                           "is after --to ",
		"diff --from now":                                              "several meshes run on this machine: choose one: --control ",
	} {
		out, errs := outrigger(t, strings.Fields(replace(args))...)
		if out != "" || !strings.Contains(errs, want) {
			t.Errorf("%s: output %q, errors %q, want %q", args, out, errs, want)
		}
	}
	if a.text() != textA || b.text() != textB {
		t.Errorf("a refused rollback has written:\n%s%s", a.text(), b.text())
	}
	for line, want := range map[string]string{
		"rollback --store A we/":                        "we/made we/one we/two",
		"rollback --control A w":                        "we/ workloadentry/",
		"rollback --store A we tw":                      "two",
		"rollback --store A side":                       "sidecar/",
		"rollback -n shop --store A sidecar/":           "sidecar/web",
		"rollback --store A -n ":                        "default shop",
		"rollback we/one --store B --to ":               ofB[1] + " " + ofB[0],
		"rollback we one --store B --to " + ofB[0][:15]: ofB[0],
		"rollback we/one --store B --to x":              "",
		"rollback --control B --to ":                    "",
		"rollback --control 127.77.58.2:1 we/":          "",
		"rollback we/one --store A --control B --to ":   ofB[1] + " " + ofB[0],
		"history --control A we/t":                      "we/two.default",
		"history --control A we":                        "we/",
		"history --control A v":                         "",
		"history we/one --control A --revision ":        ofA[1] + " " + ofA[0],
	} {
		if got := strings.Join(complete(t, replace(line)), " "); got != want {
			t.Errorf("%s: the shell offers %q, want %q", line, got, want)
		}
	}
	for _, line := range []string{"diff --store A --from ", "diff --control A --from 1h --to ", "history --control A --since "} {
		if list := complete(t, replace(line)); len(list) == 0 || list[0] < time.Now().Add(-time.Hour).Format("2006-01-02T15:04:05") {
			t.Errorf("%s: the shell offers %q", line, list)
		}
	}
	for name, m := range map[string]*running{a.store(): a, b.control: b} {
		flag := map[bool]string{true: "--store", false: "--control"}[m == a]
		for _, args := range []string{"diff --from now", "rollback we/one"} {
			out, errs := outrigger(t, append(strings.Fields(args), flag, name)...)
			if replica := filepath.Base(filepath.Dir(m.dir)); errs != "history of control plane "+m.control+" ("+replica+")\n" || strings.HasPrefix(args, "roll") != strings.Contains(out, "workloadentry/one restored to revision ") {
				t.Errorf("%s %s: output %s, errors %s", args, flag, out, errs)
			}
		}
	}
	a.revisions("WorkloadEntry/one", 3)
	if got := strings.Replace(textA, "10.1.0.2", "10.1.0.1", 1); a.text() != got || a.revisions("WorkloadEntry/one", 3)[2] != ofA[0] {
		t.Errorf("after rollback the store has\n%s, want\n%s", a.text(), got)
	}
	if got := strings.Replace(textB, "10.2.0.2", "10.2.0.1", 1); b.text() != got {
		t.Errorf("after rollback the store has\n%s, want\n%s", b.text(), got)
	}
}

// TestOtherUsers checks that commands name the mesh of another user, and how to use it.
func TestOtherUsers(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root to listen as another user")
	}
	t.Setenv("TMPDIR", t.TempDir())
	const address = "127.77.59.1:15014"
	runtime.LockOSThread() // the file system's user ID is that of the thread; the socket has it
	err := unix.Setfsuid(65534)
	l, listenErr := net.Listen("tcp", address)
	err = errors.Join(err, listenErr, unix.Setfsuid(0))
	runtime.UnlockOSThread()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }() // nobody connects
	begin := "\nA program of user nobody listens at " + address + ": if it is the control plane of outrigger up, "
	for args, cure := range map[string]string{
		"get vs": "name its config directory with --store\n", "status": "use --control " + address + "\n", "history": "use --control " + address + "\n",
		"diff --from 1h": "use --control " + address + "\n", "rollback vs/a": "name its config directory with --store\n",
	} {
		if _, errs := outrigger(t, strings.Fields(args)...); !strings.Contains(errs, begin+cure) {
			t.Errorf("%s: %s, want %q", args, errs, begin+cure)
		}
	}
}

// TestRollbackOfReplacement checks that a Sidecar that replaced a generated one can be restored.
func TestRollbackOfReplacement(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	m := startMesh(t, entry("one", "10.1.0.1"))
	m.revisions("Sidecar/web", 1)
	own := "apiVersion: networking.istio.io/v1\nkind: Sidecar\nmetadata: {name: web, namespace: shop}\nspec: {egress: [{hosts: ['istio-system/*']}]}\n"
	m.write("objects/web.yaml", own)
	m.revisions("Sidecar/web", 2)
	if err := os.Remove(filepath.Join(m.dir, "web.yaml")); err != nil {
		t.Fatal(err)
	}
	made := m.revisions("Sidecar/web", 3)[0]
	if _, errs := outrigger(t, "rollback", "sidecar/web", "-n", "shop", "--to", made); !strings.Contains(errs, "outrigger up made this version from its mesh file: to have it again, delete the object\n") {
		t.Errorf("rollback to a generated version: %s", errs)
	}
	if out, errs := outrigger(t, "rollback", "sidecar/web", "-n", "shop"); !strings.Contains(out, "sidecar/web in shop restored to revision ") || !strings.Contains(m.text(), "istio-system/*") {
		t.Errorf("rollback: %s%s", out, errs)
	}
}
