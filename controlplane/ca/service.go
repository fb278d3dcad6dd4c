// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package ca

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/big"
	"runtime"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	securityv1alpha1 "istio.io/api/security/v1alpha1"

	"github.com/outrigger-mesh/outrigger/certs"
	"github.com/outrigger-mesh/outrigger/controlplane/authn"
	"github.com/outrigger-mesh/outrigger/internal/clip"
)

const (
	defaultTTL = 24 * time.Hour
	maxTTL     = 90 * 24 * time.Hour
	// maxPending is the maximum number of requests that wait or are being signed. At several
	// thousand per second, the last one waits a few seconds.
	maxPending = 10000
)

// ServiceConfig is the configuration of a Service.
type ServiceConfig struct {
	Authority    *Authority
	Authenticate func(ctx context.Context) (*authn.Caller, error) // returns the identity of the caller
	DefaultTTL   time.Duration                                    // lifetime of a certificate if the request specifies none; zero means 24 h
	MaxTTL       time.Duration                                    // maximum lifetime that may be requested; zero means that of the authority
	Denied       func(id certs.ID) error                          // returns an error if an identity must not get a certificate; nil means that all may
	Nodes        NodeAccounts                                     // callers that may request certificates for other identities
	Remote       RemoteSigner                                     // signs requests that name a signer; nil means that they are rejected
	RemoteName   string                                           // signer for requests that name none; empty means the authority
	CallerLimit  Limit                                            // for one address of an identity; the default is 10 per second, burst 100
	TotalLimit   Limit                                            // for an identity; the default is 100 per second, burst 1,000
	MaxPending   int                                              // maximum number of requests that wait or are being signed; zero means 10,000
	Logger       *slog.Logger                                     // nil means slog.Default()
	Registerer   prometheus.Registerer                            // nil means no metrics
}

// NodeAccounts defines who may request certificates for other identities: a proxy that serves all
// workloads of its node.
type NodeAccounts struct {
	Trusted map[string]bool // by namespace/serviceaccount
	// MayImpersonate checks that a workload with the identity runs on the node of the caller. Its
	// error is sent to the caller. Nil means that nobody may impersonate others.
	MayImpersonate func(ctx context.Context, caller *authn.Caller, id certs.ID) error
}

// Service implements istio.v1.auth.IstioCertificateService.
type Service struct {
	cfg     ServiceConfig
	metrics *serviceMetrics
	limits  *limiter
	pending atomic.Int64
	slots   chan struct{} // one for each CPU, because more concurrency does not increase throughput
}

