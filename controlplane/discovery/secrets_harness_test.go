// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"bytes"
	"crypto"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"maps"
	"math/big"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"github.com/prometheus/client_golang/prometheus"
	grpccredentials "google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/outrigger-mesh/outrigger/certs"
	"github.com/outrigger-mesh/outrigger/controlplane/authn"
	"github.com/outrigger-mesh/outrigger/controlplane/credentials"
	"github.com/outrigger-mesh/outrigger/controlplane/discovery/secrets"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
)

// minted is a certificate with its key.
type minted struct {
	chain, key []byte
	parsed     *x509.Certificate
	signer     crypto.Signer
}

// mint makes a self-signed certificate, which may sign others.
func mint(t *testing.T, name string) minted {
	t.Helper()
	return sign(t, name, "", "", nil)
}

// issue makes the certificate of the service account gateway, signed by m.
func (m minted) issue(t *testing.T, name string) minted {
	t.Helper()
	return sign(t, name, "default", "gateway", &m)
}

// issueTo makes the certificate of a service account, signed by m.
func (m minted) issueTo(t *testing.T, namespace, account string) minted {
	t.Helper()
	return sign(t, account, namespace, account, &m)
}

func sign(t *testing.T, name, namespace, account string, by *minted) minted {
	t.Helper()
	key, err := certs.NewKey(certs.ECDSAP256)
	if err != nil {
		t.Fatal(err)
	}
	text, err := certs.MarshalKey(key)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), BasicConstraintsValid: true,
		DNSNames:    []string{"localhost", name},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	parent, signer := template, key
	if by != nil {
		parent, signer = by.parsed, by.signer
		template.URIs = []*url.URL{{Scheme: "spiffe", Host: "cluster.local", Path: "/ns/" + namespace + "/sa/" + account}}
		template.KeyUsage = x509.KeyUsageDigitalSignature
	} else {
		template.IsCA, template.SubjectKeyId = true, []byte(name)
		template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign | x509.KeyUsageDigitalSignature
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return minted{chain: certs.EncodeChain(cert), key: text, parsed: cert, signer: key}
}

// pair is the data of a Secret of the type kubernetes.io/tls.
func (m minted) pair() map[string][]byte {
	return map[string][]byte{"tls.crt": m.chain, "tls.key": m.key}
}

// crl is a list on which m revokes certificates.
func (m minted) crl(t *testing.T, revoked ...minted) []byte {
	t.Helper()
	list := &x509.RevocationList{Number: big.NewInt(1), ThisUpdate: time.Now().Add(-time.Minute), NextUpdate: time.Now().Add(time.Hour)}
	for _, r := range revoked {
		list.RevokedCertificateEntries = append(list.RevokedCertificateEntries, x509.RevocationListEntry{
			SerialNumber: r.parsed.SerialNumber, RevocationTime: list.ThisUpdate,
		})
	}
	der, err := x509.CreateRevocationList(rand.Reader, list, m.parsed, m.signer)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "X509 CRL", Bytes: der})
}

// tls returns both ends of a connection on which each shows this certificate,
// and trusts a root.
func (m minted) tls(root minted) (server, client *tls.Config) {
	roots := x509.NewCertPool()
	roots.AddCert(root.parsed)
	own := []tls.Certificate{{Certificate: [][]byte{m.parsed.Raw}, PrivateKey: m.signer}}
	return &tls.Config{Certificates: own, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: roots, MinVersion: tls.VersionTLS12},
		&tls.Config{Certificates: own, RootCAs: roots, ServerName: "localhost", MinVersion: tls.VersionTLS12}
}

// journal keeps what is logged.
type journal struct {
	mu   sync.Mutex // guards text
	text bytes.Buffer
}

func (j *journal) Write(b []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(b)
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.String()
}

// secretHarness is a server with Secrets.
type secretHarness struct {
	*harness
	secrets *credentials.Table
	logged  *journal
	reg     *prometheus.Registry
}

// gatewayCaller is the caller on a TLS connection of a test.
var gatewayCaller = fixed{caller: &authn.Caller{ID: certs.ID{TrustDomain: "cluster.local", Namespace: "default", ServiceAccount: "gateway"}}}

