// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/outrigger-mesh/outrigger/controlplane/credentials"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

func TestSecretResources(t *testing.T) {
	t.Parallel()
	text := func(s string) *corev3.DataSource {
		return &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{InlineBytes: []byte(s)}}
	}
	cert := func(c *tlsv3.TlsCertificate) *tlsv3.Secret {
		return &tlsv3.Secret{Name: "kubernetes://a", Type: &tlsv3.Secret_TlsCertificate{TlsCertificate: c}}
	}
	roots := func(c *tlsv3.CertificateValidationContext) *tlsv3.Secret {
		return &tlsv3.Secret{Name: "kubernetes://a", Type: &tlsv3.Secret_ValidationContext{ValidationContext: c}}
	}
	pairOf := func(p credentials.KeyPair) func(string) (*xds.Resource, error) {
		return func(name string) (*xds.Resource, error) { return KeyPair(name, &p) }
	}
	rootsOf := func(r credentials.Roots) func(string) (*xds.Resource, error) {
		return func(name string) (*xds.Resource, error) { return Roots(name, &r) }
	}
	for name, tc := range map[string]struct {
		make func(string) (*xds.Resource, error)
		want proto.Message
	}{
		"pair":   {pairOf(credentials.KeyPair{Chain: []byte("c"), Key: []byte("k")}), cert(&tlsv3.TlsCertificate{CertificateChain: text("c"), PrivateKey: text("k")})},
		"staple": {pairOf(credentials.KeyPair{Chain: []byte("c"), Key: []byte("k"), OCSPStaple: []byte("o")}), cert(&tlsv3.TlsCertificate{CertificateChain: text("c"), PrivateKey: text("k"), OcspStaple: text("o")})},
		"roots":  {rootsOf(credentials.Roots{PEM: []byte("r")}), roots(&tlsv3.CertificateValidationContext{TrustedCa: text("r")})},
		"list":   {rootsOf(credentials.Roots{PEM: []byte("r"), CRL: []byte("l")}), roots(&tlsv3.CertificateValidationContext{TrustedCa: text("r"), Crl: text("l")})},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, err := tc.make("kubernetes://a")
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, unpack(t, r), protocmp.Transform()); diff != "" || r.Name != "kubernetes://a" {
				t.Errorf("%s (-want +got):\n%s", r.Name, diff)
			}
			again, err := tc.make("kubernetes://a")
			if err != nil || again.Hash != r.Hash {
				t.Errorf("made again it has another hash, or %v", err)
			}
		})
	}
}

func TestTrust(t *testing.T) {
	t.Parallel()
	g := New(Config{})
	mesh := &snapshot.Mesh{Sequence: 1, Trust: &snapshot.Trust{PEM: []string{"one\n", "two\n"}}}
	for _, proxy := range []*model.Proxy{{Role: "sidecar"}, {Role: "router"}, {Role: "sidecar", Interception: model.InterceptionRedirect}} {
		set := g.Generate(mesh, proxy, xds.TypeProxyConfig)
		if len(set.Resources) != 1 || set != g.Generate(mesh, &model.Proxy{}, xds.TypeProxyConfig) {
			t.Fatalf("%+v gets %+v, which is not what all share", proxy, set)
		}
		want := &meshv1alpha1.ProxyConfig{CaCertificatesPem: []string{"one\n", "two\n"}}
		if diff := cmp.Diff(want, unpack(t, set.Resources[0]), protocmp.Transform()); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
	for name, mesh := range map[string]*snapshot.Mesh{"no bundle": {Sequence: 2}, "empty bundle": {Sequence: 2, Trust: &snapshot.Trust{}}} {
		if n := len(g.Generate(mesh, &model.Proxy{}, xds.TypeProxyConfig).Resources); n != 0 {
			t.Errorf("%s: %d resources", name, n)
		}
	}
}
