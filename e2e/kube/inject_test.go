// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package kube

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// injectedPod is a pod of a namespace; the rest is in its metadata.
const injectedPod = "apiVersion: v1\nkind: Pod\nmetadata: {name: %[2]s, namespace: %[1]s%[3]s}\nspec: {automountServiceAccountToken: false, containers: [{name: app, image: \"example/app:1\"}]}\n"

// debugImages and userRanges change the pods of a namespace.
const (
	debugImages = "apiVersion: networking.istio.io/v1beta1\nkind: ProxyConfig\nmetadata: {name: debug, namespace: canary}\nspec: {image: {imageType: debug}}\n"
	userRanges  = "apiVersion: v1\nkind: Namespace\nmetadata: {name: canary, labels: {istio.io/rev: default}, annotations: {openshift.io/sa.scc.uid-range: 1000620000/10000}}\n"
)

// TestInjection checks that new pods receive proxies according to the installed configuration.
// While the control plane is down, pods that would receive one are refused; all others are created,
// those of Kubernetes and of the control plane among them.
func TestInjection(t *testing.T) {
	t.Parallel()
	c := New(t, Options{})
	ctx := testContext(t)
	kubeconfig := install(t, c, "rbac.yaml", "rbac-webhook.yaml", "rbac-inject.yaml")
	cp := startControl(t, kubeconfig, []string{"PLATFORM=openshift"})
	installInjection(t, c, cp.host)
	made, user := 0, int64(0) // user is that of the last proxy
	// create creates a pod and returns the image of its proxy, "" without one.
	create := func(namespace, metadata string) (string, error) {
		made++
		name := fmt.Sprintf("pod-%d", made)
		if err := c.Apply(ctx, fmt.Appendf(nil, injectedPod, namespace, name, metadata)); err != nil {
			return "", err
		}
		pod, err := c.Admin().CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		all := slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers)
		if i := slices.IndexFunc(all, func(c corev1.Container) bool { return c.Name == "istio-proxy" }); i >= 0 {
			user = *all[i].SecurityContext.RunAsUser
			return all[i].Image, nil
		}
		return "", nil
	}
	soon(t, "the API server uses the roots", func() error { _, err := create("shop", ""); return err })
	for _, p := range []struct {
		namespace, metadata string
		want                bool
	}{
		{"shop", "", true},
		{"shop", `, labels: {sidecar.istio.io/inject: "false"}`, false},
		{"canary", "", true},
		{"default", "", false},
		{"default", `, labels: {sidecar.istio.io/inject: "true"}`, true},
		{"default", ", labels: {istio.io/rev: default}", true},
		{"default", ", labels: {istio.io/rev: other}", false},
		{meshNamespace, "", false},
		{meshNamespace, `, labels: {sidecar.istio.io/inject: "true"}`, true},
		{"kube-system", `, labels: {sidecar.istio.io/inject: "true"}`, false},
	} {
		image, err := create(p.namespace, p.metadata)
		if err != nil || (image != "") != p.want {
			t.Errorf("a pod of %s%s: image %q, %v", p.namespace, p.metadata, image, err)
		}
	}
	if _, err := create("shop", ", annotations: {sidecar.istio.io/proxyCPU: much}"); err == nil || !strings.Contains(err.Error(), `annotation sidecar.istio.io/proxyCPU is "much"`) {
		t.Errorf("a wrong annotation: %v", err)
	}
	const settings = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: istio-sidecar-injector, namespace: istio-system}\ndata: {values: \"global: {hub: mirror.example.com, tag: %s}\"}\n"
	if err := c.Apply(ctx, fmt.Appendf(nil, settings, `\"7\"`)); err != nil {
		t.Fatal(err)
	}
	soon(t, "new values are in force", func() error {
		if image, err := create("shop", ""); err != nil || image != "mirror.example.com/proxy:7" {
			return fmt.Errorf("image %q, %w", image, err)
		}
		return nil
	})
	if err := os.WriteFile(filepath.Join(cp.dir, "config", "proxy.yaml"), []byte(debugImages), 0o600); err != nil {
		t.Fatal(err)
	}
	soon(t, "a ProxyConfig object is in force", func() error {
		if image, err := create("canary", ""); err != nil || image != "mirror.example.com/proxy:7-debug" || user != 1337 {
			return fmt.Errorf("image %q, user %d, %w", image, user, err)
		}
		return nil
	})
	if err := c.Apply(ctx, []byte(userRanges)); err != nil {
		t.Fatal(err)
	}
	soon(t, "the user of the namespace is in force", func() error {
		if _, err := create("canary", ""); err != nil || user != 1000629999 {
			return fmt.Errorf("user %d, %w", user, err)
		}
		return nil
	})

	cp.Kill()
	for _, p := range []struct {
		namespace, metadata string
		created             bool
	}{
		{"shop", "", false},
		{"default", "", true},
		{"kube-system", "", true},
		{meshNamespace, "", true},
	} {
		if _, err := create(p.namespace, p.metadata); (err == nil) != p.created || err != nil && !strings.Contains(err.Error(), "failed calling webhook") {
			t.Errorf("without the control plane, a pod of %s: %v", p.namespace, err)
		}
	}
	if err := cp.Start(ctx); err != nil {
		t.Fatal(err)
	}
	soon(t, "pods are created again", func() error { _, err := create("shop", ""); return err })
}

// installInjection applies the configuration of the webhooks, which calls the control plane at an
// address, and namespaces with the labels that it selects. It waits until the roots are set.
func installInjection(t *testing.T, c *Cluster, host string) {
	t.Helper()
	ctx := testContext(t)
	manifest, err := os.ReadFile("../../examples/kubernetes/webhook-inject.yaml")
	if err != nil {
		t.Fatal(err)
	}
	const service = "service: {name: istiod, namespace: istio-system, path: /inject, port: 443}"
	hooks := strings.ReplaceAll(string(manifest), service, fmt.Sprintf("url: https://%s:15017/inject", host))
	if !strings.Contains(hooks, host) {
		t.Fatal("the manifest names another service")
	}
	namespaces := "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop, labels: {istio-injection: enabled}}\n---\n" +
		"apiVersion: v1\nkind: Namespace\nmetadata: {name: canary, labels: {istio.io/rev: default}}\n"
	if err := c.Apply(ctx, []byte(hooks+"---\n"+namespaces)); err != nil {
		t.Fatal(err)
	}
	for _, namespace := range []string{"shop", "canary", "default", "kube-system", meshNamespace} {
		account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default", Namespace: namespace}}
		_, _ = c.Admin().CoreV1().ServiceAccounts(namespace).Create(ctx, account, metav1.CreateOptions{}) // it may exist
	}
	soon(t, "the roots of the webhooks are set", func() error {
		got, err := c.Admin().AdmissionregistrationV1().MutatingWebhookConfigurations().Get(ctx, "istio-sidecar-injector", metav1.GetOptions{})
		if err != nil {
			return err
		}
		for i := range got.Webhooks {
			if len(got.Webhooks[i].ClientConfig.CABundle) == 0 {
				return fmt.Errorf("%s has no roots", got.Webhooks[i].Name)
			}
		}
		return nil
	})
}
