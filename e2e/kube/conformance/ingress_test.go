// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package conformance

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/gateway-api/conformance/utils/kubernetes"
)

const ingressAddress = "127.77.58.250"

const ingresses = `
apiVersion: networking.k8s.io/v1
kind: IngressClass
metadata: {name: mesh}
spec: {controller: istio.io/ingress-controller}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: shop, namespace: gateway-conformance-infra}
spec:
  ingressClassName: mesh
  tls: [{hosts: [shop.example.com], secretName: shop}]
  rules:
  - host: shop.example.com
    http:
      paths:
      - {path: /one, pathType: Prefix, backend: {service: {name: infra-backend-v1, port: {name: first-port}}}}
      - {path: /one/exact, pathType: Exact, backend: {service: {name: infra-backend-v2, port: {number: 8080}}}}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: foreign, namespace: gateway-conformance-infra}
spec: {ingressClassName: another, defaultBackend: {service: {name: infra-backend-v1, port: {number: 8080}}}}
`

// ingress checks the responses of an Ingress over HTTP and TLS, and its status. It runs after the
// suite, whose backends it uses.
func (w *world) ingress(t *testing.T) {
	ctx := t.Context()
	services := w.cluster.Admin().CoreV1().Services(meshNamespace)
	s, err := services.Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "istio-ingressgateway"},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, Ports: []corev1.ServicePort{{Name: "status", Port: 15021}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: ingressAddress}}
	if _, err := services.UpdateStatus(ctx, s, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	secret := kubernetes.MustCreateSelfSignedCertSecret(t, meshNamespace, "shop", []string{"shop.example.com"})
	if err := w.client.Create(ctx, secret); err != nil {
		t.Fatal(err)
	}
	if err := w.cluster.Apply(ctx, []byte(secretReader+"---"+ingresses)); err != nil {
		t.Fatal(err)
	}
	if err := w.agent(ctx, "ingress", meshNamespace, ingressAddress, metav1.ObjectMeta{Name: "ingress", Labels: map[string]string{"istio": "ingressgateway"}}); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{"/one": "infra-backend-v1", "/one/more": "infra-backend-v1", "/one/exact": "infra-backend-v2", "/onemore": "404", "/": "404"} {
		w.soon(t, path, func() error { return ask(ctx, "http://shop.example.com"+path, nil, want) })
		w.soon(t, path+" over TLS", func() error { return ask(ctx, "https://shop.example.com"+path, secret.Data["tls.crt"], want) })
	}
	w.soon(t, "the status", func() error {
		got, err := w.cluster.Admin().NetworkingV1().Ingresses("gateway-conformance-infra").Get(ctx, "shop", metav1.GetOptions{})
		if err == nil && (len(got.Status.LoadBalancer.Ingress) != 1 || got.Status.LoadBalancer.Ingress[0].IP != ingressAddress) {
			err = fmt.Errorf("it is %+v", got.Status)
		}
		return err
	})
	foreign, err := w.cluster.Admin().NetworkingV1().Ingresses("gateway-conformance-infra").Get(ctx, "foreign", metav1.GetOptions{})
	if err != nil || len(foreign.Status.LoadBalancer.Ingress) != 0 {
		t.Errorf("the Ingress of another class says %+v, %v", foreign.Status, err)
	}
}

// ask sends a request to the gateway of Ingresses, and compares the backend or the code of the
// response.
func ask(ctx context.Context, url string, root []byte, want string) error {
	dial := func(ctx context.Context, network, address string) (net.Conn, error) {
		_, port, _ := net.SplitHostPort(address) // created by the client
		var d net.Dialer
		return d.DialContext(ctx, network, net.JoinHostPort(ingressAddress, port))
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(root)
	transport := &http.Transport{DialContext: dial, DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	a, err := transport.RoundTrip(q)
	if err != nil {
		return err
	}
	text, err := io.ReadAll(a.Body)
	if err := errors.Join(err, a.Body.Close()); err != nil {
		return err
	}
	if a.Status[:3] != want && !bytes.Contains(text, []byte(`"`+want+"-0-0")) {
		return fmt.Errorf("%s answers %s %s, want %s", url, a.Status, text, want)
	}
	return nil
}

// secretReader allows the gateway of Ingresses to read the Secrets of its namespace.
const secretReader = `
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: secret-reader, namespace: istio-system}
rules:
- {apiGroups: [""], resources: [secrets], verbs: [get, list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: secret-reader, namespace: istio-system}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: secret-reader}
subjects: [{kind: ServiceAccount, name: ingress, namespace: istio-system}]
`
