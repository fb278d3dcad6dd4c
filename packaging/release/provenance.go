// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/secure-systems-lab/go-securesystemslib/dsse"
)

// A signer signs with a private key: the SHA-256 of what it is given, as openssl dgst -sha256 does.
type signer interface {
	dsse.Signer
	// public is the public key in PEM.
	public() ([]byte, error)
}

type keySigner struct{ crypto.Signer }

// readKey returns the signer of a private key in PEM. Errors do not contain the key.
func readKey(path string) (signer, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, fmt.Errorf("%s is no PEM file: write a key with openssl ecparam -name prime256v1 -genkey -noout", path)
	}
	if key, err := x509.ParsePKCS8PrivateKey(block.Bytes); err == nil {
		switch key := key.(type) {
		case *ecdsa.PrivateKey:
			return keySigner{key}, nil
		case *rsa.PrivateKey:
			return keySigner{key}, nil
		}
	}
	if key, err := x509.ParseECPrivateKey(block.Bytes); err == nil {
		return keySigner{key}, nil
	}
	if key, err := x509.ParsePKCS1PrivateKey(block.Bytes); err == nil {
		return keySigner{key}, nil
	}
	return nil, fmt.Errorf("%s has no private key of ECDSA or RSA that is not encrypted", path)
}

// Sign implements [dsse.Signer]. Without a source of random numbers, equal data have equal signatures
// (RFC 6979).
func (s keySigner) Sign(_ context.Context, data []byte) ([]byte, error) {
	sum := sha256.Sum256(data)
	return s.Signer.Sign(nil, sum[:], crypto.SHA256)
}

// KeyID implements [dsse.Signer]: the SHA-256 of the public key in DER.
func (s keySigner) KeyID() (string, error) {
	der, err := x509.MarshalPKIXPublicKey(s.Public())
	sum := sha256.Sum256(der)
	return hex.EncodeToString(sum[:]), err
}

func (s keySigner) public() ([]byte, error) {
	der, err := x509.MarshalPKIXPublicKey(s.Public())
	return pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}), err
}

// A released file has its SHA-256 in hexadecimal digits.
type released struct {
	name, sum string
	size      int64
}

// writeSums writes SHA256SUMS, which sha256sum -c reads, and returns the files.
func (o options) writeSums() ([]released, error) {
	entries, err := os.ReadDir(o.out)
	if err != nil {
		return nil, err
	}
	var files []released
	var sums bytes.Buffer
	for _, e := range entries {
		f, err := os.Open(filepath.Join(o.out, e.Name()))
		if err != nil {
			return nil, err
		}
		hash := sha256.New()
		n, err := io.Copy(hash, f)
		if err := errors.Join(err, f.Close()); err != nil {
			return nil, err
		}
		files = append(files, released{e.Name(), hex.EncodeToString(hash.Sum(nil)), n})
		fmt.Fprintf(&sums, "%x  %s\n", hash.Sum(nil), e.Name())
	}
	return files, os.WriteFile(filepath.Join(o.out, "SHA256SUMS"), sums.Bytes(), 0o644)
}

// source is where the commit of a release is.
const source = "https://github.com/outrigger-mesh/outrigger"

// A statement is an in-toto statement, version 1, with SLSA provenance, version 1.
type statement struct {
	Type          string     `json:"_type"`
	Subject       []resource `json:"subject"`
	PredicateType string     `json:"predicateType"`
	Predicate     provenance `json:"predicate"`
}

// A resource is a file, or a commit, with its digest.
type resource struct {
	Name   string            `json:"name,omitempty"`
	URI    string            `json:"uri,omitempty"`
	Digest map[string]string `json:"digest"`
}

type provenance struct {
	Definition struct {
		BuildType    string         `json:"buildType"`
		Parameters   map[string]any `json:"externalParameters"`
		Dependencies []resource     `json:"resolvedDependencies"`
	} `json:"buildDefinition"`
	Run struct {
		Builder struct {
			ID string `json:"id"`
		} `json:"builder"`
	} `json:"runDetails"`
}

// writeProvenance writes outrigger-VERSION.intoto.json, which says what the files were made from. A
// signer wraps it in an envelope (DSSE), as outrigger-VERSION.intoto.jsonl, and signs the checksums.
func (o options) writeProvenance(files []released, sign signer) error {
	s := statement{Type: "https://in-toto.io/Statement/v1", PredicateType: "https://slsa.dev/provenance/v1"}
	for _, f := range files {
		s.Subject = append(s.Subject, resource{Name: f.name, Digest: map[string]string{"sha256": f.sum}})
	}
	d := &s.Predicate.Definition
	d.BuildType = source + "/blob/main/packaging/release/doc.go"
	d.Parameters = map[string]any{"version": o.version, "architectures": o.arches, "envoy": o.envoyVersion}
	d.Dependencies = []resource{{URI: "git+" + source + "@" + o.commit, Digest: map[string]string{"gitCommit": o.commit}}}
	s.Predicate.Run.Builder.ID = o.builder
	text, err := json.MarshalIndent(s, "", " ")
	if err != nil {
		return err
	}
	path := filepath.Join(o.out, "outrigger-"+o.version[1:]+".intoto.json")
	if sign == nil {
		return os.WriteFile(path, text, 0o644)
	}
	return o.sign(path+"l", text, sign)
}

// sign writes the envelope of a statement to a path, the signature of SHA256SUMS, and the public key.
func (o options) sign(path string, text []byte, sign signer) error {
	envelopes, err := dsse.NewEnvelopeSigner(sign)
	if err != nil {
		return err
	}
	envelope, err := envelopes.SignPayload(context.Background(), "application/vnd.in-toto+json", text)
	if err != nil {
		return err
	}
	line, err := json.Marshal(envelope)
	if err != nil {
		return err
	}
	sums, err := os.ReadFile(filepath.Join(o.out, "SHA256SUMS"))
	if err != nil {
		return err
	}
	signature, err := sign.Sign(context.Background(), sums)
	if err != nil {
		return err
	}
	public, err := sign.public()
	if err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(path, append(line, '\n'), 0o644),
		os.WriteFile(filepath.Join(o.out, "SHA256SUMS.sig"), signature, 0o644),
		os.WriteFile(filepath.Join(o.out, "outrigger-release.pem"), public, 0o644),
	)
}
