// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

//go:build linux

package node

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// askPort is the port of a client in the mesh that the test calls without a proxy.
const askPort = "8081"

// asker is a Pod that sends requests for the test.
const asker = `
apiVersion: v1
kind: Pod
metadata: {name: asker, labels: {app: asker}, annotations: {traffic.sidecar.istio.io/excludeInboundPorts: "` + askPort + `"}}
spec:
  containers: [{name: app, image: "` + appImage + `", args: [ask, ":` + askPort + `"]}]
---
`

// ask returns the body of the response that a Pod in the mesh receives for a URL.
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
	n.meshed(t, "bookinfo")
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
	n.apply(t, "bookinfo", strings.TrimSuffix(all.String(), "---\n"))
	for _, label := range []string{"app=productpage", "app=details", "app=ratings", "version=v2", "version=v3"} {
		n.Selected(t, "bookinfo", label, Ready)
	}
	from := n.Pod(t, "bookinfo", "asker", Ready).Status.PodIP
	reviewed := func(version string) {
		t.Helper()
		n.eventually(t, "bookinfo", func(ctx context.Context) error {
			for range 10 { // without rules each of three versions serves some of them
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
	n.apply(t, "bookinfo", strings.ReplaceAll(string(text), "namespace: default", "namespace: bookinfo"))
}
