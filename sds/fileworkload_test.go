// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package sds_test

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outrigger-mesh/outrigger/certs"
	"github.com/outrigger-mesh/outrigger/sds"
)

// mounted runs a workload whose identity comes from files, and a server for it.
func mounted(t *testing.T, dir string, change func(*sds.FileWorkloadConfig)) *rig {
	t.Helper()
	r := &rig{authority: newAuthority(t), log: &syncBuffer{}}
	files := newFiles(t, r.logger(), nil)
	cfg := sds.FileWorkloadConfig{
		ID: web(), Files: files, Chain: filepath.Join(dir, chainFile), Key: filepath.Join(dir, keyFile), Roots: filepath.Join(dir, rootsFile),
		Logger: r.logger(),
	}
	if change != nil {
		change(&cfg)
	}
	var err error
	if r.workload, err = sds.NewFileWorkload(cfg); err != nil {
		t.Fatal(err)
	}
	run(t, r.workload)
	r.serve(t, sds.ServerConfig{Workload: r.workload, Files: files, Logger: r.logger()})
	return r
}

// TestMountedFiles checks that the identity is served once its files exist, and that roots and
// certificate can change independently. Each of a hundred rotations must reach the stream and the
// workload.
func TestMountedFiles(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	v := &volume{t: t, dir: t.TempDir()}
	r := mounted(t, v.dir, func(c *sds.FileWorkloadConfig) { c.Registerer = reg })
	s := r.stream(t)
	s.ask(nil, "", sds.NameDefault, sds.NameRoots)
	s.none("without files")
	if r.workload.Current() != nil || r.workload.Certificate() != nil {
		t.Fatal("the workload has an identity without files")
	}
	other := certs.ID{TrustDomain: "td", Namespace: "a", ServiceAccount: "b"}
	files := map[string][]byte{rootsFile: certs.EncodeChain(r.root)}
	files[chainFile], files[keyFile] = r.pair(nil)
	v.write(files)
	got := map[string]bool{}
	for len(got) < 2 {
		resp := <-s.answers
		for _, name := range names(t, resp.GetResources()) {
			got[name] = true
		}
		s.ask(resp, "", sds.NameDefault, sds.NameRoots)
	}
	if id := r.workload.Current(); id.ID != other || !bytes.Equal(id.RootsPEM, files[rootsFile]) {
		t.Errorf("identity: got %s with the roots\n%s", id.ID, id.RootsPEM)
	}
	files[rootsFile] = certs.EncodeChain(r.root, newAuthority(t).root)
	v.write(files)
	s.ask(s.next(sds.NameRoots), "", sds.NameDefault, sds.NameRoots)
	for n := range 100 {
		files[chainFile], files[keyFile] = r.pair(nil)
		v.write(files)
		if got := chainIn(t, s.next(sds.NameDefault)); !bytes.Equal(got, files[chainFile]) || !bytes.Equal(r.workload.Current().ChainPEM, got) {
			t.Fatalf("rotation %d: the secret differs from the files", n)
		}
	}
	if left := metric(t, reg, "outrigger_agent_identity_left_seconds", ""); left < 3000 || left > 3600 {
		t.Errorf("outrigger_agent_identity_left_seconds = %v, want about an hour", left)
	}
	if left := metric(t, reg, "istio_agent_cert_expiry_seconds", sds.NameRoots); left < 3600 {
		t.Errorf("istio_agent_cert_expiry_seconds of the roots = %v, want at least 3600", left)
	}
	if strings.Contains(r.log.String(), "BEGIN") {
		t.Error("the log contains keys or certificates")
	}
}

// TestExpiredMountedCertificate checks that an expired certificate is still served, because
// there is no other, but not used for connections. The log must contain an error.
func TestExpiredMountedCertificate(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	a := newAuthority(t)
	chain, key := a.pair(func(c *x509.Certificate) { c.URIs, c.NotAfter = nil, time.Now().Add(-time.Second) })
	write(t, filepath.Join(dir, chainFile), chain)
	write(t, filepath.Join(dir, keyFile), key)
	r := mounted(t, dir, nil)
	s := r.stream(t)
	s.ask(nil, "", sds.NameDefault, sds.NameRoots)
	s.next(sds.NameDefault) // without roots, because their file is missing
	if r.workload.Certificate() != nil {
		t.Error("the expired certificate is used for connections")
	}
	if id := r.workload.Current().ID; id != web() {
		t.Errorf("without an identity in the certificate, the workload's identity is %s", id)
	}
	eventually(t, "an error in the log", func() bool { return strings.Contains(r.log.String(), "has expired") })
}

func TestNewFileWorkloadRefuses(t *testing.T) {
	t.Parallel()
	files, err := sds.NewFiles(sds.FilesConfig{})
	if err != nil {
		t.Fatal(err)
	}
	for name, cfg := range map[string]sds.FileWorkloadConfig{
		"are not watched": {Chain: "a", Key: "b", Roots: "c"},
		"its chain":       {Files: files, Key: "b", Roots: "c"},
		"its key":         {Files: files, Chain: "a", Roots: "c"},
		"its roots":       {Files: files, Chain: "a", Key: "b"},
	} {
		if _, err := sds.NewFileWorkload(cfg); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("got error %v, want one with %q", err, name)
		}
	}
	if _, err := sds.NewWorkload(sds.WorkloadConfig{ID: web(), Sign: newAuthority(t).Sign, CRLFile: "crl.pem"}); err == nil {
		t.Error("NewWorkload accepted a CRL file without Files to watch it")
	}
}

