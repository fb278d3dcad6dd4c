// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package authn

import (
	"context"
	"errors"
	"fmt"
	"math/big"

	"github.com/outrigger-mesh/outrigger/certs"
)

// ErrUnauthenticated is wrapped by every error of an Authenticator.
var ErrUnauthenticated = errors.New("unauthenticated")

// ErrUnavailable is also wrapped if a method could not decide because a dependency is unavailable.
// The same call may succeed later.
var ErrUnavailable = errors.New("authentication is unavailable")

// Caller is a peer with a verified identity.
type Caller struct {
	ID      certs.ID // its trust domain is always that of the mesh
	Method  string   // the method that verified it: one of the constants below
	Cluster string   // the cluster whose API server verified the caller; empty for other methods
	Pod     Pod      // empty if the credential names none
	Serial  *big.Int // serial number of the client certificate; nil for other methods
}

// Pod is the pod of a caller, as far as its token names it.
type Pod struct {
	Name string
	UID  string
	Node string // name of its node; only newer API servers provide it
}

// The values of Caller.Method.
const (
	MethodJWT               = "jwt"
	MethodKubernetes        = "kubernetes"
	MethodClientCertificate = "client_certificate"
	MethodJoinToken         = "join_token"
)

// Authenticator authenticates the caller of the gRPC call that ctx belongs to.
type Authenticator interface {
	Authenticate(ctx context.Context) (*Caller, error)
}

// Any returns an Authenticator that tries the given ones in order and returns the first success.
// Its error contains the reason of each failure.
func Any(methods ...Authenticator) Authenticator {
	return anyOf(methods)
}

type anyOf []Authenticator

// Authenticate implements Authenticator.
func (a anyOf) Authenticate(ctx context.Context) (*Caller, error) {
	if len(a) == 0 {
		return nil, refuse("no method of authentication is configured")
	}
	var reasons string
	var unavailable bool
	for _, m := range a {
		caller, err := m.Authenticate(ctx)
		if err == nil {
			return caller, nil
		}
		if reasons != "" {
			reasons += "; "
		}
		reasons += reason(err)
		unavailable = unavailable || errors.Is(err, ErrUnavailable)
	}
	return nil, &refusal{reason: reasons, unavailable: unavailable}
}

// Except returns an Authenticator that rejects the callers of method for which denied returns an
// error.
func Except(method Authenticator, denied func(*Caller) error) Authenticator {
	return except{method, denied}
}

type except struct {
	method Authenticator
	denied func(*Caller) error
}

// Authenticate implements Authenticator.
func (e except) Authenticate(ctx context.Context) (*Caller, error) {
	caller, err := e.method.Authenticate(ctx)
	if err != nil {
		return nil, err
	}
	if err := e.denied(caller); err != nil {
		return nil, refuse("%s: %s", caller.Method, err.Error())
	}
	return caller, nil
}

// refusal is an error whose reason may be sent to the caller.
type refusal struct {
	reason      string
	unavailable bool
}

func (r *refusal) Error() string { return ErrUnauthenticated.Error() + ": " + r.reason }

// Is reports whether a refusal matches an error of this package.
func (r *refusal) Is(target error) bool {
	return target == ErrUnauthenticated || r.unavailable && target == ErrUnavailable
}

// cannotTell returns a refusal that is temporary.
func cannotTell(format string, args ...any) error {
	return &refusal{reason: fmt.Sprintf(format, args...), unavailable: true}
}

func refuse(format string, args ...any) error {
	return &refusal{reason: fmt.Sprintf(format, args...)}
}

// reason returns the text of an error without the common prefix.
func reason(err error) string {
	var r *refusal
	if errors.As(err, &r) {
		return r.reason
	}
	return err.Error()
}
