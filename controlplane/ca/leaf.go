// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package ca

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"fmt"
	"math/big"
	"time"

	"golang.org/x/crypto/cryptobyte"
	cbasn1 "golang.org/x/crypto/cryptobyte/asn1"

	"github.com/outrigger-mesh/outrigger/certs"
)

// Certificates of workloads differ only in serial number, validity, key and identity. This file
// encodes them with the same bytes as x509.CreateCertificate (a test compares), because that
// function verifies each signature that it creates, which takes longer than everything else.
// Instead, each signer proves once that its signatures can be verified; crypto/rsa checks its
// results itself.

// leafDER contains the encoded parts that all leaves of one issuer share.
type leafDER struct {
	hash      crypto.Hash
	algorithm []byte // AlgorithmIdentifier of the signature
	issuer    []byte // Name
	// Extensions before the names, for keys that can encrypt (RSA) and for other keys.
	withRSA, withECDSA []byte
}

// leafRequest contains the individual parts of one leaf.
type leafRequest struct {
	serial              *big.Int // nil means a new random one
	id                  certs.ID
	key                 crypto.PublicKey
	notBefore, notAfter time.Time
}

func newLeafDER(issuer *x509.Certificate, key crypto.Signer) (leafDER, error) {
	d := leafDER{issuer: issuer.RawSubject}
	algorithm := pkix.AlgorithmIdentifier{}
	switch pub := key.Public().(type) {
	case *rsa.PublicKey:
		d.hash = crypto.SHA256
		algorithm.Algorithm = asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 1, 11} // sha256WithRSAEncryption
		algorithm.Parameters = asn1.NullRawValue
	case *ecdsa.PublicKey:
		d.hash = crypto.SHA256
		algorithm.Algorithm = asn1.ObjectIdentifier{1, 2, 840, 10045, 4, 3, 2} // ecdsa-with-SHA256
		if pub.Curve == elliptic.P384() {
			d.hash = crypto.SHA384
			algorithm.Algorithm = asn1.ObjectIdentifier{1, 2, 840, 10045, 4, 3, 3} // ecdsa-with-SHA384
		}
	default:
		return d, fmt.Errorf("keys of type %T cannot sign; use ECDSA or RSA", pub)
	}
	var err error
	if d.algorithm, err = asn1.Marshal(algorithm); err != nil {
		return d, err
	}
	// KeyUsage is a BIT STRING: digitalSignature is bit 0, keyEncipherment bit 2.
	if d.withRSA, err = sharedExtensions(issuer, []byte{0x03, 0x02, 0x05, 0xa0}); err != nil {
		return d, err
	}
	d.withECDSA, err = sharedExtensions(issuer, []byte{0x03, 0x02, 0x07, 0x80})
	return d, err
}

// sharedExtensions encodes key usage, extended key usage, basic constraints and the authority key
// identifier.
func sharedExtensions(issuer *x509.Certificate, keyUsage []byte) ([]byte, error) {
	usages, err := asn1.Marshal([]asn1.ObjectIdentifier{{1, 3, 6, 1, 5, 5, 7, 3, 2}, {1, 3, 6, 1, 5, 5, 7, 3, 1}}) // clientAuth, serverAuth
	if err != nil {
		return nil, err
	}
	list := []pkix.Extension{
		{Id: asn1.ObjectIdentifier{2, 5, 29, 15}, Critical: true, Value: keyUsage},
		{Id: asn1.ObjectIdentifier{2, 5, 29, 37}, Value: usages},
		{Id: asn1.ObjectIdentifier{2, 5, 29, 19}, Critical: true, Value: []byte{0x30, 0x00}}, // CA:FALSE
	}
	if len(issuer.SubjectKeyId) > 0 {
		id, err := asn1.Marshal(struct {
			ID []byte `asn1:"optional,tag:0"`
		}{issuer.SubjectKeyId})
		if err != nil {
			return nil, err
		}
		list = append(list, pkix.Extension{Id: asn1.ObjectIdentifier{2, 5, 29, 35}, Value: id})
	}
	var out []byte
	for _, e := range list {
		der, err := asn1.Marshal(e)
		if err != nil {
			return nil, err
		}
		out = append(out, der...)
	}
	return out, nil
}

