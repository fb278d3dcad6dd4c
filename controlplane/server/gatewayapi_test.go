// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package server

import (
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/outrigger-mesh/outrigger/certs"
	"github.com/outrigger-mesh/outrigger/controlplane/authn"
	"github.com/outrigger-mesh/outrigger/controlplane/credentials"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

const gatewayAPIFile = `
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: istio}
spec: {controllerName: istio.io/gateway-controller}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: edge, namespace: shop}
spec:
  gatewayClassName: istio
  addresses: [{type: IPAddress, value: 127.77.58.200}]
  listeners:
  - {name: http, port: 80, protocol: HTTP}
  - {name: https, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: edge}]}}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: cart, namespace: shop}
spec: {hosts: [cart.shop.svc.cluster.local], ports: [{name: http, number: 80, protocol: HTTP}], resolution: STATIC, endpoints: [{address: 127.77.58.201}]}
`

func routeFile(backend string) []byte {
	return []byte(`
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: cart, namespace: shop}
spec: {parentRefs: [{name: edge}], rules: [{backendRefs: [{name: ` + backend + `, port: 80}]}]}
`)
}

// resolved returns the reason of the condition ResolvedRefs of a route.
func (s *Server) resolved(key model.Key) string {
	c := s.objects.store.Get(key)
	if c == nil {
		return ""
	}
	status, _ := c.Status.(*gatewayv1.HTTPRouteStatus)
	if status == nil || len(status.Parents) != 1 {
		return ""
	}
	for _, c := range status.Parents[0].Conditions {
		if c.Type == string(gatewayv1.RouteConditionResolvedRefs) {
			return c.Reason
		}
	}
	return ""
}

// TestGatewayAPIFromFiles checks that objects of the Gateway API in a directory become Gateways and
// VirtualServices in addition to those of the store. Their status must be written, and must follow
// a change.
func TestGatewayAPIFromFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	route := filepath.Join(dir, "route.yaml")
	write(t, map[string][]byte{filepath.Join(dir, "edge.yaml"): []byte(gatewayAPIFile), route: routeFile("nobody")})
	s := serve(t, func(c *Config) {
		c.ConfigDir = dir
	})
	key := model.Key{Kind: model.HTTPRoute, Namespace: "shop", Name: "cart"}
	waitUntil(t, "the status of the route reports the missing backend", func() bool { return s.resolved(key) == "BackendNotFound" })
	write(t, map[string][]byte{route: routeFile("cart")})
	waitUntil(t, "the status of the route reports that all references are resolved", func() bool { return s.resolved(key) == "ResolvedRefs" })
	result := s.objects.conversion.view.Result()
	if g := result.Objects[model.Gateway]; len(g) != 1 || !strings.HasSuffix(g[0].Name, "-http") {
		t.Errorf("Gateways: got %v, want only that of the listener http, because no Secrets are read", g)
	}
	gateway, _ := s.objects.store.Get(model.Key{Kind: model.KubernetesGateway, Namespace: "shop", Name: "edge"}).Status.(*gatewayv1.GatewayStatus)
	if gateway == nil || len(gateway.Listeners) != 2 || gateway.Listeners[0].AttachedRoutes != 1 || len(gateway.Addresses) != 1 {
		t.Errorf("status of the Gateway: got %+v", gateway)
	}
	if made := s.objects.list(model.VirtualService); len(made) != 1 || s.objects.get(made[0].Key) != made[0] {
		t.Errorf("VirtualServices: got %v, want one for the listener http", made)
	}
}

// TestGatewayAccount checks that only the service account of a Gateway may read its Secrets,
// whatever a proxy claims.
func TestGatewayAccount(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	secrets, objects := filepath.Join(dir, "secrets"), filepath.Join(dir, "objects")
	for _, d := range []string{secrets, objects} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	key, err := certs.NewKey(certs.ECDSAP256)
	if err != nil {
		t.Fatal(err)
	}
	root := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, root, root, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := certs.MarshalKey(key)
	if err != nil {
		t.Fatal(err)
	}
	encode := base64.StdEncoding.EncodeToString
	write(t, map[string][]byte{
		filepath.Join(objects, "edge.yaml"): []byte(gatewayAPIFile),
		filepath.Join(secrets, "edge.yaml"): []byte(fmt.Sprintf("apiVersion: v1\nkind: Secret\nmetadata: {name: edge, namespace: shop}\ndata: {tls.crt: %s, tls.key: %s}\n",
			encode(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})), encode(private))),
	})
	s := serve(t, func(c *Config) {
		c.ConfigDir = objects
		c.Credentials.Source = "fs://" + secrets
		c.Credentials.Readers = []string{"other/account"}
	})
	ref := credentials.Reference{Scheme: credentials.SchemeGateway, Namespace: "shop", Name: "edge"}
	as := func(namespace, account string) bool {
		return s.objects.granted(nil, &authn.Caller{ID: certs.ID{TrustDomain: "cluster.local", Namespace: namespace, ServiceAccount: account}}, ref)
	}
	waitUntil(t, "the account of the Gateway may read its Secret", func() bool { return as("shop", "edge-istio") })
	if as("shop", "nobody") || as("shop", "edge") || as("other", "edge-istio") {
		t.Error("another service account may read the Secret of the Gateway")
	}
}

