// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

//go:build linux

package node

import (
	"context"
	"os"
	"strings"
	"testing"
)

var shared Shared

func TestMain(m *testing.M) { os.Exit(Main(context.Background(), m)) }

// TestPod runs a Pod without a mesh: the kubelet's probe, the network, the Service's name.
func TestPod(t *testing.T) {
	t.Parallel()
	n := shared.Node(t)
	if err := n.CreateNamespace(t.Context(), "plain"); err != nil {
		t.Fatal(err)
	}
	n.apply(t, "plain", `
apiVersion: v1
kind: Pod
metadata: {name: server, labels: {app: server}}
spec:
  containers:
  - name: app
    image: `+appImage+`
    args: [serve, ":8080"]
    ports: [{containerPort: 8080}]
    readinessProbe: {httpGet: {path: /, port: 8080}, periodSeconds: 1}
---
apiVersion: v1
kind: Service
metadata: {name: server}
spec: {selector: {app: server}, ports: [{name: http, port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Pod
metadata: {name: client}
spec:
  restartPolicy: OnFailure
  containers:
  - {name: app, image: "`+appImage+`", args: [get, "http://server"]}
`)
	n.Pod(t, "plain", "server", Ready)
	n.Pod(t, "plain", "client", Succeeded)
	if got := n.Logs(t.Context(), "plain", "client", "app"); !strings.Contains(got, "server\n") {
		t.Errorf("the client's log is %q, want the server's name", got)
	}
}
