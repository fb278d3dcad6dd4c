// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package ca_test

import (
	"context"
	"crypto/tls"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	securityv1alpha1 "istio.io/api/security/v1alpha1"
)

func stranger(t *testing.T, a *authority) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(a.secure, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: a.rootsOfMesh})))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// TestUnauthenticatedRequestIsNotRead checks that a call without credentials is rejected although
// it sends no request. This shows that requests of unauthenticated callers are neither awaited nor
// buffered.
func TestUnauthenticatedRequestIsNotRead(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	stream, err := stranger(t, serve(t)).NewStream(ctx, &grpc.StreamDesc{ClientStreams: true}, securityv1alpha1.IstioCertificateService_CreateCertificate_FullMethodName)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.RecvMsg(&securityv1alpha1.IstioCertificateResponse{}); status.Code(err) != codes.Unauthenticated {
		t.Errorf("got error %v, want UNAUTHENTICATED", err)
	}
}
