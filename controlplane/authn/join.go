// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package authn

import (
	"context"
	"errors"

	"github.com/outrigger-mesh/outrigger/certs"
)

// JoinToken authenticates callers by the bearer token with which a machine joins. A token can be
// used once, so only the service that signs certificates may use this method.
type JoinToken struct {
	// Is reports whether a bearer token is a join token.
	Is func(token string) bool
	// Redeem returns the identity of a token and makes it invalid. Its errors are sent to the caller,
	// and those that wrap Busy mean that the token may still be valid.
	Redeem func(ctx context.Context, token string) (certs.ID, error)
	Busy   error
}

// Or returns an Authenticator that uses j for calls with a join token and next for all others.
func (j *JoinToken) Or(next Authenticator) Authenticator { return joinOr{j, next} }

type joinOr struct {
	join *JoinToken
	next Authenticator
}

// Authenticate implements Authenticator.
func (o joinOr) Authenticate(ctx context.Context) (*Caller, error) {
	token, err := bearer(ctx)
	if err != nil || !o.join.Is(token) {
		return o.next.Authenticate(ctx)
	}
	return o.join.Authenticate(ctx)
}

// Authenticate implements Authenticator.
func (j *JoinToken) Authenticate(ctx context.Context) (*Caller, error) {
	token, err := bearer(ctx)
	if err != nil {
		return nil, err
	}
	id, err := j.Redeem(ctx, token)
	switch {
	case errors.Is(err, j.Busy):
		return nil, cannotTell("join token: %s", j.Busy.Error())
	case err != nil:
		return nil, refuse("join token: %s", err.Error())
	}
	return &Caller{ID: id, Method: MethodJoinToken}, nil
}