// NewService returns a Service. It must be registered with Register.
func NewService(cfg ServiceConfig) (*Service, error) {
	if cfg.Authority == nil || cfg.Authenticate == nil {
		return nil, errors.New("certificate service: it needs both an authority and a way to authenticate callers")
	}
	if cfg.RemoteName != "" && cfg.Remote == nil {
		return nil, fmt.Errorf("certificate service: signer %s is named, but there is no way to reach it", cfg.RemoteName)
	}
	if cfg.MaxTTL == 0 {
		cfg.MaxTTL = cfg.Authority.cfg.MaxTTL
	}
	if cfg.DefaultTTL == 0 {
		cfg.DefaultTTL = min(defaultTTL, cfg.MaxTTL)
	}
	if cfg.DefaultTTL < 0 || cfg.MaxTTL < cfg.DefaultTTL {
		return nil, fmt.Errorf("certificate service: the default lifetime of a certificate (%s) must be positive and at most the longest one (%s)", cfg.DefaultTTL, cfg.MaxTTL)
	}
	if cfg.MaxTTL > cfg.Authority.cfg.MaxTTL {
		return nil, fmt.Errorf("certificate service: certificates with a lifetime of %s cannot be issued; the authority signs for at most %s", cfg.MaxTTL, cfg.Authority.cfg.MaxTTL)
	}
	if cfg.CallerLimit.PerSecond == 0 {
		cfg.CallerLimit = Limit{PerSecond: 10, Burst: 100}
	}
	if cfg.TotalLimit.PerSecond == 0 {
		cfg.TotalLimit = Limit{PerSecond: 100, Burst: 1000}
	}
	if cfg.MaxPending == 0 {
		cfg.MaxPending = maxPending
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	m, err := newServiceMetrics(cfg.Registerer)
	if err != nil {
		return nil, err
	}
	return &Service{
		cfg: cfg, metrics: m, limits: newLimiter(cfg.CallerLimit, cfg.TotalLimit),
		slots: make(chan struct{}, runtime.GOMAXPROCS(0)),
	}, nil
}

// Register adds the service to a gRPC server, which must serve TLS.
func (s *Service) Register(r grpc.ServiceRegistrar) { r.RegisterService(s.description(), s) }

// CreateCertificate implements the RPC: it certifies the key of the request for the authenticated
// identity of the caller.
func (s *Service) CreateCertificate(ctx context.Context, req *securityv1alpha1.IstioCertificateRequest) (*securityv1alpha1.IstioCertificateResponse, error) {
	caller, log, err := s.admit(ctx)
	if err != nil {
		return nil, err
	}
	return s.answer(ctx, caller, log, req)
}

// answer handles the request of a caller that was admitted.
func (s *Service) answer(ctx context.Context, caller *authn.Caller, log *slog.Logger, req *securityv1alpha1.IstioCertificateRequest) (*securityv1alpha1.IstioCertificateResponse, error) {
	id, reason, err := s.identity(ctx, caller, field(req, "ImpersonatedIdentity"))
	if err != nil {
		s.metrics.unauthenticated.Inc()
		log.Warn("certificate request for another identity refused", "reason", err.Error())
		return nil, unproved(err)
	}
	if r := s.limits.allowIdentity(id.String(), time.Now()); r != nil {
		return nil, s.later(ctx, log, r)
	}
	ttl, err := s.ttl(req.GetValidityDuration())
	if err != nil {
		s.metrics.parsing.Inc()
		log.Warn("certificate request refused", "err", err)
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	issued, err := s.sign(ctx, req, id, ttl)
	if err != nil {
		return nil, s.failed(ctx, log, err)
	}
	s.metrics.issued.Inc()
	log.Info("certificate issued", "kind", "workload", "name", id.String(), "serial", serialText(issued.Serial),
		"expires", issued.NotAfter.UTC().Format(time.RFC3339), "reason", reason+"; signed by "+issued.Signer)
	resp := &securityv1alpha1.IstioCertificateResponse{CertChain: make([]string, len(issued.Chain))}
	for i, c := range issued.Chain {
		resp.CertChain[i] = string(c)
	}
	return resp, nil
}

// unproved returns the gRPC error for a caller that is not authenticated or not authorized. It is
// Unavailable if the caller can retry.
func unproved(err error) error {
	if errors.Is(err, authn.ErrUnavailable) {
		return status.Error(codes.Unavailable, err.Error())
	}
	return status.Error(codes.Unauthenticated, err.Error())
}

// field returns a string of the request's metadata.
func field(req *securityv1alpha1.IstioCertificateRequest, name string) string {
	return req.GetMetadata().GetFields()[name].GetStringValue()
}

// authenticate rejects connections without TLS before it authenticates the caller, because a token
// sent in plaintext proves nothing.
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

// identity returns the identity to certify and, for the log, the reason: the identity of the
// caller, or the one that a trusted node account requests.
func (s *Service) identity(ctx context.Context, caller *authn.Caller, who string) (certs.ID, string, error) {
	if who == "" {
		return caller.ID, "requested its own identity", nil
	}
	account := caller.ID.Namespace + "/" + caller.ID.ServiceAccount
	if !s.cfg.Nodes.Trusted[account] {
		return certs.ID{}, "", fmt.Errorf("certificates for an identity other than the caller's own are not issued to %s, which is not a trusted node account", account)
	}
	id, err := certs.ParseID(who)
	if err != nil {
		return certs.ID{}, "", err
	}
	if id.TrustDomain != s.cfg.Authority.TrustDomain() {
		return certs.ID{}, "", fmt.Errorf("%s is not of trust domain %s", id, s.cfg.Authority.TrustDomain())
	}
	if s.cfg.Nodes.MayImpersonate == nil {
		return certs.ID{}, "", errors.New("the workloads of nodes are not known here, so node accounts may not request certificates for others")
	}
	if err := s.cfg.Nodes.MayImpersonate(ctx, caller, id); err != nil {
		return certs.ID{}, "", err
	}
	if s.cfg.Denied != nil {
		if err := s.cfg.Denied(id); err != nil {
			return certs.ID{}, "", err
		}
	}
	return id, "requested for a workload on the node of " + account, nil
}

// ttl returns the lifetime for a requested number of seconds. It returns an error if that exceeds
// the maximum.
func (s *Service) ttl(seconds int64) (time.Duration, error) {
	if seconds <= 0 {
		return s.cfg.DefaultTTL, nil
	}
	// Compared in seconds, because a large number would overflow a Duration.
	if seconds > int64(s.cfg.MaxTTL/time.Second) {
		return 0, fmt.Errorf("the requested lifetime is %d seconds; at most %d are granted", seconds, int64(s.cfg.MaxTTL/time.Second))
	}
	return time.Duration(seconds) * time.Second, nil
}

// errBusy means that too many requests are pending.
var errBusy = errors.New("too many certificate requests wait to be signed")

// sign waits for a slot and signs the request, locally or remotely.
func (s *Service) sign(ctx context.Context, req *securityv1alpha1.IstioCertificateRequest, id certs.ID, ttl time.Duration) (*Issued, error) {
	defer func() { s.metrics.pending.Set(float64(s.pending.Add(-1))) }()
	if n := s.pending.Add(1); n > int64(s.cfg.MaxPending) {
		return nil, errBusy
	}
	name := field(req, "CertSigner")
	if name == "" {
		name = s.cfg.RemoteName
	}
	if name != "" {
		if s.cfg.Remote == nil {
			return nil, fmt.Errorf("%w: it names signer %q, but other signers are not available here: remove CERT_SIGNER from the workload", ErrRequest, clip.Cut(name, maxText))
		}
		return s.signRemotely(ctx, []byte(req.GetCsr()), id, name, ttl)
	}
	select {
	case s.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { <-s.slots }()
	return s.cfg.Authority.Sign(ctx, []byte(req.GetCsr()), id, ttl)
}

// failed returns the gRPC error for a request that was not signed.
func (s *Service) failed(ctx context.Context, log *slog.Logger, err error) error {
	switch {
	case errors.Is(err, errBusy):
		return s.later(ctx, log, &refusal{reason: refusedQueue, after: spread(time.Second)})
	case errors.Is(err, ErrRequest):
		s.metrics.parsing.Inc()
		log.Warn("certificate request refused", "err", err)
		return status.Error(codes.InvalidArgument, err.Error())
	case ctx.Err() != nil:
		s.metrics.errors.WithLabelValues("canceled").Inc()
		return status.FromContextError(ctx.Err()).Err()
	}
	s.metrics.errors.WithLabelValues("signing").Inc()
	log.Error("certificate not issued", "err", err)
	return status.Error(codes.Internal, err.Error())
}

// later returns a gRPC error with the retry delay in the two formats that clients understand.
func (s *Service) later(ctx context.Context, log *slog.Logger, r *refusal) error {
	s.metrics.refused.WithLabelValues(r.reason).Inc()
	if r.first {
		log.Warn("certificate requests exceed the rate limit and are deferred", "reason", r.reason, "duration", r.after.Round(time.Second))
	}
	seconds := int(math.Ceil(r.after.Seconds()))
	// The error means that there is no gRPC call, and so nobody to read the trailer.
	_ = grpc.SetTrailer(ctx, metadata.Pairs("retry-after", strconv.Itoa(seconds)))
	text := map[string]string{
		refusedCaller:   "this workload requests certificates too often",
		refusedIdentity: "workloads of this identity request certificates too often",
		refusedQueue:    errBusy.Error(),
	}[r.reason]
	st := status.New(codes.ResourceExhausted, fmt.Sprintf("%s: retry in %d s", text, seconds))
	if detailed, err := st.WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(r.after)}); err == nil {
		st = detailed
	}
	return st.Err()
}

// serialText formats a serial number like openssl.
func serialText(n *big.Int) string { return fmt.Sprintf("%X", n) }

// maxText is the maximum number of bytes of a peer's text that an error quotes.
const maxText = 200

// address returns the remote address of a call, for the log.
func address(ctx context.Context) string {
	if p, ok := peer.FromContext(ctx); ok && p.Addr != nil {
		return p.Addr.String()
	}
	return "unknown"
}
