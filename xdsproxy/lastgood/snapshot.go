// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package lastgood

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"hash/maphash"
	"io"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/outrigger-mesh/outrigger/xdsproxy/wire"
)

// resource is a resource of a snapshot. Its body is the Resource message of xDS without name,
// version and time to live.
type resource struct {
	typeURL, name string
	version       uint64 // digest of the control plane's version
	flags         byte
	body          []byte
}

// Flags of resources.
const (
	flagWithheld = 1 // has a private key and is not stored: the body is missing
	flagPrivate  = 2 // has a private key and is stored with consent
)

// end is the last record of a snapshot.
type end struct {
	time  time.Time
	count uint64   // number of resources
	types []string // types of which Envoy had resources, or an empty set
}

// Fields of a record. A resource has fieldResource; the end has fieldEnd.
const (
	fieldResource protowire.Number = iota + 1 // version and flags
	fieldType
	fieldName
	fieldBody
	fieldEnd // time and number of resources
)

var errRecord = refuse(reasonDamaged, "a record is neither a resource nor the end")

func (r *resource) append(b []byte) []byte {
	b = wire.Append(b, fieldResource, append(binary.BigEndian.AppendUint64(nil, r.version), r.flags))
	b = wire.Append(wire.Append(b, fieldType, r.typeURL), fieldName, r.name)
	return wire.Append(b, fieldBody, r.body)
}

func (e *end) append(b []byte) []byte {
	b = wire.Append(b, fieldEnd, binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, uint64(e.time.UnixNano())), e.count))
	for _, typeURL := range e.types {
		b = wire.Append(b, fieldType, typeURL)
	}
	return b
}

// readRecord decodes a resource, whose body is a slice of b, or the end.
func readRecord(b []byte) (*resource, *end, error) {
	var r *resource
	var e *end
	var name string
	var body []byte
	var types []string
	err := wire.EachBytes(b, errRecord, func(n protowire.Number, v []byte) error {
		switch {
		case n == fieldResource && len(v) == 9 && r == nil && e == nil:
			r = &resource{version: binary.BigEndian.Uint64(v), flags: v[8]}
		case n == fieldEnd && len(v) == 16 && r == nil && e == nil:
			e = &end{time: time.Unix(0, int64(binary.BigEndian.Uint64(v))), count: binary.BigEndian.Uint64(v[8:])}
		case n == fieldType:
			types = append(types, string(v))
		case n == fieldName:
			name = string(v)
		case n == fieldBody:
			body = v
		default:
			return errRecord
		}
		return nil
	})
	switch {
	case err != nil:
		return nil, nil, err
	case e != nil:
		e.types = types
		return nil, e, nil
	case r == nil || len(types) != 1:
		return nil, nil, errRecord
	}
	r.typeURL, r.name, r.body = types[0], name, body
	return r, nil, nil
}

// digest returns a digest of a version that is the same in every process.
func digest(version string) uint64 {
	d := sha256.Sum256([]byte(version))
	return binary.BigEndian.Uint64(d[:])
}

// snapshot is an open snapshot file.
type snapshot struct {
	file    *os.File
	seal    *sealer
	size    int64
	secrets bool // the configuration permits secrets and private keys
	from    time.Time
	types   map[string]int // total size of the resources of each type, in bytes
	// sums detects changed resources. It is keyed by a digest of type and name, and nil in a
	// snapshot that is only served.
	sums map[uint64]sum
	seed maphash.Seed
	// withheld is true if the file contains data that the configuration does not permit.
	withheld bool
}

func newSnapshot(seal *sealer, secrets, digests bool) *snapshot {
	s := &snapshot{seal: seal, secrets: secrets, types: map[string]int{}, seed: maphash.MakeSeed()}
	if digests {
		s.sums = map[uint64]sum{}
	}
	return s
}

// sum contains the digests of a resource.
type sum struct{ version, content uint64 }

// resourceCost is the maximum size of a resource in a response in addition to name and body, in
// bytes.
const resourceCost = 32

// add counts a resource of the snapshot.
func (s *snapshot) add(r *resource) {
	s.types[r.typeURL] += len(r.name) + len(r.body) + resourceCost
	if s.sums != nil {
		s.sums[hash(s.seed, r.typeURL, r.name)] = s.sumOf(r)
	}
}

// hash returns a digest that is valid only in this process.
func hash[T string | []byte](seed maphash.Seed, label string, v T) uint64 {
	var h maphash.Hash
	h.SetSeed(seed)
	_, _ = h.WriteString(label) // a hash returns no errors
	_ = h.WriteByte(0)
	_, _ = h.Write([]byte(v))
	return h.Sum64()
}

