// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

//go:build linux

package node

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"
)

// SharedMesh is the mesh of all tests of a package, on their node. The first test that needs it
// installs it.
type SharedMesh struct {
	node *Shared
	once sync.Once
	err  error
}

// Node returns the node once the mesh is installed. If it cannot be, every test fails with the
// reason.
func (s *SharedMesh) Node(t testing.TB) *Node {
	t.Helper()
	n := s.node.Node(t)
	s.once.Do(func() {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		began := time.Now()
		out, err := n.outrigger(ctx, installValues, "install", "--values=-", "--timeout="+patience.String())
		if err != nil {
			s.err = fmt.Errorf("install the mesh: %w\n%s\n%s", err, out, n.Explain(context.WithoutCancel(ctx), "istio-system"))
			return
		}
		fmt.Printf("node: mesh installed after %s\n", time.Since(began).Round(100*time.Millisecond))
	})
	if s.err != nil {
		t.Fatal(s.err)
	}
	return n
}

// installValues are values of the chart for a small and busy machine: containers request few
// resources, and a terminating control plane serves for long.
const installValues = `
env: {OUTRIGGER_SHUTDOWN_DELAY: 15s, ENABLE_MCS_SERVICE_DISCOVERY: "true", ENABLE_MCS_HOST: "true"}
terminationGracePeriodSeconds: 60
image: {hub: ` + imageHub + `, tag: ` + imageTag + `, pullPolicy: Never}
resources: {requests: {cpu: 10m, memory: 32Mi}}
injection:
  values: {global: {imagePullPolicy: Never, proxy: {resources: {requests: {cpu: 5m, memory: 16Mi}}}, proxy_init: {resources: {requests: {cpu: 5m, memory: 16Mi}}}}}
`

// outrigger runs the tool as an administrator of the cluster and returns its output.
func (n *Node) outrigger(ctx context.Context, input string, args ...string) (string, error) {
	kubeconfig, err := n.Kubeconfig("admin", "system:masters")
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, n.files.program("outrigger"), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig)
	cmd.Stdin = strings.NewReader(input)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// meshed creates a namespace whose Pods receive a proxy. They are deleted after the test, which
// does not wait for their end.
func (n *Node) meshed(t testing.TB, namespace string) {
	t.Helper()
	t.Cleanup(func() {
		if err := n.end(context.WithoutCancel(t.Context()), namespace); err != nil {
			t.Error(err)
		}
	})
	n.apply(t, "", `{apiVersion: v1, kind: Namespace, metadata: {name: `+namespace+`, labels: {istio-injection: enabled}}}`)
}