// TestPolicyRootsFromFiles checks that a BackendTLSPolicy uses the roots in a ConfigMap in a file,
// refuses requests while there is none, and that its status follows.
func TestPolicyRootsFromFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, map[string][]byte{
		filepath.Join(dir, "edge.yaml"): []byte(gatewayAPIFile), filepath.Join(dir, "route.yaml"): routeFile("cart"),
		filepath.Join(dir, "policy.yaml"): []byte(`
apiVersion: gateway.networking.k8s.io/v1
kind: BackendTLSPolicy
metadata: {name: cart, namespace: shop}
spec:
  targetRefs: [{group: "", kind: Service, name: cart}]
  validation: {hostname: cart.example.com, caCertificateRefs: [{group: "", kind: ConfigMap, name: roots}]}
`),
	})
	s := serve(t, func(c *Config) {
		c.ConfigDir, c.Credentials.Source, c.Credentials.Readers = dir, "fs://"+dir, []string{"other/account"}
	})
	credential := func() string {
		for _, r := range s.objects.list(model.DestinationRule) {
			if spec, ok := r.Spec.(*networkingv1alpha3.DestinationRule); ok {
				return spec.GetTrafficPolicy().GetTls().GetCredentialName()
			}
		}
		return ""
	}
	accepted := func() string {
		c := s.objects.store.Get(model.Key{Kind: model.BackendTLSPolicy, Namespace: "shop", Name: "cart"})
		if c == nil {
			return ""
		}
		if status, _ := c.Status.(*gatewayv1.PolicyStatus); status != nil && len(status.Ancestors) == 1 {
			return status.Ancestors[0].Conditions[0].Reason
		}
		return ""
	}
	ref := credentials.Reference{Scheme: credentials.SchemeConfigMap, Namespace: "shop", Name: "roots"}
	caller := &authn.Caller{ID: certs.ID{TrustDomain: "cluster.local", Namespace: "any", ServiceAccount: "one"}}
	waitUntil(t, "the status reports the missing ConfigMap", func() bool { return accepted() == "NoValidCACertificate" && credential() == "" })
	key, err := certs.NewKey(certs.ECDSAP256)
	if err != nil {
		t.Fatal(err)
	}
	root := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, root, root, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	text := strings.ReplaceAll("\n"+strings.TrimSpace(string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))), "\n", "\n    ")
	write(t, map[string][]byte{filepath.Join(dir, "roots.yaml"): []byte("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: roots, namespace: shop}\ndata:\n  ca.crt: |" + text + "\n")})
	waitUntil(t, "the roots are used", func() bool { return accepted() == "Accepted" && credential() == "configmap://shop/roots" })
	if !s.objects.granted(nil, caller, ref) {
		t.Error("a proxy may not read the roots of a policy")
	}
	ref.Name = "other"
	if s.objects.granted(nil, caller, ref) {
		t.Error("a proxy may read a ConfigMap that no object names")
	}
	for _, p := range s.objects.store.Problems() {
		t.Errorf("the ConfigMap in the directory of objects: %s", p)
	}
	if err := os.Remove(filepath.Join(dir, "roots.yaml")); err != nil {
		t.Fatal(err)
	}
	waitUntil(t, "the target is closed without the ConfigMap", func() bool { return accepted() == "NoValidCACertificate" && credential() == "" })
}

func TestGatewayAPIOff(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, map[string][]byte{filepath.Join(dir, "edge.yaml"): []byte(gatewayAPIFile), filepath.Join(dir, "route.yaml"): routeFile("cart")})
	s := serve(t, func(c *Config) {
		c.ConfigDir = dir
		c.GatewayAPI.On = false
	})
	waitUntil(t, "the first snapshot", s.discovery.Ready)
	if got := s.objects.list(model.VirtualService); len(got) != 0 {
		t.Errorf("%d VirtualServices although the Gateway API is disabled, want none", len(got))
	}
}
