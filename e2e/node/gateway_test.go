// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

//go:build linux

package node

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const edgeHost = "shop.example.com"

// edge is a gateway: a Deployment that the template gateway turns into one, and the objects that
// route a host to the server.
const edge = `
apiVersion: v1
kind: ServiceAccount
metadata: {name: edge}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: edge}
rules: [{apiGroups: [""], resources: [secrets], verbs: [get, list, watch]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: edge}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: edge}
subjects: [{kind: ServiceAccount, name: edge}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: edge}
spec:
  selector: {matchLabels: {app: edge}}
  template:
    metadata: {labels: {app: edge}, annotations: {inject.istio.io/templates: gateway}}
    spec:
      serviceAccountName: edge
      containers: [{name: istio-proxy, image: auto, imagePullPolicy: IfNotPresent}]
---
apiVersion: v1
kind: Service
metadata: {name: edge}
spec: {selector: {app: edge}, ports: [{name: https, port: 443}]}
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: edge}
spec:
  selector: {app: edge}
  servers:
  - port: {number: 443, name: https, protocol: HTTPS}
    hosts: [` + edgeHost + `]
    tls: {mode: SIMPLE, credentialName: edge}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: edge}
spec:
  hosts: [` + edgeHost + `]
  gateways: [edge]
  http: [{route: [{destination: {host: server, port: {number: 80}}}]}]
`

// edgePair returns a certificate of the host and its Secret. The certificate is its own root.
func edgePair(t *testing.T, serial int64) (*x509.Certificate, *corev1.Secret) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: edgeHost}, DNSNames: []string{edgeHost},
		NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return cert, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "edge"}, Type: corev1.SecretTypeTLS, Data: map[string][]byte{
		corev1.TLSCertKey:       pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		corev1.TLSPrivateKeyKey: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}),
	}}
}

// overTLS requests a path of the host from an address on a new connection. It returns the body of
// the response and the certificate that the server presented, which must be one of the roots.
func overTLS(ctx context.Context, address, path string, roots ...*x509.Certificate) (body string, leaf *x509.Certificate, err error) {
	pool := x509.NewCertPool()
	for _, root := range roots {
		pool.AddCert(root)
	}
	client := &http.Client{Timeout: patience, Transport: &http.Transport{
		DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12},
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, address)
		},
	}}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+edgeHost+path, http.NoBody)
	if err != nil {
		return "", nil, err
	}
	response, err := client.Do(r)
	if err != nil {
		return "", nil, err
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", response.Status, text)
	}
	return string(text), response.TLS.PeerCertificates[0], err
}

// TestGateway reaches a server with strict mutual TLS through a gateway's Service over TLS, with the
// certificate of a Secret. When the Secret changes, the gateway presents the new certificate, and no
// request fails meanwhile.
func TestGateway(t *testing.T) {
	t.Parallel()
	n := mesh.Node(t)
	n.meshed(t, "edge")
	first, secret := edgePair(t, 1)
	secrets := n.Admin().CoreV1().Secrets("edge")
	if _, err := secrets.Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	n.apply(t, "edge", strict+"---"+fmt.Sprintf(server, "server")+strings.TrimPrefix(edge, "\n"))
	service, err := n.Admin().CoreV1().Services("edge").Get(t.Context(), "edge", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	address := net.JoinHostPort(service.Spec.ClusterIP, "443")
	n.Selected(t, "edge", "app=edge", Ready)
	n.eventually(t, "edge", func(ctx context.Context) error {
		body, _, err := overTLS(ctx, address, "/headers", first)
		const identity = "URI=spiffe://cluster.local/ns/edge/sa/edge"
		if err == nil && !strings.Contains(body, identity) {
			err = fmt.Errorf("the server sees another client than %s: %s", identity, body)
		}
		return err
	})
	second, secret := edgePair(t, 2)
	if _, err := secrets.Update(t.Context(), secret, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	n.eventually(t, "edge", func(ctx context.Context) error {
		_, leaf, err := overTLS(ctx, address, "/", first, second)
		if err != nil {
			t.Fatalf("a request fails while the certificate changes: %v", err)
		}
		if !bytes.Equal(leaf.Raw, second.Raw) {
			return errors.New("the gateway presents the old certificate")
		}
		return nil
	})
}
