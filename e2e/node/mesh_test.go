// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

//go:build linux

package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

var mesh = SharedMesh{node: &shared}

const strict = `
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: strict}
spec: {mtls: {mode: STRICT}}
`

// server is a Deployment with one Pod and its Service. The verb is its name.
const server = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: %[1]s}
spec:
  selector: {matchLabels: {app: %[1]s}}
  template:
    metadata: {labels: {app: %[1]s}}
    spec:
      terminationGracePeriodSeconds: 120
      containers:
      - name: app
        image: ` + appImage + `
        args: [serve, ":8080"]
        ports: [{containerPort: 8080}]
        readinessProbe: {httpGet: {path: /health, port: 8080}, periodSeconds: 1, timeoutSeconds: 60}
        livenessProbe: {httpGet: {path: /health, port: 8080}, periodSeconds: 1, timeoutSeconds: 60}
---
apiVersion: v1
kind: Service
metadata: {name: %[1]s}
spec: {selector: {app: %[1]s}, ports: [{name: http, port: 80, targetPort: 8080}]}
---
`

// TestStrict runs a server that accepts only mutual TLS. The kubelet's probes pass, the server sees
// the identity of a client with a proxy, and a Pod without a proxy receives no response. A Job ends
// although its proxy would run forever.
func TestStrict(t *testing.T) {
	t.Parallel()
	n := mesh.Node(t)
	n.meshed(t, "strict")
	n.apply(t, "strict", strict+"---"+fmt.Sprintf(server, "server")+`
apiVersion: v1
kind: ServiceAccount
metadata: {name: client}
---
apiVersion: batch/v1
kind: Job
metadata: {name: client}
spec:
  backoffLimit: 20
  template:
    spec:
      serviceAccountName: client
      restartPolicy: Never
      containers: [{name: app, image: "`+appImage+`", args: [get, "http://server/headers"]}]
`)
	pod := n.Selected(t, "strict", "app=server", Ready)
	for _, c := range pod.Spec.Containers {
		if c.Name == "app" && (c.ReadinessProbe.HTTPGet.Port.IntValue() != 15020 || c.LivenessProbe.HTTPGet.Port.IntValue() != 15020) {
			t.Errorf("the probes do not ask the agent: %v and %v", c.ReadinessProbe.HTTPGet, c.LivenessProbe.HTTPGet)
		}
	}
	job := n.Selected(t, "strict", "job-name=client", Succeeded)
	var headers map[string][]string
	text := n.Logs(t.Context(), "strict", job.Name, "app")
	if err := json.Unmarshal([]byte(text), &headers); err != nil {
		t.Fatalf("the client's log is %q: %v", text, err)
	}
	const identity = "URI=spiffe://cluster.local/ns/strict/sa/client"
	if got := headers["X-Forwarded-Client-Cert"]; !slices.ContainsFunc(got, func(s string) bool { return strings.Contains(s, identity) }) {
		t.Errorf("the server sees the client as %q, want %s", got, identity)
	}

	n.forwarded(t, pod)
	n.imported(t)
	if err := n.CreateNamespace(t.Context(), "outside"); err != nil {
		t.Fatal(err)
	}
	n.apply(t, "outside", `
apiVersion: v1
kind: Pod
metadata: {name: client}
spec:
  restartPolicy: Never
  containers:
  - {name: app, image: "`+appImage+`", args: [get, "http://server.strict"]}
`)
	n.Pod(t, "outside", "client", func(p *corev1.Pod) error {
		if p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
			return nil
		}
		return errors.New("it is " + string(p.Status.Phase))
	})
	if got := n.Logs(t.Context(), "outside", "client", "app"); !strings.Contains(got, "connection reset") && !strings.Contains(got, "EOF") {
		t.Errorf("a client without a proxy got %q, want a connection that ends", got)
	}
	control := n.Selected(t, "istio-system", "app=istiod", Ready)
	if log := n.Logs(t.Context(), "istio-system", control.Name, "discovery"); strings.Contains(log, "versions of objects are not recorded") {
		t.Errorf("the control plane records no versions of objects:\n%s", log)
	}
}

// forwarded asks the control plane and the agent of a Pod as from another machine, through kubectl and the
// kubelet: both answer these questions only in the network namespaces of their Pods.
func (n *Node) forwarded(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	proxy := pod.Name + "." + pod.Namespace
	for _, c := range []struct{ args, has string }{
		{"status " + proxy, " left, until "}, // the certificate
		{"status", proxy},
		{"top " + proxy + " --once --interval 1s", "1 proxy"},
		{"tap " + proxy + " --for 1s", "0 requests, 0 dropped"},
		{"proxy log " + proxy + " --agent", "xdsproxy"},
	} {
		// Other tests change what proxies receive all the time, so that status may find one that has not answered.
		status := strings.HasPrefix(c.args, "status")
		out, err := n.outrigger(t.Context(), "", strings.Fields(c.args)...)
		if err != nil && !status || !strings.Contains(out, c.has) {
			t.Errorf("outrigger %s: got %v, want %q in\n%s", c.args, err, c.has, out)
		}
	}
}

// imported checks that a Pod whose agent resolves names reaches the server by its name in the cluster
// set, of which nobody else knows the address, with mutual TLS.
func (n *Node) imported(t *testing.T) {
	t.Helper()
	if err := n.ApplyCRDs(t.Context(), filepath.Join(n.files.Repository, "e2e", "kube", "testdata", "mcs")); err != nil {
		t.Fatal(err)
	}
	resolves := strings.Replace(asker, "annotations: {", `annotations: {proxy.istio.io/config: '{"proxyMetadata": {"ISTIO_META_DNS_CAPTURE": "true"}}', `, 1)
	n.apply(t, "strict", resolves+`
apiVersion: multicluster.x-k8s.io/v1alpha1
kind: ServiceExport
metadata: {name: server}
---
apiVersion: multicluster.x-k8s.io/v1alpha1
kind: ServiceImport
metadata: {name: server}
spec: {type: ClusterSetIP, ips: [10.250.0.1], ports: [{port: 80}]}
`)
	from := n.Pod(t, "strict", "asker", Ready).Status.PodIP
	n.eventually(t, "strict", func(ctx context.Context) error {
		headers, err := n.ask(ctx, from, "http://server.strict.svc.clusterset.local/headers")
		const identity = "URI=spiffe://cluster.local/ns/strict/sa/default"
		if err == nil && !strings.Contains(headers, identity) {
			err = fmt.Errorf("the server sees another client than %s: %s", identity, headers)
		}
		return err
	})
}
