// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package conformance

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outrigger-mesh/outrigger/e2e/kube"
)

const (
	control       = "127.77.58.1"
	meshNamespace = "istio-system"
	account       = "outrigger-control"
	node          = "node"
	podPort       = 3000 // of the echo servers, in their Pods
)

// world simulates nodes, a kubelet and a load balancer.
type world struct {
	t       *testing.T
	cluster *kube.Cluster
	scheme  *runtime.Scheme
	client  client.WithWatch
	dir     string
	envoy   string // path of the program
	node    string // an address that is not loopback, which kube-apiserver rejects as an endpoint
	roots   string

	mu    sync.Mutex
	taken int // addresses of gateways
	// running contains the programs by purpose.
	running map[string]*exec.Cmd
	ended   bool
	// apps is used by the goroutine of play only.
	apps []*app
}

func newWorld(t *testing.T, cluster *kube.Cluster) *world {
	t.Helper()
	w := &world{t: t, cluster: cluster, scheme: newScheme(t), dir: os.Getenv(directory), taken: 1, running: map[string]*exec.Cmd{}}
	t.Cleanup(w.end)
	var err error
	if w.client, err = client.NewWithWatch(cluster.AdminConfig(), client.Options{Scheme: w.scheme}); err != nil {
		t.Fatal(err)
	}
	if w.node = machine(); w.node == "" {
		t.Skip("this machine has only loopback addresses, which kube-apiserver rejects as endpoints")
	}
	for _, name := range []string{os.Getenv("ENVOY"), "../../../bin/envoy", "envoy"} {
		if path, err := exec.LookPath(name); err == nil {
			w.envoy, err = filepath.Abs(path)
			if err != nil {
				t.Fatal(err)
			}
			break
		}
	}
	if w.envoy == "" {
		t.Fatal("no Envoy: run make envoy, or set ENVOY")
	}
	return w
}

// machine returns an IPv4 address of this machine other than loopback.
func machine() string {
	list, _ := net.InterfaceAddrs() // an interface without addresses
	for _, a := range list {
		if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil && n.IP.IsGlobalUnicast() {
			return n.IP.String()
		}
	}
	return ""
}

// end kills all programs.
func (w *world) end() {
	w.mu.Lock()
	w.ended = true
	for _, cmd := range w.running {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // it may have exited
		_ = cmd.Wait()
	}
	w.mu.Unlock()
	if w.t.Failed() {
		w.t.Logf("the logs are in %s", w.dir)
	}
}

// run starts a program.
func (w *world) run(id, dir string, env []string, name string, args ...string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended || w.running[id] != nil {
		return
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		w.t.Error(err)
		return
	}
	log, err := os.Create(filepath.Join(w.dir, strings.ReplaceAll(id, "/", "-")+".log"))
	if err != nil {
		w.t.Error(err)
		return
	}
	defer func() { _ = log.Close() }() // the program has its own copy
	cmd := exec.Command(filepath.Join(w.dir, name), args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, log, log
	cmd.Env = append([]string{"PATH=/usr/local/bin:/usr/bin:/bin", "TMPDIR=" + dir}, env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		w.t.Error(err)
		return
	}
	w.running[id] = cmd
}

// stop kills a program and its children.
func (w *world) stop(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if cmd := w.running[id]; cmd != nil {
		delete(w.running, id)
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // it may have exited
		_ = cmd.Wait()
	}
}

// soon retries until there is no error, or fails the test.
func (w *world) soon(t *testing.T, what string, try func() error) {
	t.Helper()
	var err error
	for range 3000 {
		if err = try(); err == nil {
			return
		}
		select {
		case <-t.Context().Done():
			return
		case <-time.After(100 * time.Millisecond):
		}
	}
	t.Fatalf("%s: %v", what, err)
}

// install installs the definitions, the rights and the control plane.
func (w *world) install() {
	w.t.Helper()
	ctx := w.t.Context()
	w.kubelet()
	if err := w.cluster.ApplyCRDs(ctx, os.Getenv(definitions)); err != nil {
		w.t.Fatal(err)
	}
	for _, file := range []string{"rbac.yaml", "rbac-config.yaml", "rbac-credentials.yaml", "rbac-services.yaml", "rbac-webhook.yaml", "rbac-inject.yaml", "rbac-gateways.yaml"} {
		text, err := os.ReadFile("../../../examples/kubernetes/" + file)
		if err != nil {
			w.t.Fatal(err)
		}
		if err := w.cluster.Apply(ctx, text); err != nil {
			w.t.Fatalf("%s: %v", file, err)
		}
	}
	for _, text := range []string{rights, gatewayClass} {
		if err := w.cluster.Apply(ctx, []byte(text)); err != nil {
			w.t.Fatal(err)
		}
	}
	token, err := w.cluster.Token(ctx, meshNamespace, account, kube.TokenOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	file := filepath.Join(w.dir, "token")
	if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
		w.t.Fatal(err)
	}
	kubeconfig, err := w.cluster.TokenKubeconfig(file)
	if err != nil {
		w.t.Fatal(err)
	}
	w.run("control", filepath.Join(w.dir, "control"), []string{"POD_NAME=control-1", "OUTRIGGER_CREDENTIALS=k8s://", "CLUSTER_ID=Kubernetes", "PILOT_ENABLE_QUIC_LISTENERS=true"}, "outrigger-control",
		"discovery", "--kubeconfig", kubeconfig, "--grpcAddr", "", "--monitoringAddr", "", "--secureGRPCAddr", control+":15012",
		"--httpAddr", control+":8080", "--httpsAddr", control+":15017", "--log_output_level", "debug")
	w.soon(w.t, "the control plane", func() error {
		answer, err := http.Get("http://" + control + ":8080/ready")
		if err != nil {
			return err
		}
		_ = answer.Body.Close() // it is not read
		if answer.StatusCode != http.StatusOK {
			return fmt.Errorf("it answers %s", answer.Status)
		}
		return nil
	})
	w.soon(w.t, "the roots", func() error {
		m, err := w.cluster.Admin().CoreV1().ConfigMaps(metav1.NamespaceDefault).Get(ctx, "istio-ca-root-cert", metav1.GetOptions{})
		if err == nil {
			w.roots = m.Data["root-cert.pem"]
		}
		return err
	})
}

const gatewayClass = `
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: istio}
spec: {controllerName: istio.io/gateway-controller}
`

// rights are those of the control plane in addition to the examples.
const rights = `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: outrigger-ingress-status}
rules:
- {apiGroups: [networking.k8s.io], resources: [ingresses/status], verbs: [update]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: outrigger-ingress-status}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: outrigger-ingress-status}
subjects: [{kind: ServiceAccount, name: outrigger-control, namespace: istio-system}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: outrigger-gateway-status, namespace: istio-system}
rules:
- {apiGroups: [coordination.k8s.io], resources: [leases], resourceNames: [istio-gateway-status-leader], verbs: [get, update]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: outrigger-gateway-status, namespace: istio-system}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: outrigger-gateway-status}
subjects: [{kind: ServiceAccount, name: outrigger-control, namespace: istio-system}]
`

// app is a Deployment with a running echo server.
type app struct {
	namespace, name string
	labels          map[string]string
	ports           map[int32]int32 // ports of this machine by those of the Pod
}

// pod creates the Pod of an app.
func (w *world) pod(ctx context.Context, a *app) error {
	if err := w.cluster.CreateServiceAccount(ctx, a.namespace, "default"); err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	return w.readyPod(ctx, w.node, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: a.name, Namespace: a.namespace, Labels: a.labels},
		Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: a.name, Image: "echo"}}},
	})
}

