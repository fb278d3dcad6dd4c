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

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	"sigs.k8s.io/gateway-api/conformance/utils/kubernetes"
)

const http3Gateway = `
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: http3, namespace: gateway-conformance-infra}
spec:
  gatewayClassName: istio
  tls: {frontend: {default: {}, perPort: [{port: 8443, tls: {validation: {caCertificateRefs: [{group: "", kind: ConfigMap, name: http3-clients}]}}}]}}
  listeners:
  - {name: https, port: 443, protocol: HTTPS, hostname: quic.example.com, tls: {certificateRefs: [{name: http3}]}}
  - {name: clients, port: 8443, protocol: HTTPS, hostname: quic.example.com, tls: {certificateRefs: [{name: http3}]}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: http3, namespace: gateway-conformance-infra}
spec: {parentRefs: [{name: http3}], rules: [{backendRefs: [{name: infra-backend-v1, port: 8080}]}]}
`

// http3 checks that a client of HTTP/3 reaches a backend through a Gateway, though the backend only
// has HTTP/1.1, that responses over TCP offer it, that the Service has the UDP port, and that listeners that verify clients have no HTTP/3.
func (w *world) http3(t *testing.T) {
	ctx := t.Context()
	const namespace = "gateway-conformance-infra"
	secret := kubernetes.MustCreateSelfSignedCertSecret(t, namespace, "http3", []string{"quic.example.com"})
	roots := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "http3-clients", Namespace: namespace}, Data: map[string]string{"ca.crt": string(secret.Data["tls.crt"])}}
	if err := errors.Join(w.client.Create(ctx, secret), w.client.Create(ctx, roots), w.cluster.Apply(ctx, []byte(http3Gateway))); err != nil {
		t.Fatal(err)
	}
	address := ""
	w.soon(t, "the address of the Gateway", func() error {
		g := &gatewayv1.Gateway{}
		if err := w.client.Get(ctx, types.NamespacedName{Namespace: namespace, Name: "http3"}, g); err != nil {
			return err
		}
		if len(g.Status.Addresses) != 1 {
			return fmt.Errorf("the status is %+v", g.Status)
		}
		address = g.Status.Addresses[0].Value
		return nil
	})
	service, err := w.cluster.Admin().CoreV1().Services(namespace).Get(ctx, "http3-istio", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	udp := map[int32]bool{}
	for _, p := range service.Spec.Ports {
		if p.Protocol == corev1.ProtocolUDP {
			udp[p.Port] = true
		}
	}
	if !udp[443] {
		t.Errorf("the ports of the Service are %+v", service.Spec.Ports)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(secret.Data["tls.crt"])
	config := &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS13}
	over3 := &http3.Transport{TLSClientConfig: config, Dial: func(ctx context.Context, at string, c *tls.Config, q *quic.Config) (*quic.Conn, error) {
		_, port, _ := net.SplitHostPort(at) // created by the client
		return quic.DialAddr(ctx, net.JoinHostPort(address, port), c, q)
	}}
	defer func() { _ = over3.Close() }() // the test has ended
	over2 := &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: true, DialContext: func(ctx context.Context, network, at string) (net.Conn, error) {
		_, port, _ := net.SplitHostPort(at) // the same
		var d net.Dialer
		return d.DialContext(ctx, network, net.JoinHostPort(address, port))
	}}
	w.soon(t, "HTTP/3", func() error { return exchange(ctx, over3, "https://quic.example.com/", 3, "") })
	w.soon(t, "HTTP/2", func() error { return exchange(ctx, over2, "https://quic.example.com/", 2, `h3=":443"; ma=86400`) })
	over2.CloseIdleConnections()
	if err := exchange(ctx, over3, "https://quic.example.com:8443/", 3, ""); err == nil {
		t.Error("a client without certificate uses HTTP/3 at a port where clients are verified")
	}
}

// exchange sends a request to infra-backend-v1, and compares the version of HTTP and the header
// alt-svc of the response.
func exchange(ctx context.Context, client http.RoundTripper, url string, version int, offer string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	a, err := client.RoundTrip(q)
	if err != nil {
		return err
	}
	text, err := io.ReadAll(a.Body)
	if err := errors.Join(err, a.Body.Close()); err != nil {
		return err
	}
	if a.StatusCode != http.StatusOK || a.ProtoMajor != version || !bytes.Contains(text, []byte(`"infra-backend-v1-`)) || offer != "" && a.Header.Get("Alt-Svc") != offer {
		return fmt.Errorf("%s answers %s %s %v %s", url, a.Proto, a.Status, a.Header, text)
	}
	return nil
}
