// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package ca

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	securityv1alpha1 "istio.io/api/security/v1alpha1"

	"github.com/outrigger-mesh/outrigger/controlplane/authn"
)

// requestTimeout is the maximum time for a caller to send its request.
const requestTimeout = 10 * time.Second

// description returns the description of istio.v1.auth.IstioCertificateService with its method as a
// stream of one request, which is the same on the wire. gRPC reads the request of a unary method
// before the caller can be authenticated, so an unauthenticated caller could make it buffer as many
// bytes as the largest ADS message.
func (s *Service) description() *grpc.ServiceDesc {
	d := securityv1alpha1.IstioCertificateService_ServiceDesc
	return &grpc.ServiceDesc{
		ServiceName: d.ServiceName, HandlerType: (*any)(nil), Metadata: d.Metadata,
		Streams: []grpc.StreamDesc{{
			StreamName: "CreateCertificate",
			Handler:    func(_ any, stream grpc.ServerStream) error { return s.serve(stream) },
		}},
	}
}

// serve handles one call. It reads the request only after the caller is authenticated.
func (s *Service) serve(stream grpc.ServerStream) error {
	ctx := stream.Context()
	caller, log, err := s.admit(ctx)
	if err != nil {
		return err
	}
	req := &securityv1alpha1.IstioCertificateRequest{}
	if err := receive(stream, req); err != nil {
		return err
	}
	resp, err := s.answer(ctx, caller, log, req)
	if err != nil {
		return err
	}
	return stream.SendMsg(resp)
}

// receive reads the request. Its goroutine ends with the call.
func receive(stream grpc.ServerStream, req *securityv1alpha1.IstioCertificateRequest) error {
	done := make(chan error, 1)
	go func() { done <- stream.RecvMsg(req) }()
	timer := time.NewTimer(requestTimeout)
	defer timer.Stop()
	// Cases: the request was received, or the call ended; the timeout expired.
	select {
	case err := <-done:
		return err
	case <-timer.C:
		return status.Errorf(codes.DeadlineExceeded, "the certificate request did not arrive within %s", requestTimeout)
	}
}

// admit authenticates the caller. It rejects callers that are not authenticated or exceed their
// rate limit.
func (s *Service) admit(ctx context.Context) (*authn.Caller, *slog.Logger, error) {
	s.metrics.requests.Inc()
	from := address(ctx)
	caller, err := s.authenticate(ctx)
	if err != nil {
		s.metrics.unauthenticated.Inc()
		s.logStranger(from, err)
		return nil, nil, unproved(err)
	}
	log := s.cfg.Logger.With("identity", caller.ID.String(), "source", caller.Method, "address", from)
	if r := s.limits.allowCaller(caller.ID.String(), from, time.Now()); r != nil {
		return nil, nil, s.later(ctx, log, r)
	}
	return caller, log, nil
}

// logStranger logs the rejection of a caller. The logger limits the rate.
func (s *Service) logStranger(from string, err error) {
	if errors.Is(err, authn.ErrUnavailable) {
		s.cfg.Logger.Warn("certificate request deferred: the caller cannot be authenticated at the moment", "address", from, "reason", err.Error())
	} else {
		s.cfg.Logger.Warn("certificate request refused: the caller has not proved its identity", "address", from, "reason", err.Error())
	}
}
