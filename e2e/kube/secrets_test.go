// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package kube

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/outrigger-mesh/outrigger/certs"
	"github.com/outrigger-mesh/outrigger/controlplane/ca"
	"github.com/outrigger-mesh/outrigger/controlplane/credentials"
	"github.com/outrigger-mesh/outrigger/controlplane/kube"
)

const authoritySecret = "istio-ca-secret"

// TestAuthorityStore starts ten replicas at once, each of which saves an authority; then ten change
// it:
//   - one of them wins, the others receive a conflict and read the winner's;
//   - the Secret is of Istio's type, labels of others stay;
//   - nothing is lost when this is repeated.
func TestAuthorityStore(t *testing.T) {
	t.Parallel()
	c, namespace := shared.Namespace(t)
	store := func() *kube.AuthorityStore {
		s, err := kube.NewAuthorityStore(connect(t, c), namespace)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	one := store()
	if m, version, err := one.Load(t.Context()); len(m) != 0 || version != "" || err != nil {
		t.Fatalf("nothing is kept: got %d items, version %q, error %v", len(m), version, err)
	}
	// race saves ten authorities at once, all based on the same version, and returns the winners.
	race := func(round, version string) string {
		t.Helper()
		results := make(chan string)
		for n := range 10 {
			s, key := store(), fmt.Sprint(round, "-", n)
			go func() {
				err := s.Save(t.Context(), ca.Material{"ca-key.pem": []byte(key), "ca-cert.pem": []byte(key)}, version)
				switch {
				case err == nil:
					results <- key
				case !errors.Is(err, ca.ErrConflict) || strings.Contains(err.Error(), key):
					t.Errorf("got error %v", err)
					fallthrough
				default:
					results <- ""
				}
			}()
		}
		var winners []string
		for range 10 {
			if w := <-results; w != "" {
				winners = append(winners, w)
			}
		}
		if len(winners) != 1 {
			t.Fatalf("round %s: %v have won", round, winners)
		}
		return winners[0]
	}
	version := ""
	for round := range 5 {
		winner := race(fmt.Sprint(round), version)
		m, next, err := one.Load(t.Context())
		if err != nil || string(m["ca-key.pem"]) != winner || string(m["ca-cert.pem"]) != winner || next == version {
			t.Fatalf("got %v in version %s, error %v; %s has won", slices.Collect(maps.Keys(m)), next, err, winner)
		}
		version = next
		if round == 0 {
			patch := []byte(`{"metadata":{"labels":{"backup":"yes"}},"data":{"root-cert.pem":""}}`)
			if _, err := c.Admin().CoreV1().Secrets(namespace).Patch(t.Context(), authoritySecret, "application/merge-patch+json", patch, metav1.PatchOptions{}); err != nil {
				t.Fatal(err)
			}
			if err := one.Save(t.Context(), m, version); !errors.Is(err, ca.ErrConflict) {
				t.Errorf("a version that another writer changed: got error %v", err)
			}
			if m, version, err = one.Load(t.Context()); err != nil || len(m) != 2 {
				t.Errorf("an empty item counts: %d items, error %v", len(m), err)
			}
		}
	}
	secret, err := c.Admin().CoreV1().Secrets(namespace).Get(t.Context(), authoritySecret, metav1.GetOptions{})
	if err != nil || secret.Type != "istio.io/ca-root" || secret.Labels["backup"] != "yes" {
		t.Errorf("the Secret is of type %s with labels %v, error %v", secret.Type, secret.Labels, err)
	}
	if err := c.Admin().CoreV1().Secrets(namespace).Delete(t.Context(), authoritySecret, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := one.Save(t.Context(), ca.Material{"ca-key.pem": []byte("x")}, version); !errors.Is(err, ca.ErrConflict) {
		t.Errorf("saved over a Secret that is gone: %v", err)
	}
}

// TestOneAuthorityForAll starts five replicas of a control plane at once, which must have one root.
func TestOneAuthorityForAll(t *testing.T) {
	t.Parallel()
	c, namespace := shared.Namespace(t)
	roots := make(chan string)
	for range 5 {
		s, err := kube.NewAuthorityStore(connect(t, c), namespace)
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			a, err := ca.Open(t.Context(), ca.Config{Store: s, TrustDomain: "cluster.local", Logger: silent})
			if err != nil {
				t.Error(err)
				roots <- ""
				return
			}
			roots <- string(a.RootPEM())
		}()
	}
	first := <-roots
	for range 4 {
		if next := <-roots; next != first {
			t.Error("two replicas have different roots")
		}
	}
}

// changes records the notifications of a source.
type changes struct {
	mu    sync.Mutex
	names []string
}

func (c *changes) add(namespace, name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.names = append(c.names, namespace+"/"+name)
}

func (c *changes) take() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	names := c.names
	c.names = nil
	return names
}

// certificatePair returns a certificate with its key, as the data of a Secret.
func certificatePair(t *testing.T, root *issuer, cert, key string, ttl time.Duration) map[string][]byte {
	t.Helper()
	private, err := certs.NewKey(certs.ECDSAP256)
	if err != nil {
		t.Fatal(err)
	}
	text, err := certs.MarshalKey(private)
	if err != nil {
		t.Fatal(err)
	}
	leaf := root.leaf(t, "spiffe://cluster.local/ns/a/sa/b", private.Public(), ttl)
	return map[string][]byte{cert: certs.EncodeChain(leaf), key: text}
}

