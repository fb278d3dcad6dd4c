// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package credentials

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/outrigger-mesh/outrigger/certs"
	"github.com/outrigger-mesh/outrigger/internal/clip"
)

// PrivateKey is a private key in PEM format. Logs and errors never contain it.
type PrivateKey []byte

// String implements fmt.Stringer.
func (PrivateKey) String() string { return "[private key]" }

// GoString implements fmt.GoStringer.
func (PrivateKey) GoString() string { return "[private key]" }

// Format implements fmt.Formatter, because some verbs would print the bytes.
func (k PrivateKey) Format(s fmt.State, _ rune) {
	_, _ = s.Write([]byte(k.String())) // the error of a fmt.State is not used
}

// LogValue implements slog.LogValuer.
func (k PrivateKey) LogValue() slog.Value { return slog.StringValue(k.String()) }

// MarshalText keeps the key out of JSON and other text encodings.
func (k PrivateKey) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// KeyPair is a certificate and its private key.
type KeyPair struct {
	Chain      []byte // PEM, leaf first
	Key        PrivateKey
	OCSPStaple []byte // DER; nil if there is none
	NotBefore  time.Time
	NotAfter   time.Time // the earliest expiry in the chain
}

// Roots are the certificates that peers are verified with.
type Roots struct {
	PEM      []byte
	CRL      []byte    // PEM; nil if there is none
	NotAfter time.Time // the latest expiry: until then some peers can be verified
}

// Credential is the parsed content of a Secret. It is immutable.
type Credential struct {
	Namespace string
	Name      string
	Pair      *KeyPair // nil if there is none
	Roots     *Roots   // nil if there are none
	Docker    *Docker  // nil if there is none
	Warnings  []string // without secrets

	// noPair, noRoots and noDocker are why the part is missing.
	noPair, noRoots, noDocker error
}

// Format implements fmt.Formatter. For a verb that does not fit, fmt would print the bytes of the
// key.
func (c Credential) Format(s fmt.State, _ rune) {
	_, _ = fmt.Fprintf(s, "credential %s/%s", c.Namespace, c.Name) // as above
}

// Format implements fmt.Formatter.
func (p KeyPair) Format(s fmt.State, _ rune) {
	_, _ = fmt.Fprintf(s, "key pair until %s", p.NotAfter.UTC().Format(time.RFC3339)) // as above
}

// The relevant keys of a Secret, for the type kubernetes.io/tls and for Istio's generic format.
const (
	keyTLSCert = "tls.crt"
	keyTLSKey  = "tls.key"
	keyTLSRoot = "ca.crt"
	keyTLSCRL  = "ca.crl"
	keyOCSP    = "tls.ocsp-staple"
	keyCert    = "cert"
	keyKey     = "key"
	keyRoot    = "cacert"
	keyCRL     = "crl"
)

// DataKeys returns the relevant keys of a Secret. A source need not keep others.
func DataKeys() []string {
	return []string{keyTLSCert, keyTLSKey, keyTLSRoot, keyTLSCRL, keyOCSP, keyCert, keyKey, keyRoot, keyCRL, keyDocker}
}

// Holds reports whether the data of a Secret could be a credential.
func Holds(data map[string][]byte) bool {
	return slices.ContainsFunc(DataKeys(), func(k string) bool { return len(data[k]) > 0 })
}

// Parse parses and validates the data of a Secret. It returns an error if a part is invalid; a
// missing part is no error.
func Parse(namespace, name string, data map[string][]byte) (*Credential, error) {
	c := &Credential{Namespace: namespace, Name: name}
	if err := c.parsePair(data); err != nil {
		return nil, c.fault(err)
	}
	if err := c.parseRoots(data); err != nil {
		return nil, c.fault(err)
	}
	if err := c.parseDocker(data); err != nil {
		return nil, c.fault(err)
	}
	if c.Pair == nil && c.Roots == nil && c.Docker == nil {
		return nil, c.noPair
	}
	c.Warnings = c.doubts(time.Now())
	return c, nil
}

func (c *Credential) fault(err error) error {
	return fmt.Errorf("credential %s/%s: %w", c.Namespace, c.Name, err)
}

// parsePair parses the generic format in preference to the other one, as Istio does.
func (c *Credential) parsePair(data map[string][]byte) error {
	cert, key, names := data[keyCert], data[keyKey], [2]string{keyCert, keyKey}
	if len(cert) == 0 || len(key) == 0 {
		cert, key, names = data[keyTLSCert], data[keyTLSKey], [2]string{keyTLSCert, keyTLSKey}
	}
	if len(cert) == 0 || len(key) == 0 {
		c.noPair = c.fault(fmt.Errorf("it contains neither %s and %s nor %s and %s, but %s", keyCert, keyKey, keyTLSCert, keyTLSKey, present(data)))
		return nil
	}
	chain, err := certs.ParseChain(cert)
	if err != nil {
		return fmt.Errorf("%s: %w", names[0], err)
	}
	private, err := certs.ParseKey(key)
	if err != nil {
		return fmt.Errorf("%s is not a usable private key: %w", names[1], err)
	}
	if !certs.SamePublicKey(chain[0].PublicKey, private.Public()) {
		return fmt.Errorf("%s does not belong to the first certificate of %s; write both of the same pair", names[1], names[0])
	}
	c.Pair = &KeyPair{Chain: cert, Key: key, NotBefore: chain[0].NotBefore, NotAfter: chain[0].NotAfter}
	for _, above := range chain[1:] {
		if above.NotAfter.Before(c.Pair.NotAfter) {
			c.Pair.NotAfter = above.NotAfter
		}
	}
	if staple := data[keyOCSP]; len(staple) > 0 {
		c.Pair.OCSPStaple = staple
	}
	return nil
}

