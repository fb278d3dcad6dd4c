// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package chart

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/outrigger-mesh/outrigger/e2e/kube"
)

// kubeconfig returns the administrator's kubeconfig.
func kubeconfig(t *testing.T, c *kube.Cluster) string {
	t.Helper()
	file, err := c.Kubeconfig("admin", "system:masters")
	if err != nil {
		t.Fatal(err)
	}
	return file
}

// refuses runs outrigger, which must fail with an error that has all of the texts.
func refuses(t *testing.T, kubeconfig string, args []string, texts ...string) {
	t.Helper()
	out, err := tool(t, kubeconfig, args...)
	for _, text := range texts {
		if err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%v: %v, want an error with %q; it prints %s", args, err, text, out)
		}
	}
}

// rolledOut sets the status of a Deployment, as the controller manager does when all pods run.
func (r *release) rolledOut(name string) {
	r.t.Helper()
	eventually(r.t, "the Deployment is there", func() error {
		d, err := r.cluster.Admin().AppsV1().Deployments(r.namespace).Get(r.t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		n := *d.Spec.Replicas
		d.Status = appsv1.DeploymentStatus{ObservedGeneration: d.Generation, Replicas: n, UpdatedReplicas: n, ReadyReplicas: n, AvailableReplicas: n}
		_, err = r.cluster.Admin().AppsV1().Deployments(r.namespace).UpdateStatus(r.t.Context(), d, metav1.UpdateOptions{})
		return err
	})
}

// TestTool checks that outrigger install waits until the control plane runs and its webhook
// responds. The same command with other values changes the installation, and removes objects that
// are no longer part of it.
func TestTool(t *testing.T) {
	t.Parallel()
	c, existing := shared.Namespace(t)
	r := releaseIn(t, c, existing+"-new") // which the command creates
	admin := kubeconfig(t, c)
	release := []string{"--revision=tool", "--namespace=" + r.namespace}
	type result struct {
		out string
		err error
	}
	done := make(chan result, 1)
	go func() {
		out, err := tool(t, admin, append([]string{"install", "--timeout=" + patience.String()}, release...)...)
		done <- result{out, err}
	}()
	eventually(t, "the namespace is there", func() error { return c.CreateServiceAccount(t.Context(), r.namespace, "default") })
	eventually(t, "the webhooks are there", func() error {
		hooks, err := r.hooks("tool")
		if err == nil && len(hooks) < 3 {
			err = fmt.Errorf("there are %d", len(hooks))
		}
		return err
	})
	control := r.newControl("-tool")
	control.start()
	r.rolledOut("outrigger-control-tool")
	if got := <-done; got.err != nil || !strings.Contains(got.out, "waiting: ") || !strings.Contains(got.out, "outrigger-control-tool is ready in "+r.namespace) ||
		!strings.Contains(got.out, "kubectl label namespace default istio.io/rev=tool") {
		t.Fatalf("outrigger install: %v: %s", got.err, got.out)
	}
	if err := r.patched("tool", 3); err != nil {
		t.Error(err)
	}
	before, err := r.hooks("tool")
	if err != nil {
		t.Fatal(err)
	}
	control.kill()

	must := func(args ...string) string {
		t.Helper()
		out, err := tool(t, admin, append(args, release...)...)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	budgets := func(want int) {
		t.Helper()
		list, err := c.Admin().PolicyV1().PodDisruptionBudgets(r.namespace).List(t.Context(), metav1.ListOptions{})
		if err != nil || len(list.Items) != want {
			t.Errorf("there are %d PodDisruptionBudgets, want %d (%v)", len(list.Items), want, err)
		}
	}
	budgets(1)
	if out := must("install", "--wait=false", "--set=podDisruptionBudget.enabled=false,logLevel=debug"); !strings.Contains(out, "1 old ones removed") {
		t.Errorf("an upgrade prints %s", out)
	}
	budgets(0)
	r.argument("tool", "--log_output_level=default:debug")
	if after, err := r.hooks("tool"); err != nil || !maps.Equal(before, after) {
		t.Errorf("after an upgrade the webhooks are %v, want %v (%v)", after, before, err)
	}

	// The API server refuses a label, so nothing changes: the budget is not restored.
	refuses(t, admin, append([]string{"install", "--set=podLabels.a b=c"}, release...), "nothing is installed", "deployment/outrigger-control-tool: ", "a b")
	budgets(0)
	// Another writer changes a field.
	other, err := tool(t, "", append([]string{"install", "--dry-run", "--set=logLevel=warn"}, release...)...)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Apply(t.Context(), []byte(other)); err != nil {
		t.Fatal(err)
	}
	refuses(t, admin, append([]string{"install"}, release...), "conflict", "these fields were set by others; --force-conflicts")
	must("install", "--force-conflicts", "--wait=false")
	r.argument("tool", "--log_output_level=default:info")

	if out := must("uninstall", "--dry-run"); !strings.Contains(out, "deployment/outrigger-control-tool\n") || !strings.Contains(out, "would be removed") {
		t.Errorf("uninstall --dry-run prints %s", out)
	}
	budgets(1)
	if out := must("uninstall"); !strings.HasPrefix(out, "validatingwebhookconfiguration/") || !strings.Contains(out, "kept: the kinds") {
		t.Errorf("uninstall prints %s", out)
	}
	r.nothingLeft("tool")
	if left, err := r.hooks("tool"); err != nil || len(left) > 0 {
		t.Errorf("the webhooks %v are left (%v)", left, err)
	}
	refuses(t, admin, append([]string{"uninstall"}, release...), "outrigger install has not installed outrigger-control-tool in "+r.namespace)
}

// argument checks an argument of the control plane.
func (r *release) argument(revision, want string) {
	r.t.Helper()
	d, err := r.cluster.Admin().AppsV1().Deployments(r.namespace).Get(r.t.Context(), "outrigger-control-"+revision, metav1.GetOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	if args := strings.Join(d.Spec.Template.Spec.Containers[0].Args, " "); !strings.Contains(args, want) {
		r.t.Errorf("the arguments are %s, want %s", args, want)
	}
}

// TestToolWaits checks that, while the control plane does not start, the command prints the reason
// and the next step.
func TestToolWaits(t *testing.T) {
	t.Parallel()
	c, namespace := shared.Namespace(t)
	pod, err := c.CreatePod(t.Context(), namespace, "outrigger-control-waits-1", "default")
	if err != nil {
		t.Fatal(err)
	}
	pod.Labels = map[string]string{"app.kubernetes.io/name": "outrigger-control", "istio.io/rev": "waits"}
	if pod, err = c.Admin().CoreV1().Pods(namespace).Update(t.Context(), pod, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	waiting := &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "outrigger/control: not found"}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "application", State: corev1.ContainerState{Waiting: waiting}}}
	if _, err := c.Admin().CoreV1().Pods(namespace).UpdateStatus(t.Context(), pod, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	refuses(t, kubeconfig(t, c), []string{"install", "--revision=waits", "--namespace=" + namespace, "--timeout=10s"},
		"the control plane is not ready after 10s: 0 of 1 pods of outrigger-control-waits are ready; ImagePullBackOff: outrigger/control: not found;",
		"run the same command again, or remove them with outrigger uninstall")
}

// TestToolBesideHelm checks that the command does not change objects that Helm installed,
// regardless of the release's name.
func TestToolBesideHelm(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"outrigger-beside", "mesh"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRelease(t)
			r.name = name
			r.mustInstall(map[string]any{"revision": "beside"}, false)
			admin := kubeconfig(t, r.cluster)
			refuses(t, admin, []string{"install", "--revision=beside", "-n", r.namespace}, "the release "+name+" of Helm", "helm uninstall -n "+r.namespace+" "+name)
			refuses(t, admin, []string{"uninstall", "--revision=beside", "-n", r.namespace}, "revision beside in "+r.namespace+" (managed by Helm)")
			if _, err := r.cluster.Admin().AppsV1().Deployments(r.namespace).Get(t.Context(), "outrigger-control-beside", metav1.GetOptions{}); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestToolKinds checks that kinds that others have installed are unchanged after the install and
// after the uninstall.
func TestToolKinds(t *testing.T) {
	t.Parallel()
	c := kube.New(t, kube.Options{})
	admin := kubeconfig(t, c)
	if err := c.Apply(t.Context(), []byte(`apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: sidecars.networking.istio.io}
spec:
  group: networking.istio.io
  scope: Namespaced
  names: {kind: Sidecar, plural: sidecars}
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
`)); err != nil {
		t.Fatal(err)
	}
	kinds := "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	out, err := tool(t, admin, "install", "--wait=false")
	if err != nil || !strings.Contains(out, "1 kinds (CustomResourceDefinitions) of another owner stay") || !strings.Contains(out, "the namespace istio-system was created") {
		t.Errorf("install: %v: %s", err, out)
	}
	if _, err := tool(t, admin, "install", "--wait=false", "--revision=second"); err != nil {
		t.Error(err)
	}
	refuses(t, admin, []string{"install", "-n", "elsewhere"}, "the revision default has another control plane, of mutatingwebhookconfiguration/istio-sidecar-injector: choose another --revision")
	refuses(t, admin, []string{"install", "--revision=third", "--set=tags={second}"}, "the revision second has another control plane, of mutatingwebhookconfiguration/istio-sidecar-injector-second")
	refuses(t, admin, []string{"uninstall", "--kinds"}, "other control planes need the kinds: revision second in istio-system")
	if _, err := tool(t, admin, "uninstall"); err != nil {
		t.Error(err)
	}
	if _, err := c.Admin().AppsV1().Deployments("istio-system").Get(t.Context(), "outrigger-control-second", metav1.GetOptions{}); err != nil {
		t.Errorf("the other revision: %v", err)
	}
	if out, err = tool(t, admin, "uninstall", "--revision=second", "--kinds"); err != nil || !strings.Contains(out, "kept: 1 kinds of Istio's API without the label") {
		t.Errorf("uninstall: %v: %s", err, out)
	}
	eventually(t, "only the other owner's kind is left", func() error {
		text, err := c.Admin().Discovery().RESTClient().Get().AbsPath(kinds).DoRaw(t.Context())
		if err == nil && (strings.Contains(string(text), "virtualservices") || !strings.Contains(string(text), "sidecars")) {
			err = fmt.Errorf("the kinds are %.300s", text)
		}
		return err
	})
	if _, err := c.Admin().CoreV1().Namespaces().Get(t.Context(), "istio-system", metav1.GetOptions{}); apierrors.IsNotFound(err) {
		t.Error("the namespace is gone")
	}
}
