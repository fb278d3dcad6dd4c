// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

//go:build linux

package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/outrigger-mesh/outrigger/e2e/kube"
)

const containerdSocket = "/run/containerd/containerd.sock"

// Node is a cluster with its one node. Kubelet and Containerd can be killed and started again.
type Node struct {
	*kube.Cluster
	Containerd, Kubelet *kube.Server

	files    files
	programs []*kube.Server // in the order of their start
}

// start starts the node's programs and waits until the node is ready.
func start(ctx context.Context) (n *Node, err error) {
	n = &Node{}
	if err := json.Unmarshal([]byte(os.Getenv(filesVariable)), &n.files); err != nil {
		return nil, fmt.Errorf("%w: call Main in TestMain", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.close(ctx))
			n = nil
		}
	}()
	if err := os.WriteFile(auditPolicy, []byte(auditRules), 0o600); err != nil {
		return n, err
	}
	n.Cluster, err = kube.Start(ctx, kube.Options{Address: nodeAddress, Args: []string{
		"--enable-admission-plugins=NodeRestriction", "--kubelet-preferred-address-types=InternalIP",
		"--endpoint-reconciler-type=lease", "--anonymous-auth=true",
		"--audit-policy-file=" + auditPolicy, "--audit-log-path=" + auditLog, "--audit-log-mode=blocking-strict",
	}})
	if err != nil {
		return n, err
	}
	if err := n.declare(); err != nil {
		return n, err
	}
	if err := n.Containerd.Start(ctx); err != nil {
		return n, err
	}
	if err := n.importImages(ctx); err != nil {
		return n, err
	}
	for _, p := range n.programs[1:] {
		if err := p.Start(ctx); err != nil {
			return n, err
		}
	}
	if err := n.Apply(ctx, []byte(kubeletRights)); err != nil {
		return n, err
	}
	if err := serveNames(n.Admin()); err != nil {
		return n, fmt.Errorf("serve DNS: %w", err)
	}
	return n, n.waitReady(ctx)
}

// declare writes the settings of the programs.
func (n *Node) declare() error {
	for path, text := range map[string]string{
		"/run/containerd.toml":            containerdConfig,
		"/run/kubelet.yaml":               fmt.Sprintf(kubeletConfig, nodeAddress, n.File("ca.crt"), nodeAddress),
		"/etc/cni/net.d/10-pods.conflist": fmt.Sprintf(podNetwork, podSubnet),
	} {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			return err
		}
	}
	if err := linkPlugins(); err != nil {
		return err
	}
	kubeconfigs := map[string]string{}
	for _, user := range []struct{ name, group string }{
		{"system:kube-controller-manager", ""},
		{"system:kube-scheduler", ""},
		{"system:kube-proxy", ""},
		{"system:node:" + nodeName, "system:nodes"},
	} {
		path, err := n.Kubeconfig(user.name, user.group)
		if err != nil {
			return err
		}
		kubeconfigs[user.name] = path
	}
	proxyConfig := "/run/kube-proxy.yaml"
	if err := os.WriteFile(proxyConfig, fmt.Appendf(nil, kubeProxyConfig, kubeconfigs["system:kube-proxy"], podRange), 0o644); err != nil {
		return err
	}
	kubeNode := func(name, health string, args ...string) *kube.Server {
		return n.Program(name, n.files.KubeNode, append([]string{name}, args...), nil, healthy(health))
	}
	n.Containerd = n.Program("containerd", "/usr/bin/containerd", []string{"--config=/run/containerd.toml"}, nil, func(ctx context.Context) error {
		return exec.CommandContext(ctx, "ctr", "--address="+containerdSocket, "plugins", "list", "id==cri").Run()
	})
	manager, scheduler := kubeconfigs["system:kube-controller-manager"], kubeconfigs["system:kube-scheduler"]
	n.Kubelet = kubeNode("kubelet", "http://127.0.0.1:10248/healthz",
		"--config=/run/kubelet.yaml", "--kubeconfig="+kubeconfigs["system:node:"+nodeName], "--hostname-override="+nodeName,
		"--node-ip="+nodeAddress, "--cert-dir=/var/lib/kubelet/pki")
	n.programs = []*kube.Server{
		n.Containerd,
		kubeNode("kube-controller-manager", "https://127.0.0.1:10257/healthz",
			"--kubeconfig="+manager, "--leader-elect=false",
			"--bind-address=127.0.0.1", "--cert-dir=/run/manager", "--use-service-account-credentials",
			"--service-account-private-key-file="+n.File("tokens.key"), "--root-ca-file="+n.File("ca.crt"),
			"--flex-volume-plugin-dir=/var/lib/kubelet/volume-plugins"),
		kubeNode("kube-scheduler", "https://127.0.0.1:10259/healthz",
			"--kubeconfig="+scheduler, "--leader-elect=false",
			"--bind-address=127.0.0.1", "--cert-dir=/run/scheduler"),
		n.Kubelet,
		kubeNode("kube-proxy", "http://127.0.0.1:10256/livez", "--config="+proxyConfig, "--hostname-override="+nodeName),
	}
	return nil
}

// linkPlugins creates the directory of CNI plugins, to which the mesh adds one.
func linkPlugins() error {
	const from, to = "/usr/lib/cni", "/opt/cni/bin"
	plugins, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	for _, p := range plugins {
		if err := os.Symlink(filepath.Join(from, p.Name()), filepath.Join(to, p.Name())); err != nil {
			return err
		}
	}
	return nil
}

// waitReady waits until the node is ready and the namespace default has what Pods need.
func (n *Node) waitReady(ctx context.Context) error {
	err := poll(ctx, func() error {
		node, err := n.Admin().CoreV1().Nodes().Get(ctx, nodeName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range node.Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue {
				return fmt.Errorf("the node is not ready: %s: %s", c.Reason, c.Message)
			}
		}
		if len(node.Spec.Taints) > 0 {
			return fmt.Errorf("the node has taints: %v", node.Spec.Taints)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("wait for the node: %w\n%s", err, n.tails())
	}
	return nil
}

// close stops the programs, the last one first.
func (n *Node) close(ctx context.Context) error {
	for i := range n.programs {
		n.programs[len(n.programs)-1-i].Kill()
	}
	if n.Cluster == nil {
		return nil
	}
	return n.Stop(ctx)
}

// healthy returns a function that requests a URL on this machine.
func healthy(url string) func(context.Context) error {
	return func(ctx context.Context) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
		if err != nil {
			return err
		}
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: unverified(), DisableKeepAlives: true}}
		response, err := client.Do(request)
		if err != nil {
			return err
		}
		_ = response.Body.Close() // only the status matters
		if response.StatusCode != http.StatusOK {
			return fmt.Errorf("%s answers %s", url, response.Status)
		}
		return nil
	}
}

const pollEvery = 50 * time.Millisecond

// poll calls done until it returns nil or ctx is done.
func poll(ctx context.Context, done func() error) error {
	for {
		err := done()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ctx.Err(), err)
		case <-time.After(pollEvery):
		}
	}
}
