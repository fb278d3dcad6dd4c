// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package join

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"time"

	"github.com/outrigger-mesh/outrigger/certs"
	"github.com/outrigger-mesh/outrigger/controlplane/config"
)

// The lifetimes of a token.
const (
	DefaultTTL = time.Hour
	MaxTTL     = 24 * time.Hour
	minTTL     = time.Minute
)

// secretPrefix begins the secret of a token, so that the control plane recognizes it among bearer
// tokens, and tools that look for leaked secrets do.
const secretPrefix = "outrigger-join-"

var secretForm = regexp.MustCompile(`^` + secretPrefix + `[A-Za-z0-9_-]{43}$`)

// maxRedeeming is the maximum number of concurrent requests to the store: strangers cause them.
const maxRedeeming = 16

// Tokens makes and redeems tokens. It is safe for concurrent use.
type Tokens struct {
	store config.Depository
	key   func() ([]byte, error)
	turn  chan struct{}
}

// NewTokens returns Tokens that are kept in a store. key returns the key of authentication codes,
// which all control planes that share the store must have.
func NewTokens(store config.Depository, key func() ([]byte, error)) *Tokens {
	return &Tokens{store: store, key: key, turn: make(chan struct{}, maxRedeeming)}
}

// record is what is stored of a token, under the hash of its secret.
type record struct {
	ID      string `json:"identity"`
	Expires int64  `json:"expires"`
	MAC     []byte `json:"mac"`
}

// mac returns the authentication code of a record with a name.
func (k *Tokens) mac(name string, r record) ([]byte, error) {
	key, err := k.key()
	if err != nil {
		return nil, err
	}
	h := hmac.New(sha256.New, key)
	_, _ = fmt.Fprintf(h, "%s %d %s", name, r.Expires, r.ID) // a hash does not fail
	return h.Sum(nil), nil
}

// nameOf returns the name of a secret in the store.
func nameOf(secret string) string {
	sum := sha256.Sum256([]byte(secret))
	return "join-" + hex.EncodeToString(sum[:])
}

// CheckTTL returns an error for a lifetime that a token cannot have.
func CheckTTL(ttl time.Duration) error {
	if ttl < minTTL || ttl > MaxTTL {
		return fmt.Errorf("a join token cannot be valid for %s: write %s to %s", ttl, minTTL, MaxTTL)
	}
	return nil
}

// Create returns the secret of a new token for an identity, and when it expires.
func (k *Tokens) Create(ctx context.Context, id certs.ID, ttl time.Duration) (secret string, expires time.Time, err error) {
	if err := errors.Join(id.Validate(), CheckTTL(ttl)); err != nil {
		return "", time.Time{}, err
	}
	random := make([]byte, 32)
	if _, err := rand.Read(random); err != nil {
		return "", time.Time{}, err
	}
	secret = secretPrefix + base64URL.EncodeToString(random)
	expires = time.Now().Add(ttl).Truncate(time.Second)
	r := record{ID: id.String(), Expires: expires.Unix()}
	if r.MAC, err = k.mac(nameOf(secret), r); err != nil {
		return "", time.Time{}, err
	}
	text, err := json.Marshal(r)
	if err != nil {
		return "", time.Time{}, err
	}
	if err := k.store.Deposit(ctx, nameOf(secret), text, ttl); err != nil {
		return "", time.Time{}, fmt.Errorf("storing the join token: %w", err)
	}
	return secret, expires, nil
}

// IsSecret reports whether a bearer token is the secret of a join token.
func IsSecret(bearer string) bool { return secretForm.MatchString(bearer) }

// ErrBusy is returned by Redeem if the store cannot be asked. The token may still be valid.
var ErrBusy = errors.New("join tokens cannot be checked at the moment")

// another is the cure for a token that is not valid.
const another = "create another one with outrigger join create"

// Redeem returns the identity of a token, and makes the token invalid. Its errors may be sent to the
// caller.
func (k *Tokens) Redeem(ctx context.Context, secret string) (certs.ID, error) {
	select {
	case k.turn <- struct{}{}:
		defer func() { <-k.turn }()
	default:
		return certs.ID{}, ErrBusy
	}
	text, err := k.store.Withdraw(ctx, nameOf(secret))
	if err != nil {
		return certs.ID{}, fmt.Errorf("%w: %w", ErrBusy, err)
	}
	if text == nil {
		return certs.ID{}, errors.New("the join token was used, has expired or was never valid: " + another)
	}
	var r record
	if err := json.Unmarshal(text, &r); err != nil {
		return certs.ID{}, errors.New("the stored join token is damaged: " + another)
	}
	code, err := k.mac(nameOf(secret), r)
	if err != nil {
		return certs.ID{}, err
	}
	switch {
	case !hmac.Equal(r.MAC, code):
		return certs.ID{}, errors.New("the join token is from another certificate authority, such as that before a rotation: " + another)
	case time.Now().Unix() > r.Expires:
		return certs.ID{}, errors.New("the join token has expired: " + another)
	}
	return certs.ParseID(r.ID)
}
