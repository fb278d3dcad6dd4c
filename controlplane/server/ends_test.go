// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package server

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/metadata"

	"github.com/outrigger-mesh/outrigger/certs"
	"github.com/outrigger-mesh/outrigger/controlplane/authn"
	"github.com/outrigger-mesh/outrigger/controlplane/ca"
	"github.com/outrigger-mesh/outrigger/controlplane/jwks"
	"github.com/outrigger-mesh/outrigger/controlplane/report"
)

// answering is a transport that answers with a text once, and then fails.
type answering struct{ text []byte }

// RoundTrip implements http.RoundTripper.
func (a *answering) RoundTrip(r *http.Request) (*http.Response, error) {
	if a.text == nil {
		return nil, errors.New("the issuer is away")
	}
	body := io.NopCloser(bytes.NewReader(a.text))
	a.text = nil
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: body, Request: r}, nil
}

// handshake reports whether a client that trusts a root accepts the certificate of a server.
func handshake(t *testing.T, root []byte, name string, get func(*tls.ClientHelloInfo) (*tls.Certificate, error)) bool {
	t.Helper()
	theirs, ours := net.Pipe()
	late := time.Now().Add(10 * time.Millisecond) // both may write at the same time
	if err := errors.Join(theirs.SetDeadline(late), ours.SetDeadline(late)); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = tls.Server(theirs, &tls.Config{GetCertificate: get}).HandshakeContext(t.Context()) // the client tells
		_ = theirs.Close()
	}()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(root)
	err := tls.Client(ours, &tls.Config{RootCAs: roots, ServerName: name}).HandshakeContext(t.Context())
	_ = ours.Close()
	<-done
	return err == nil
}

// TestEnds checks that what is said to end of a control plane works until a second before, and not a second
// after: signing with a plugged-in authority, certificates from files and of the authority, and the tokens of
// an issuer that does not answer any more.
func TestEnds(t *testing.T) {
	t.Parallel()
	signer := newIssuer(t)
	resp, err := http.Get(signer.url)
	if err != nil {
		t.Fatal(err)
	}
	keys, err := io.ReadAll(resp.Body)
	if err = errors.Join(err, resp.Body.Close()); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		dir, log := t.TempDir(), slog.New(slog.DiscardHandler)
		root, rootKey := newPair(t, "root", true) // for an hour
		write(t, map[string][]byte{
			filepath.Join(dir, "ca-cert.pem"): root, filepath.Join(dir, "ca-key.pem"): rootKey, filepath.Join(dir, "cert-chain.pem"): root, filepath.Join(dir, "root-cert.pem"): root,
		})
		authority, err := ca.Open(t.Context(), ca.Config{Dir: t.TempDir(), PluginDir: dir, TrustDomain: "cluster.local", Logger: log})
		if err != nil {
			t.Fatal(err)
		}
		token, err := authn.NewJWT(authn.JWTConfig{Issuer: "tests", Audiences: []string{"istio-ca"}, TrustDomain: "cluster.local", JWKSURL: "https://issuer.example/keys", Logger: log, Fetch: jwks.RemoteConfig{FetchConfig: jwks.FetchConfig{AnyHost: true, Transport: &answering{keys}}, MaxStale: 30 * time.Minute}})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		go func() { _ = token.Run(ctx) }() // it ends with ctx
		defer cancel()
		time.Sleep(10 * time.Minute)
		other, otherKey := newPair(t, "other.example", true)
		extra, _ := newPair(t, "extra", true)
		file := filepath.Join(dir, "tls.crt")
		write(t, map[string][]byte{file: other, filepath.Join(dir, "tls.key"): otherKey})
		own := &ownCertificate{certFile: file, keyFile: filepath.Join(dir, "tls.key"), log: log}
		issued, err := authority.ServerCertificate([]string{"istiod.example"}, nil)
		if err = errors.Join(err, authority.SetRoots("mesh", extra)); err != nil {
			t.Fatal(err)
		}
		s := &Server{identity: identity{
			authority: authority, tokens: []*authn.JWT{token},
			served: []served{{port: xdsPort, file: file, get: own.get}, {port: webhookPort, get: issued.GetCertificate}},
		}}
		id := certs.ID{TrustDomain: "cluster.local", Namespace: "shop", ServiceAccount: "web"}
		key, err := certs.NewKey(certs.ECDSAP256)
		if err != nil {
			t.Fatal(err)
		}
		csr, err := certs.NewCSR(key, id)
		if err != nil {
			t.Fatal(err)
		}
		works := map[string]func() bool{
			"token keys of tests": func() bool {
				_, err := token.Authenticate(metadata.NewIncomingContext(t.Context(), metadata.Pairs("authorization", "Bearer "+signer.token(t, "istio-ca"))))
				return err == nil
			},
			"CA certificate": func() bool {
				_, err := authority.Sign(t.Context(), csr, id, time.Hour)
				return err == nil
			},
			"certificate of the webhook port": func() bool { return handshake(t, root, "istiod.example", issued.GetCertificate) },
			"certificate of the xDS port":     func() bool { return handshake(t, other, "other.example", own.get) },
		}
		said := s.ends()
		names := make([]string, len(said))
		for i, e := range said {
			names[i] = e.What
			if e.By == "" && e.What != "certificate of the webhook port" || e.Then == "" || e.Soon {
				t.Errorf("got %+v", e)
			}
		}
		if diff := cmp.Diff([]string{"token keys of tests", "CA certificate", "certificate of the webhook port", "additional root certificate CN=extra", "certificate of the xDS port"}, names); diff != "" {
			t.Error(diff)
		}
		checked, reg := 0, prometheus.NewRegistry()
		reg.MustRegister(endsCollector{s.ends})
		if got, err := reg.Gather(); err != nil || len(got) != 1 || len(got[0].GetMetric()) != len(said) {
			t.Errorf("the metric is %v, error %v", got, err)
		}
		for _, until := range []time.Time{said[0].Until, said[1].Until, said[4].Until} {
			at := slices.DeleteFunc(slices.Clone(said), func(e report.Credential) bool { return works[e.What] == nil || !e.Until.Equal(until) })
			time.Sleep(time.Until(until.Add(-time.Second)))
			for _, e := range at {
				if soon := slices.ContainsFunc(s.ends(), func(c report.Credential) bool { return c.What == e.What && c.Soon && c.Until.Equal(until) }); !works[e.What]() || !soon {
					t.Errorf("a second before %s ends it does not work, or is not said to end soon: %t", e.What, soon)
				}
			}
			time.Sleep(time.Until(until.Add(time.Second)))
			for _, e := range at {
				if works[e.What]() {
					t.Errorf("%s works a second after it has ended", e.What)
				}
			}
			checked += len(at)
		}
		if checked != len(works) {
			t.Errorf("%d of %d were checked", checked, len(works))
		}
	})
}
