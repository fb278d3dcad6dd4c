// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package denylist

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strings"

	"github.com/outrigger-mesh/outrigger/certs"
)

const (
	// MaxEntries is the maximum number of entries. The limit exists because every proxy receives
	// all of them.
	MaxEntries = 1000
	// maxBytes is the maximum size of the file, including comments.
	maxBytes = 512 << 10
	// maxSerial is the maximum length of a serial number in bytes (RFC 5280, 4.1.2.2).
	maxSerial = 20

	anyAccount   = "*"
	serialPrefix = "serial"
)

// List contains denied identities and serial numbers. A nil List is empty.
type List struct {
	identities []certs.ID // the account anyAccount denotes the whole namespace
	serials    []string
	denied     map[certs.ID]bool
	numbers    map[string]bool
	version    string
}

// Parse parses a list. Each line contains one entry; lines may be empty, and text after "#" is a
// comment:
//
//	spiffe://cluster.local/ns/shop/sa/web
//	spiffe://cluster.local/ns/old/sa/*
//	serial 3F2A9C
//
// An error names the line and rejects the whole text: an incomplete list would admit denied
// identities.
func Parse(text []byte) (*List, error) {
	if len(text) > maxBytes {
		return nil, fmt.Errorf("it has %d bytes; at most %d are read", len(text), maxBytes)
	}
	if n := len(text); n > 0 && text[n-1] != '\n' {
		return nil, errors.New("the last line does not end with a line break, so the file may be incomplete: add one")
	}
	l := &List{denied: map[certs.ID]bool{}, numbers: map[string]bool{}}
	number := 0
	for line := range bytes.Lines(text) {
		number++
		entry, _, _ := strings.Cut(string(line), "#")
		if entry = strings.TrimSpace(entry); entry == "" {
			continue
		}
		if err := l.add(entry); err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
		if l.Len() > MaxEntries {
			return nil, fmt.Errorf("line %d: this is entry %d; a list has at most %d: deny whole namespaces", number, l.Len(), MaxEntries)
		}
	}
	for id := range l.denied {
		l.identities = append(l.identities, id)
	}
	for serial := range l.numbers {
		l.serials = append(l.serials, serial)
	}
	slices.SortFunc(l.identities, func(a, b certs.ID) int { return cmp.Compare(a.String(), b.String()) })
	slices.Sort(l.serials)
	l.version = l.hash()
	return l, nil
}

func (l *List) add(entry string) error {
	if rest, ok := strings.CutPrefix(entry, serialPrefix); ok {
		serial, err := parseSerial(strings.TrimSpace(rest))
		if err != nil {
			return err
		}
		l.numbers[serial] = true
		return nil
	}
	// "*" is not valid in an account name. Validate the rest with another name.
	namespace, whole := strings.CutSuffix(entry, "/sa/"+anyAccount)
	if whole {
		entry = namespace + "/sa/any"
	}
	id, err := certs.ParseID(entry)
	if err != nil {
		return fmt.Errorf("%w; write spiffe://<trust domain>/ns/<namespace>/sa/<service account or *>, or serial <hexadecimal number>", err)
	}
	if whole {
		id.ServiceAccount = anyAccount
	}
	l.denied[id] = true
	return nil
}

// parseSerial parses a hexadecimal number, with or without colons, and returns it in the format of
// [SerialText].
func parseSerial(text string) (string, error) {
	digits := strings.ReplaceAll(text, ":", "")
	n, ok := new(big.Int).SetString(digits, 16)
	if !ok || n.Sign() <= 0 || len(n.Bytes()) > maxSerial || strings.ContainsAny(digits, "_+-") {
		if len(text) > 80 {
			text = text[:80] + "..."
		}
		return "", fmt.Errorf("%q is not a serial number: write 1 to %d bytes in hexadecimal, such as serial 3F2A9C, as openssl x509 -serial shows it", text, maxSerial)
	}
	return SerialText(n), nil
}

// SerialText returns a serial number in the format that proxies compare: lower case hexadecimal,
// two digits per byte.
func SerialText(serial *big.Int) string { return hex.EncodeToString(serial.Bytes()) }

func (l *List) hash() string {
	if l.Len() == 0 {
		return ""
	}
	h := sha256.New()
	for _, id := range l.identities {
		h.Write([]byte(id.String() + "\n")) // writing to a hash never fails
	}
	for _, serial := range l.serials {
		h.Write([]byte(serialPrefix + " " + serial + "\n"))
	}
	return hex.EncodeToString(h.Sum(nil)[:6])
}

// Len returns the number of entries.
func (l *List) Len() int {
	if l == nil {
		return 0
	}
	return len(l.denied) + len(l.numbers)
}

// Version returns a hash of the entries that does not depend on their order; "" for an empty list.
func (l *List) Version() string {
	if l == nil {
		return ""
	}
	return l.version
}

// Serials returns the denied serial numbers in the format of [SerialText], sorted. The caller must
// not modify them.
func (l *List) Serials() []string {
	if l == nil {
		return nil
	}
	return l.serials
}

// Patterns returns the denied identities as URIs, sorted: exact ones, and prefixes for whole
// namespaces. An entry in one of the trust domains applies to all of them, because they are
// aliases.
func (l *List) Patterns(trustDomains []string) (exact, prefixes []string) {
	if l == nil {
		return nil, nil
	}
	for _, id := range l.identities {
		names := []string{id.TrustDomain}
		if slices.Contains(trustDomains, id.TrustDomain) {
			names = trustDomains
		}
		for _, name := range names {
			id.TrustDomain = name
			if id.ServiceAccount == anyAccount {
				prefixes = append(prefixes, strings.TrimSuffix(id.String(), anyAccount))
			} else {
				exact = append(exact, id.String())
			}
		}
	}
	slices.Sort(exact)
	slices.Sort(prefixes)
	return slices.Compact(exact), slices.Compact(prefixes)
}

// Denies reports whether an identity is denied under its own trust domain or one of the given
// ones, which are aliases.
func (l *List) Denies(id certs.ID, trustDomains []string) bool {
	if l == nil || len(l.denied) == 0 {
		return false
	}
	if l.denies(id) {
		return true
	}
	if !slices.Contains(trustDomains, id.TrustDomain) {
		return false
	}
	return slices.ContainsFunc(trustDomains, func(name string) bool {
		id.TrustDomain = name
		return l.denies(id)
	})
}

func (l *List) denies(id certs.ID) bool {
	whole := id
	whole.ServiceAccount = anyAccount
	return l.denied[id] || l.denied[whole]
}

// DeniesSerial reports whether a serial number, in the format of [SerialText], is denied.
func (l *List) DeniesSerial(serial string) bool { return l != nil && l.numbers[serial] }
