// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package chart

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"helm.sh/helm/v4/pkg/action"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/cli"
	helmkube "helm.sh/helm/v4/pkg/kube"
	releasev1 "helm.sh/helm/v4/pkg/release/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/outrigger-mesh/outrigger/e2e/kube"
	"github.com/outrigger-mesh/outrigger/e2e/ownnet"
)

const (
	chartDir = "../../../charts/outrigger"
	// node is an address of the tests' network namespace: kube-apiserver rejects loopback addresses
	// as endpoints.
	node = "10.255.255.254"
	// patience is the timeout of each wait. No test depends on a shorter time.
	patience = 3 * time.Minute
)

// shared is one cluster for all tests. Each test has its own namespace and revision.
var shared = kube.Shared{Options: kube.Options{Args: []string{"--enable-aggregator-routing=true"}}}

type runner struct{ m *testing.M }

func (r runner) Run() int { return shared.Main(r.m) }

// TestMain runs the tests in their own network, because kube-apiserver calls the control plane at
// an address of the node.
func TestMain(m *testing.M) {
	if !ownnet.Own() {
		// The programs are built here, where modules can be fetched.
		if out, err := exec.Command("make", "-s", "-C", "../../..", "build").CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "make build: %v\n%s", err, out)
			os.Exit(1)
		}
	}
	dir, err := auditPolicy()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	shared.Options.Args = append(shared.Options.Args, "--audit-policy-file="+filepath.Join(dir, "policy.yaml"), "--audit-log-path="+auditLog(dir), "--audit-log-mode=blocking-strict")
	auditDir = dir
	code := ownnet.Tests(runner{m}).Run()
	_ = os.RemoveAll(dir) // in the temporary directory
	os.Exit(code)
}

// release is the chart of a test, installed by Helm.
type release struct {
	t         *testing.T
	cluster   *kube.Cluster
	namespace string
	name      string
	config    *action.Configuration
}

// newRelease returns a release of a new namespace, which is not installed yet.
func newRelease(t *testing.T) *release {
	t.Helper()
	c, namespace := shared.Namespace(t)
	return releaseIn(t, c, namespace)
}

func releaseIn(t *testing.T, c *kube.Cluster, namespace string) *release {
	t.Helper()
	kubeconfig, err := c.Kubeconfig("admin", "system:masters")
	if err != nil {
		t.Fatal(err)
	}
	settings := cli.New()
	settings.KubeConfig, settings.QPS = kubeconfig, -1
	settings.SetNamespace(namespace)
	r := &release{t: t, cluster: c, namespace: namespace, name: "outrigger", config: action.NewConfiguration(action.ConfigurationSetLogger(slog.DiscardHandler))}
	if err := r.config.Init(settings.RESTClientGetter(), namespace, "secret"); err != nil {
		t.Fatal(err)
	}
	return r
}

// install installs the chart. With clientSide, Helm merges objects itself instead of applying them
// on the server.
func (r *release) install(values map[string]any, clientSide bool) (*releasev1.Release, error) {
	r.t.Helper()
	chart, err := loader.Load(chartDir)
	if err != nil {
		return nil, err
	}
	i := action.NewInstall(r.config)
	i.ReleaseName, i.Namespace, i.WaitStrategy, i.Timeout, i.ServerSideApply = r.name, r.namespace, helmkube.HookOnlyStrategy, patience, !clientSide
	out, err := i.Run(chart, values)
	return asRelease(out), err
}

func (r *release) mustInstall(values map[string]any, clientSide bool) *releasev1.Release {
	r.t.Helper()
	out, err := r.install(values, clientSide)
	if err != nil {
		r.t.Fatal(err)
	}
	return out
}

func (r *release) mustUpgrade(values map[string]any) *releasev1.Release {
	r.t.Helper()
	chart, err := loader.Load(chartDir)
	if err != nil {
		r.t.Fatal(err)
	}
	u := action.NewUpgrade(r.config)
	u.Namespace, u.WaitStrategy, u.Timeout = r.namespace, helmkube.HookOnlyStrategy, patience
	out, err := u.Run(r.name, chart, values)
	if err != nil {
		r.t.Fatal(err)
	}
	return asRelease(out)
}

func (r *release) mustRollback(version int) {
	r.t.Helper()
	b := action.NewRollback(r.config)
	b.Version, b.WaitStrategy, b.Timeout = version, helmkube.HookOnlyStrategy, patience
	if err := b.Run(r.name); err != nil {
		r.t.Fatal(err)
	}
}

func (r *release) mustUninstall() {
	r.t.Helper()
	u := action.NewUninstall(r.config)
	u.WaitStrategy, u.Timeout = helmkube.HookOnlyStrategy, patience
	if _, err := u.Run(r.name); err != nil {
		r.t.Fatal(err)
	}
}

func asRelease(out any) *releasev1.Release {
	rel, _ := out.(*releasev1.Release)
	return rel
}

