// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package meshsettings

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outrigger-mesh/outrigger/controlplane/kube"
)

// mapServer is an API server that has only the ConfigMaps of the namespace mesh.
type mapServer struct {
	mu      sync.Mutex // guards the fields below
	version int
	maps    map[string]map[string]any
	changed chan struct{} // closed and replaced at each change
}

func (a *mapServer) set(name string, data map[string]string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.version++
	if data == nil {
		delete(a.maps, name)
	} else {
		a.maps[name] = map[string]any{
			"apiVersion": "v1", "kind": "ConfigMap", "data": data,
			"metadata": map[string]any{"name": name, "namespace": "mesh", "uid": name, "resourceVersion": fmt.Sprint(a.version)},
		}
	}
	close(a.changed)
	a.changed = make(chan struct{})
}

func (a *mapServer) get(name string) (object map[string]any, version string, changed <-chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.maps[name], fmt.Sprint(a.version), a.changed
}

func (a *mapServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	encode := json.NewEncoder(w).Encode
	const path = "/api/v1/namespaces/mesh/configmaps"
	name := strings.TrimPrefix(strings.TrimPrefix(r.URL.Path, path), "/")
	if name == "" {
		name = strings.TrimPrefix(r.URL.Query().Get("fieldSelector"), "metadata.name=")
	}
	object, version, changed := a.get(name)
	switch {
	case !strings.HasPrefix(r.URL.Path, path):
		http.NotFound(w, r)
	case r.URL.Query().Get("sendInitialEvents") != "":
		w.WriteHeader(http.StatusUnprocessableEntity)
		_ = encode(map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Invalid", "code": 422}) // the client falls back to a list
	case r.URL.Query().Get("watch") != "":
		w.WriteHeader(http.StatusOK)
		w.(http.Flusher).Flush()
		// The ConfigMap may have changed since the list.
		for seen := r.URL.Query().Get("resourceVersion"); ; object, version, changed = a.get(name) {
			if version != seen && object != nil {
				_ = encode(map[string]any{"type": "MODIFIED", "object": object}) // a client that disconnected needs no event
			} else if version != seen {
				_ = encode(map[string]any{"type": "DELETED", "object": map[string]any{
					"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": name, "namespace": "mesh", "uid": name, "resourceVersion": version},
				}})
			}
			w.(http.Flusher).Flush()
			seen = version
			select {
			case <-r.Context().Done():
				return
			case <-changed:
			}
		}
	case r.URL.Path != path && object == nil:
		w.WriteHeader(http.StatusNotFound)
		_ = encode(map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}) // as above
	case r.URL.Path != path:
		_ = encode(object) // as above
	default:
		items := []any{}
		if object != nil {
			items = append(items, object)
		}
		_ = encode(map[string]any{"kind": "ConfigMapList", "apiVersion": "v1", "metadata": map[string]any{"resourceVersion": version}, "items": items}) // as above
	}
}

// TestMeshConfigOfCluster checks the mesh config of a control plane in a cluster without files. It
// comes from the ConfigMap of the revision, merged over the one that revisions share. Changes of
// both must be followed.
func TestMeshConfigOfCluster(t *testing.T) {
	t.Parallel()
	api := &mapServer{maps: map[string]map[string]any{}, changed: make(chan struct{})}
	api.set("istio-canary", map[string]string{"mesh": "accessLogFile: /own\n", "meshNetworks": "networks: {n: {endpoints: [{fromRegistry: a}]}}\n"})
	api.set("shared", map[string]string{"mesh": "accessLogFile: /shared\nproxyHttpPort: 15080\n"})
	l, err := net.Listen("tcp", "127.77.62.104:0")
	if err != nil {
		t.Fatal(err)
	}
	serving := &httptest.Server{Listener: l, Config: &http.Server{Handler: api, ReadHeaderTimeout: time.Minute}}
	serving.Start()
	t.Cleanup(func() {
		serving.CloseClientConnections() // ends the watches
		serving.Close()
	})
	dir := t.TempDir()
	kubeconfig := filepath.Join(dir, "kubeconfig")
	write(t, kubeconfig, fmt.Sprintf(`{apiVersion: v1, kind: Config, current-context: c, clusters: [{name: c, cluster: {server: %q}}], contexts: [{name: c, context: {cluster: c}}]}`, serving.URL))
	log := &logBuffer{}
	logger := slog.New(slog.NewTextHandler(log, nil))
	client, err := kube.New(kube.Config{Kubeconfig: kubeconfig, Logger: logger})
	if err != nil {
		t.Fatal(err)
	}
	m, err := New(t.Context(), Config{
		File: filepath.Join(dir, "mesh"), NetworksFile: filepath.Join(dir, "networks"), Shared: "shared",
		Client: client, Namespace: "mesh", Revision: "canary", Logger: logger, Registerer: prometheus.NewRegistry(),
	})
	if err != nil {
		t.Fatal(err)
	}
	now := m.Current()
	if now.Mesh.GetAccessLogFile() != "/own" || now.Mesh.GetProxyHttpPort() != 15080 || now.Networks.GetNetworks()["n"] == nil {
		t.Fatalf("read %v, want the settings of both ConfigMaps", now)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx, func(_, _ *Settings) error { return nil }, func() {}) }()
	file := func(want string, port int32) {
		t.Helper()
		waitFor(t, want, func() bool {
			now := m.Current().Mesh
			return now.GetAccessLogFile() == want && now.GetProxyHttpPort() == port
		})
	}
	api.set("istio-canary", map[string]string{"mesh": "connectTimeout: 3s\n", "meshNetworks": "networks: {n: {endpoints: [{fromRegistry: a}]}}\n"})
	file("/shared", 15080)
	api.set("shared", map[string]string{"mesh": "accessLogFile: /again\n"})
	file("/again", 0)
	api.set("shared", map[string]string{"mesh": "accessLogFile: /bad\nconnectTimeout: soon\n"})
	waitFor(t, "what is wrong is named", func() bool { return strings.Contains(log.String(), "connectTimeout") })
	api.set("istio-canary", nil)
	waitFor(t, "that it is gone is reported", func() bool { return strings.Contains(log.String(), "it was deleted") })
	file("/again", 0)
	// A file that appears later takes precedence.
	write(t, filepath.Join(dir, "mesh"), "accessLogFile: /file\nproxyHttpPort: 1\n")
	api.set("shared", map[string]string{"mesh": "accessLogFile: /below\n"})
	file("/file", 1)
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
