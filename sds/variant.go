// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package sds

import "google.golang.org/grpc"

// variant decodes and encodes one of the two variants of the protocol.
type variant interface {
	read(m message) (*request, error)
	// write returns an answer, or nil if there is nothing to send.
	write(items []item, unknown []string, nonce string, provider *KeyProvider) message
}

// sotw is the state-of-the-world variant: each request names the whole subscription.
// Answers contain only missing secrets, which the protocol allows for this type.
type sotw struct{}

func (sotw) read(m message) (*request, error) { return readSotW(m) }

// write omits unknown names: this variant cannot express that a resource does not exist.
func (sotw) write(items []item, _ []string, nonce string, provider *KeyProvider) message {
	if len(items) == 0 {
		return nil
	}
	return writeSotW(items, nonce, provider)
}

// delta is the incremental variant.
type delta struct{}

func (delta) read(m message) (*request, error) { return readDelta(m) }

func (delta) write(items []item, unknown []string, nonce string, provider *KeyProvider) message {
	if len(items)+len(unknown) == 0 {
		return nil
	}
	return writeDelta(items, unknown, nonce, provider)
}

// description is envoy.service.secret.v3.SecretDiscoveryService.
func (s *Server) description() *grpc.ServiceDesc {
	stream := func(name string, v variant) grpc.StreamDesc {
		return grpc.StreamDesc{
			StreamName: name, ServerStreams: true, ClientStreams: true,
			Handler: func(_ any, stream grpc.ServerStream) error { return s.serve(stream, v) },
		}
	}
	return &grpc.ServiceDesc{
		ServiceName: "envoy.service.secret.v3.SecretDiscoveryService",
		HandlerType: (*any)(nil),
		Streams:     []grpc.StreamDesc{stream("StreamSecrets", sotw{}), stream("DeltaSecrets", delta{})},
		Methods:     []grpc.MethodDesc{{MethodName: "FetchSecrets", Handler: s.fetch}},
	}
}
