// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package snapshot

import (
	"crypto/rand"
	"crypto/x509"
	"math/big"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/certs"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

func rootPEM(t *testing.T) []byte {
	t.Helper()
	key, err := certs.NewKey(certs.ECDSAP256)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), BasicConstraintsValid: true, IsCA: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return certs.EncodeChain(cert)
}

// TestTrust checks that the bundle is sorted and without duplicates, and keeps its pointer while
// its content is unchanged.
func TestTrust(t *testing.T) {
	t.Parallel()
	a, b := rootPEM(t), rootPEM(t)
	want := []string{string(a), string(b)}
	slices.Sort(want)
	build := func(prev *Mesh, roots ...[]byte) *Mesh {
		in := objects{}.input()
		in.Roots = slices.Concat(roots...)
		return Build(prev, in, model.NewChange(model.Key{Kind: model.MeshConfigKind}))
	}
	mesh := build(nil, b, []byte("some text\n"), a, b)
	if !slices.Equal(mesh.Trust.PEM, want) || len(mesh.Problems) != 0 {
		t.Fatalf("got bundle %q, problems %v", mesh.Trust.PEM, mesh.Problems)
	}
	for name, same := range map[string]*Mesh{"the same bytes": build(mesh, b, []byte("some text\n"), a, b), "another order": build(mesh, a, b)} {
		if same.Trust != mesh.Trust {
			t.Errorf("%s: the bundle was rebuilt", name)
		}
	}
	if less := build(mesh, a); len(less.Trust.PEM) != 1 || less.Services != mesh.Services || less.Sidecars != mesh.Sidecars {
		t.Errorf("with a root removed: got bundle %q, or other indexes were rebuilt", less.Trust.PEM)
	}
	if none := build(mesh); len(none.Trust.PEM) != 0 || len(none.Problems) != 0 {
		t.Errorf("without roots: got bundle %q, problems %v", none.Trust.PEM, none.Problems)
	}
	broken := build(mesh, a, b[:len(b)/2])
	if len(broken.Trust.PEM) != 0 || len(broken.Problems) != 1 || !strings.Contains(broken.Problems[0].Reason, "keep those that they have") {
		t.Errorf("with invalid roots: got bundle %q, problems %v", broken.Trust.PEM, broken.Problems)
	}
}
