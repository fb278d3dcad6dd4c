// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

//go:build linux

package node

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
)

const deployedGateway = `
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: istio}
spec: {controllerName: istio.io/gateway-controller}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: entry, namespace: deployed, annotations: {networking.istio.io/service-type: ClusterIP}}
spec:
  gatewayClassName: istio
  listeners:
  - {name: http, port: 80, protocol: HTTP}
  - {name: https, port: 443, protocol: HTTPS, hostname: ` + edgeHost + `, tls: {certificateRefs: [{name: edge}]}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: entry, namespace: deployed}
spec:
  parentRefs: [{name: entry}]
  rules: [{backendRefs: [{name: server, port: 80}]}]
`

// TestDeployedGateway applies a Gateway and an HTTPRoute of the Gateway API. The control plane
// deploys the proxy, which serves HTTP, and TLS with the certificate of a Secret, on ports below
// 1024, and reaches a server with strict mutual TLS. The deployed objects are deleted with the
// Gateway.
func TestDeployedGateway(t *testing.T) {
	t.Parallel()
	n := mesh.Node(t)
	if err := n.ApplyCRDs(t.Context(), filepath.Join(n.files.GatewayAPI, "config", "crd", "standard")); err != nil {
		t.Fatal(err)
	}
	n.meshed(t, "deployed")
	root, secret := edgePair(t, 1)
	if _, err := n.Admin().CoreV1().Secrets("deployed").Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	n.apply(t, "deployed", strict+"---"+fmt.Sprintf(server, "server")+strings.TrimPrefix(deployedGateway, "\n"))
	n.Selected(t, "deployed", "gateway.networking.k8s.io/gateway-name=entry", Ready)
	service, err := n.Admin().CoreV1().Services("deployed").Get(t.Context(), "entry-istio", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	seen := func(body string, err error) error {
		const identity = "URI=spiffe://cluster.local/ns/deployed/sa/entry-istio"
		if err == nil && !strings.Contains(body, identity) {
			err = fmt.Errorf("the server sees another client than %s: %s", identity, body)
		}
		return err
	}
	n.eventually(t, "deployed", func(ctx context.Context) error {
		return seen(fetch(ctx, "http://"+service.Spec.ClusterIP+"/headers"))
	})
	n.eventually(t, "deployed", func(ctx context.Context) error {
		body, _, err := overTLS(ctx, net.JoinHostPort(service.Spec.ClusterIP, "443"), "/headers", root)
		return seen(body, err)
	})
	untyped, err := dynamic.NewForConfig(n.AdminConfig())
	if err != nil {
		t.Fatal(err)
	}
	gateways := untyped.Resource(schema.GroupVersionResource{Group: "gateway.networking.k8s.io", Version: "v1", Resource: "gateways"}).Namespace("deployed")
	if err := gateways.Delete(t.Context(), "entry", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	n.eventually(t, "deployed", func(ctx context.Context) error {
		_, err := n.Admin().AppsV1().Deployments("deployed").Get(ctx, "entry-istio", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("the Gateway is gone; its Deployment: %w", err)
	})
}
