// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package kube

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
)

// gatewayMesh is a cluster with Gateways of the Gateway API in the namespace edge, and the rights of
// a control plane that deploys their proxies.
type gatewayMesh struct {
	*Cluster

	t          *testing.T
	kubeconfig string
}

func newGatewayMesh(t *testing.T) *gatewayMesh {
	t.Helper()
	c := configCluster(t)
	m := &gatewayMesh{Cluster: c, t: t}
	m.kubeconfig = install(t, c, "rbac.yaml", "rbac-config.yaml", "rbac-inject.yaml", "rbac-credentials.yaml", "rbac-gateways.yaml")
	if err := c.CreateNamespace(t.Context(), "edge"); err != nil {
		t.Fatal(err)
	}
	m.apply(`
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: istio}
spec: {controllerName: istio.io/gateway-controller}
---
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: other}
spec: {controllerName: example.com/other}
`)
	return m
}

// control creates a control plane that reads its configuration from the cluster.
func (m *gatewayMesh) control(env ...string) *control {
	m.t.Helper()
	c := newControl(m.t, m.kubeconfig, append([]string{"OUTRIGGER_CREDENTIALS=k8s://", "CLUSTER_ID=one"}, env...),
		"--meshConfig", "mesh", "--kubernetesApiQPS", "400", "--kubernetesApiBurst", "800")
	if err := os.WriteFile(filepath.Join(c.dir, "mesh"), []byte("configSources: [{address: \"k8s://\"}]\n"), 0o600); err != nil {
		m.t.Fatal(err)
	}
	if err := c.Start(testContext(m.t)); err != nil {
		m.t.Fatal(err)
	}
	return c
}

func (m *gatewayMesh) apply(text string) {
	m.t.Helper()
	if err := m.Apply(m.t.Context(), []byte(text)); err != nil {
		m.t.Fatal(err)
	}
}

// gateway returns the YAML of a Gateway in edge with one listener, and more lines of its spec.
func gateway(name, class string, more ...string) string {
	return fmt.Sprintf(`---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: %s, namespace: edge}
spec:
  gatewayClassName: %s
  listeners: [{name: http, port: 80, protocol: HTTP}]
  %s
`, name, class, strings.Join(more, "\n  "))
}

func (m *gatewayMesh) gateways() dynamic.ResourceInterface {
	return untyped(m.t, m.Cluster).Resource(schema.GroupVersionResource{Group: "gateway.networking.k8s.io", Version: "v1", Resource: "gateways"}).Namespace("edge")
}

// objects returns the objects that are deployed for a Gateway in edge.
type objects struct {
	account    *corev1.ServiceAccount
	deployment *appsv1.Deployment
	service    *corev1.Service
}

func (m *gatewayMesh) read(name string) (o objects, err error) {
	ctx, admin := m.t.Context(), m.Admin()
	var errs [3]error
	o.account, errs[0] = admin.CoreV1().ServiceAccounts("edge").Get(ctx, name, metav1.GetOptions{})
	o.deployment, errs[1] = admin.AppsV1().Deployments("edge").Get(ctx, name, metav1.GetOptions{})
	o.service, errs[2] = admin.CoreV1().Services("edge").Get(ctx, name, metav1.GetOptions{})
	return o, errors.Join(errs[:]...)
}

// deployed waits until the objects of a Gateway exist and pass the check of a test.
func (m *gatewayMesh) deployed(what, name string, is func(objects) error) (o objects) {
	m.t.Helper()
	soon(m.t, what, func() (err error) {
		if o, err = m.read(name); err != nil {
			return err
		}
		// A created object is written twice more. A Service, which is the last one, is written a third
		// time, which sets the time of its managed fields.
		for _, meta := range []metav1.ObjectMeta{o.account.ObjectMeta, o.deployment.ObjectMeta, o.service.ObjectMeta} {
			for _, e := range meta.ManagedFields {
				last := meta.UID == o.service.UID && e.Time == nil
				if strings.HasSuffix(e.Manager, "-deployment") && (e.Operation == metav1.ManagedFieldsOperationUpdate || last) {
					return fmt.Errorf("%s is not applied yet", meta.Name)
				}
			}
		}
		if is == nil {
			return nil
		}
		return is(o)
	})
	return o
}

// nothing fails the test if an object of a name is in edge.
func (m *gatewayMesh) nothing(name string) {
	m.t.Helper()
	o, err := m.read(name)
	if !apierrors.IsNotFound(err) || o.account.GetName()+o.deployment.GetName()+o.service.GetName() != "" {
		m.t.Errorf("%s was deployed: account %q, Deployment %q, Service %q, error %v", name, o.account.GetName(), o.deployment.GetName(), o.service.GetName(), err)
	}
}

// ports returns the ports of a Service as text.
func ports(s *corev1.Service) string {
	var out []string
	for _, p := range s.Spec.Ports {
		out = append(out, fmt.Sprintf("%s %d %s", p.Name, p.Port, *p.AppProtocol))
	}
	return strings.Join(out, ", ")
}

func want[T comparable](what string, got, want T) error {
	if got != want {
		return fmt.Errorf("%s is %v, want %v", what, got, want)
	}
	return nil
}
