// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package lastgood

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"
)

// loc is where a resource is on disk.
type loc struct {
	at      int64  // of the record
	size    uint32 // of the record, without its length
	flags   byte
	sum     uint64 // digest of name, flags and body
	version uint64 // digest of the control plane's version
}

// set is the resources of one type.
type set map[key]loc

// The operations of a change.
const (
	opPut = iota
	opKeep
	opDrop
)

// change is what a batch does to one resource.
type change struct {
	key key
	op  byte
	loc loc // of opPut
}

// index is what is on disk, by type and name.
type index struct {
	sets map[string]set
	live int64 // bytes of the records that count
}

// apply lets a batch count.
func (x *index) apply(ref batchRef, changes []change) {
	old := x.sets[ref.typeURL]
	into := old
	if into == nil || ref.flags&flagReplace != 0 {
		into = make(set, len(changes))
	}
	for _, c := range changes {
		switch c.op {
		case opPut:
			into[c.key] = c.loc
		case opKeep:
			if l, ok := old[c.key]; ok {
				into[c.key] = l
			}
		case opDrop:
			delete(into, c.key)
		}
	}
	x.sets[ref.typeURL] = into
	if ref.flags&flagForget != 0 {
		delete(x.sets, ref.typeURL)
	}
}

// count sums up what counts.
func (x *index) count() {
	x.live = 0
	for _, s := range x.sets {
		for _, l := range s {
			x.live += lenSize + int64(l.size)
		}
	}
}

// state is a file with its index. What the index names does not change
// anymore, so that another one can read it while the writer appends.
type state struct {
	index

	file storage
	seal *sealer
	from time.Time // of the last commit
	end  int64     // of the last commit
	rest error     // why what follows it does not count, if anything does
}

// storage is an open file.
type storage interface {
	io.ReaderAt
	io.WriterAt
	Sync() error
	Truncate(size int64) error
	Close() error
}

// read returns a record's content, appended to plain. The scratch holds what
// is sealed.
func (s *state) read(plain, scratch []byte, l loc) ([]byte, []byte, error) {
	scratch = grow(scratch, int(l.size))
	if _, err := s.file.ReadAt(scratch, l.at+lenSize); err != nil {
		return plain, scratch, unreadable(err)
	}
	plain, err := s.seal.open(plain, l.at, scratch)
	return plain, scratch, err
}

// readPut reads a resource. Its body is valid until the scratch is used again.
func (s *state) readPut(b *buffers, l loc) (*put, error) {
	var err error
	b.plain, b.sealed, err = s.read(b.plain[:0], b.sealed, l)
	if err != nil {
		return nil, err
	}
	record, err := readRecord(b.plain)
	p, ok := record.(*put)
	if err != nil || !ok {
		return nil, refuse(reasonDamaged, "the record at byte %d is no resource", l.at)
	}
	return p, nil
}

// buffers are used again for each record.
type buffers struct{ plain, sealed []byte }

// maxKept is the size of a buffer that is worth keeping, in bytes.
const maxKept = 256 << 10

// trim lets go of buffers that became large.
func (b *buffers) trim() {
	if cap(b.plain) > maxKept || cap(b.sealed) > maxKept {
		*b = buffers{}
	}
}

func grow(b []byte, size int) []byte {
	if cap(b) < size {
		return make([]byte, size, size+size/4)
	}
	return b[:size]
}

// load reads the state of a directory and checks every byte of it.
func (s *Store) load() (*state, error) {
	path := filepath.Join(s.cfg.Dir, stateFile)
	f, err := openOwn(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, refuse(reasonNone, "nothing was kept so far")
	}
	if err != nil {
		return nil, about(path, err)
	}
	st, err := s.loadFrom(f)
	if err != nil {
		_ = f.Close() // it was only read from
		return nil, about(path, err)
	}
	return st, nil
}

func (s *Store) loadFrom(f *os.File) (*state, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, refuse(reasonDisk, "it cannot be looked at: %v", err)
	}
	if info.Size() > s.cfg.MaxBytes {
		return nil, refuse(reasonSize, "it has %d bytes, the bound is %d", info.Size(), s.cfg.MaxBytes)
	}
	r := bufio.NewReaderSize(io.NewSectionReader(f, 0, info.Size()), 64<<10)
	seal, err := s.owner.readHeader(r, kindState)
	if err != nil {
		return nil, err
	}
	l := &loader{
		state:   &state{index: index{sets: map[string]set{}}, file: f, seal: seal},
		secrets: s.cfg.Secrets,
		batches: map[uint32][]change{},
	}
	l.rest = eachRecord(r, seal, info.Size(), l.record)
	if l.end == 0 {
		if l.rest == nil {
			return nil, refuse(reasonDamaged, "it holds nothing that envoy acknowledged")
		}
		return nil, l.rest
	}
	l.count()
	return l.state, nil
}

// eachRecord calls fn with the records of a file that begin after its header,
// and with where they end. It ends at the first one that is not as written.
func eachRecord(r io.Reader, seal *sealer, size int64, fn func(l loc, plain []byte) error) error {
	var b buffers
	for at := int64(len(seal.header)); at < size; {
		var length [lenSize]byte
		if _, err := io.ReadFull(r, length[:]); err != nil {
			return unreadable(err)
		}
		l := loc{at: at, size: binary.BigEndian.Uint32(length[:])}
		if int64(l.size) > size-at-lenSize {
			return refuse(reasonDamaged, "it is cut off")
		}
		b.trim()
		b.sealed = grow(b.sealed, int(l.size))
		if _, err := io.ReadFull(r, b.sealed); err != nil {
			return unreadable(err)
		}
		plain, err := seal.open(b.plain[:0], at, b.sealed)
		if err != nil {
			return err
		}
		b.plain = plain
		if err := fn(l, plain); err != nil {
			return err
		}
		at += lenSize + int64(l.size)
	}
	return nil
}

// loader builds an index from records.
type loader struct {
	*state
	secrets bool
	batches map[uint32][]change // that no commit has named yet
}

func (l *loader) record(at loc, plain []byte) error {
	record, err := readRecord(plain)
	if err != nil {
		return refuse(reasonDamaged, "the record at byte %d: %v", at.at, err)
	}
	switch r := record.(type) {
	case *put:
		at.flags, at.version, at.sum = r.flags, r.version, r.sum()
		if at.flags&flagPrivate != 0 && !l.secrets {
			at.flags |= flagWithheld // the consent was withdrawn
		}
		l.batches[r.batch] = append(l.batches[r.batch], change{keyOf(r.name), opPut, at})
	case *mark:
		l.batches[r.batch] = append(l.batches[r.batch], r.changes()...)
	case *commit:
		for _, ref := range r.batches {
			l.apply(ref, l.batches[ref.batch])
			delete(l.batches, ref.batch)
		}
		if !l.secrets {
			delete(l.sets, secretType)
		}
		l.from, l.end = time.Unix(0, r.time), at.at+lenSize+int64(at.size)
	default:
		return fmt.Errorf("%w: %T", errRecord, record)
	}
	return nil
}

// changes are what a mark does.
func (m *mark) changes() (changes []change) {
	for _, k := range m.keep {
		changes = append(changes, change{key: k, op: opKeep})
	}
	for _, k := range m.drop {
		changes = append(changes, change{key: k, op: opDrop})
	}
	return changes
}

// sum is the digest by which a resource is known that did not change.
func (p *put) sum() uint64 { return digest([]byte(p.name), []byte{p.flags}, p.body) }
