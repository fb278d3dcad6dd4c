// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package cni

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func podWith(uid string, addresses ...string) *pod {
	text := fmt.Sprintf(`{"metadata": {"name": %[1]q, "namespace": "apps", "uid": %[1]q, "annotations": {"sidecar.istio.io/status": "{}"}},
		"spec": {"containers": [{"name": "istio-proxy", "args": ["proxy", "sidecar"]}]},
		"status": {"phase": "Running", "initContainerStatuses": [{"name": "istio-validation", "lastState": {"terminated": {"exitCode": 126}}}]}}`, uid)
	p := &pod{}
	if err := json.Unmarshal([]byte(text), p); err != nil {
		panic(err) // the text is above
	}
	for _, a := range addresses {
		p.Status.PodIPs = append(p.Status.PodIPs, struct {
			IP string `json:"ip"`
		}{a})
	}
	return p
}

// TestNetns finds the namespaces of many pods, and enters each namespace twice at most.
func TestNetns(t *testing.T) {
	t.Parallel()
	const pods = 200
	dir := t.TempDir()
	n, entered := newNetns(dir), 0
	has := map[string][]netip.Addr{}
	n.addresses = func(path string) ([]netip.Addr, error) {
		entered++
		return append([]netip.Addr{netip.MustParseAddr("127.0.0.1")}, has[path]...), nil
	}
	create := func(name string, addresses ...string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		has[path] = nil
		for _, a := range addresses {
			has[path] = append(has[path], netip.MustParseAddr(a))
		}
		return path
	}
	find := func(p *pod, want, problem string) {
		t.Helper()
		if err := n.read(); err != nil {
			t.Fatal(err)
		}
		got, err := n.find(p)
		if got != want || (err != nil) != (problem != "") || err != nil && !strings.Contains(err.Error(), problem) {
			t.Errorf("%q, error %v, want %q, %q", got, err, want, problem)
		}
	}
	address := func(i int) string { return fmt.Sprintf("10.1.%d.%d", i/250, i%250) }
	for i := range pods {
		create(fmt.Sprint("ns", i), address(i))
	}
	for i := range pods {
		find(podWith("pod", address(i)), filepath.Join(dir, fmt.Sprint("ns", i)), "")
	}
	if entered > 2*pods {
		t.Errorf("%d pods entered network namespaces %d times, want %d at most", pods, entered, 2*pods)
	}

	late := create("late") // the network plugin is about to set its addresses
	find(podWith("late", "10.2.0.1"), "", "")
	has[late] = []netip.Addr{netip.MustParseAddr("fe80::1")} // the kernel sets it first
	find(podWith("late", "10.2.0.1"), "", "")
	has[late] = append(has[late], netip.MustParseAddr("10.2.0.1"), netip.MustParseAddr("fd00::1"))
	find(podWith("late", "10.2.0.1", "fd00::1"), late, "")
	find(podWith("late", "10.2.0.1", "fd00::2"), "", "")
	twin := create("twin", "10.2.0.1")
	find(podWith("late", "10.2.0.1"), "", "both have its address")
	has[late] = nil // the pod before is gone, its namespace is not
	find(podWith("late", "10.2.0.1"), twin, "")
	if err := os.Remove(twin); err != nil {
		t.Fatal(err)
	}
	find(podWith("late", "10.2.0.1"), "", "")
	find(podWith("none"), "", "")
}

// TestRepairGoesOn has a pod that cannot be deleted: those that come later are deleted all the same,
// without another list.
func TestRepairGoesOn(t *testing.T) {
	t.Parallel()
	var lists, attempts atomic.Int32
	deleted := make(chan struct{})
	remove := sync.OnceFunc(func() { close(deleted) })
	mux := http.NewServeMux()
	mux.HandleFunc("GET /api/v1/pods", func(w http.ResponseWriter, r *http.Request) {
		answer := json.NewEncoder(w)
		if r.URL.Query().Get("watch") == "" {
			lists.Add(1)
			_ = answer.Encode(map[string]any{"metadata": map[string]any{"resourceVersion": "1"}, "items": []any{podWith("kept")}}) // the client notices
			return
		}
		_ = answer.Encode(map[string]any{"type": "MODIFIED", "object": podWith("kept")}) // the same
		_ = answer.Encode(map[string]any{"type": "ADDED", "object": podWith("next")})
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	mux.HandleFunc("DELETE /api/v1/namespaces/apps/pods/{name}", func(w http.ResponseWriter, r *http.Request) {
		if r.PathValue("name") == "kept" {
			attempts.Add(1)
			http.Error(w, `{"message": "kept"}`, http.StatusInternalServerError)
			return
		}
		remove()
		_, _ = w.Write([]byte("{}"))
	})
	server := httptest.NewUnstartedServer(mux)
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo)
	server.StartTLS()
	defer server.Close()
	dir := t.TempDir()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	for name, text := range map[string][]byte{"token": []byte("token"), "ca.crt": ca} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	r := &repairer{
		config:  RepairConfig{Node: "node1", DeletePods: true, InitContainer: "istio-validation", ExitCode: 126},
		cluster: Cluster{URL: server.URL, TokenFile: filepath.Join(dir, "token"), RootsFile: filepath.Join(dir, "ca.crt")},
		log:     slog.New(slog.DiscardHandler), metrics: newMetrics(),
	}
	first := make(chan error, 1)
	go func() { first <- r.cycle(t.Context(), time.Hour) }()
	select {
	case <-deleted:
	case err := <-first:
		t.Fatalf("the watch ended: %v", err)
	case <-time.After(2 * time.Minute):
		t.Fatal("the pod after the one that failed was not deleted")
	}
	if n := lists.Load(); n != 1 {
		t.Errorf("pods were listed %d times, want once", n)
	}
	server.CloseClientConnections()
	if err := <-first; err == nil {
		t.Error("a watch that breaks off is no error")
	}
	if len(r.problems) != 1 || r.problems["kept"] == "" {
		t.Errorf("the problems are %v, want that of the pod that is kept", r.problems)
	}
	before := attempts.Load()
	if err := r.cycle(t.Context(), time.Millisecond); err != nil || attempts.Load() == before {
		t.Errorf("the next cycle: error %v, %d attempts, want one more than %d, and its end", err, attempts.Load(), before)
	}
}
