// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

//go:build linux

package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// cniValues install a second control plane, whose Pods have no init container that sets rules.
const cniValues = installValues + `
revision: cni
proxy: {hub: ` + imageHub + `, tag: ` + imageTag + `}
cni: {enabled: %t, resources: {requests: {cpu: 5m, memory: 16Mi}}}
`

// withPlugin adds to the injector's values that a plugin sets the rules.
func withPlugin(enabled bool) string {
	return strings.Replace(fmt.Sprintf(cniValues, enabled), "values: {global:", "values: {pilot: {cni: {enabled: true}}, global:", 1)
}

// TestPlugin starts a Pod before the CNI plugin is installed: it does not run until the repair has
// set its rules. Pods that start afterwards have rules, mutual TLS, and no privileged container.
// The plugin leaves the node with its DaemonSet.
func TestPlugin(t *testing.T) {
	t.Parallel()
	n := mesh.Node(t)
	install := func(enabled bool) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		if out, err := n.outrigger(ctx, withPlugin(enabled), "install", "--values=-", "--timeout="+patience.String()); err != nil {
			t.Fatalf("install: %v\n%s\n%s", err, out, n.Explain(t.Context(), "istio-system"))
		}
	}
	install(false)
	n.apply(t, "", `{apiVersion: v1, kind: Namespace, metadata: {name: plugin, labels: {istio.io/rev: cni}}}`)
	n.apply(t, "plugin", strict+"---"+fmt.Sprintf(server, "early"))
	n.Selected(t, "plugin", "app=early", func(p *corev1.Pod) error {
		for _, c := range p.Status.InitContainerStatuses {
			if last := c.LastTerminationState.Terminated; c.Name == "istio-validation" && last != nil && last.ExitCode == 126 {
				return nil
			}
		}
		return errors.New("istio-validation has not failed yet")
	})

	install(true)
	early := n.Selected(t, "plugin", "app=early", Ready)
	if text := n.pluginLog(t); !strings.Contains(text, early.Name) || !strings.Contains(text, "a pod was started without rules") {
		t.Errorf("the log of the plugin's installer does not name the repaired Pod %s:\n%s", early.Name, text)
	}
	n.apply(t, "plugin", fmt.Sprintf(server, "server")+`
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
	pod := n.Selected(t, "plugin", "app=server", Ready)
	for _, c := range append(pod.Spec.InitContainers, pod.Spec.Containers...) {
		if c.Name == "istio-init" || c.SecurityContext != nil && c.SecurityContext.Capabilities != nil && len(c.SecurityContext.Capabilities.Add) > 0 {
			t.Errorf("the container %s has %v", c.Name, c.SecurityContext)
		}
	}
	job := n.Selected(t, "plugin", "job-name=client", Succeeded)
	const identity = "URI=spiffe://cluster.local/ns/plugin/sa/client"
	if text := n.Logs(t.Context(), "plugin", job.Name, "app"); !strings.Contains(text, identity) {
		t.Errorf("the server sees the client as %s, want %s", text, identity)
	}

	n.eventually(t, "istio-system", func(context.Context) error { return pluginRights() })

	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if out, err := n.outrigger(ctx, "", "uninstall", "--revision=cni"); err != nil {
		t.Fatalf("uninstall: %v\n%s", err, out)
	}
	n.eventually(t, "istio-system", func(context.Context) error {
		text, err := os.ReadFile("/etc/cni/net.d/10-pods.conflist")
		if err == nil && strings.Contains(string(text), "outrigger-cni") {
			err = fmt.Errorf("the plugin is still in the configuration: %s", text)
		}
		if _, statErr := os.Stat("/opt/cni/bin/outrigger-cni"); err == nil && statErr == nil {
			err = errors.New("the plugin's program is still there")
		}
		return err
	})
}

// pluginRights returns an error if the API server refused a request of the plugin or of its installer,
// or if one of their rights was not used. Two need not be: the installer lists pods only if watches do
// not, and gets its DaemonSet when its own pod is replaced.
func pluginRights() error {
	text, err := os.ReadFile(auditLog)
	if err != nil {
		return err
	}
	unused := map[string]bool{
		"outrigger-cni-cni-plugin get pods": true, "outrigger-cni-cni watch pods": true, "outrigger-cni-cni create serviceaccounts/token": true,
		"outrigger-cni-cni watch daemonsets": true,
	}
	for line := range strings.Lines(string(text)) {
		var q struct {
			Verb string
			User struct{ Username string }
			Ref  struct{ Resource, Subresource string } `json:"objectRef"`
			Said struct {
				Code    int
				Message string
			} `json:"responseStatus"`
		}
		account := ""
		if json.Unmarshal([]byte(line), &q) == nil {
			account = strings.TrimPrefix(q.User.Username, "system:serviceaccount:istio-system:")
		}
		if !strings.HasPrefix(account, "outrigger-cni") {
			continue // another account, or the last line is being written
		}
		if q.Said.Code == http.StatusForbidden {
			return fmt.Errorf("%s may not %s %s: %s", account, q.Verb, q.Ref.Resource, q.Said.Message)
		}
		delete(unused, account+" "+q.Verb+" "+strings.TrimSuffix(q.Ref.Resource+"/"+q.Ref.Subresource, "/"))
	}
	if len(unused) > 0 {
		return fmt.Errorf("never used: %q", slices.Sorted(maps.Keys(unused)))
	}
	return nil
}

// pluginLog returns the logs of the plugin's installer.
func (n *Node) pluginLog(t testing.TB) string {
	t.Helper()
	pods, err := n.Admin().CoreV1().Pods("istio-system").List(t.Context(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=outrigger-cni"})
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, p := range pods.Items {
		all.WriteString(n.Logs(t.Context(), "istio-system", p.Name, "install-cni"))
	}
	return all.String()
}
