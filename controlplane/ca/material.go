// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package ca

import (
	"crypto"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/outrigger-mesh/outrigger/certs"
)

// Files of the directory, named as people know them from Istio.
const (
	keyFile  = "ca-key.pem"
	certFile = "ca-cert.pem"
	rootFile = "root-cert.pem"
	lockFile = ".lock"
)

// material is what the files of an authority hold.
type material struct {
	key           crypto.Signer
	cert          *x509.Certificate
	intermediates []*x509.Certificate
	roots         []*x509.Certificate
}

// errNone says that a directory holds no authority yet.
var errNone = errors.New("no authority yet")

// openMaterial loads the files, or makes them if there are none.
func openMaterial(cfg Config) (*material, error) {
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("making directory: %w", err)
	}
	m, err := loadMaterial(cfg.Dir)
	if !errors.Is(err, errNone) {
		return m, err
	}
	// Two control planes that start on one directory must end with one root.
	unlock, err := lock(filepath.Join(cfg.Dir, lockFile))
	if err != nil {
		return nil, err
	}
	defer unlock()
	if m, err = loadMaterial(cfg.Dir); !errors.Is(err, errNone) {
		return m, err
	}
	if m, err = newSelfSigned(cfg.TrustDomain, cfg.RootTTL); err != nil {
		return nil, fmt.Errorf("making self-signed root: %w", err)
	}
	key, err := certs.MarshalKey(m.key)
	if err != nil {
		return nil, err
	}
	cert := certs.EncodeChain(m.cert)
	if err := writeAll(cfg.Dir, []file{{keyFile, key, 0o600}, {certFile, cert, 0o644}, {rootFile, cert, 0o644}}); err != nil {
		return nil, err
	}
	cfg.Logger.Info("made a self-signed root", "path", cfg.Dir, "expires", m.cert.NotAfter.Format(time.RFC3339))
	return m, nil
}

// loadMaterial reads and checks the files. Each error names the file and what
// can be done.
func loadMaterial(dir string) (*material, error) {
	keyPEM, keyErr := os.ReadFile(filepath.Join(dir, keyFile))
	certPEM, certErr := os.ReadFile(filepath.Join(dir, certFile))
	noKey, noCert := errors.Is(keyErr, fs.ErrNotExist), errors.Is(certErr, fs.ErrNotExist)
	const cure = "restore it from a backup, or move %s away so that a new root is made, which all workloads must then be given"
	switch {
	case noKey && noCert:
		return nil, errNone
	case noKey:
		return nil, fmt.Errorf("%s is there but %s is missing: "+cure, certFile, keyFile, certFile)
	case noCert:
		return nil, fmt.Errorf("%s is there but %s is missing: "+cure, keyFile, certFile, keyFile)
	}
	if err := errors.Join(keyErr, certErr); err != nil {
		return nil, err
	}
	key, err := certs.ParseKey(keyPEM)
	if err != nil {
		return nil, fmt.Errorf("%s cannot be read (%w): restore it from a backup", keyFile, err)
	}
	chain, err := certs.ParseChain(certPEM)
	if err != nil {
		return nil, fmt.Errorf("%s cannot be read (%w): restore it from a backup", certFile, err)
	}
	if len(chain) != 1 {
		return nil, fmt.Errorf("%s holds %d certificates: leave only the one that belongs to %s in it", certFile, len(chain), keyFile)
	}
	m := &material{key: key, cert: chain[0]}
	if err := m.check(); err != nil {
		return nil, err
	}
	return m, m.loadRoots(dir)
}

// check looks at the key and the certificate of the issuer.
func (m *material) check() error {
	if !certs.SamePublicKey(m.cert.PublicKey, m.key.Public()) {
		return fmt.Errorf("%s does not belong to %s: restore the file that was replaced, so that both are of one pair", certFile, keyFile)
	}
	if err := checkKey(m.key.Public()); err != nil {
		return fmt.Errorf("%s is too weak (%w): replace both %s and %s", keyFile, err, keyFile, certFile)
	}
	if !m.cert.BasicConstraintsValid || !m.cert.IsCA || m.cert.KeyUsage != 0 && m.cert.KeyUsage&x509.KeyUsageCertSign == 0 {
		return fmt.Errorf("%s is not the certificate of an authority: replace it by one with CA:TRUE and the key usage keyCertSign", certFile)
	}
	if now := time.Now(); !now.Before(m.cert.NotAfter) {
		return fmt.Errorf("%s ran out at %s: replace it, or move %s and %s away so that a new root is made",
			certFile, m.cert.NotAfter.Format(time.RFC3339), certFile, keyFile)
	}
	return nil
}

// loadRoots reads the file with the roots. A self-signed issuer is its own
// root, so that its file is written again if it is missing.
func (m *material) loadRoots(dir string) error {
	data, err := os.ReadFile(filepath.Join(dir, rootFile))
	if errors.Is(err, fs.ErrNotExist) {
		if m.cert.CheckSignatureFrom(m.cert) != nil {
			return fmt.Errorf("%s is missing and %s is not self-signed: put the root that signed it into %s", rootFile, certFile, rootFile)
		}
		m.roots = []*x509.Certificate{m.cert}
		return writeAll(dir, []file{{rootFile, certs.EncodeChain(m.cert), 0o644}})
	}
	if err != nil {
		return err
	}
	if m.roots, err = certs.ParseChain(data); err != nil {
		return fmt.Errorf("%s cannot be read (%w): restore it from a backup", rootFile, err)
	}
	pool := x509.NewCertPool()
	for _, r := range m.roots {
		if r.Equal(m.cert) {
			return nil
		}
		pool.AddCert(r)
	}
	opts := x509.VerifyOptions{Roots: pool, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}
	if _, err := m.cert.Verify(opts); err != nil {
		return fmt.Errorf("%s is not signed by a root of %s (%w): put the root that signed it into %s", certFile, rootFile, err, rootFile)
	}
	m.intermediates = []*x509.Certificate{m.cert}
	return nil
}

type file struct {
	name string
	data []byte
	mode fs.FileMode
}

// writeAll writes files so that each of them is there as a whole or not at all:
// all are on the disk under temporary names before the first gets its own.
func writeAll(dir string, files []file) error {
	temporary := make([]string, len(files))
	defer func() {
		for _, name := range temporary {
			if name != "" {
				_ = os.Remove(name) // only left over after an error, which is returned
			}
		}
	}()
	for i, f := range files {
		name, err := writeTemporary(dir, f)
		temporary[i] = name
		if err != nil {
			return fmt.Errorf("writing %s: %w", f.name, err)
		}
	}
	for i, f := range files {
		if err := os.Rename(temporary[i], filepath.Join(dir, f.name)); err != nil {
			return err
		}
		temporary[i] = ""
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

func writeTemporary(dir string, f file) (string, error) {
	t, err := os.CreateTemp(dir, "."+f.name+".*") // made with mode 0600
	if err != nil {
		return "", err
	}
	_, err = t.Write(f.data)
	return t.Name(), errors.Join(err, t.Chmod(f.mode), t.Sync(), t.Close())
}

// lock takes a lock between processes and returns the function that gives it
// back.
func lock(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		return nil, errors.Join(fmt.Errorf("locking %s: %w", path, err), f.Close())
	}
	return func() {
		_ = f.Close() // gives the lock back; nothing was written
	}, nil
}
