// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package sds

import (
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
)

// FuzzRead compares the readers with the generated types.
func FuzzRead(f *testing.F) {
	for _, m := range []proto.Message{
		&discoveryv3.DiscoveryRequest{TypeUrl: secretType, ResourceNames: []string{"a", "b"}, ResponseNonce: "1", ErrorDetail: &status.Status{Code: 3, Message: "m"}},
		&discoveryv3.DeltaDiscoveryRequest{
			TypeUrl: secretType, ResourceNamesSubscribe: []string{"a"}, ResourceNamesUnsubscribe: []string{"b"},
			InitialResourceVersions: map[string]string{"a": "1"}, ResponseNonce: "1", ErrorDetail: &status.Status{Code: 3},
		},
	} {
		b, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var s discoveryv3.DiscoveryRequest
		if got, err := readSotW(b); proto.Unmarshal(b, &s) == nil {
			want := newSubscription()
			want.replace(s.GetResourceNames())
			compare(t, got, err, s.GetTypeUrl(), s.GetResponseNonce(), s.GetErrorDetail(), want)
		}
		var d discoveryv3.DeltaDiscoveryRequest
		if got, err := readDelta(b); proto.Unmarshal(b, &d) == nil {
			want := newSubscription()
			want.remove(d.GetResourceNamesUnsubscribe())
			want.add(d.GetResourceNamesSubscribe(), d.GetInitialResourceVersions())
			compare(t, got, err, d.GetTypeUrl(), d.GetResponseNonce(), d.GetErrorDetail(), want)
		}
	})
}

func compare(t *testing.T, got *request, err error, typeURL, nonce string, detail *status.Status, want *subscription) {
	t.Helper()
	if err != nil {
		t.Fatalf("protobuf accepts the message: %v", err)
	}
	if got.typeURL != typeURL || got.nonce != nonce {
		t.Errorf("read type %q and nonce %q, want %q and %q", got.typeURL, got.nonce, typeURL, nonce)
	}
	// Compare only the presence: protobuf merges details that occur twice, which Envoy never sends.
	if (got.rejection != "") != (detail != nil) {
		t.Errorf("read the rejection %q from %v", got.rejection, detail)
	}
	sub := newSubscription()
	got.subscribe(sub)
	if diff := cmp.Diff(want.sent, sub.sent); diff != "" {
		t.Errorf("subscription (-want +got):\n%s", diff)
	}
}

// TestRender compares secrets with the generated types.
func TestRender(t *testing.T) {
	t.Parallel()
	inline := func(s string) *corev3.DataSource {
		return &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{InlineBytes: []byte(s)}}
	}
	// The extensions have no generated types here, so encode their configuration by hand.
	method := func(url string) *tlsv3.PrivateKeyProvider_TypedConfig {
		delay, err := proto.Marshal(durationpb.New(2*time.Second + 5*time.Millisecond))
		if err != nil {
			t.Fatal(err)
		}
		key, err := proto.Marshal(inline("k"))
		if err != nil {
			t.Fatal(err)
		}
		b := protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), key)
		b = protowire.AppendBytes(protowire.AppendTag(b, 2, protowire.BytesType), delay)
		return &tlsv3.PrivateKeyProvider_TypedConfig{TypedConfig: &anypb.Any{TypeUrl: "type.googleapis.com/" + url, Value: b}}
	}
	certificate := func(c *tlsv3.TlsCertificate) *tlsv3.Secret {
		c.CertificateChain = inline("c")
		return &tlsv3.Secret{Name: "n", Type: &tlsv3.Secret_TlsCertificate{TlsCertificate: c}}
	}
	validation := func(c *tlsv3.CertificateValidationContext) *tlsv3.Secret {
		return &tlsv3.Secret{Name: "n", Type: &tlsv3.Secret_ValidationContext{ValidationContext: c}}
	}
	pair := newCertificate([]byte("c"), []byte("k"), time.Time{})
	const delay = 2*time.Second + 5*time.Millisecond
	for name, tc := range map[string]struct {
		m        *material
		provider *KeyProvider
		want     *tlsv3.Secret
	}{
		"certificate": {m: pair, want: certificate(&tlsv3.TlsCertificate{PrivateKey: inline("k")})},
		"cryptomb": {m: pair, provider: &KeyProvider{Name: "cryptomb", PollDelay: delay}, want: certificate(&tlsv3.TlsCertificate{
			PrivateKeyProvider: &tlsv3.PrivateKeyProvider{
				ProviderName: "cryptomb",
				ConfigType:   method("envoy.extensions.private_key_providers.cryptomb.v3alpha.CryptoMbPrivateKeyMethodConfig"),
			},
		})},
		"qat, the key itself if need be": {m: pair, provider: &KeyProvider{Name: "qat", PollDelay: delay, Fallback: true}, want: certificate(&tlsv3.TlsCertificate{
			PrivateKey: inline("k"),
			PrivateKeyProvider: &tlsv3.PrivateKeyProvider{
				ProviderName: "qat", Fallback: true,
				ConfigType: method("envoy.extensions.private_key_providers.qat.v3alpha.QatPrivateKeyMethodConfig"),
			},
		})},
		"roots": {m: newValidation([]byte("r"), nil, time.Time{}), want: validation(&tlsv3.CertificateValidationContext{TrustedCa: inline("r")})},
		"roots and revoked": {
			m: newValidation([]byte("r"), []byte("x"), time.Time{}), provider: &KeyProvider{Name: "qat", PollDelay: delay},
			want: validation(&tlsv3.CertificateValidationContext{TrustedCa: inline("r"), Crl: inline("x")}),
		},
	} {
		var got anypb.Any
		if err := proto.Unmarshal(item{"n", tc.m}.render(tc.provider), &got); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		var s tlsv3.Secret
		if err := got.UnmarshalTo(&s); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if diff := cmp.Diff(tc.want, &s, protocmp.Transform()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestKeyProviderIsChecked(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		provider *KeyProvider
		wantErr  string
	}{
		{nil, ""},
		{&KeyProvider{Name: "qat", PollDelay: time.Millisecond}, ""},
		{&KeyProvider{Name: "sgx", PollDelay: time.Second}, "neither cryptomb nor qat"},
		{&KeyProvider{Name: "cryptomb"}, "1ms or more"},
	} {
		err := tc.provider.validate()
		if (err == nil) != (tc.wantErr == "") || err != nil && !strings.Contains(err.Error(), tc.wantErr) {
			t.Errorf("%+v: got error %v, want %q", tc.provider, err, tc.wantErr)
		}
	}
}
