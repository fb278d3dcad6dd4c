// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package install

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// TestWaitForDaemonSet waits until the CNI plugin is on all nodes, and checks the progress
// messages.
func TestWaitForDaemonSet(t *testing.T) {
	t.Parallel()
	states := []string{ // one for each request
		`"metadata": {"generation": 2}, "status": {"observedGeneration": 1, "desiredNumberScheduled": 2, "updatedNumberScheduled": 2, "numberAvailable": 2}`,
		`"metadata": {"generation": 2}, "status": {"observedGeneration": 2, "desiredNumberScheduled": 2, "updatedNumberScheduled": 1, "numberAvailable": 2}`,
		`"metadata": {"generation": 2}, "status": {"observedGeneration": 2, "desiredNumberScheduled": 2, "updatedNumberScheduled": 2}`,
		`"metadata": {"generation": 2}, "status": {"observedGeneration": 2, "desiredNumberScheduled": 2, "updatedNumberScheduled": 2, "numberAvailable": 2}`,
	}
	asked := 0 // requests are sequential
	mux := http.NewServeMux()
	answer := func(path, doc string) {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, doc) }) // the client reports errors
	}
	answer("/apis/apps/v1/namespaces/mesh/deployments/outrigger-control", `{"apiVersion": "apps/v1", "kind": "Deployment", "spec": {"replicas": 1}, "status": {"updatedReplicas": 1, "replicas": 1, "availableReplicas": 1}}`)
	answer("/api/v1/namespaces/mesh/pods", `{"apiVersion": "v1", "kind": "PodList", "items": [{"apiVersion": "v1", "kind": "Pod", "status": {"containerStatuses": [{"state": {"waiting": {"reason": "ErrImagePull", "message": "no image"}}}]}}]}`)
	mux.HandleFunc("GET /apis/apps/v1/namespaces/mesh/daemonsets/outrigger-cni", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprintf(w, `{"apiVersion": "apps/v1", "kind": "DaemonSet", %s}`, states[min(asked, len(states)-1)]) // the client reports errors
		asked++
	})
	server := httptest.NewServer(mux)
	defer server.Close()
	var out bytes.Buffer
	i := &installer{client: &client{http: server.Client(), server: server.URL}, release: release{Namespace: "mesh"}, out: &out}
	set := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": map[string]any{"name": "outrigger-cni"}}}
	if err := i.wait(t.Context(), []*unstructured.Unstructured{set}, 10*time.Minute); err != nil {
		t.Fatal(err)
	}
	const want = `waiting: the nodes of outrigger-cni are not counted yet
waiting: 1 of 2 nodes have a ready pod of outrigger-cni; ErrImagePull: no image
waiting: 0 of 2 nodes have a ready pod of outrigger-cni; ErrImagePull: no image
`
	if out.String() != want || asked != len(states) {
		t.Errorf("output after %d requests:\n%s\nwant after %d:\n%s", asked, out.String(), len(states), want)
	}
	states = []string{`"status": {"observedGeneration": 2, "desiredNumberScheduled": 2}`}
	if err := i.wait(t.Context(), []*unstructured.Unstructured{set}, time.Second); err == nil || !strings.Contains(err.Error(), "0 of 2 nodes have a ready pod of outrigger-cni") {
		t.Errorf("wait() for a DaemonSet that never becomes ready = %v", err)
	}
}