// checkCredentials checks the first Secrets of TestCredentials.
func checkCredentials(t *testing.T, s credentials.Source, root *issuer, tls, generic map[string][]byte) {
	t.Helper()
	ref := func(name, namespace string) credentials.Reference {
		r, err := credentials.ParseReference(name, namespace)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	if p, err := credentials.KeyPairOf(s, ref("kubernetes://tls", "a")); err != nil || string(p.Key) != string(tls["tls.key"]) {
		t.Errorf("TLS: %v", err)
	}
	if p, err := credentials.KeyPairOf(s, ref("kubernetes-gateway://b/generic", "a")); err != nil || string(p.Key) != string(generic["key"]) {
		t.Errorf("generic: %v", err)
	}
	for _, r := range []credentials.Reference{ref("kubernetes://generic-cacert", "b"), ref("kubernetes://split-cacert", "a")} {
		if roots, err := credentials.RootsOf(s, r); err != nil || string(roots.PEM) != string(certs.EncodeChain(root.cert)) {
			t.Errorf("%v: %v", r, err)
		}
	}
	for _, r := range []credentials.Reference{ref("password", "a"), ref("tls", "elsewhere"), ref("nothing", "a")} {
		if _, err := credentials.KeyPairOf(s, r); !errors.Is(err, credentials.ErrNotFound) {
			t.Errorf("%v: got error %v", r, err)
		}
	}
}

// TestCredentials checks that credentials follow the Secrets of two namespaces, and of no other:
//   - TLS and generic Secrets, and those with -cacert;
//   - a change and a deletion are reported; a pair that does not match is not used;
//   - Secrets that are not credentials are not cached;
//   - while the API server is down, everything stays, and is followed after.
func TestCredentials(t *testing.T) {
	t.Parallel()
	c := New(t, Options{})
	ctx := t.Context()
	for _, name := range []string{"a", "b", "elsewhere"} {
		if err := c.CreateNamespace(ctx, name); err != nil {
			t.Fatal(err)
		}
	}
	root := newIssuer(t)
	put := func(namespace, name string, kind corev1.SecretType, data map[string][]byte) {
		t.Helper()
		s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{"large": "x"}}, Type: kind, Data: data}
		_, err := c.Admin().CoreV1().Secrets(namespace).Create(ctx, s, metav1.CreateOptions{})
		if err != nil {
			_, err = c.Admin().CoreV1().Secrets(namespace).Update(ctx, s, metav1.UpdateOptions{})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	tls := certificatePair(t, root, "tls.crt", "tls.key", time.Hour)
	generic := certificatePair(t, root, "cert", "key", time.Hour)
	generic["cacert"] = certs.EncodeChain(root.cert)
	put("a", "tls", corev1.SecretTypeTLS, tls)
	put("b", "generic", corev1.SecretTypeOpaque, generic)
	put("a", "split-cacert", corev1.SecretTypeOpaque, map[string][]byte{"cacert": certs.EncodeChain(root.cert)})
	put("a", "password", corev1.SecretTypeOpaque, map[string][]byte{"password": []byte("hunter2")})
	put("elsewhere", "tls", corev1.SecretTypeTLS, tls)

	s, err := kube.NewSecrets(kube.SecretsConfig{Client: connect(t, c), Namespaces: []string{"a", "b"}, Logger: silent})
	if err != nil {
		t.Fatal(err)
	}
	var told changes
	s.OnChange(told.add)
	runs(t, s.Run)
	select {
	case <-s.Synced():
	case <-time.After(2 * time.Minute):
		t.Fatal("the Secrets were not read")
	}
	names := told.take()
	slices.Sort(names)
	if got := strings.Join(names, " "); got != "a/split-cacert a/tls b/generic" {
		t.Errorf("reported %s", got)
	}
	checkCredentials(t, s, root, tls, generic)

	renewed := certificatePair(t, root, "tls.crt", "tls.key", time.Hour)
	put("a", "tls", corev1.SecretTypeTLS, map[string][]byte{"tls.crt": renewed["tls.crt"], "tls.key": tls["tls.key"]})
	put("b", "generic", corev1.SecretTypeOpaque, generic)
	put("a", "tls", corev1.SecretTypeTLS, renewed)
	used := func(want map[string][]byte) func() error {
		return func() error {
			p, err := credentials.KeyPairOf(s, credentials.Reference{Namespace: "a", Name: "tls"})
			if err == nil && string(p.Key) != string(want["tls.key"]) {
				err = errors.New("it is another one")
			}
			return err
		}
	}
	soon(t, "the renewed pair", used(renewed))
	if names := told.take(); len(names) != 1 || names[0] != "a/tls" {
		t.Errorf("reported %v; want the one usable change", names)
	}
	c.APIServer.Kill()
	if err := used(renewed)(); err != nil {
		t.Errorf("without an API server: %v", err)
	}
	if err := c.APIServer.Start(ctx); err != nil {
		t.Fatal(err)
	}
	put("a", "tls", corev1.SecretTypeTLS, tls)
	soon(t, "a change after the restart", used(tls))
	if err := c.Admin().CoreV1().Secrets("a").Delete(ctx, "tls", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	soon(t, "a deleted Secret", func() error {
		if _, err := s.Get("a", "tls"); !errors.Is(err, credentials.ErrNotFound) {
			return fmt.Errorf("got error %w", err)
		}
		return nil
	})
	if names := told.take(); !slices.Equal(names, []string{"a/tls", "a/tls"}) {
		t.Errorf("reported %v", names)
	}
}
