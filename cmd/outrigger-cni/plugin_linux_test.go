// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"golang.org/x/sys/unix"

	"github.com/outrigger-mesh/outrigger/e2e/netlab"
	"github.com/outrigger-mesh/outrigger/envoy/capture"
)

const podNetwork = `{"cniVersion": "%s", "name": "pods", "plugins": [{"type": "lab-network"}]}`

// TestPlugin runs the program like a runtime, with each version of the specification.
func TestPlugin(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.write("net.d/10-pods.conflist", fmt.Sprintf(podNetwork, "1.0.0"))
	l.stop(l.installed(), syscall.SIGTERM)
	cni := libcni.NewCNIConfigWithCacheDir([]string{l.path("bin")}, l.path("cache"), nil)
	for n, version := range []string{"0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"} {
		text, err := os.ReadFile(l.path("net.d/10-pods.conflist"))
		if err != nil {
			t.Fatal(err)
		}
		list, err := libcni.ConfListFromBytes([]byte(strings.ReplaceAll(string(text), `"1.0.0"`, `"`+version+`"`)))
		if err != nil {
			t.Fatal(err)
		}
		_, name := podName(n)
		l.set("apps", name, injected)
		netns := l.namespace()
		conf := l.runtimeConf("apps", name, netns)
		if _, err := cni.AddNetworkList(t.Context(), list, conf); err != nil {
			t.Fatalf("version %s: ADD: %v", version, err)
		}
		if captured, err := capture.Captured(netns); !captured || err != nil {
			t.Errorf("version %s: the pod has no rules: %v", version, err)
		}
		if version >= "0.4.0" {
			if err := cni.CheckNetworkList(t.Context(), list, conf); err != nil {
				t.Errorf("version %s: CHECK: %v", version, err)
			}
		}
		if version >= "1.1.0" {
			if err := errors.Join(cni.GetStatusNetworkList(t.Context(), list), cni.GCNetworkList(t.Context(), list, &libcni.GCArgs{})); err != nil {
				t.Errorf("version %s: STATUS and GC: %v", version, err)
			}
		}
		l.mu.Lock()
		delete(l.pods, "apps/"+name)
		l.mu.Unlock()
		if err := cni.DelNetworkList(t.Context(), list, conf); err != nil {
			t.Errorf("version %s: DEL of a pod that the API server no longer has: %v", version, err)
		}
	}
}

// installed starts the installer and waits until the runtime uses the plugin.
func (l *lab) installed(environ ...string) *daemon {
	l.t.Helper()
	d := l.start(environ...)
	l.eventually("the plugin is installed", l.chained)
	return d
}

// TestScope starts pods of which some must get rules, partly without a reachable API server.
func TestScope(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.write("net.d/10-pods.conflist", fmt.Sprintf(podNetwork, "1.0.0"))
	l.stop(l.installed(), syscall.SIGTERM)
	for n, c := range []struct {
		name      string
		namespace string
		change    [2]string // replaces a text in injected
		captured  bool
		err       string
	}{
		{"injected", "apps", [2]string{}, true, ""},
		{"TPROXY", "apps", [2]string{`"annotations": {`, `"annotations": {"sidecar.istio.io/interceptionMode": "TPROXY", `}, true, ""},
		{"with DNS", "apps", [2]string{`"name": "istio-proxy",`, `"name": "istio-proxy", "env": [{"name": "ISTIO_META_DNS_CAPTURE", "value": "true"}],`}, true, ""},
		{"NONE", "apps", [2]string{`"annotations": {`, `"annotations": {"sidecar.istio.io/interceptionMode": "NONE", `}, false, ""},
		{"a wrong mode", "apps", [2]string{`"annotations": {`, `"annotations": {"sidecar.istio.io/interceptionMode": "ALL", `}, false, `interceptionMode is "ALL": it must be REDIRECT, TPROXY or NONE`},
		{"a wrong port", "apps", [2]string{`"annotations": {`, `"annotations": {"traffic.sidecar.istio.io/excludeOutboundPorts": "x", `}, false, `--istio-local-outbound-ports-exclude is "x"`},
		{"with istio-init", "apps", [2]string{"istio-validation", "istio-init"}, false, ""},
		{"without proxy", "apps", [2]string{"istio-proxy", "other"}, false, ""},
		{"a gateway", "apps", [2]string{`"sidecar"`, `"router"`}, false, ""},
		{"not injected", "apps", [2]string{"sidecar.istio.io/status", "a"}, false, ""},
		{"refused by label", "apps", [2]string{`"annotations"`, `"labels": {"sidecar.istio.io/inject": "false"}, "annotations"`}, false, ""},
		{"proxyless gRPC", "apps", [2]string{`"name": "istio-proxy",`, `"name": "istio-proxy", "env": [{"name": "DISABLE_ENVOY", "value": "true"}],`}, false, ""},
		{"on the node's network", "apps", [2]string{`"spec": {`, `"spec": {"hostNetwork": true, `}, false, ""},
		{"replaced", "apps", [2]string{`"uid-%[1]s"`, `"other-%[1]s"`}, false, "was replaced by another one"},
		{"static", "apps", [2]string{`"uid": "uid-%[1]s", "annotations": {`, `"uid": "other", "annotations": {"kubernetes.io/config.hash": "uid-%[1]s", `}, true, ""},
		{"in an excluded namespace", "kube-system", [2]string{}, false, ""},
	} {
		_, name := podName(n)
		l.set(c.namespace, name, strings.Replace(injected, c.change[0], c.change[1], 1))
		netns := l.namespace()
		err := l.add(t.Context(), c.namespace, name, netns)
		if c.err == "" && err != nil || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err) || !strings.Contains(err.Error(), "the pod is not started")) {
			t.Errorf("%s: got error %v, want one with %q", c.name, err, c.err)
		}
		if captured, err := capture.Captured(netns); captured != c.captured || err != nil {
			t.Errorf("%s: captured: %v, want %v (error %v)", c.name, captured, c.captured, err)
		}
	}
	if err := l.add(t.Context(), "apps", "pod-10-1-1-1", l.namespace()); err == nil || !strings.Contains(err.Error(), "404") {
		t.Errorf("a pod that the API server does not know: got error %v, want 404", err)
	}
	l.shut()
	if err := l.add(t.Context(), "kube-system", "pod-10-1-1-2", l.namespace()); err != nil {
		t.Errorf("without an API server: a pod of an excluded namespace does not start: %v", err)
	}
	if err := l.add(t.Context(), "apps", "pod-10-1-1-3", l.namespace()); err == nil || !strings.Contains(err.Error(), "is outrigger-cni running on this node?") {
		t.Errorf("without an API server: got error %v, want one with a question about outrigger-cni", err)
	}
}

