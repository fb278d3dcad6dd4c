// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package ca_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	securityv1alpha1 "istio.io/api/security/v1alpha1"

	"github.com/outrigger-mesh/outrigger/certs"
	"github.com/outrigger-mesh/outrigger/controlplane/authn"
	"github.com/outrigger-mesh/outrigger/controlplane/ca"
)

// TestAuthenticationIsUnavailable checks the error for a caller that cannot be authenticated or
// authorized at the moment. It must ask for a retry, because agents treat UNAUTHENTICATED as
// permanent.
func TestAuthenticationIsUnavailable(t *testing.T) {
	t.Parallel()
	unavailable := fmt.Errorf("%w: no response", authn.ErrUnavailable)
	id := certs.ID{TrustDomain: "cluster.local", Namespace: "ns", ServiceAccount: "agent"}
	for name, change := range map[string]func(*ca.ServiceConfig){
		"caller": func(c *ca.ServiceConfig) {
			c.Authenticate = func(context.Context) (*authn.Caller, error) { return nil, unavailable }
		},
		"impersonation": func(c *ca.ServiceConfig) {
			c.Authenticate = func(context.Context) (*authn.Caller, error) { return &authn.Caller{ID: id}, nil }
			c.Nodes = ca.NodeAccounts{
				Trusted:        map[string]bool{"ns/agent": true},
				MayImpersonate: func(context.Context, *authn.Caller, certs.ID) error { return unavailable },
			}
		},
	} {
		a := serve(t, change)
		conn, err := grpc.NewClient(a.secure, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: a.rootsOfMesh, MinVersion: tls.VersionTLS12})))
		if err != nil {
			t.Fatal(err)
		}
		_, err = securityv1alpha1.NewIstioCertificateServiceClient(conn).CreateCertificate(t.Context(), &securityv1alpha1.IstioCertificateRequest{
			Csr: string(newCSR(t, newKey(t, ""), web())), Metadata: impersonate(t),
		})
		if status.Code(err) != codes.Unavailable {
			t.Errorf("%s: got error %v, want UNAVAILABLE", name, err)
		}
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	}
}
