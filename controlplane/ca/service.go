// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package ca

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	securityv1alpha1 "istio.io/api/security/v1alpha1"

	"github.com/outrigger-mesh/outrigger/certs"
	"github.com/outrigger-mesh/outrigger/controlplane/authn"
)

const (
	defaultTTL = 24 * time.Hour
	maxTTL     = 90 * 24 * time.Hour
)

// ServiceConfig describes a Service.
type ServiceConfig struct {
	Authority    *Authority
	Authenticate func(ctx context.Context) (*authn.Caller, error) // tells who is calling
	DefaultTTL   time.Duration                                    // life of a certificate if the caller names none; zero means 24 h
	MaxTTL       time.Duration                                    // a request for more is refused; zero means 90 days
	Logger       *slog.Logger                                     // nil means slog.Default()
	Registerer   prometheus.Registerer                            // nil means no metrics
}

// Service answers istio.v1.auth.IstioCertificateService.
type Service struct {
	securityv1alpha1.UnimplementedIstioCertificateServiceServer

	cfg     ServiceConfig
	metrics *serviceMetrics
}

// NewService returns a Service. Nothing is served before Register.
func NewService(cfg ServiceConfig) (*Service, error) {
	if cfg.Authority == nil || cfg.Authenticate == nil {
		return nil, errors.New("certificate service: it needs both an authority and a way to authenticate callers")
	}
	if cfg.DefaultTTL == 0 {
		cfg.DefaultTTL = defaultTTL
	}
	if cfg.MaxTTL == 0 {
		cfg.MaxTTL = maxTTL
	}
	if cfg.DefaultTTL < 0 || cfg.MaxTTL < cfg.DefaultTTL {
		return nil, fmt.Errorf("certificate service: the default life of a certificate (%s) must be positive and at most the longest one (%s)", cfg.DefaultTTL, cfg.MaxTTL)
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	m, err := newServiceMetrics(cfg.Registerer)
	if err != nil {
		return nil, err
	}
	return &Service{cfg: cfg, metrics: m}, nil
}

// Register adds the service to a gRPC server, which must serve TLS.
func (s *Service) Register(r grpc.ServiceRegistrar) {
	securityv1alpha1.RegisterIstioCertificateServiceServer(r, s)
}

// CreateCertificate implements the RPC: it certifies the key of the request for
// the identity that the caller has proved.
func (s *Service) CreateCertificate(ctx context.Context, req *securityv1alpha1.IstioCertificateRequest) (*securityv1alpha1.IstioCertificateResponse, error) {
	s.metrics.requests.Inc()
	caller, err := s.authenticate(ctx)
	if err != nil {
		s.metrics.unauthenticated.Inc()
		s.cfg.Logger.Warn("certificate request without a proved identity refused", "address", address(ctx), "reason", err.Error())
		return nil, status.Error(codes.Unauthenticated, err.Error())
	}
	log := s.cfg.Logger.With("identity", caller.ID.String(), "source", caller.Method)
	if who := req.GetMetadata().GetFields()["ImpersonatedIdentity"].GetStringValue(); who != "" {
		s.metrics.unauthenticated.Inc()
		log.Warn("certificate request for another identity refused", "address", address(ctx))
		return nil, status.Error(codes.Unauthenticated, "certificates for another identity than the caller's own are not issued")
	}
	ttl, err := s.ttl(req.GetValidityDuration())
	if err != nil {
		log.Warn("certificate request refused", "err", err)
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	chain, err := s.cfg.Authority.Sign([]byte(req.GetCsr()), caller.ID, ttl)
	if errors.Is(err, ErrRequest) {
		log.Warn("certificate request refused", "err", err)
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	if err != nil {
		log.Error("certificate not issued", "err", err)
		return nil, status.Error(codes.Internal, err.Error())
	}
	s.metrics.issued.Inc()
	log.Info("certificate issued", "expires", expiry(chain[0]))
	resp := &securityv1alpha1.IstioCertificateResponse{}
	for _, c := range chain {
		resp.CertChain = append(resp.CertChain, string(c))
	}
	return resp, nil
}

// authenticate refuses connections without TLS before it asks who is calling: a
// token that travelled in plaintext proves nothing.
func (s *Service) authenticate(ctx context.Context) (*authn.Caller, error) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return nil, errors.New("the call has no peer")
	}
	if _, ok := p.AuthInfo.(credentials.TLSInfo); !ok {
		return nil, errors.New("certificates are only issued over TLS, and this connection is plaintext; use the secure port (15012)")
	}
	return s.cfg.Authenticate(ctx)
}

// ttl applies the limits to the life that the caller asks for, in seconds.
func (s *Service) ttl(seconds int64) (time.Duration, error) {
	if seconds <= 0 {
		return s.cfg.DefaultTTL, nil
	}
	// Compared in seconds: a Duration of a large number would overflow.
	if seconds > int64(s.cfg.MaxTTL/time.Second) {
		return 0, fmt.Errorf("the certificate is asked for %d seconds; at most %d are granted", seconds, int64(s.cfg.MaxTTL/time.Second))
	}
	return time.Duration(seconds) * time.Second, nil
}

// expiry returns the end of a leaf's life for the log.
func expiry(leafPEM []byte) string {
	chain, err := certs.ParseChain(leafPEM)
	if err != nil {
		return "unknown"
	}
	return chain[0].NotAfter.UTC().Format(time.RFC3339)
}

// address returns where a call comes from, for the log.
func address(ctx context.Context) string {
	if p, ok := peer.FromContext(ctx); ok && p.Addr != nil {
		return p.Addr.String()
	}
	return "unknown"
}