// startSecrets starts a server on TLS, or on plaintext, with everything that it
// logs written down.
func startSecrets(t *testing.T, encrypted bool, cfg secrets.Config) *secretHarness {
	t.Helper()
	h := &secretHarness{harness: &harness{table: &table{}}, logged: &journal{}, reg: prometheus.NewRegistry()}
	log := slog.New(slog.NewTextHandler(h.logged, &slog.HandlerOptions{Level: slog.LevelDebug}))
	var err error
	if h.secrets, err = credentials.NewTable(log, h.reg); err != nil {
		t.Fatal(err)
	}
	h.secrets.SetSynced()
	if cfg.Source == nil {
		cfg.Source = h.secrets
	}
	server, client := insecure.NewCredentials(), insecure.NewCredentials()
	if encrypted {
		root := mint(t, "root")
		s, c := root.issue(t, "server").tls(root)
		server, client = grpccredentials.NewTLS(s), grpccredentials.NewTLS(c)
	}
	h.serve(t, Config{Generator: h.table, Workers: 2, Secrets: cfg, Logger: log, Registerer: h.reg}, gatewayCaller, server, client)
	h.push()
	return h
}

// refused returns how many secrets were refused for a reason.
func (h *secretHarness) refused(reason string) float64 {
	return counter(h.reg, "outrigger_control_sds_refused_total", reason)
}

// gateway connects as a gateway.
func (h *harness) gateway(t *testing.T, delta bool) *peer {
	t.Helper()
	p := h.connect(t, delta)
	p.node = gatewayNode(t, nil)
	p.describer = describe
	return p
}

func gatewayNode(t *testing.T, meta map[string]any) *corev3.Node {
	t.Helper()
	all := map[string]any{"NAMESPACE": "default", "SERVICE_ACCOUNT": "gateway"}
	maps.Copy(all, meta)
	md, err := structpb.NewStruct(all)
	if err != nil {
		t.Fatal(err)
	}
	return &corev3.Node{Id: "router~127.77.54.2~gateway-1.default~default.svc.cluster.local", Metadata: md}
}

// describe returns "name=subject" of a certificate, "name:subject" of roots.
func describe(t *testing.T, res *anypb.Any) string {
	t.Helper()
	var s tlsv3.Secret
	if res.TypeUrl != "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret" {
		return textOf(res)
	}
	if err := res.UnmarshalTo(&s); err != nil {
		t.Fatal(err)
	}
	text, sign := s.GetTlsCertificate().GetCertificateChain().GetInlineBytes(), "="
	if v := s.GetValidationContext(); v != nil {
		if text, sign = v.GetTrustedCa().GetInlineBytes(), ":"; len(v.GetCrl().GetInlineBytes()) > 0 {
			sign = ":crl:"
		}
	} else if _, err := tls.X509KeyPair(text, s.GetTlsCertificate().GetPrivateKey().GetInlineBytes()); err != nil {
		t.Error(err)
	}
	chain, err := certs.ParseChain(text)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimPrefix(s.GetName(), "kubernetes://") + sign + chain[0].Subject.CommonName
}

// eachSecret runs a test for both kinds of stream.
func eachSecret(t *testing.T, cfg func() secrets.Config, test func(t *testing.T, h *secretHarness, p *peer)) {
	t.Helper()
	t.Parallel()
	for name, delta := range map[string]bool{"sotw": false, "delta": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := startSecrets(t, true, cfg())
			test(t, h, h.gateway(t, delta))
		})
	}
}

func noConfig() secrets.Config { return secrets.Config{} }

// until waits for something to become true.
func until(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); !cond(); {
		if time.Now().After(end) {
			t.Fatalf("not within 2 minutes: %s", what)
		}
		time.Sleep(time.Millisecond)
	}
}

// snapshotOf builds a snapshot of no objects with these roots.
func snapshotOf(prev *snapshot.Mesh, roots []byte, objects ...*model.Config) *snapshot.Mesh {
	return snapshot.Build(prev, snapshot.Input{Roots: roots, List: func(kind model.Kind) []*model.Config {
		var out []*model.Config
		for _, o := range objects {
			if o.Kind == kind {
				out = append(out, o)
			}
		}
		return out
	}}, model.Change{All: true})
}
