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

// ErrUnauthenticated is wrapped by each error of an Authenticator.
var ErrUnauthenticated = errors.New("unauthenticated")

// ErrUnavailable is also wrapped if a method could not tell, because what it
// needs to know is out of reach for the moment. The same call may succeed later.
var ErrUnavailable = errors.New("authentication is unavailable")

// Caller is a peer whose identity was verified.
type Caller struct {
	ID      certs.ID // its trust domain is always that of the mesh
	Method  string   // what proved it: one of the constants below
	Cluster string   // the cluster whose API server knows the caller; empty for other methods
	Pod     Pod      // empty if the proof names none
	Serial  *big.Int // number of the certificate that proved it; nil for other methods
}

// Pod is the pod in which a caller runs, as far as its token tells.
type Pod struct {
	Name string
	UID  string
	Node string // name of its node; only newer API servers tell
}

// The values of Caller.Method.
const (
	MethodJWT               = "jwt"
	MethodKubernetes        = "kubernetes"
	MethodClientCertificate = "client_certificate"
)

// Authenticator tells who makes the gRPC call that ctx belongs to.
type Authenticator interface {
	Authenticate(ctx context.Context) (*Caller, error)
}

// Any returns an Authenticator that tries the given ones in their order and
// takes the first success. Its error holds the reason of each of them.
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

// Except returns an Authenticator that refuses callers of another one for which
// denied returns an error.
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

// refusal is an error with a reason that may be shown to the caller.
type refusal struct {
	reason      string
	unavailable bool
}

func (r *refusal) Error() string { return ErrUnauthenticated.Error() + ": " + r.reason }

// Is makes a refusal match the errors of this package.
func (r *refusal) Is(target error) bool {
	return target == ErrUnauthenticated || r.unavailable && target == ErrUnavailable
}

// cannotTell is a refusal for the moment.
func cannotTell(format string, args ...any) error {
	return &refusal{reason: fmt.Sprintf(format, args...), unavailable: true}
}

func refuse(format string, args ...any) error {
	return &refusal{reason: fmt.Sprintf(format, args...)}
}

// reason returns the text of an error without the words that all of them share.
func reason(err error) string {
	var r *refusal
	if errors.As(err, &r) {
		return r.reason
	}
	return err.Error()
}
