// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package join

import (
	"bytes"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/outrigger-mesh/outrigger/certs"
)

const (
	// tokenPrefix begins every token. Another format has another number.
	tokenPrefix = "outrigger1."
	// MaxToken is the maximum length of a token.
	MaxToken = 64 << 10
	// maxAddress is the maximum length of the address in a token: a DNS name and a port.
	maxAddress = 260
)

// Token is what a machine needs to join a mesh. It contains a secret.
type Token struct {
	Address string              // host:port of the control plane
	Secret  string              // proves the identity, once
	ID      certs.ID            // identity of the machine
	Group   string              // WorkloadGroup that it registers in; may be empty
	Cluster string              // cluster that it belongs to
	Issued  time.Time           // by the clock of the control plane
	Expires time.Time           // last time at which Secret is accepted
	Roots   []*x509.Certificate // the only ones that the control plane's certificate may be below
}

// encoded is the JSON in a token.
type encoded struct {
	Address     string `json:"address"`
	Secret      string `json:"secret"`
	TrustDomain string `json:"trustDomain"`
	Namespace   string `json:"namespace"`
	Account     string `json:"serviceAccount"`
	Group       string `json:"group,omitempty"`
	Cluster     string `json:"cluster,omitempty"`
	Issued      int64  `json:"issued"`
	Expires     int64  `json:"expires"`
}

var base64URL = base64.RawURLEncoding.Strict()

// Encode returns the token as one word.
func (t *Token) Encode() (string, error) {
	text, err := json.Marshal(encoded{
		Address: t.Address, Secret: t.Secret, TrustDomain: t.ID.TrustDomain, Namespace: t.ID.Namespace, Account: t.ID.ServiceAccount,
		Group: t.Group, Cluster: t.Cluster, Issued: t.Issued.Unix(), Expires: t.Expires.Unix(),
	})
	if err != nil {
		return "", err
	}
	var roots []byte
	for _, root := range t.Roots {
		roots = append(roots, root.Raw...)
	}
	word := tokenPrefix + base64URL.EncodeToString(text) + "." + base64URL.EncodeToString(roots)
	if len(word) > MaxToken {
		return "", fmt.Errorf("the token would have %d characters, at most %d are possible: the mesh has %d roots", len(word), MaxToken, len(t.Roots))
	}
	return word, nil
}

// String keeps the secret out of logs.
func (t *Token) String() string { return "join token for " + t.ID.String() }

// GoString is String.
func (t *Token) GoString() string { return t.String() }

// Parse reads a token. Its errors do not quote the token.
func Parse(word string) (*Token, error) {
	word = strings.TrimSpace(word)
	const again = "copy the whole line that outrigger join create printed"
	rest, found := strings.CutPrefix(word, tokenPrefix)
	switch {
	case !found:
		return nil, fmt.Errorf("this is not a join token, which begins with %s: %s", tokenPrefix, again)
	case len(word) > MaxToken:
		return nil, fmt.Errorf("the join token has more than %d characters: %s", MaxToken, again)
	}
	first, second, _ := strings.Cut(rest, ".")
	text, err := base64URL.DecodeString(first)
	if err != nil {
		return nil, errors.New("the join token is damaged: " + again)
	}
	der, err := base64URL.DecodeString(second)
	if err != nil {
		return nil, errors.New("the join token is damaged or incomplete: " + again)
	}
	var e encoded
	decoder := json.NewDecoder(bytes.NewReader(text))
	if err := decoder.Decode(&e); err != nil || decoder.Decode(&struct{}{}) != io.EOF {
		return nil, errors.New("the join token is damaged: " + again)
	}
	t := &Token{
		Address: e.Address, Secret: e.Secret, ID: certs.ID{TrustDomain: e.TrustDomain, Namespace: e.Namespace, ServiceAccount: e.Account},
		Group: e.Group, Cluster: e.Cluster, Issued: time.Unix(e.Issued, 0), Expires: time.Unix(e.Expires, 0),
	}
	if err := t.check(); err != nil {
		return nil, fmt.Errorf("the join token is damaged: %w: %s", err, again)
	}
	if t.Roots, err = x509.ParseCertificates(der); err != nil || len(t.Roots) == 0 {
		return nil, errors.New("the join token is incomplete, it has no root certificate: " + again)
	}
	return t, nil
}

// name matches names that can be written to a file of settings without quoting.
var name = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?$`)

// check returns an error for values that are not as Encode writes them. They go into files.
func (t *Token) check() error {
	if err := t.ID.Validate(); err != nil {
		return err
	}
	if err := CheckAddress(t.Address); err != nil {
		return err
	}
	switch {
	case !secretForm.MatchString(t.Secret):
		return errors.New("it has no secret")
	case t.Group != "" && !name.MatchString(t.Group), t.Cluster != "" && !name.MatchString(t.Cluster):
		return errors.New("it has an invalid name")
	}
	return nil
}

// CheckAddress returns an error unless an address has the form host:port.
func CheckAddress(address string) error {
	host, port, err := net.SplitHostPort(address)
	n, numErr := strconv.ParseUint(port, 10, 16)
	if err != nil || numErr != nil || n == 0 || len(address) > maxAddress || net.ParseIP(host) == nil && !name.MatchString(host) {
		return errors.New("its address is not of the form host:port")
	}
	return nil
}
