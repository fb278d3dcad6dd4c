// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

//go:build linux

package node

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// askPort and loadPort are ports of clients in the mesh that the test asks without a proxy.
const (
	askPort  = "8081"
	loadPort = "8082"
)

// asker is a Pod that sends requests for the test.
const asker = `
apiVersion: v1
kind: Pod
metadata: {name: asker, labels: {app: asker}, annotations: {traffic.sidecar.istio.io/excludeInboundPorts: "` + askPort + `"}}
spec:
  containers: [{name: app, image: "` + appImage + `", args: [ask, ":` + askPort + `"]}]
---
`

// ask returns the body of the response that a Pod in the mesh gets for a URL.
func (n *Node) ask(ctx context.Context, address, target string) (string, error) {
	return fetch(ctx, "http://"+address+":"+askPort+"/?url="+url.QueryEscape(target))
}

func fetch(ctx context.Context, target string) (string, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, target, http.NoBody)
	if err != nil {
		return "", err
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return "", err
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", response.Status, body)
	}
	return string(body), err
}

// TestBookinfo runs the example application with strict mutual TLS, and changes its routes.
func TestBookinfo(t *testing.T) {
	t.Parallel()
	n := mesh.Node(t)
	n.meshed(t, "default")
	var all strings.Builder
	all.WriteString(strict + "---" + asker)
	for _, w := range []struct{ name, version, args string }{
		{"productpage", "v1", ""},
		{"details", "v1", ""},
		{"ratings", "v1", ""},
		{"reviews", "v1", `, --version, v1`},
		{"reviews", "v2", `, --version, v2`},
		{"reviews", "v3", `, --version, v3`},
	} {
		fmt.Fprintf(&all, `
apiVersion: apps/v1
kind: Deployment
metadata: {name: %[1]s-%[2]s}
spec:
  selector: {matchLabels: {app: %[1]s, version: %[2]s}}
  template:
    metadata: {labels: {app: %[1]s, version: %[2]s}}
    spec:
      containers:
      - name: app
        image: %[4]s
        command: [/bookinfo, %[1]s, --listen, ":9080"%[3]s]
        ports: [{containerPort: 9080}]
        readinessProbe: {httpGet: {path: /health, port: 9080}, periodSeconds: 1}
---
apiVersion: v1
kind: Service
metadata: {name: %[1]s}
spec: {selector: {app: %[1]s}, ports: [{name: http, port: 9080}]}
---
`, w.name, w.version, w.args, appImage)
	}
	n.apply(t, "default", strings.TrimSuffix(all.String(), "---\n"))
	for _, label := range []string{"app=productpage", "app=details", "app=ratings", "version=v2", "version=v3"} {
		n.Selected(t, "default", label, Ready)
	}
	from := n.Pod(t, "default", "asker", Ready).Status.PodIP
	reviewed := func(version string) {
		t.Helper()
		n.eventually(t, "default", func(ctx context.Context) error {
			for range 10 { // without rules each of three versions answers some of them
				page, err := n.ask(ctx, from, "http://productpage:9080/productpage")
				if err != nil {
					return err
				}
				if want := `"version":"` + version + `"`; !strings.Contains(page, want) {
					return fmt.Errorf("the page lacks %s: %s", want, page)
				}
			}
			return nil
		})
	}
	n.applyFile(t, "config/destination-rule-all.yaml")
	n.applyFile(t, "rules/virtual-service-all-v1.yaml")
	reviewed("v1")
	n.applyFile(t, "rules/virtual-service-reviews-v3.yaml")
	reviewed("v3")
}

// applyFile applies a file of the example application.
func (n *Node) applyFile(t testing.TB, name string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(n.files.Repository, "examples", "bookinfo", name))
	if err != nil {
		t.Fatal(err)
	}
	n.apply(t, "default", string(text))
}

// rollReplicas and rollRate are how many Pods are replaced under how many requests a second. The
// machine may be slow.
const (
	rollReplicas = 4
	rollRate     = "50"
)

// TestRollout replaces the Pods of a Deployment, then those of the control plane, under load. No
// request fails. It runs before the tests that run in parallel: while the control plane is replaced,
// the API server can refuse their objects.
func TestRollout(t *testing.T) {
	n := mesh.Node(t)
	n.meshed(t, "rollout")
	n.apply(t, "rollout", strict+"---"+fmt.Sprintf(server, "server")+`
apiVersion: v1
kind: Pod
metadata: {name: load, labels: {app: load}, annotations: {traffic.sidecar.istio.io/excludeInboundPorts: "`+loadPort+`"}}
spec:
  containers: [{name: app, image: "`+appImage+`", args: [load, "http://server", "`+rollRate+`", ":`+loadPort+`"]}]
`)
	scale := fmt.Appendf(nil, `{"spec": {"replicas": %d, "strategy": {"rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}}}}`, rollReplicas)
	n.patch(t, "rollout", "server", scale)
	n.rolledOut(t, "rollout", "server")
	from := n.Pod(t, "rollout", "load", Ready).Status.PodIP
	so := func() (r struct {
		Sent, Done, Failed int
		Errors             []string
	},
	) {
		t.Helper()
		n.eventually(t, "rollout", func(ctx context.Context) error {
			text, err := fetch(ctx, "http://"+from+":"+loadPort)
			if err != nil {
				return err
			}
			return json.Unmarshal([]byte(text), &r)
		})
		return r
	}
	n.eventually(t, "rollout", func(context.Context) error { // until the first requests, which may come before the route
		if r := so(); r.Done-r.Failed < 100 {
			return fmt.Errorf("%d of %d requests are done, %d failed: %q", r.Done, r.Sent, r.Failed, r.Errors)
		}
		return nil
	})
	before := so()
	again := []byte(`{"spec": {"template": {"metadata": {"annotations": {"example.com/again": "1"}}}}}`)
	n.patch(t, "rollout", "server", again)
	n.rolledOut(t, "rollout", "server")
	n.patch(t, "istio-system", "outrigger-control", again)
	n.rolledOut(t, "istio-system", "outrigger-control")
	middle := so()
	n.eventually(t, "rollout", func(context.Context) error {
		if r := so(); r.Done < middle.Sent {
			return fmt.Errorf("%d of %d requests are done", r.Done, middle.Sent)
		}
		return nil
	})
	if after := so(); after.Failed != before.Failed || after.Done == before.Done {
		t.Errorf("%d of %d requests failed: %q", after.Failed-before.Failed, after.Done-before.Done, after.Errors)
	} else {
		t.Logf("%d requests, 0 failed", after.Done-before.Done)
	}
}

func (n *Node) patch(t testing.TB, namespace, deployment string, patch []byte) {
	t.Helper()
	_, err := n.Admin().AppsV1().Deployments(namespace).Patch(t.Context(), deployment, "application/strategic-merge-patch+json", patch, metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

// rolledOut waits until all Pods of a Deployment are those of its last version.
func (n *Node) rolledOut(t testing.TB, namespace, name string) {
	t.Helper()
	n.eventually(t, namespace, func(ctx context.Context) error {
		d, err := n.Admin().AppsV1().Deployments(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		want, s := *d.Spec.Replicas, d.Status
		if s.ObservedGeneration < d.Generation || s.UpdatedReplicas != want || s.Replicas != want || s.AvailableReplicas != want {
			return fmt.Errorf("Deployment %s: %+v", name, appsv1.DeploymentStatus{Replicas: s.Replicas, UpdatedReplicas: s.UpdatedReplicas, AvailableReplicas: s.AvailableReplicas})
		}
		return nil
	})
}
