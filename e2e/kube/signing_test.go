// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package kube

import (
	"bytes"
	"context"
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/outrigger-mesh/outrigger/certs"
	"github.com/outrigger-mesh/outrigger/controlplane/ca"
	"github.com/outrigger-mesh/outrigger/controlplane/kube"
)

// issuer is an authority of a test.
type issuer struct {
	key  crypto.Signer
	cert *x509.Certificate
}

func newIssuer(t *testing.T) *issuer {
	t.Helper()
	key, err := certs.NewKey(certs.ECDSAP256)
	if err != nil {
		t.Fatal(err)
	}
	i := &issuer{key: key, cert: &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour),
		BasicConstraintsValid: true, IsCA: true, KeyUsage: x509.KeyUsageCertSign,
	}}
	i.cert.Subject.CommonName = "root of " + t.Name()
	i.cert = i.sign(t, i.cert, key.Public())
	return i
}

func (i *issuer) sign(t *testing.T, template *x509.Certificate, key crypto.PublicKey) *x509.Certificate {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, template, i.cert, key, i.key)
	if err != nil {
		t.Error(err)
		return template
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Error(err)
	}
	return cert
}

// leaf signs a certificate for the identity of a URI.
func (i *issuer) leaf(t *testing.T, uri string, key crypto.PublicKey, ttl time.Duration) *x509.Certificate {
	t.Helper()
	u, err := url.Parse(uri)
	if err != nil {
		t.Error(err)
	}
	return i.sign(t, &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(ttl),
		URIs: []*url.URL{u}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}, key)
}

// play is the signer controller, which kube-apiserver does not include. The name of the signer
// selects its behaviour.
func (i *issuer) play(t *testing.T, c *Cluster, prefix string) func(context.Context) error {
	requests := c.Admin().CertificatesV1().CertificateSigningRequests()
	return func(ctx context.Context) error {
		for ctx.Err() == nil {
			list, err := requests.List(ctx, metav1.ListOptions{})
			if err != nil {
				continue // the end
			}
			for n := range list.Items {
				if r := &list.Items[n]; strings.HasPrefix(r.Spec.SignerName, "example.com/"+prefix) && len(r.Status.Certificate) == 0 {
					i.handle(ctx, t, c, r, strings.TrimPrefix(r.Spec.SignerName, "example.com/"+prefix))
				}
			}
			time.Sleep(20 * time.Millisecond)
		}
		return nil
	}
}

func (i *issuer) handle(ctx context.Context, t *testing.T, c *Cluster, r *certificatesv1.CertificateSigningRequest, what string) {
	requests := c.Admin().CertificatesV1().CertificateSigningRequests()
	condition := func(kind certificatesv1.RequestConditionType) certificatesv1.CertificateSigningRequestCondition {
		return certificatesv1.CertificateSigningRequestCondition{Type: kind, Status: corev1.ConditionTrue, Reason: "Test", Message: "as the test says"}
	}
	if what == "denies" {
		r.Status.Conditions = append(r.Status.Conditions, condition(certificatesv1.CertificateDenied))
		_, _ = requests.UpdateApproval(ctx, r.Name, r, metav1.UpdateOptions{}) // the other side may have deleted it
		return
	}
	if len(r.Status.Conditions) == 0 || r.Status.Conditions[0].Type != certificatesv1.CertificateApproved {
		return
	}
	block, _ := pem.Decode(r.Spec.Request)
	csr, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		t.Error(err)
		return
	}
	uri, key := csr.URIs[0].String(), csr.PublicKey
	switch what {
	case "fails":
		r.Status.Conditions = append(r.Status.Conditions, condition(certificatesv1.CertificateFailed))
		_, _ = requests.UpdateStatus(ctx, r, metav1.UpdateOptions{}) // as above
		return
	case "lies":
		uri = "spiffe://cluster.local/ns/kube-system/sa/root"
	case "swaps":
		key = i.key.Public()
	}
	ttl := time.Duration(*r.Spec.ExpirationSeconds) * time.Second
	r.Status.Certificate = certs.EncodeChain(i.leaf(t, uri, key, ttl), i.cert)
	_, _ = requests.UpdateStatus(ctx, r, metav1.UpdateOptions{}) // as above
}