// TestAnchors checks that additional trust anchors change only the roots, in any order, and that
// anchors that cannot be read are ignored.
func TestAnchors(t *testing.T) {
	t.Parallel()
	r := newRig(t, newAuthority(t))
	one, two := certs.EncodeChain(newAuthority(t).root), certs.EncodeChain(newAuthority(t).root)
	set := func(wantErr string, texts ...[]byte) {
		t.Helper()
		err := r.workload.SetAnchors(texts)
		if (err == nil) != (wantErr == "") || err != nil && !strings.Contains(err.Error(), wantErr) {
			t.Errorf("got error %v, want %q", err, wantErr)
		}
	}
	set("", one) // allowed before the first certificate
	r.ready(t)
	s := r.stream(t)
	s.ask(nil, "", sds.NameDefault, sds.NameRoots)
	last := s.next(sds.NameRoots, sds.NameDefault)
	count := func() int {
		t.Helper()
		roots, err := certs.ParseChain(r.workload.Current().RootsPEM)
		if err != nil || len(roots) != len(r.workload.Current().Roots()) {
			t.Fatalf("%d roots, error %v", len(roots), err)
		}
		return len(roots)
	}
	step := func(want int) {
		t.Helper()
		s.ask(last, "", sds.NameDefault, sds.NameRoots)
		last = s.next(sds.NameRoots)
		if n := count(); n != want {
			t.Errorf("%d roots are trusted, want %d", n, want)
		}
	}
	if n := count(); n != 2 {
		t.Errorf("%d roots are trusted at first, want 2", n)
	}
	set("", one, two)
	step(3)
	set("", append(bytes.Clone(two), one...), certs.EncodeChain(r.root), one)
	s.none("for the same anchors in another order")
	set("anchor 2 of 2 is ignored", one, []byte("nonsense"))
	step(2)
	set("anchor 1 of 1 is ignored", []byte("nonsense"))
	s.none("when nothing can be read")
	set("")
	step(1)
	if n := len(r.times()); n != 1 {
		t.Errorf("the authority was called %d times, want once", n)
	}
}

// TestNewRootIsSentWithRenewal checks that unchanged roots are not sent again, that a new root is
// sent with the renewal, and that anchors remain trusted.
func TestNewRootIsSentWithRenewal(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	a.set(nil, 2*time.Second)
	r := newRig(t, a)
	if err := r.workload.SetAnchors([][]byte{certs.EncodeChain(newAuthority(t).root)}); err != nil {
		t.Fatal(err)
	}
	s := r.stream(t)
	s.ask(nil, "", sds.NameDefault, sds.NameRoots)
	s.ask(s.next(sds.NameRoots, sds.NameDefault), "", sds.NameDefault, sds.NameRoots)
	s.ask(s.next(sds.NameDefault), "", sds.NameDefault, sds.NameRoots)
	a.replaceRoot()
	for {
		resp := <-s.answers
		if resp == nil {
			t.Fatal("the stream ended")
		}
		s.ask(resp, "", sds.NameDefault, sds.NameRoots)
		if got := names(t, resp.GetResources()); len(got) == 2 {
			break
		}
	}
	if n := len(r.workload.Current().Roots()); n != 2 {
		t.Errorf("%d roots are trusted, want the new one and the anchor", n)
	}
	eventually(t, "a line about the roots", func() bool { return strings.Contains(r.log.String(), "roots of the mesh have changed") })
}

// TestCRL checks that the revocation list may appear later and change, and that an invalid or
// removed file leaves the last valid list in force.
func TestCRL(t *testing.T) {
	t.Parallel()
	a, log := newAuthority(t), &syncBuffer{}
	logger := slog.New(slog.NewTextHandler(log, nil))
	files := newFiles(t, logger, func(c *sds.FilesConfig) { c.Debounce = 10 * time.Millisecond })
	path := filepath.Join(t.TempDir(), "ca-crl.pem")
	r := &rig{authority: a, log: log, workload: newWorkload(t, a, func(c *sds.WorkloadConfig) { c.Files, c.CRLFile, c.Logger = files, path, logger })}
	run(t, r.workload)
	r.serve(t, sds.ServerConfig{Workload: r.workload, Logger: logger})
	s := r.stream(t)
	s.ask(nil, "", sds.NameRoots)
	crl := func() []byte {
		t.Helper()
		c := decode(t, s.next(sds.NameRoots).GetResources()[0]).GetValidationContext()
		if !bytes.Equal(c.GetTrustedCa().GetInlineBytes(), certs.EncodeChain(a.root)) {
			t.Error("the roots are not the authority's")
		}
		return c.GetCrl().GetInlineBytes()
	}
	wantEnd := func(list []byte) {
		t.Helper()
		block, _ := pem.Decode(list)
		parsed, err := x509.ParseRevocationList(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		if end := r.workload.RevocationEnd(); !end.Equal(parsed.NextUpdate) {
			t.Errorf("the end of the revocation list in force is %s, want %s", end, parsed.NextUpdate)
		}
	}
	if got := crl(); len(got) != 0 {
		t.Errorf("revocation list without a file: got %q, want none", got)
	}
	first, second := a.crl(1, time.Hour), a.crl(2, -time.Second)
	write(t, path, first)
	if got := crl(); !bytes.Equal(got, first) {
		t.Errorf("revocation list: got %q, want the first one", got)
	}
	wantEnd(first)
	replace(t, path, certs.EncodeChain(a.root))
	eventually(t, "a line about the file", func() bool { return strings.Contains(log.String(), "not X509 CRL") })
	remove(t, path)
	s.none("while the file is broken or gone")
	wantEnd(first)
	write(t, path, second)
	if got := crl(); !bytes.Equal(got, second) {
		t.Errorf("revocation list: got %q, want the second one", got)
	}
	wantEnd(second)
	if !strings.Contains(log.String(), "should have been replaced already") {
		t.Error("the log does not contain that the list is too old")
	}
}
