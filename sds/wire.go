// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package sds

import (
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/outrigger-mesh/outrigger/xdsproxy/wire"
)

// The few messages of the secret discovery service are decoded and encoded field by
// field. Their generated types would link most of Envoy's API into the agent: 1.5 MB of
// code, and as much memory, beside every application. Tests compare the encoding with the
// generated types.

// message is an encoded protobuf message.
type message []byte

// codec passes messages through. Its name is "proto", the content subtype that peers
// send.
type codec struct{}

func (codec) Name() string { return "proto" }

func (codec) Marshal(v any) (mem.BufferSlice, error) {
	m, ok := v.(*message)
	if !ok {
		return nil, fmt.Errorf("secret codec got a %T", v)
	}
	return mem.BufferSlice{mem.SliceBuffer(*m)}, nil
}

func (codec) Unmarshal(data mem.BufferSlice, v any) error {
	m, ok := v.(*message)
	if !ok {
		return fmt.Errorf("secret codec got a %T", v)
	}
	*m = data.Materialize()
	return nil
}

// Field numbers of envoy.service.discovery.v3 and of the secret's messages in
// envoy.extensions.transport_sockets.tls.v3.
const (
	secretName              = 1 // Secret
	secretTLSCertificate    = 2
	secretValidationContext = 4
	tlsCertificateChain     = 1 // TlsCertificate
	tlsPrivateKey           = 2
	tlsKeyProvider          = 6
	validationTrustedCA     = 1 // CertificateValidationContext
	validationCRL           = 7
	inlineBytes             = 2 // DataSource

	providerName     = 1 // PrivateKeyProvider
	providerConfig   = 3
	providerFallback = 4
	methodKey        = 1 // CryptoMbPrivateKeyMethodConfig, QatPrivateKeyMethodConfig
	methodPollDelay  = 2
	durationSeconds  = 1 // google.protobuf.Duration
	durationNanos    = 2
)

var errMalformed = errors.New("the request is not a protobuf message")

// eachField calls fn for every length-delimited field of a message.
func eachField(b []byte, fn func(protowire.Number, []byte) error) error {
	return wire.EachBytes(b, errMalformed, fn)
}

// readSotW decodes a DiscoveryRequest: its names are the whole subscription.
func readSotW(m message) (*request, error) {
	req := &request{}
	var names []string
	err := eachField(m, func(n protowire.Number, v []byte) (err error) {
		switch n {
		case wire.RequestNames:
			names = append(names, string(v))
		case wire.RequestTypeURL:
			req.typeURL = string(v)
		case wire.RequestNonce:
			req.nonce = string(v)
		case wire.RequestError:
			req.rejection, err = readRejection(v)
		}
		return err
	})
	req.subscribe = func(s *subscription) { s.replace(names) }
	return req, err
}

// readDelta decodes a DeltaDiscoveryRequest: its names change the subscription.
func readDelta(m message) (*request, error) {
	req := &request{always: true}
	var added, removed []string
	versions := map[string]string{}
	err := eachField(m, func(n protowire.Number, v []byte) (err error) {
		switch n {
		case wire.DeltaRequestTypeURL:
			req.typeURL = string(v)
		case wire.DeltaRequestSubscribe:
			added = append(added, string(v))
		case wire.DeltaRequestUnsubscribe:
			removed = append(removed, string(v))
		case wire.DeltaRequestVersions:
			var name, version string
			err = eachField(v, func(n protowire.Number, v []byte) error {
				switch n {
				case wire.EntryKey:
					name = string(v)
				case wire.EntryValue:
					version = string(v)
				}
				return nil
			})
			versions[name] = version
		case wire.DeltaRequestNonce:
			req.nonce = string(v)
		case wire.DeltaRequestError:
			req.rejection, err = readRejection(v)
		}
		return err
	})
	req.subscribe = func(s *subscription) {
		s.remove(removed)
		s.add(added, versions)
	}
	return req, err
}