// readyPod creates a Pod that is ready at an address.
func (w *world) readyPod(ctx context.Context, address string, pod *corev1.Pod) error {
	pods := w.cluster.Admin().CoreV1().Pods(pod.Namespace)
	pod, err := pods.Create(ctx, pod, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	pod.Status = corev1.PodStatus{
		Phase: corev1.PodRunning, PodIP: address, PodIPs: []corev1.PodIP{{IP: address}},
		Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
	}
	_, err = pods.UpdateStatus(ctx, pod, metav1.UpdateOptions{})
	return err
}

// slice creates the EndpointSlice of a Service that selects an app.
func (w *world) slice(ctx context.Context, a *app, s *corev1.Service) error {
	if len(s.Spec.Selector) == 0 || s.Namespace != a.namespace || s.Spec.Selector["app"] != a.labels["app"] {
		return nil
	}
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Name: s.Name + "-" + a.name, Namespace: s.Namespace, Labels: map[string]string{discoveryv1.LabelServiceName: s.Name},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Service", Name: s.Name, UID: s.UID}},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{w.node}, TargetRef: &corev1.ObjectReference{Kind: "Pod", Name: a.name, Namespace: a.namespace}}},
	}
	for _, p := range s.Spec.Ports {
		if port, ok := a.ports[p.TargetPort.IntVal]; ok {
			slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: &p.Name, Port: &port, AppProtocol: p.AppProtocol})
		}
	}
	_, err := w.cluster.Admin().DiscoveryV1().EndpointSlices(s.Namespace).Create(ctx, slice, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// kubelet creates the node, and serves the logs of its Pods.
func (w *world) kubelet() {
	w.t.Helper()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		part := strings.Split(strings.TrimPrefix(r.URL.Path, "/containerLogs/"), "/")
		if len(part) != 3 {
			http.NotFound(rw, r)
			return
		}
		http.ServeFile(rw, r, filepath.Join(w.dir, part[0]+"-"+part[1]+".log"))
	}))
	l, err := net.Listen("tcp", w.node+":0")
	if err != nil {
		w.t.Fatal(err)
	}
	server.Listener = l
	server.StartTLS()
	w.t.Cleanup(server.Close)
	nodes := w.cluster.Admin().CoreV1().Nodes()
	n, err := nodes.Create(w.t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}, metav1.CreateOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: w.node}}
	n.Status.DaemonEndpoints.KubeletEndpoint.Port = int32(l.Addr().(*net.TCPAddr).Port)
	if _, err := nodes.UpdateStatus(w.t.Context(), n, metav1.UpdateOptions{}); err != nil {
		w.t.Fatal(err)
	}
}
