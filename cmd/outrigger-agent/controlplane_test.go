// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"strings"
	"sync"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"
	securityv1alpha1 "istio.io/api/security/v1alpha1"

	"github.com/outrigger-mesh/outrigger/certs"
	"github.com/outrigger-mesh/outrigger/e2e/ownnet"
)

// controlPlane is a fake that signs all requests, and responds to each subscription with its
// resources of the type, if any.
type controlPlane struct {
	securityv1alpha1.UnimplementedIstioCertificateServiceServer
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	key     *ecdsa.PrivateKey
	root    *x509.Certificate
	address string
	server  *grpc.Server
	// resources are the resources by type; they must be set before the first request.
	resources map[string][]*discoveryv3.Resource

	mu      sync.Mutex // guards the fields below
	reports []string   // health reports
	signed  []call
	streams []call
	node    string
	drop    chan struct{}
}

// call contains what the control plane received in one call.
type call struct {
	metadata metadata.MD
	// identity is the name in the client certificate, if any.
	identity string
}

func newControlPlane(t *testing.T) *controlPlane {
	t.Helper()
	return newControlPlaneAt(t, "127.0.0.1:0")
}

func newControlPlaneAt(t *testing.T, address string) *controlPlane {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &controlPlane{key: key, drop: make(chan struct{})}
	c.root = c.certify(t, &x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign, Subject: pkix.Name{CommonName: "root"}}, nil, key)
	serverKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	leaf := c.certify(t, &x509.Certificate{DNSNames: []string{"istiod.istio-system.svc"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}, c.root, serverKey)
	pool := x509.NewCertPool()
	pool.AddCert(c.root)
	c.server = grpc.NewServer(grpc.Creds(credentials.NewTLS(&tls.Config{
		MinVersion:   tls.VersionTLS12,
		Certificates: []tls.Certificate{{Certificate: [][]byte{leaf.Raw}, PrivateKey: serverKey}},
		ClientAuth:   tls.VerifyClientCertIfGiven,
		ClientCAs:    pool,
	})))
	securityv1alpha1.RegisterIstioCertificateServiceServer(c.server, c)
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(c.server, c)
	l, err := ownnet.Listen(address)
	if err != nil {
		t.Fatal(err)
	}
	c.address = l.Addr().String()
	served := make(chan error, 1)
	go func() { served <- c.server.Serve(l) }()
	t.Cleanup(func() {
		c.server.Stop()
		if err := <-served; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			t.Error(err)
		}
	})
	return c
}

// certify signs a certificate with the root. Without a parent it creates the root.
func (c *controlPlane) certify(t *testing.T, template, parent *x509.Certificate, key *ecdsa.PrivateKey) *x509.Certificate {
	t.Helper()
	template.SerialNumber = big.NewInt(time.Now().UnixNano())
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Minute), time.Now().Add(time.Hour)
	if parent == nil {
		parent = template
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, c.key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

func (c *controlPlane) rootPEM() []byte { return certs.EncodeChain(c.root) }

func (c *controlPlane) CreateCertificate(ctx context.Context, req *securityv1alpha1.IstioCertificateRequest) (*securityv1alpha1.IstioCertificateResponse, error) {
	csr, err := certs.ParseCSR([]byte(req.GetCsr()))
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), URIs: csr.URIs, NotBefore: time.Now().Add(-time.Minute),
		NotAfter: time.Now().Add(time.Duration(req.GetValidityDuration()) * time.Second), KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, c.root, csr.PublicKey, c.key)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	c.signed = append(c.signed, seen(ctx))
	c.mu.Unlock()
	var leaf bytes.Buffer
	if err := pem.Encode(&leaf, &pem.Block{Type: "CERTIFICATE", Bytes: der}); err != nil {
		return nil, err
	}
	return &securityv1alpha1.IstioCertificateResponse{CertChain: []string{leaf.String(), string(c.rootPEM())}}, nil
}

func (c *controlPlane) DeltaAggregatedResources(s discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	c.mu.Lock()
	c.streams = append(c.streams, seen(s.Context()))
	drop := c.drop
	c.mu.Unlock()
	ended := make(chan error, 1)
	go func() { ended <- c.answer(s) }()
	select {
	case err := <-ended:
		return err
	case <-drop:
		return status.Error(codes.Unavailable, "the control plane restarts")
	}
}

// StreamAggregatedResources answers the question for a bootstrap, if there is one.
func (c *controlPlane) StreamAggregatedResources(s discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	req, err := s.Recv()
	if err != nil {
		return err
	}
	const typeBootstrap = "type.googleapis.com/envoy.config.bootstrap.v3.Bootstrap"
	list := c.resources[typeBootstrap]
	if req.GetTypeUrl() == typeBootstrap && strings.HasPrefix(req.GetNode().GetId(), "sidecar~") && req.GetNode().GetMetadata().GetFields()["NAMESPACE"].GetStringValue() == "default" && len(list) > 0 {
		if err := s.Send(&discoveryv3.DiscoveryResponse{TypeUrl: typeBootstrap, VersionInfo: "1", Nonce: "1", Resources: []*anypb.Any{list[0].GetResource()}}); err != nil {
			return err
		}
	}
	<-s.Context().Done()
	return nil
}

// dropStreams ends all open streams.
func (c *controlPlane) dropStreams() {
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.drop)
	c.drop = make(chan struct{})
}

func (c *controlPlane) answer(s discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	for {
		req, err := s.Recv()
		if err != nil {
			return err
		}
		if req.GetNode() != nil {
			c.mu.Lock()
			c.node = req.GetNode().GetId()
			c.mu.Unlock()
		}
		if req.GetTypeUrl() == "type.googleapis.com/istio.v1.HealthInformation" {
			c.mu.Lock()
			c.reports = append(c.reports, req.GetErrorDetail().GetMessage())
			c.mu.Unlock()
			continue
		}
		if req.GetResponseNonce() != "" {
			continue
		}
		if err := s.Send(&discoveryv3.DeltaDiscoveryResponse{
			TypeUrl: req.GetTypeUrl(), Nonce: "1", SystemVersionInfo: "1", Resources: c.resources[req.GetTypeUrl()],
		}); err != nil {
			return err
		}
	}
}

func seen(ctx context.Context) call {
	var result call
	result.metadata, _ = metadata.FromIncomingContext(ctx)
	if p, ok := peer.FromContext(ctx); ok {
		if info, ok := p.AuthInfo.(credentials.TLSInfo); ok && len(info.State.PeerCertificates) > 0 {
			if id, err := certs.CertificateID(info.State.PeerCertificates[0]); err == nil {
				result.identity = id.String()
			}
		}
	}
	return result
}

// calls returns the calls that were received so far.
func (c *controlPlane) calls() (signed, streams []call, node string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.signed, c.streams, c.node
}

// Types that the agent consumes or changes itself.
const (
	typeProxyConfig = "type.googleapis.com/istio.mesh.v1alpha1.ProxyConfig"
	typeExtension   = "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig"
)