// TestNoKubeconfig starts a pod on a node that has only the configuration of the plugin.
func TestNoKubeconfig(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.write("net.d/10-pods.conflist", fmt.Sprintf(podNetwork, "1.0.0"))
	l.stop(l.installed(), syscall.SIGTERM)
	for _, c := range []struct{ file, problem string }{
		{"net.d/ZZZ-outrigger-cni-kubeconfig", "kubeconfig: open"},
		{"bin/outrigger-cni", "failed to find plugin"},
	} {
		if err := os.Remove(l.path(c.file)); err != nil {
			t.Fatal(err)
		}
		if err := l.add(t.Context(), "apps", "pod-10-1-1-3", l.namespace()); err == nil || !strings.Contains(err.Error(), c.problem) {
			t.Errorf("without %s: got error %v, want one with %q", c.file, err, c.problem)
		}
	}
}

// TestTraffic opens connections from a pod and to it.
func TestTraffic(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.write("net.d/10-pods.conflist", fmt.Sprintf(podNetwork, "1.0.0"))
	l.stop(l.installed(), syscall.SIGTERM)
	machines, err := netlab.New("peer", "pod")
	if errors.Is(err, netlab.ErrUnavailable) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { netlab.Close(machines) })
	peer, pod := machines[0], machines[1]
	_, name := podName(1)
	l.set("apps", name, strings.Replace(injected, `"annotations": {`, `"annotations": {"traffic.sidecar.istio.io/excludeInboundPorts": "9000", "traffic.sidecar.istio.io/excludeOutboundPorts": "9000", `, 1))
	entered, done := make(chan string), make(chan struct{})
	go func() {
		_ = pod.Do(func() error {
			entered <- fmt.Sprintf("/proc/%d/task/%d/ns/net", os.Getpid(), unix.Gettid())
			<-done
			return nil
		})
	}()
	err = l.add(t.Context(), "apps", name, <-entered)
	close(done)
	if err != nil {
		t.Fatal(err)
	}
	for machine, ports := range map[*netlab.Machine][]string{pod: {"15001", "15006", "8080", "9000"}, peer: {"8080", "9000"}} {
		for _, port := range ports {
			listener, err := machine.Listen("tcp", ":"+port)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = listener.Close() }) // closing cannot lose data
			go serve(listener, machine.Name+" "+port)
		}
	}
	for _, c := range []struct {
		from, to *netlab.Machine
		port     string
		want     string
	}{
		{pod, peer, "8080", "pod 15001"},
		{pod, peer, "9000", "peer 9000"},
		{peer, pod, "8080", "pod 15006"},
		{peer, pod, "9000", "pod 9000"},
	} {
		conn, err := c.from.Dial(t.Context(), "tcp", net.JoinHostPort(c.to.IP4.String(), c.port))
		if err != nil {
			t.Fatal(err)
		}
		if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		buffer := make([]byte, 64)
		n, err := conn.Read(buffer)
		if got := string(buffer[:n]); got != c.want || err != nil {
			t.Errorf("a connection from %s to port %s of %s reaches %q (error %v), want %q", c.from.Name, c.port, c.to.Name, got, err, c.want)
		}
		_ = conn.Close() // closing cannot lose data
	}
}

// serve responds to connections with a text.
func serve(l net.Listener, text string) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		_, _ = c.Write([]byte(text)) // the client checks the text
		_ = c.Close()
	}
}