func (s *snapshot) sumOf(r *resource) sum {
	return sum{r.version, hash(s.seed, string(rune(r.flags)), r.body)}
}

// has reports whether the snapshot contains a type, possibly without resources.
func (s *snapshot) has(typeURL string) bool {
	if s == nil {
		return false
	}
	_, ok := s.types[typeURL]
	return ok
}

// sum returns the digests of a resource, and whether the snapshot contains it.
func (s *snapshot) sum(typeURL, name string) (sum, bool) {
	if s == nil {
		return sum{}, false
	}
	v, ok := s.sums[hash(s.seed, typeURL, name)]
	return v, ok
}

// same reports whether the snapshot contains an identical resource.
func (s *snapshot) same(r *resource) bool {
	have, ok := s.sum(r.typeURL, r.name)
	return ok && have == s.sumOf(r)
}

// maxKept is the maximum size of a buffer that is reused, in bytes.
const maxKept = 256 << 10

func grow(b []byte, size int) []byte {
	if cap(b) < size || cap(b) > maxKept {
		return make([]byte, size, size+size/4)
	}
	return b[:size]
}

// scan calls fn for every resource that the configuration permits, and returns the end record. A
// resource is valid until fn returns. An error means that the whole snapshot is unusable.
func (s *snapshot) scan(fn func(*resource) error) (*end, error) {
	at := int64(len(s.seal.header))
	r := bufio.NewReaderSize(io.NewSectionReader(s.file, at, s.size-at), 64<<10)
	var sealed, plain []byte
	for count := uint64(0); ; count++ {
		var length [lenSize]byte
		if _, err := io.ReadFull(r, length[:]); err != nil {
			return nil, unreadable(err)
		}
		size := int64(binary.BigEndian.Uint32(length[:]))
		if size > s.size-at-lenSize {
			return nil, unreadable(io.ErrUnexpectedEOF)
		}
		sealed = grow(sealed, int(size))
		if _, err := io.ReadFull(r, sealed); err != nil {
			return nil, unreadable(err)
		}
		var err error
		if plain, err = s.seal.open(grow(plain, int(size))[:0], at, sealed); err != nil {
			return nil, err
		}
		at += lenSize + size
		res, e, err := readRecord(plain)
		switch {
		case err != nil:
			return nil, err
		case e != nil && (e.count != count || at != s.size):
			return nil, refuse(reasonDamaged, "it has %d resources and %d bytes after them; it must have %d and none", count, s.size-at, e.count)
		case e != nil:
			return e, nil
		case s.consents(res):
			if err := fn(res); err != nil {
				return nil, err
			}
		}
	}
}

// consents reports whether the configuration permits a resource. If not, it removes the body.
func (s *snapshot) consents(r *resource) bool {
	if s.secrets || r.typeURL != secretType && r.flags&flagPrivate == 0 {
		return true
	}
	s.withheld = true
	r.flags, r.body = flagWithheld, nil
	return r.typeURL != secretType
}

// load opens the snapshot in the store's directory and verifies it completely.
func (s *Store) load(digests bool) (*snapshot, error) {
	path := filepath.Join(s.cfg.Dir, snapshotFile)
	f, err := openOwn(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, refuse(reasonNone, "nothing was stored so far")
	}
	if err != nil {
		return nil, about(path, err)
	}
	st, err := s.loadFrom(f, digests)
	if err != nil {
		_ = f.Close() // read-only: closing cannot lose data
		return nil, about(path, err)
	}
	// A confirmation of another snapshot, or an unreadable one, is ignored.
	if plain, err := s.readSealed(s.owner, confirmedFile, kindConfirmed); err == nil && len(plain) == saltSize+8 && bytes.Equal(plain[:saltSize], st.seal.salt()) {
		st.from = time.Unix(0, int64(binary.BigEndian.Uint64(plain[saltSize:])))
	}
	return st, nil
}

func (s *Store) loadFrom(f *os.File, digests bool) (*snapshot, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, refuse(reasonDisk, "it cannot be examined: %v", err)
	}
	if info.Size() > s.cfg.MaxBytes {
		return nil, refuse(reasonSize, "it has %d bytes; the limit is %d", info.Size(), s.cfg.MaxBytes)
	}
	seal, err := s.owner.readHeader(f, kindSnapshot)
	if err != nil {
		return nil, err
	}
	st := newSnapshot(seal, s.cfg.Secrets, digests)
	st.file, st.size = f, info.Size()
	e, err := st.scan(func(r *resource) error {
		st.add(r)
		return nil
	})
	if err != nil {
		return nil, err
	}
	st.from = e.time
	for _, typeURL := range e.types {
		if typeURL != secretType || s.cfg.Secrets {
			st.types[typeURL] += 0
		}
	}
	return st, nil
}
