// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package kube

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestRestarts stops, kills and pauses both programs under one client.
func TestRestarts(t *testing.T) {
	t.Parallel()
	c := New(t, Options{
		Issuer:       "https://issuer.test",
		FeatureGates: map[string]bool{"AllAlpha": false},
		Args:         []string{"--v=1"},
		Etcd:         EtcdOptions{TLS: true},
	})
	ctx := testContext(t)
	maps := c.Admin().CoreV1().ConfigMaps("default")
	write := func(name string) {
		t.Helper()
		if _, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	write("first")
	token, err := c.Token(ctx, "default", "default", TokenOptions{Audiences: []string{"https://issuer.test"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		name string
		take func()
		back func() error
	}{
		{"kube-apiserver-killed", c.APIServer.Kill, func() error { return c.APIServer.Start(ctx) }},
		{"etcd-killed", c.Etcd.Kill, func() error { return errors.Join(c.Etcd.Start(ctx), c.APIServer.Wait(ctx)) }},
		{"kube-apiserver-paused", c.APIServer.Pause, func() error { c.APIServer.Resume(); return nil }},
		{"kube-apiserver-stopped", func() {
			if err := c.APIServer.Stop(ctx); err != nil {
				t.Error(err)
			}
		}, func() error { return c.APIServer.Restart(ctx) }},
	} {
		began := time.Now()
		step.take()
		short, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
		if _, err := maps.Create(short, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "lost-" + step.name}}, metav1.CreateOptions{}); err == nil {
			t.Errorf("%s: an object could be written", step.name)
		}
		cancel()
		if err := step.back(); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		t.Logf("%s and back: %s", step.name, time.Since(began).Round(time.Millisecond))
		eventually(t, ctx, "the first object is there after "+step.name, func() bool {
			_, err := maps.Get(ctx, "first", metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				t.Fatalf("%s: the first object is lost", step.name)
			}
			return err == nil
		})
		write(step.name)
	}
	if !strings.Contains(string(claims(t, token)), `"iss":"https://issuer.test"`) {
		t.Errorf("the token says %s", claims(t, token))
	}
	if err := c.APIServer.Start(ctx); err == nil {
		t.Error("kube-apiserver is started twice")
	}
}

// claims returns the middle part of a token.
func claims(t *testing.T, token string) []byte {
	t.Helper()
	parts := strings.Split(token, ".")
	text, err := base64.RawURLEncoding.DecodeString(parts[min(1, len(parts)-1)])
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestStopLeavesNothing(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	c, err := Start(ctx, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Stop(ctx); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(c.work.dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory of the cluster: %v, want that it is gone", err)
	}
	for _, s := range []*Server{c.APIServer, c.Etcd.Server} {
		if err := syscall.Kill(s.PID(), 0); !errors.Is(err, syscall.ESRCH) {
			t.Errorf("process of %s: %v, want that it is gone", s.name, err)
		}
	}
}

func TestWrongFlag(t *testing.T) {
	t.Parallel()
	_, err := Start(testContext(t), Options{Args: []string{"--no-such-flag"}})
	if err == nil || !strings.Contains(err.Error(), "--no-such-flag") {
		t.Errorf("a wrong flag: %v, want the error of kube-apiserver", err)
	}
}

const orphanEnv = "KUBE_TEST_ORPHAN"

// orphan is the process that TestProcessesDieWithTheTest kills.
func orphan(ctx context.Context) int {
	etcd, err := StartEtcd(ctx, EtcdOptions{})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println(etcd.PID(), etcd.Endpoint, etcd.dir)
	<-ctx.Done() // never
	return 0
}

func TestProcessesDieWithTheTest(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("only Linux ends a process with the one that started it")
	}
	ctx := testContext(t)
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), orphanEnv+"=1", "TMPDIR="+t.TempDir())
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	var pid int
	var endpoint, dir string
	if _, err := fmt.Sscan(line, &pid, &endpoint, &dir); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, 0); err != nil {
		t.Fatalf("etcd does not run: %v", err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
	eventually(t, ctx, "etcd ended with its test", func() bool {
		state, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		return err != nil || bytes.Contains(state, []byte(") Z ")) || !bytes.Contains(state, []byte("(etcd)"))
	})
	if left, err := filepath.Glob(dir + "/*"); err != nil || len(left) == 0 {
		t.Errorf("the directory %s: %q, %v, want that the test knew the right one", dir, left, err)
	}
}

func TestEtcd(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		tls    bool
		scheme string
	}{{"plain", false, "http://"}, {"TLS", true, "https://"}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			e := NewEtcd(t, EtcdOptions{TLS: c.tls})
			if !strings.HasPrefix(e.Endpoint, c.scheme+addresses) {
				t.Errorf("the endpoint is %s", e.Endpoint)
			}
			ask := etcdJSON(t, e)
			ask("/v3/kv/put", `{"key":"YQ==","value":"Yg=="}`) // a: b
			e.Kill()
			if err := e.Start(testContext(t)); err != nil {
				t.Fatal(err)
			}
			if answer := ask("/v3/kv/range", `{"key":"YQ=="}`); !strings.Contains(answer, `"value":"Yg=="`) {
				t.Errorf("after it was killed, etcd says %s", answer)
			}
			if c.tls {
				stranger := healthy(e.Endpoint+"/v3/maintenance/status", nil)
				if err := stranger(testContext(t)); err == nil {
					t.Error("a client without a certificate is served")
				}
			}
		})
	}
}

// etcdJSON sends a request to etcd's JSON gateway.
func etcdJSON(t *testing.T, e *Etcd) func(path, body string) string {
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: e.TLS(), DisableKeepAlives: true}}
	return func(path, body string) string {
		t.Helper()
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, e.Endpoint+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		response, err := client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := io.ReadAll(response.Body)
		if err := errors.Join(err, response.Body.Close()); err != nil || response.StatusCode != http.StatusOK {
			t.Fatalf("%s: %s, %v: %s", path, response.Status, err, answer)
		}
		return string(answer)
	}
}