// TestSigning requests certificates by certificates.k8s.io. The test implements the signer:
//   - an honest signer: the chain leads to its root, with the requested lifetime and usages;
//   - one that denies, fails, does not respond, issues for another identity or another key: an
//     error with the reason;
//   - a request without the name of a workload, or for a signer that is not allowed, is never
//     written;
//   - no request remains in any case.
func TestSigning(t *testing.T) {
	t.Parallel()
	c, namespace := shared.Namespace(t)
	root := newIssuer(t)
	runs(t, root.play(t, c, "mesh-"))
	id := certs.ID{TrustDomain: "cluster.local", Namespace: namespace, ServiceAccount: "web"}
	ra := func(change func(*kube.RegistrationConfig)) *kube.RegistrationAuthority {
		cfg := kube.RegistrationConfig{
			Client: connect(t, c), Signer: "example.com/mesh-signs", Domain: "example.com", Approve: true, Timeout: 20 * time.Second, Logger: silent,
		}
		if change != nil {
			change(&cfg)
		}
		r, err := kube.NewRegistrationAuthority(cfg)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	t.Run("issued", func(t *testing.T) {
		for _, kind := range []certs.KeyType{certs.ECDSAP256, certs.RSA2048} {
			key, csr := request(t, id, kind)
			answer, err := ra(nil).Sign(t.Context(), csr, "example.com/mesh-signs", 15*time.Minute)
			if err != nil {
				t.Fatal(err)
			}
			chain, err := certs.ParseChain(bytes.Join(answer, nil))
			if err != nil || len(answer) != 2 || len(chain) != 2 {
				t.Fatalf("%d texts with %d certificates, error %v", len(answer), len(chain), err)
			}
			roots := x509.NewCertPool()
			roots.AddCert(root.cert)
			if _, err := chain[0].Verify(x509.VerifyOptions{Roots: roots}); err != nil {
				t.Error(err)
			}
			life := time.Until(chain[0].NotAfter).Round(time.Minute)
			if got, err := certs.CertificateID(chain[0]); err != nil || got != id || !certs.SamePublicKey(chain[0].PublicKey, key.Public()) || life != 15*time.Minute {
				t.Errorf("got %v for %s, error %v", got, life, err)
			}
		}
	})
	_, good := request(t, id, certs.ECDSAP256)
	short := func(c *kube.RegistrationConfig) { c.Timeout = 2 * time.Second }
	for name, tc := range map[string]struct {
		csr     []byte
		signer  string
		change  func(*kube.RegistrationConfig)
		want    string
		request bool // the request is at fault
	}{
		"named signer":           {csr: good, signer: "mesh-signs"},
		"denied":                 {csr: good, signer: "mesh-denies", change: func(c *kube.RegistrationConfig) { c.Approve = false }, want: "is denied: Test as the test says"},
		"failed":                 {csr: good, signer: "mesh-fails", want: "is failed"},
		"no answer":              {csr: good, signer: "mash", change: short, want: "is its signer running?"},
		"not approved":           {csr: good, change: func(c *kube.RegistrationConfig) { c.Approve = false; c.Timeout = 2 * time.Second }, want: "is its signer running?"},
		"other identity issued":  {csr: good, signer: "mesh-lies", want: "another identity"},
		"other key issued":       {csr: good, signer: "mesh-swaps", want: "another key"},
		"no name":                {csr: nameless(t), want: "0 URI names", request: true},
		"not a request":          {csr: []byte("x"), want: "not PEM", request: true},
		"signer outside domain":  {csr: good, signer: "../kubernetes.io/kube-apiserver-client", want: "not that of a signer below", request: true},
		"signer may not approve": {csr: good, signer: "example.org/mesh", change: func(c *kube.RegistrationConfig) { c.Signer = "example.org/mesh" }, want: "forbidden"},
		"no signers to name":     {csr: good, signer: "mesh-signs", change: func(c *kube.RegistrationConfig) { c.Domain = "" }, want: "no signers are allowed", request: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if tc.signer == "" {
				tc.signer = "example.com/mesh-signs"
			}
			_, err := ra(tc.change).Sign(t.Context(), tc.csr, tc.signer, time.Hour)
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) || errors.Is(err, ca.ErrRequest) != tc.request {
				t.Errorf("got error %v, want one with %q", err, tc.want)
			}
		})
	}
	t.Run("caller gone", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		if _, err := ra(nil).Sign(ctx, good, "mash", time.Hour); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got error %v", err)
		}
	})
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 2*time.Minute)
		defer cancel()
		left, err := c.Admin().CertificatesV1().CertificateSigningRequests().List(ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range left.Items {
			own := slices.ContainsFunc([]string{"example.com/mesh-", "example.com/mash", "example.org/mesh"}, func(prefix string) bool {
				return strings.HasPrefix(r.Spec.SignerName, prefix) // others belong to concurrent tests
			})
			if r.Spec.Username == controlPlane && own {
				t.Errorf("the request %s by %s is left over", r.Name, r.Spec.SignerName)
			}
		}
	})
}

func nameless(t *testing.T) []byte {
	t.Helper()
	key, err := certs.NewKey(certs.ECDSAP256)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
}

func request(t *testing.T, id certs.ID, kind certs.KeyType) (crypto.Signer, []byte) {
	t.Helper()
	key, err := certs.NewKey(kind)
	if err != nil {
		t.Fatal(err)
	}
	csr, err := certs.NewCSR(key, id)
	if err != nil {
		t.Fatal(err)
	}
	return key, csr
}

// TestManySigningRequests requests many certificates at once, as after the start of a cluster.
func TestManySigningRequests(t *testing.T) {
	t.Parallel()
	c, namespace := shared.Namespace(t)
	root := newIssuer(t)
	runs(t, root.play(t, c, "many-"))
	r, err := kube.NewRegistrationAuthority(kube.RegistrationConfig{Client: connect(t, c), Signer: "example.com/many-signs", Approve: true, Logger: silent})
	if err != nil {
		t.Fatal(err)
	}
	results := make(chan error)
	for n := range 40 {
		id := certs.ID{TrustDomain: "cluster.local", Namespace: namespace, ServiceAccount: fmt.Sprint("web-", n)}
		_, csr := request(t, id, certs.ECDSAP256)
		go func() {
			_, err := r.Sign(t.Context(), csr, "example.com/many-signs", time.Hour)
			results <- err
		}()
	}
	for range 40 {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
}
