// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package chart

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// istioAuthority is the Secret in which istiod stores its self-signed authority.
func istioAuthority(t *testing.T) (secret *corev1.Secret, root string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{Organization: []string{"cluster.local"}},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(10, 0, 0),
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign, BasicConstraintsValid: true, IsCA: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "istio-ca-secret"}, Type: "istio.io/ca-root",
		Data: map[string][]byte{"ca-cert.pem": cert, "ca-key.pem": pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER})},
	}, string(cert)
}

// TestBesideIstio checks that a revision beside Istio, in its namespace, has the authority and the
// mesh config of Istio: docs/ tasks/migrate-from-istio.md. A namespace moves by its label, there
// and back. After an uninstall all of Istio is still there.
func TestBesideIstio(t *testing.T) {
	t.Parallel()
	c, namespace := shared.Namespace(t)
	r := releaseIn(t, c, namespace)
	admin, api := kubeconfig(t, c), c.Admin().CoreV1()
	secret, root := istioAuthority(t)
	if _, err := api.Secrets(namespace).Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	istio := fmt.Sprintf(`
apiVersion: v1
kind: ConfigMap
metadata: {name: istio, namespace: %[1]s}
data: {mesh: "trustDomain: istio.example\ndefaultConfig: {discoveryAddress: 'istiod.%[1]s.svc:15012'}\n"}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: istio-sidecar-injector, namespace: %[1]s}
data: {config: "policy: enabled", values: "{}"}
---
apiVersion: v1
kind: Service
metadata: {name: istiod, namespace: %[1]s}
spec: {ports: [{name: https-dns, port: 15012}]}
`, namespace)
	if err := c.Apply(t.Context(), []byte(istio)); err != nil {
		t.Fatal(err)
	}
	args := []string{"--revision=beside-istio", "--namespace=" + namespace}
	if out, err := tool(t, admin, append([]string{"install", "--wait=false", "--set=env.SHARED_MESH_CONFIG=istio"}, args...)...); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	r.newControl("-beside-istio").start()
	eventually(t, "the webhooks have roots", func() error { return r.patched("beside-istio", 3) })
	hooks, err := r.hooks("beside-istio")
	for name, h := range hooks {
		if err != nil || strings.TrimSpace(h.bundle) != strings.TrimSpace(root) {
			t.Errorf("%s has the roots %s, want Istio's %s (%v)", name, h.bundle, root, err)
		}
	}

	mesh := labeled(t, "istio.io/rev", "beside-istio")
	var pod *corev1.Pod
	eventually(t, "a pod has the proxy of Outrigger and the trust domain of Istio", func() error {
		pod, err = r.admitted(mesh, &corev1.Pod{})
		if err == nil && !strings.Contains(pod.String(), "istio.example") {
			err = errors.New("it has no trust domain of Istio")
		}
		return err
	})
	if text := pod.String(); !strings.Contains(text, "outrigger/proxy:") || !strings.Contains(text, "istiod-beside-istio."+namespace+".svc:15012") {
		t.Errorf("the pod is %s", text)
	}
	label(t, c, mesh, "istio.io/rev", "default")
	eventually(t, "after the way back a pod has no proxy of Outrigger", func() error {
		proxy, err := r.admit(mesh, &corev1.Pod{})
		if err == nil && proxy {
			err = errors.New("it has one")
		}
		return err
	})

	if out, err := tool(t, admin, append([]string{"uninstall"}, args...)...); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	r.nothingLeft("beside-istio")
	for _, name := range []string{"istio", "istio-sidecar-injector"} {
		if _, err := api.ConfigMaps(namespace).Get(t.Context(), name, metav1.GetOptions{}); err != nil {
			t.Error(err)
		}
	}
	if _, err := api.Services(namespace).Get(t.Context(), "istiod", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
	if after, err := api.Secrets(namespace).Get(t.Context(), "istio-ca-secret", metav1.GetOptions{}); err != nil || string(after.Data["ca-cert.pem"]) != root {
		t.Errorf("the authority of Istio is changed (%v)", err)
	}
}
