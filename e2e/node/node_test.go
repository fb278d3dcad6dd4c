// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

//go:build linux

package node

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"testing"
)

var shared Shared

// killedVariable is set in the process that TestKilled kills.
const killedVariable = "OUTRIGGER_TEST_NODE_KILLED"

func TestMain(m *testing.M) {
	if os.Getenv(killedVariable) != "" {
		os.Exit(waitForKill())
	}
	os.Exit(Main(context.Background(), m))
}

// waitForKill creates cgroups as the first process of a node does, prints them, and waits.
func waitForKill() int {
	groups, err := newCgroups()
	if err == nil {
		_, err = groups.removeAtEnd()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println(groups)
	_, _ = io.Copy(io.Discard, os.Stdin) // it is killed while it waits
	return 0
}

// TestKilled kills the first process of a node. The node's cgroups are removed all the same.
func TestKilled(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
	cmd.Env = append(os.Environ(), killedVariable+"=1")
	cmd.Stderr = os.Stderr
	input, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = input.Close() }() // the process is gone
	output, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(output).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	groups := strings.Split(strings.TrimSpace(line), ":")
	for _, dir := range groups {
		if _, err := os.Stat(dir); err != nil {
			t.Fatal(err)
		}
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	err = poll(ctx, func() error {
		for _, dir := range groups {
			if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("the cgroup %s is still there: %w", dir, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

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
    readinessProbe: {httpGet: {path: /health, port: 8080}, periodSeconds: 1}
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