// control is a control plane that runs with the settings of a Deployment.
type control struct {
	t      *testing.T
	args   []string
	env    []string
	dir    string
	ready  string // URL
	listen map[string]string

	mu  sync.Mutex // guards the fields below
	cmd *exec.Cmd
}

// newControl returns the control plane of the release's Deployment, without starting it. The
// release's Service forwards to its ports.
func (r *release) newControl(suffix string, args ...string) *control {
	r.t.Helper()
	ctx := r.t.Context()
	deployment, err := r.cluster.Admin().AppsV1().Deployments(r.namespace).Get(ctx, "outrigger-control"+suffix, metav1.GetOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	spec := deployment.Spec.Template.Spec
	c := &control{t: r.t, dir: r.t.TempDir(), listen: map[string]string{}}
	token, err := r.cluster.Token(ctx, r.namespace, spec.ServiceAccountName, kube.TokenOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	file := filepath.Join(r.t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
		r.t.Fatal(err)
	}
	kubeconfig, err := r.cluster.TokenKubeconfig(file)
	if err != nil {
		r.t.Fatal(err)
	}
	var ports []discoveryv1.EndpointPort
	for name, flag := range map[string]string{"http": "httpAddr", "https-dns": "secureGRPCAddr", "https-webhook": "httpsAddr", "http-monitoring": "monitoringAddr"} {
		port, err := ownnet.FreePort(node)
		if err != nil {
			r.t.Fatal(err)
		}
		var number int32
		if _, err := fmt.Sscan(port, &number); err != nil {
			r.t.Fatal(err)
		}
		c.listen[name] = node + ":" + port
		args = append(args, "--"+flag+"="+c.listen[name])
		ports = append(ports, discoveryv1.EndpointPort{Name: &name, Port: &number})
	}
	c.ready = "http://" + c.listen["http"] + "/ready"
	container := spec.Containers[0]
	c.args = append(append(append([]string{}, container.Args...), "--kubeconfig="+kubeconfig), args...)
	for _, e := range container.Env {
		c.env = append(c.env, e.Name+"="+r.value(e))
	}
	r.endpoints("istiod"+suffix, ports)
	return c
}

// value returns the value of a variable in the pod.
func (r *release) value(e corev1.EnvVar) string {
	r.t.Helper()
	if e.ValueFrom == nil {
		return e.Value
	}
	switch path := e.ValueFrom.FieldRef.FieldPath; path {
	case "metadata.name":
		return "outrigger-control-1"
	case "metadata.namespace":
		return r.namespace
	default:
		r.t.Fatalf("the variable %s is from %s", e.Name, path)
		return ""
	}
}

// endpoints makes the EndpointSlice of a Service, as a cluster with a controller manager does.
func (r *release) endpoints(service string, ports []discoveryv1.EndpointPort) {
	r.t.Helper()
	ready := true
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: service, Labels: map[string]string{discoveryv1.LabelServiceName: service}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: ports,
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{node}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}}},
	}
	slices := r.cluster.Admin().DiscoveryV1().EndpointSlices(r.namespace)
	_ = slices.Delete(r.t.Context(), service, metav1.DeleteOptions{}) // it may not exist
	if _, err := slices.Create(r.t.Context(), slice, metav1.CreateOptions{}); err != nil {
		r.t.Fatal(err)
	}
}

// start starts the program and waits until it is ready.
func (c *control) start() {
	c.t.Helper()
	program, err := filepath.Abs("../../../bin/outrigger-control")
	if err != nil {
		c.t.Fatal(err)
	}
	log, err := os.OpenFile(c.log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		c.t.Fatal(err)
	}
	defer func() { _ = log.Close() }() // the program has its own copy
	cmd := exec.Command(program, c.args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = c.dir, log, log
	cmd.Env = append([]string{"PATH=/usr/local/bin:/usr/bin:/bin", "TMPDIR=" + c.dir}, c.env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.mu.Lock()
	c.cmd = cmd
	err = cmd.Start()
	c.mu.Unlock()
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() {
		c.kill()
		if c.t.Failed() {
			text, _ := os.ReadFile(c.log())
			c.t.Logf("the control plane: %s", text[max(0, len(text)-4000):])
		}
	})
	eventually(c.t, "the control plane is ready", func() error { return get(c.t.Context(), c.ready) })
}

func (c *control) log() string { return c.dir + ".log" }

// kill kills the program if it runs.
func (c *control) kill() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cmd == nil {
		return
	}
	_ = syscall.Kill(-c.cmd.Process.Pid, syscall.SIGKILL) // it may have exited
	_ = c.cmd.Wait()
	c.cmd = nil
}

func get(ctx context.Context, url string) error {
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	a, err := http.DefaultClient.Do(q)
	if err != nil {
		return err
	}
	defer func() { _ = a.Body.Close() }() // it is not read
	if a.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s", url, a.Status)
	}
	return nil
}

// eventually retries until there is no error.
func eventually(t *testing.T, what string, try func() error) {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		err := try()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("not in time: %s: %v", what, err)
		}
	}
}
