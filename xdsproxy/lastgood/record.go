// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package lastgood

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"strings"
)

// key stands for the name of a resource in memory: the names themselves are
// on disk. The first bytes stand for what is before the last slash, which is
// the route configuration of a virtual host.
type key [24]byte

// parentSize is how many bytes of a key stand for the parent.
const parentSize = 8

func keyOf(name string) (k key) {
	parent := ""
	if i := strings.LastIndexByte(name, '/'); i >= 0 {
		parent = name[:i]
	}
	p, n := parentOf(parent), sha256.Sum256([]byte(name))
	copy(k[:parentSize], p[:])
	copy(k[parentSize:], n[:])
	return k
}

// parentOf is the first part of the keys below a name.
func parentOf(name string) (p [parentSize]byte) {
	sum := sha256.Sum256([]byte(name))
	copy(p[:], sum[:])
	return p
}

// under says whether a key's name is below a parent.
func (k *key) under(p [parentSize]byte) bool { return [parentSize]byte(k[:parentSize]) == p }

// digest is a short digest, to find out what changed.
func digest(parts ...[]byte) uint64 {
	h := sha256.New()
	for _, p := range parts {
		_, _ = h.Write(p) // it never returns an error
	}
	var sum [sha256.Size]byte
	return binary.BigEndian.Uint64(h.Sum(sum[:0]))
}

// What a resource on disk is, beside its bytes.
const (
	flagWithheld = 1 // it has a private key and was not kept: the bytes are missing
	flagPrivate  = 2 // it has a private key and was kept with consent
)

// put is a resource as it stands on disk. The body is the Resource message
// without name, version and time to live.
type put struct {
	batch   uint32
	typeURL string
	name    string
	version uint64 // digest of the version that the control plane gave
	flags   byte
	body    []byte
}

// mark names resources of a batch by their keys.
type mark struct {
	batch uint32
	keep  []key // as they were
	drop  []key
}

// commit makes batches count, in their order.
type commit struct {
	time    int64 // Unix time in nanoseconds
	batches []batchRef
}

// What a batch does to the resources of its type.
const (
	flagReplace = 1 // they are the batch
	flagForget  = 2 // they and the type are forgotten
)

type batchRef struct {
	batch   uint32
	typeURL string
	flags   byte
}

// The kinds of records.
const (
	recordPut    = 1
	recordMark   = 2
	recordCommit = 3
)

var errRecord = errors.New("the record is no such record")

func (p *put) append(b []byte) []byte {
	b = append(b, recordPut, p.flags)
	b = binary.BigEndian.AppendUint32(b, p.batch)
	b = binary.BigEndian.AppendUint64(b, p.version)
	b = appendString(b, p.typeURL)
	b = appendString(b, p.name)
	return append(b, p.body...)
}

func (m *mark) append(b []byte) []byte {
	b = append(b, recordMark)
	b = binary.BigEndian.AppendUint32(b, m.batch)
	for _, keys := range [][]key{m.keep, m.drop} {
		b = binary.AppendUvarint(b, uint64(len(keys)))
		for _, k := range keys {
			b = append(b, k[:]...)
		}
	}
	return b
}

func (c *commit) append(b []byte) []byte {
	b = append(b, recordCommit)
	b = binary.BigEndian.AppendUint64(b, uint64(c.time))
	b = binary.AppendUvarint(b, uint64(len(c.batches)))
	for _, r := range c.batches {
		b = append(b, r.flags)
		b = binary.BigEndian.AppendUint32(b, r.batch)
		b = appendString(b, r.typeURL)
	}
	return b
}

func appendString(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// cursor reads a record. After a mistake it gives zeros.
type cursor struct {
	b   []byte
	bad bool
}

func (c *cursor) take(n uint64) []byte {
	if c.bad || n > uint64(len(c.b)) {
		c.bad = true
		return nil
	}
	v := c.b[:n]
	c.b = c.b[n:]
	return v
}

func (c *cursor) uint(size uint64) (v uint64) {
	for _, b := range c.take(size) {
		v = v<<8 | uint64(b)
	}
	return v
}

// count reads how many things of a size follow, which have to be there.
func (c *cursor) count(size int) uint64 {
	v, n := binary.Uvarint(c.b)
	if c.bad || n <= 0 || v > uint64(len(c.b)/size) {
		c.bad = true
		return 0
	}
	c.b = c.b[n:]
	return v
}

func (c *cursor) string() string { return string(c.take(c.count(1))) }

func (c *cursor) bytes() []byte { return append([]byte(nil), c.take(c.count(1))...) }

func (c *cursor) keys() (keys []key) {
	for range c.count(len(key{})) {
		var k key
		copy(k[:], c.take(uint64(len(k))))
		keys = append(keys, k)
	}
	return keys
}

// readRecord reads a record into a *put, whose body is part of b, a *mark or
// a *commit.
func readRecord(b []byte) (any, error) {
	c := &cursor{b: b}
	var record any
	switch c.uint(1) {
	case recordPut:
		p := &put{flags: byte(c.uint(1)), batch: uint32(c.uint(4)), version: c.uint(8), typeURL: c.string(), name: c.string()}
		p.body = c.b
		return p, c.err(false)
	case recordMark:
		record = &mark{batch: uint32(c.uint(4)), keep: c.keys(), drop: c.keys()}
	case recordCommit:
		m := &commit{time: int64(c.uint(8))}
		for range c.count(6) {
			m.batches = append(m.batches, batchRef{flags: byte(c.uint(1)), batch: uint32(c.uint(4)), typeURL: c.string()})
		}
		record = m
	default:
		c.bad = true
	}
	return record, c.err(true)
}

// err is an error if something was missing, or was left over.
func (c *cursor) err(whole bool) error {
	if c.bad || whole && len(c.b) > 0 {
		return errRecord
	}
	return nil
}
