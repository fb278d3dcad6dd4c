// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package etcd

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// fault says why etcd does not do what it is asked, and the cure.
type fault struct {
	// class stays the same as long as the reason does, while the text may
	// name another port each time.
	class, text string
	// credentials means that new files may be the cure.
	credentials bool
	err         error
}

func (f *fault) Error() string { return f.text }
func (f *fault) Unwrap() error { return f.err }

// class returns what faults of the same reason have in common.
func class(err error) string {
	var f *fault
	if errors.As(err, &f) {
		return f.class
	}
	return err.Error()
}

// explain returns the fault behind what etcd's client says.
func (a *attempt) explain(o options, err error) error {
	if a.cause != nil && (errors.Is(err, context.DeadlineExceeded) || status.Code(err) == codes.DeadlineExceeded || status.Code(err) == codes.Unavailable) {
		err = a.cause
	}
	return o.explain(err)
}

func (o options) explain(err error) error {
	if f := (*fault)(nil); errors.As(err, &f) || errors.Is(err, errSilent) {
		return err
	}
	err = rpctypes.Error(err)
	members := strings.Join(o.hosts, ", ")
	switch {
	case errors.Is(err, rpctypes.ErrAuthFailed):
		return &fault{"password", fmt.Sprintf("etcd refuses the user %q: its name or the password in %s is wrong: correct it; the file is read again",
			o.user, o.passwordFile), true, err}
	case errors.Is(err, rpctypes.ErrInvalidAuthToken):
		return &fault{"token", fmt.Sprintf("the session of the user %q has expired in etcd", o.user), true, err}
	case errors.Is(err, rpctypes.ErrUserEmpty):
		return &fault{"user", "etcd requires authentication: write etcd://user@host and passwordFile=, or name a client certificate (cert=, key=) whose common name is a user", true, err}
	case errors.Is(err, rpctypes.ErrPermissionDenied):
		return &fault{"permission", fmt.Sprintf("etcd's user may not use the keys below %s: grant it, etcdctl role grant-permission ROLE readwrite --prefix %s",
			o.prefix, o.prefix), true, err}
	case errors.Is(err, rpctypes.ErrNoLeader):
		return &fault{"leader", fmt.Sprintf("etcd (%s) has no leader: check whether most of its members run and reach each other", members), false, err}
	case errors.Is(err, rpctypes.ErrNoSpace):
		return &fault{"space", "etcd's database is full and rejects writes: compact and defragment it, or raise --quota-backend-bytes, and disarm the alarm (etcdctl alarm disarm)", false, err}
	case errors.Is(err, context.Canceled):
		return err
	}
	text := status.Convert(err).Message()
	for _, t := range tlsFaults {
		if strings.Contains(text, t.sign) {
			return &fault{t.sign, fmt.Sprintf("etcd (%s) and the control plane do not agree on TLS: %s: %s", members, shorten(text), t.cure), true, err}
		}
	}
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded:
		return &fault{"unreachable", fmt.Sprintf("etcd cannot be reached at %s: %s", members, shorten(text)), false, err}
	}
	return fmt.Errorf("etcd at %s: %w", members, err)
}

// tlsFaults are read in order: the first sign that the text holds counts. gRPC
// returns the errors of crypto/tls as text only. It is never written to.
var tlsFaults = []struct{ sign, cure string }{
	{"certificate required", "etcd requires a client certificate: name one with cert= and key="},
	{"bad certificate", "etcd rejects the client certificate: name one of an authority that etcd trusts with cert= and key="},
	{"unknown certificate authority", "etcd does not trust the authority of the client certificate: name another one with cert= and key="},
	{"signed by unknown authority", "name the authority of etcd's certificate with ca="},
	{"first record does not look like a TLS handshake", "etcd serves plain text: remove ca=, cert=, key=, servername= and tls="},
	{"x509: certificate is valid for", "name one of these with servername=, or use it as the host"},
	{"x509:", "renew the certificate of etcd, or name its authority with ca="},
	{"handshake failed: EOF", "the server closed the connection: if it serves plain text, remove ca=, cert=, key=, servername= and tls="},
	{"handshake failed", "check ca=, cert=, key= and servername="},
	{"tls:", "check ca=, cert=, key= and servername="},
	{"error reading server preface", "the server closed the connection at its start: if it serves TLS, add ca= or tls=true"},
}

// shorten takes the wrapping of gRPC off the text of an error of a
// connection.
func shorten(text string) string {
	for _, wrapping := range []string{"latest balancer error: ", "last connection error: ", "connection error: desc = "} {
		if _, rest, ok := strings.Cut(text, wrapping); ok {
			text = rest
		}
	}
	return strings.Trim(strings.TrimPrefix(strings.Trim(text, `"`), "transport: "), `"`)
}
