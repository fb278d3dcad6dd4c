// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package sds_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// TestIdleConnections checks that idle connections do not keep Envoy out, and that headers
// that are too long are rejected.
func TestIdleConnections(t *testing.T) {
	t.Parallel()
	r := newRig(t, newAuthority(t)).ready(t)
	for range 200 {
		conn, err := net.Dial("unix", r.socket)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }() // the server may have closed it
	}
	request := &discoveryv3.DiscoveryRequest{ResourceNames: []string{"default"}}
	if resp, err := r.client.FetchSecrets(t.Context(), request); err != nil || len(resp.GetResources()) != 1 {
		t.Errorf("with idle connections: got %v, error %v", resp, err)
	}
	ctx := metadata.AppendToOutgoingContext(t.Context(), "x-long", strings.Repeat("a", 100_000))
	if _, err := r.client.FetchSecrets(ctx, request); err == nil {
		t.Error("a header of 100 kB was accepted")
	}
	if _, err := r.client.FetchSecrets(t.Context(), request); err != nil {
		t.Errorf("after a header that is too long: got error %v", err)
	}
}

// TestTooManyNames checks that the names requested on a stream are limited in number and length.
func TestTooManyNames(t *testing.T) {
	t.Parallel()
	r := newRig(t, newAuthority(t)).ready(t)
	many := []string{"default"}
	for i := range 1000 {
		many = append(many, fmt.Sprint("unknown-", i))
	}
	for name, c := range map[string]struct {
		names []string
		fetch codes.Code
		delta codes.Code // of two requests with half of the names each
	}{
		"maximum number":  {many[:1000], codes.OK, codes.OK},
		"too many":        {many, codes.ResourceExhausted, codes.ResourceExhausted},
		"too long":        {[]string{strings.Repeat("a", 17<<10)}, codes.InvalidArgument, codes.InvalidArgument},
		"a large request": {slices.Repeat([]string{strings.Repeat("a", 1<<10)}, 1200), codes.ResourceExhausted, codes.OK},
	} {
		if _, err := r.client.FetchSecrets(t.Context(), &discoveryv3.DiscoveryRequest{ResourceNames: c.names}); status.Code(err) != c.fetch {
			t.Errorf("%s: FetchSecrets = %v, want %s", name, err, c.fetch)
		}
		s, err := r.client.DeltaSecrets(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		half := len(c.names) / 2
		for _, part := range [][]string{c.names[:half], c.names[half:]} {
			_ = s.Send(&discoveryv3.DeltaDiscoveryRequest{ResourceNamesSubscribe: part}) // the end of the stream is checked below
		}
		if err := s.CloseSend(); err != nil {
			t.Fatal(err)
		}
		for err == nil {
			_, err = s.Recv()
		}
		if errors.Is(err, io.EOF) {
			err = nil
		}
		if status.Code(err) != c.delta {
			t.Errorf("%s: DeltaSecrets ended with %v, want %s", name, err, c.delta)
		}
	}
}