func (c *Credential) parseRoots(data map[string][]byte) error {
	text, name := data[keyRoot], keyRoot
	if len(text) == 0 {
		text, name = data[keyTLSRoot], keyTLSRoot
	}
	if len(text) == 0 {
		c.noRoots = c.fault(fmt.Errorf("it contains neither %s nor %s, but %s", keyRoot, keyTLSRoot, present(data)))
		return nil
	}
	roots, err := certs.ParseChain(text)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	c.Roots = &Roots{PEM: text, NotAfter: roots[0].NotAfter}
	for _, r := range roots[1:] {
		if r.NotAfter.After(c.Roots.NotAfter) {
			c.Roots.NotAfter = r.NotAfter
		}
	}
	for _, name := range []string{keyCRL, keyTLSCRL} {
		if list := data[name]; len(list) > 0 {
			c.Roots.CRL = list
			return checkCRL(name, list)
		}
	}
	return nil
}

func checkCRL(name string, text []byte) error {
	block, _ := pem.Decode(text)
	if block == nil {
		return fmt.Errorf("%s is not PEM", name)
	}
	if _, err := x509.ParseRevocationList(block.Bytes); err != nil {
		return fmt.Errorf("%s is not a revocation list: %w", name, err)
	}
	return nil
}

// present lists the keys of a Secret, without their values.
func present(data map[string][]byte) string {
	const limit = 10
	var names []string
	for name := range data {
		names = append(names, clip.Cut(name, maxText))
	}
	if len(names) == 0 {
		return "nothing"
	}
	slices.Sort(names)
	if len(names) > limit {
		names = append(names[:limit], "...")
	}
	return strings.Join(names, ", ")
}

// doubts returns warnings about certificates that have expired or are not valid yet.
func (c *Credential) doubts(now time.Time) []string {
	var out []string
	add := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	if p := c.Pair; p != nil {
		switch {
		case now.After(p.NotAfter):
			add("the certificate expired at %s; renew it", p.NotAfter.UTC().Format(time.RFC3339))
		case now.Before(p.NotBefore):
			add("the certificate is not valid before %s", p.NotBefore.UTC().Format(time.RFC3339))
		}
	}
	if r := c.Roots; r != nil && now.After(r.NotAfter) {
		add("all roots expired, the last at %s; renew them", r.NotAfter.UTC().Format(time.RFC3339))
	}
	return out
}

// same reports whether two credentials result in the same resources.
func (c *Credential) same(o *Credential) bool {
	if c == nil || o == nil {
		return c == o
	}
	pair := func(p *KeyPair) [][]byte {
		if p == nil {
			return nil
		}
		return [][]byte{p.Chain, p.Key, p.OCSPStaple}
	}
	roots := func(r *Roots) [][]byte {
		if r == nil {
			return nil
		}
		return [][]byte{r.PEM, r.CRL}
	}
	docker := func(d *Docker) []byte {
		if d == nil {
			return nil
		}
		return d.JSON
	}
	return slices.EqualFunc(pair(c.Pair), pair(o.Pair), bytes.Equal) && slices.EqualFunc(roots(c.Roots), roots(o.Roots), bytes.Equal) &&
		bytes.Equal(docker(c.Docker), docker(o.Docker))
}

// ErrNotFound is wrapped by the error for a credential that does not exist.
var ErrNotFound = errors.New("credential not found")

// ErrLoading means that a credential has not been read yet.
var ErrLoading = errors.New("it is still being read")

// Source provides credentials.
type Source interface {
	// Get returns the credential of a Secret or ConfigMap. The error wraps ErrNotFound if it does
	// not exist, ErrLoading if it is not known yet, and otherwise describes what is invalid.
	Get(namespace, name string) (*Credential, error)
	// OnChange adds a function that is called after each change of a Secret that affects the
	// result of Get, possibly from several goroutines at once. OnChange must be called before Run.
	OnChange(func(namespace, name string))
	// Synced returns a channel that is closed once all Secrets were read.
	Synced() <-chan struct{}
}

// KeyPairOf returns the certificate and key that a reference denotes.
func KeyPairOf(s Source, ref Reference) (*KeyPair, error) {
	c, err := s.Get(ref.Namespace, ref.Name)
	if err != nil {
		return nil, err
	}
	if c.Pair == nil {
		return nil, c.noPair
	}
	return c.Pair, nil
}

// RootsOf returns the roots that a reference denotes. For x-cacert, these are the roots in the
// Secret x-cacert, or, if it does not exist, in x.
func RootsOf(s Source, ref Reference) (*Roots, error) {
	c, err := s.Get(ref.Namespace, ref.Name)
	if base := strings.TrimSuffix(ref.Name, rootsSuffix); errors.Is(err, ErrNotFound) && ref.IsRoots() && ref.Scheme != SchemeConfigMap {
		c, err = s.Get(ref.Namespace, base)
	}
	if err != nil {
		return nil, err
	}
	if c.Roots == nil {
		return nil, c.noRoots
	}
	return c.Roots, nil
}
