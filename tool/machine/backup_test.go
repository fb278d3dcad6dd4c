// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package machine

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/certs"
	"github.com/outrigger-mesh/outrigger/controlplane/ca"
)

// saved returns the directories of a control plane with an authority, and an archive of them.
func saved(t *testing.T) (backupDirs, *ca.Authority, []byte) {
	t.Helper()
	dir := t.TempDir()
	d := backupDirs{settings: filepath.Join(dir, "etc"), state: filepath.Join(dir, "state")}
	a, err := ca.Open(t.Context(), ca.Config{Dir: filepath.Join(d.state, "ca"), TrustDomain: "cluster.local"})
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{
		"etc/mesh.yaml": "trustDomain: cluster.local\n", "etc/config/shop/a.yaml": "# an object\n", "state/config/status": "x", "state/join/token": "secret", "state/ca/.root-cert.pem.1": "temporary",
	} {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o640)); err != nil {
			t.Fatal(err)
		}
	}
	archive, _, err := d.save("v1")
	if err != nil {
		t.Fatal(err)
	}
	return d, a, archive
}

// TestBackup restores a control plane on empty directories. The authority has the same roots, and
// certificates of before are valid below those of after.
func TestBackup(t *testing.T) {
	t.Parallel()
	d, before, archive := saved(t)
	if again, _, err := d.save("v1"); err != nil || !bytes.Equal(again, archive) {
		t.Errorf("two archives of the same files differ, %v", err)
	}
	dir := t.TempDir()
	to := backupDirs{settings: filepath.Join(dir, "etc"), state: filepath.Join(dir, "state")}
	if _, err := to.restore(bytes.NewReader(archive)); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"etc/mesh.yaml": "trustDomain: cluster.local\n", "etc/config/shop/a.yaml": "# an object\n", "state/config/status": "x"} {
		path := filepath.Join(dir, name)
		content, err := os.ReadFile(path)
		if err != nil || string(content) != want {
			t.Errorf("%s is %q, %v", name, content, err)
		}
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o640 {
			t.Errorf("%s has mode %v, %v", name, info.Mode(), err)
		}
	}
	if info, err := os.Stat(filepath.Join(to.state, "ca/ca-key.pem")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the key: %v, %v", info, err)
	}
	for _, name := range []string{"state/join", "state/ca/.root-cert.pem.1"} {
		if _, err := os.Stat(filepath.Join(dir, name)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s was restored: %v", name, err)
		}
	}
	after, err := ca.Open(t.Context(), ca.Config{Dir: filepath.Join(to.state, "ca"), TrustDomain: "cluster.local"})
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(before.RootPEM(), after.RootPEM()) {
		t.Error("the roots differ")
	}
	key, err := certs.NewKey(certs.ECDSAP256)
	if err != nil {
		t.Fatal(err)
	}
	csr, err := certs.NewCSR(key, orders)
	if err != nil {
		t.Fatal(err)
	}
	issued, err := before.Sign(t.Context(), csr, orders, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := certs.ParseChain(issued.Chain[0])
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(after.RootPEM())
	if _, err := leaf[0].Verify(x509.VerifyOptions{Roots: pool, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}); err != nil {
		t.Errorf("a certificate of before: %v", err)
	}
	if _, err := to.restore(bytes.NewReader(archive)); err == nil || !strings.Contains(err.Error(), "is not empty") {
		t.Errorf("a second restore: got error %v", err)
	}
}

// TestBackupRefuses restores archives that are damaged or not ours. Nothing is written.
func TestBackupRefuses(t *testing.T) {
	t.Parallel()
	_, _, archive := saved(t)
	change := func(edit func(*manifest)) []byte {
		m, err := readBackup(bytes.NewReader(archive))
		if err != nil {
			t.Fatal(err)
		}
		edit(m)
		changed, err := m.write()
		if err != nil {
			t.Fatal(err)
		}
		return changed
	}
	move := func(to string) []byte {
		return change(func(m *manifest) { m.Files[to] = m.Files["settings/mesh.yaml"] })
	}
	for name, c := range map[string]struct {
		archive []byte
		want    string
	}{
		"no archive":     {[]byte("x"), "no backup"},
		"cut":            {archive[:len(archive)/2], "damaged"},
		"a newer format": {change(func(m *manifest) { m.Format, m.Version = 2, "v9" }), `use outrigger "v9"`},
		"a checksum": {change(func(m *manifest) {
			e := m.Files["state/ca/ca-key.pem"]
			e.SHA256 = strings.Repeat("0", 64)
			m.Files["state/ca/ca-key.pem"] = e
		}), "checksum of state/ca/ca-key.pem"},
		"outside":         {move("state/../../x"), "does not belong"},
		"an absolute one": {move("state//etc/x"), "does not belong"},
		"another place":   {move("other/x"), "does not belong"},
	} {
		dir := t.TempDir()
		to := backupDirs{settings: filepath.Join(dir, "etc"), state: filepath.Join(dir, "state")}
		if _, err := to.restore(bytes.NewReader(c.archive)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got error %v, want one with %q", name, err, c.want)
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("%s: left %v, %v", name, left, err)
		}
	}
}

// TestBackupCommand saves with mode 0600, and does not restore while the admin socket is served.
func TestBackupCommand(t *testing.T) {
	t.Parallel()
	d, _, _ := saved(t)
	dir := t.TempDir()
	file, socket := filepath.Join(dir, "mesh.tar.gz"), filepath.Join(dir, "admin")
	run := func(args ...string) error {
		cmd := NewBackupCommand("v1")
		cmd.SetOut(io.Discard)
		cmd.SetErr(io.Discard)
		cmd.SilenceUsage = true
		cmd.SetArgs(append(args, "--socket", socket))
		return cmd.ExecuteContext(context.WithoutCancel(t.Context()))
	}
	if err := run("save", file, "--settings", d.settings, "--state", d.state); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the archive is %v, %v", info, err)
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	to := []string{"restore", file, "--settings", filepath.Join(dir, "etc"), "--state", filepath.Join(dir, "state")}
	if err := run(to...); err == nil || !strings.Contains(err.Error(), "the control plane runs") {
		t.Errorf("with a control plane: got error %v", err)
	}
	_ = l.Close()
	if err := run(to...); err != nil {
		t.Error(err)
	}
}
