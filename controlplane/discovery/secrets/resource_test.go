// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package secrets

import (
	"log/slog"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/outrigger-mesh/outrigger/controlplane/credentials"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

func unpack(t *testing.T, r *xds.Resource) proto.Message {
	t.Helper()
	packed := &anypb.Any{}
	if err := proto.Unmarshal(r.Any, packed); err != nil {
		t.Fatal(err)
	}
	m, err := packed.UnmarshalNew()
	if err != nil {
		t.Fatal(err)
	}
	return m
}

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
		return func(name string) (*xds.Resource, error) { return keyPairResource(name, &p) }
	}
	rootsOf := func(r credentials.Roots) func(string) (*xds.Resource, error) {
		return func(name string) (*xds.Resource, error) { return rootsResource(name, &r) }
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

// TestViewCountsItsSecrets checks that only changes of requested Secrets are counted.
func TestViewCountsItsSecrets(t *testing.T) {
	t.Parallel()
	v := New(Config{}, nil, nil).NewView(Client{Namespace: "default", Log: slog.New(slog.DiscardHandler)})
	v.Set([]string{"kubernetes://shop"}, &snapshot.Mesh{})
	if v.Changed("default", "other") || v.Changed("bank", "shop") || v.changes.Load() != 0 {
		t.Error("the view counts a change of a Secret that nobody requested")
	}
	if !v.Changed("default", "shop") {
		t.Error("the view does not count a change of its Secret")
	}
	if v.Reset(); v.Changed("default", "shop") {
		t.Error("the view counts a change of a Secret after it was closed")
	}
}

// TestNoSecretWithoutCaller checks that a client without a proven identity is refused on any port.
func TestNoSecretWithoutCaller(t *testing.T) {
	t.Parallel()
	table, err := credentials.NewTable(slog.New(slog.DiscardHandler), nil)
	if err != nil {
		t.Fatal(err)
	}
	table.SetSynced()
	v := New(Config{Source: table}, nil, nil).NewView(Client{Namespace: "default", Log: slog.New(slog.DiscardHandler)})
	if _, no := v.secret(secretRef{name: "kubernetes://shop"}); no.label != refusedPlaintext {
		t.Errorf("refused for %q, want %q", no.label, refusedPlaintext)
	}
}