// readRejection returns why the client rejected an answer.
func readRejection(status []byte) (string, error) {
	reason := "no reason given"
	err := eachField(status, func(n protowire.Number, v []byte) error {
		if n == wire.StatusMessage && len(v) > 0 {
			reason = string(v)
		}
		return nil
	})
	return reason, err
}

// item is one secret of an answer.
type item struct {
	name string
	*material
}

// render encodes a secret in a google.protobuf.Any.
func (i item) render(provider *KeyProvider) []byte {
	s := wire.Append(nil, secretName, i.name)
	if i.chain != nil {
		cert := wire.Append(nil, tlsCertificateChain, wire.Append(nil, inlineBytes, i.chain))
		if provider == nil || provider.Fallback {
			cert = wire.Append(cert, tlsPrivateKey, wire.Append(nil, inlineBytes, i.key))
		}
		if provider != nil {
			cert = wire.Append(cert, tlsKeyProvider, provider.render(i.key))
		}
		s = wire.Append(s, secretTLSCertificate, cert)
	} else {
		validation := wire.Append(nil, validationTrustedCA, wire.Append(nil, inlineBytes, i.roots))
		if len(i.crl) > 0 {
			validation = wire.Append(validation, validationCRL, wire.Append(nil, inlineBytes, i.crl))
		}
		s = wire.Append(s, secretValidationContext, validation)
	}
	return wire.Append(wire.Append(nil, wire.AnyTypeURL, secretType), wire.AnyValue, s)
}

// render encodes a PrivateKeyProvider with a key.
func (p *KeyProvider) render(key []byte) []byte {
	method := "envoy.extensions.private_key_providers.cryptomb.v3alpha.CryptoMbPrivateKeyMethodConfig"
	if p.Name == providerQAT {
		method = "envoy.extensions.private_key_providers.qat.v3alpha.QatPrivateKeyMethodConfig"
	}
	delay := wire.AppendVarint(nil, durationSeconds, uint64(p.PollDelay/time.Second))
	delay = wire.AppendVarint(delay, durationNanos, uint64(p.PollDelay%time.Second))
	config := wire.Append(wire.Append(nil, methodKey, wire.Append(nil, inlineBytes, key)), methodPollDelay, delay)
	b := wire.Append(nil, providerName, p.Name)
	b = wire.Append(b, providerConfig, wire.Append(wire.Append(nil, wire.AnyTypeURL, "type.googleapis.com/"+method), wire.AnyValue, config))
	if p.Fallback {
		b = wire.AppendVarint(b, providerFallback, 1)
	}
	return b
}

// writeSotW encodes a DiscoveryResponse.
func writeSotW(items []item, nonce string, provider *KeyProvider) message {
	versions := ""
	for n, i := range items {
		if n > 0 {
			versions += "."
		}
		versions += i.version
	}
	m := wire.Append(nil, wire.ResponseVersion, versions)
	for _, i := range items {
		m = wire.Append(m, wire.ResponseResources, i.render(provider))
	}
	return wire.Append(wire.Append(m, wire.ResponseTypeURL, secretType), wire.ResponseNonce, nonce)
}

// writeDelta encodes a DeltaDiscoveryResponse with secrets and names that do not exist.
func writeDelta(items []item, unknown []string, nonce string, provider *KeyProvider) message {
	var m message
	for _, i := range items {
		r := wire.Append(nil, wire.ResourceVersion, i.version)
		r = wire.Append(wire.Append(r, wire.ResourceAny, i.render(provider)), wire.ResourceName, i.name)
		m = wire.Append(m, wire.ResponseResources, r)
	}
	m = wire.Append(wire.Append(m, wire.ResponseTypeURL, secretType), wire.ResponseNonce, nonce)
	for _, name := range unknown {
		m = wire.Append(m, wire.ResponseRemoved, name)
	}
	return m
}