// leaf signs a certificate for a workload and returns its DER encoding.
func (s *signer) leaf(r leafRequest) ([]byte, error) {
	// The key is re-encoded, so that the certificate contains no bytes of the request.
	key, err := x509.MarshalPKIXPublicKey(r.key)
	if err != nil {
		return nil, err
	}
	if r.serial == nil {
		if r.serial, err = newSerial(); err != nil {
			return nil, err
		}
	}
	tbs, err := s.der.tbs(r, key)
	if err != nil {
		return nil, err
	}
	signature, err := crypto.SignMessage(s.key, rand.Reader, tbs, s.der.hash)
	if err != nil {
		return nil, err
	}
	b := cryptobyte.NewBuilder(make([]byte, 0, len(tbs)+len(signature)+64))
	b.AddASN1(cbasn1.SEQUENCE, func(b *cryptobyte.Builder) {
		b.AddBytes(tbs)
		b.AddBytes(s.der.algorithm)
		b.AddASN1BitString(signature)
	})
	return b.Bytes()
}

// tbs encodes the part that is signed. Because the subject is empty, the names are critical (RFC
// 5280, 4.2.1.6).
func (d *leafDER) tbs(r leafRequest, key []byte) ([]byte, error) {
	extensions := d.withECDSA
	if _, ok := r.key.(*rsa.PublicKey); ok {
		extensions = d.withRSA
	}
	b := cryptobyte.NewBuilder(make([]byte, 0, len(key)+len(extensions)+len(d.issuer)+256))
	b.AddASN1(cbasn1.SEQUENCE, func(b *cryptobyte.Builder) {
		b.AddASN1(cbasn1.Tag(0).ContextSpecific().Constructed(), func(b *cryptobyte.Builder) { b.AddASN1Int64(2) }) // version 3
		b.AddASN1BigInt(r.serial)
		b.AddBytes(d.algorithm)
		b.AddBytes(d.issuer)
		b.AddASN1(cbasn1.SEQUENCE, func(b *cryptobyte.Builder) {
			addTime(b, r.notBefore)
			addTime(b, r.notAfter)
		})
		b.AddBytes([]byte{0x30, 0x00})
		b.AddBytes(key)
		b.AddASN1(cbasn1.Tag(3).ContextSpecific().Constructed(), func(b *cryptobyte.Builder) {
			b.AddASN1(cbasn1.SEQUENCE, func(b *cryptobyte.Builder) {
				b.AddBytes(extensions)
				addURI(b, r.id.String())
			})
		})
	})
	return b.Bytes()
}

// addURI encodes a critical subjectAltName extension with one URI.
func addURI(b *cryptobyte.Builder, uri string) {
	b.AddASN1(cbasn1.SEQUENCE, func(b *cryptobyte.Builder) {
		b.AddASN1ObjectIdentifier(asn1.ObjectIdentifier{2, 5, 29, 17})
		b.AddASN1Boolean(true)
		b.AddASN1(cbasn1.OCTET_STRING, func(b *cryptobyte.Builder) {
			b.AddASN1(cbasn1.SEQUENCE, func(b *cryptobyte.Builder) {
				b.AddASN1(cbasn1.Tag(6).ContextSpecific(), func(b *cryptobyte.Builder) { b.AddBytes([]byte(uri)) })
			})
		})
	})
}

// addTime encodes a time according to RFC 5280, 4.1.2.5: UTCTime until 2049.
func addTime(b *cryptobyte.Builder, t time.Time) {
	if t = t.UTC(); t.Year() >= 1950 && t.Year() < 2050 {
		b.AddASN1UTCTime(t)
	} else {
		b.AddASN1GeneralizedTime(t)
	}
}
