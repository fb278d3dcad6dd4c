// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package kube

import (
	"context"
	"crypto/x509"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"
	securityv1alpha1 "istio.io/api/security/v1alpha1"

	"github.com/outrigger-mesh/outrigger/certs"
	"github.com/outrigger-mesh/outrigger/controlplane/ca"
	"github.com/outrigger-mesh/outrigger/controlplane/kube"
)

// authorityOf serves certificates as the control plane of a cluster does: the root is in a Secret,
// tokens are reviewed, and requests may name another signer.
func authorityOf(t *testing.T, c *Cluster, namespace string, root *issuer) securityv1alpha1.IstioCertificateServiceClient {
	t.Helper()
	client := connect(t, c)
	store, err := kube.NewAuthorityStore(client, namespace)
	if err != nil {
		t.Fatal(err)
	}
	authority, err := ca.Open(t.Context(), ca.Config{Store: store, TrustDomain: "cluster.local", Logger: silent})
	if err != nil {
		t.Fatal(err)
	}
	if err := authority.SetRoots("signer", certs.EncodeChain(root.cert)); err != nil {
		t.Fatal(err)
	}
	nodes, err := kube.NewNodes(kube.NodesConfig{Client: client, Trusted: []string{namespace + "/agent"}, TrustDomain: "cluster.local"})
	if err != nil {
		t.Fatal(err)
	}
	remote, err := kube.NewRegistrationAuthority(kube.RegistrationConfig{Client: client, Domain: "example.com", Approve: true, Logger: silent})
	if err != nil {
		t.Fatal(err)
	}
	service, err := ca.NewService(ca.ServiceConfig{
		Authority: authority, Authenticate: authenticator(t, client).Authenticate, Remote: remote, Logger: silent,
		Nodes: ca.NodeAccounts{Trusted: nodes.Trusted(), MayImpersonate: nodes.Authorize},
	})
	if err != nil {
		t.Fatal(err)
	}
	config, err := authority.ServerCertificate([]string{"istiod.test"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(config)))
	service.Register(server)
	l, err := net.Listen("tcp", "127.77.46.2:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = server.Serve(l) }() // it ends with the test
	t.Cleanup(server.Stop)
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(authority.RootPEM())
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(credentials.NewClientTLSFromCert(pool, "istiod.test")))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() }) // the test has ended
	return securityv1alpha1.NewIstioCertificateServiceClient(conn)
}

// TestCertificateService calls the certificate authority of a cluster over gRPC with tokens of
// kube-apiserver:
//   - a workload receives a certificate of its own identity, under the root in the Secret, or under
//     that of the signer that it names;
//   - a trusted node account receives that of a pod on its node, other accounts do not;
//   - a token for another audience is refused.
func TestCertificateService(t *testing.T) {
	t.Parallel()
	c, namespace := shared.Namespace(t)
	root := newIssuer(t)
	runs(t, root.play(t, c, "service-"))
	service := authorityOf(t, c, namespace, root)
	web := podOn(t, c, namespace, "web", namespace+"-node")
	agent := podOn(t, c, namespace, "agent", namespace+"-node")
	token := func(account string, o TokenOptions) string {
		t.Helper()
		token, err := c.Token(t.Context(), namespace, account, o)
		if err != nil {
			t.Fatal(err)
		}
		return token
	}
	id := certs.ID{TrustDomain: "cluster.local", Namespace: namespace, ServiceAccount: "web"}
	for name, tc := range map[string]struct {
		token    string
		metadata map[string]any
		code     codes.Code
	}{
		"own identity":            {token("web", TokenOptions{Audiences: []string{"istio-ca"}, Pod: web}), nil, codes.OK},
		"by a named signer":       {token("web", TokenOptions{Audiences: []string{"istio-ca"}, Pod: web}), map[string]any{"CertSigner": "service-signs"}, codes.OK},
		"by the agent":            {token("agent", TokenOptions{Audiences: []string{"istio-ca"}, Pod: agent}), map[string]any{"ImpersonatedIdentity": id.String()}, codes.OK},
		"signer lies":             {token("web", TokenOptions{Audiences: []string{"istio-ca"}, Pod: web}), map[string]any{"CertSigner": "service-lies"}, codes.Internal},
		"by somebody else":        {token("default", TokenOptions{Audiences: []string{"istio-ca"}}), map[string]any{"ImpersonatedIdentity": id.String()}, codes.Unauthenticated},
		"agent without a pod":     {token("agent", TokenOptions{Audiences: []string{"istio-ca"}}), map[string]any{"ImpersonatedIdentity": id.String()}, codes.Unauthenticated},
		"for another audience":    {token("web", TokenOptions{Audiences: []string{"vault"}, Pod: web}), nil, codes.Unauthenticated},
		"request for another one": {token("default", TokenOptions{Audiences: []string{"istio-ca"}}), nil, codes.InvalidArgument},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			key, csr := request(t, id, certs.ECDSAP256)
			fields, err := structpb.NewStruct(tc.metadata)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+tc.token, "clusterid", "Kubernetes")
			answer, err := service.CreateCertificate(ctx, &securityv1alpha1.IstioCertificateRequest{Csr: string(csr), ValidityDuration: 3600, Metadata: fields})
			if status.Code(err) != tc.code {
				t.Fatalf("got error %v, want the code %s", err, tc.code)
			}
			if err != nil {
				return
			}
			chain, err := certs.ParseChain([]byte(strings.Join(answer.GetCertChain(), "")))
			if err != nil {
				t.Fatal(err)
			}
			pool := x509.NewCertPool()
			pool.AppendCertsFromPEM([]byte(answer.GetCertChain()[len(answer.GetCertChain())-1]))
			if _, err := chain[0].Verify(x509.VerifyOptions{Roots: pool}); err != nil {
				t.Error(err)
			}
			if got, err := certs.CertificateID(chain[0]); err != nil || got != id || !certs.SamePublicKey(chain[0].PublicKey, key.Public()) {
				t.Errorf("got a certificate for %v, error %v", got, err)
			}
			if bySigner := chain[0].CheckSignatureFrom(root.cert) == nil; bySigner != (tc.metadata["CertSigner"] != nil) {
				t.Errorf("the signer has signed it: %v", bySigner)
			}
		})
	}
}
