// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

//go:build linux

package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestReboot kills kubelet, containerd and every container, and starts kubelet and containerd
// again. The mesh and a server with strict mutual TLS recover automatically: the kubelet's probes
// pass, and the server sees the identity of its client. The test runs before those that run in
// parallel.
func TestReboot(t *testing.T) {
	n := mesh.Node(t)
	n.meshed(t, "reboot")
	n.apply(t, "reboot", strict+"---"+fmt.Sprintf(server, "server")+strings.TrimPrefix(strings.TrimSuffix(asker, "---\n"), "\n"))
	works := func() {
		t.Helper()
		n.Selected(t, "reboot", "app=server", Ready)
		from := n.Pod(t, "reboot", "asker", Ready).Status.PodIP
		n.eventually(t, "reboot", func(ctx context.Context) error {
			headers, err := n.ask(ctx, from, "http://server/headers")
			const identity = "URI=spiffe://cluster.local/ns/reboot/sa/default"
			if err == nil && !strings.Contains(headers, identity) {
				err = fmt.Errorf("the server sees another client than %s: %s", identity, headers)
			}
			return err
		})
	}
	works()
	before := n.containers(t)

	n.Kubelet.Kill()
	n.Containerd.Kill()
	n.killContainers(t)
	for _, p := range []interface{ Start(context.Context) error }{n.Containerd, n.Kubelet} {
		if err := p.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	n.eventually(t, "reboot", func(context.Context) error { // until the kubelet has noticed that all have exited
		after := n.containers(t)
		for pod, id := range before {
			if after[pod] == id || after[pod] == "" {
				return fmt.Errorf("Pod %s has the containers of before", pod)
			}
		}
		return nil
	})
	for pod := range before {
		namespace, name, _ := strings.Cut(pod, "/")
		n.Pod(t, namespace, name, Ready)
	}
	works()
	if err := n.Delete(t.Context(), "reboot"); err != nil {
		t.Fatal(err)
	}
}

// containers returns the ids of the running containers of each Pod of the test and of the control
// plane, by namespace/name.
func (n *Node) containers(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, namespace := range []string{"reboot", "istio-system"} {
		pods, err := n.Admin().CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, pod := range pods.Items {
			ids := ""
			if pod.Status.Phase == corev1.PodRunning {
				for _, s := range pod.Status.ContainerStatuses {
					if s.State.Running != nil {
						ids += s.ContainerID + " "
					}
				}
			}
			all[namespace+"/"+pod.Name] = ids
		}
	}
	return all
}

// killContainers kills the processes of all containers and their shims.
func (n *Node) killContainers(t *testing.T) {
	t.Helper()
	killed := 0
	n.eventually(t, "reboot", func(context.Context) error {
		processes, err := filepath.Glob("/proc/[0-9]*")
		if err != nil {
			return err
		}
		left := 0
		for _, dir := range processes {
			groups, err := os.ReadFile(filepath.Join(dir, "cgroup"))
			program, _ := os.Readlink(filepath.Join(dir, "exe")) // an exiting process has none
			if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) || program == "" {
				continue
			} else if err != nil {
				return err
			}
			if !bytes.Contains(groups, []byte("/kubepods")) && !strings.HasPrefix(filepath.Base(program), "containerd-shim") {
				continue
			}
			left++
			pid, err := strconv.Atoi(filepath.Base(dir))
			if err != nil {
				return err
			}
			if err := unix.Kill(pid, unix.SIGKILL); err == nil {
				killed++
			}
		}
		if left > 0 {
			return fmt.Errorf("%d processes of containers are left", left)
		}
		return nil
	})
	if killed == 0 {
		t.Fatal("no process of a container was found")
	}
}
