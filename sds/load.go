// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package sds

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"github.com/outrigger-mesh/outrigger/certs"
)

// maxFile is the size limit of a file in bytes: the roots of a system have about 250 kB.
const maxFile = 4 << 20

// ReadFile reads a regular file of at most 4 MiB, which is not empty; links are followed.
func ReadFile(path string) ([]byte, error) {
	// Without the flag, opening a named pipe would wait for a writer.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // it was only read
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s is not a regular file", path)
	case info.Size() > maxFile:
		return nil, fmt.Errorf("%s has %d bytes; at most %d are read", path, info.Size(), maxFile)
	}
	data, err := io.ReadAll(io.LimitReader(f, maxFile))
	if err == nil && len(bytes.TrimSpace(data)) == 0 {
		err = fmt.Errorf("%s is empty", path)
	}
	return data, err
}

// parsePair parses a chain and its key, which must match.
func parsePair(chainPEM, keyPEM []byte) (*tls.Certificate, []*x509.Certificate, error) {
	chain, err := certs.ParseChain(chainPEM)
	if err != nil {
		return nil, nil, fmt.Errorf("reading chain: %w", err)
	}
	key, err := certs.ParseKey(keyPEM)
	if err != nil {
		return nil, nil, fmt.Errorf("reading key: %w", err)
	}
	if !certs.SamePublicKey(chain[0].PublicKey, key.Public()) {
		return nil, nil, errors.New("the key does not belong to the certificate")
	}
	cert := &tls.Certificate{PrivateKey: key, Leaf: chain[0]}
	for _, c := range chain {
		cert.Certificate = append(cert.Certificate, c.Raw)
	}
	return cert, chain, nil
}

// fileCertificate returns the secret of a chain and a key, with the text of the files.
func fileCertificate(contents [][]byte) (*material, error) {
	_, chain, err := parsePair(contents[0], contents[1])
	if err != nil {
		return nil, err
	}
	return newCertificate(contents[0], contents[1], firstEnd(chain)), nil
}

// fileRoots returns the secret of a file with roots.
func fileRoots(contents [][]byte) (*material, error) {
	roots, err := certs.ParseChain(contents[0])
	if err != nil {
		return nil, fmt.Errorf("reading roots: %w", err)
	}
	return newValidation(contents[0], nil, firstEnd(roots)), nil
}

// systemFileRoots returns the secret of the roots of the system. Go may be unable to parse
// some that Envoy supports, and some are usually expired.
func systemFileRoots(contents [][]byte) (*material, error) {
	block, _ := pem.Decode(contents[0])
	if block == nil || block.Type != "CERTIFICATE" {
		return nil, errors.New("reading roots of the system: there is no PEM block with a certificate")
	}
	return newValidation(contents[0], nil, time.Time{}), nil
}

// NextUpdate checks lists of revoked certificates, in PEM. It returns the earliest time of the
// next update of a list, or zero if none has one.
func NextUpdate(data []byte) (next time.Time, err error) {
	begun, n := bytes.Count(data, []byte("-----BEGIN ")), 0
	for {
		block, rest := pem.Decode(data)
		if block == nil {
			break
		}
		data = rest
		if block.Type != "X509 CRL" {
			return next, fmt.Errorf("PEM block %d is %.40q, not X509 CRL", n+1, block.Type)
		}
		list, err := x509.ParseRevocationList(block.Bytes)
		if err != nil {
			return next, fmt.Errorf("reading list %d of revoked certificates: %w", n+1, err)
		}
		if n++; !list.NextUpdate.IsZero() && (next.IsZero() || list.NextUpdate.Before(next)) {
			next = list.NextUpdate
		}
	}
	if n == 0 || n != begun {
		return next, fmt.Errorf("%d of %d PEM blocks with revoked certificates can be read", n, begun)
	}
	return next, nil
}

func firstEnd(list []*x509.Certificate) time.Time {
	var end time.Time
	for _, c := range list {
		if end.IsZero() || c.NotAfter.Before(end) {
			end = c.NotAfter
		}
	}
	return end
}
