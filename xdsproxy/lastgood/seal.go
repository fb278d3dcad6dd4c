// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package lastgood

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"github.com/outrigger-mesh/outrigger/internal/durable"
)

// A file has a header in the clear and sealed records.
//
//	header: magic, format, kind, salt, key ID, digest of the identity, version
//	record: length (4 bytes), nonce, ciphertext and tag
//
// Each file has a key of its own, derived from the node's key with the salt and
// the whole header: a record of another file, identity, version or format does
// not open. The associated data of a record is its place in the file, so that
// records cannot be moved, repeated or left out.
const (
	magic     = "OUTRIGGR"
	format    = 2
	keySize   = 32
	saltSize  = 32
	keyIDSize = 16
	fixedSize = len(magic) + 2 + 1 + saltSize + keyIDSize + sha256.Size + 1
	lenSize   = 4
	sealSize  = 12 + 16 // nonce and tag of AES-GCM
	// maxVersion is the maximum length of the version in a header, in bytes.
	maxVersion = 255
	// maxSmall is the maximum size of a file with one record, in bytes.
	maxSmall = 1 << 20
)

// File kinds.
const (
	kindSnapshot  = 1
	kindIdentity  = 2
	kindConfirmed = 3
	kindSpool     = 4
)

// owner identifies the agent to which files belong.
type owner struct {
	key      []byte // of the node
	identity string
	version  string
}

// sealer seals and opens the records of one file.
type sealer struct {
	aead   cipher.AEAD
	header []byte
}

// newSealer returns the sealer for a new file.
func (o *owner) newSealer(kind byte) (*sealer, error) {
	salt := make([]byte, saltSize)
	if _, err := rand.Read(salt); err != nil {
		return nil, fmt.Errorf("make a salt: %w", err)
	}
	h, err := o.header(kind, salt)
	if err != nil {
		return nil, err
	}
	return o.sealer(h)
}

// header returns the header of a file of this owner.
func (o *owner) header(kind byte, salt []byte) ([]byte, error) {
	id, err := hkdf.Key(sha256.New, o.key, salt, "key id", keyIDSize)
	if err != nil {
		return nil, fmt.Errorf("derive the id of a key: %w", err)
	}
	identity := sha256.Sum256([]byte(o.identity))
	h := append(binary.BigEndian.AppendUint16([]byte(magic), format), kind)
	h = append(append(append(h, salt...), id...), identity[:]...)
	return append(append(h, byte(len(o.version))), o.version...), nil
}

func (o *owner) sealer(header []byte) (*sealer, error) {
	s := &sealer{header: header}
	key, err := hkdf.Key(sha256.New, o.key, s.salt(), "records of "+string(header), keySize)
	if err != nil {
		return nil, fmt.Errorf("derive the key of a file: %w", err)
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	s.aead, err = cipher.NewGCMWithRandomNonce(block)
	return s, err
}

// salt returns the random part of a file's header.
func (s *sealer) salt() []byte { return s.header[len(magic)+3:][:saltSize] }

// readHeader reads a file's header and rejects a file of another owner.
func (o *owner) readHeader(r io.Reader, kind byte) (*sealer, error) {
	fixed := make([]byte, fixedSize)
	if _, err := io.ReadFull(r, fixed); err != nil {
		return nil, unreadable(err)
	}
	header := append(fixed, make([]byte, fixed[fixedSize-1])...)
	if _, err := io.ReadFull(r, header[fixedSize:]); err != nil {
		return nil, unreadable(err)
	}
	if string(header[:len(magic)]) != magic || header[len(magic)+2] != kind {
		return nil, refuse(reasonDamaged, "it does not begin with the signature of such a file")
	}
	if got := binary.BigEndian.Uint16(header[len(magic):]); got != format {
		return nil, refuse(reasonVersion, "it has format %d, but this agent reads format %d", got, format)
	}
	want, err := o.header(kind, header[len(magic)+3:][:saltSize])
	if err != nil {
		return nil, err
	}
	from := fixedSize - 1 - sha256.Size
	switch {
	case !bytes.Equal(header[from:fixedSize-1], want[from:fixedSize-1]):
		return nil, refuse(reasonIdentity, "it was stored for an identity other than %q", o.identity)
	case !bytes.Equal(header[fixedSize:], want[fixedSize:]):
		return nil, refuse(reasonVersion, "it was stored by version %q, but this agent is %q", header[fixedSize:], o.version)
	case !bytes.Equal(header[:from], want[:from]):
		return nil, refuse(reasonKey, "it is sealed with a key other than that of this node")
	}
	return o.sealer(header)
}

// unreadable returns a refusal for a file that is truncated or cannot be read.
func unreadable(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return refuse(reasonDamaged, "it is truncated")
	}
	return refuse(reasonDisk, "it cannot be read: %v", err)
}

// place returns the associated data of a record.
func place(at int64, size int) []byte {
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint64(nil, uint64(at)), uint32(size))
}

// seal appends the sealed record for the given offset in the file.
func (s *sealer) seal(dst []byte, at int64, plain []byte) []byte {
	size := len(plain) + sealSize
	dst = binary.BigEndian.AppendUint32(dst, uint32(size))
	return s.aead.Seal(dst, nil, plain, place(at, size))
}

// open appends the content of a record, without its length, to dst.
func (s *sealer) open(dst []byte, at int64, sealed []byte) ([]byte, error) {
	plain, err := s.aead.Open(dst, nil, sealed, place(at, len(sealed)))
	if err != nil {
		return nil, refuse(reasonDamaged, "the record at byte %d is damaged", at)
	}
	return plain, nil
}

// writeSealed replaces a file with one record in the store's directory.
func (s *Store) writeSealed(o *owner, name string, kind byte, plain []byte) error {
	seal, err := o.newSealer(kind)
	if err != nil {
		return err
	}
	b := seal.seal(bytes.Clone(seal.header), int64(len(seal.header)), plain)
	if len(b) > maxSmall {
		return refuse(reasonSize, "it has %d bytes; the limit is %d", len(b), maxSmall)
	}
	return durable.Replace(filepath.Join(s.cfg.Dir, name), b, 0o600)
}

// readSealed returns the record of a file written by writeSealed.
func (s *Store) readSealed(o *owner, name string, kind byte) ([]byte, error) {
	f, err := openOwn(filepath.Join(s.cfg.Dir, name))
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // read-only: closing cannot lose data
	b, err := io.ReadAll(io.LimitReader(f, maxSmall+1))
	if err != nil {
		return nil, unreadable(err)
	}
	if len(b) > maxSmall {
		return nil, refuse(reasonSize, "it has more than %d bytes", maxSmall)
	}
	r := bytes.NewReader(b)
	seal, err := o.readHeader(r, kind)
	if err != nil {
		return nil, err
	}
	at := len(b) - r.Len()
	if r.Len() < lenSize || int64(binary.BigEndian.Uint32(b[at:])) != int64(r.Len()-lenSize) {
		return nil, unreadable(io.EOF)
	}
	return seal.open(nil, int64(at), b[at+lenSize:])
}
