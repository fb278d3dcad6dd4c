// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package sds

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// maxStreams bounds the streams of one connection; Envoy opens one for each
// name it asks for.
const maxStreams = 1000

// ServerConfig describes a Server.
type ServerConfig struct {
	Listener net.Listener // unix socket of Envoy's cluster sds-grpc; closed by Run
	Workload *Workload    // what is served
	Logger   *slog.Logger // nil means slog.Default()
}

// Server serves the secrets of a Workload.
type Server struct {
	cfg     ServerConfig
	streams atomic.Uint64 // numbers streams in the log
}

// NewServer returns a Server. It accepts nothing before Run.
func NewServer(cfg ServerConfig) (*Server, error) {
	if cfg.Listener == nil || cfg.Workload == nil {
		return nil, errors.New("secret server: it needs both a listener and a workload")
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	return &Server{cfg: cfg}, nil
}

// Run serves until ctx is done.
func (s *Server) Run(ctx context.Context) error {
	server := grpc.NewServer(grpc.ForceServerCodecV2(codec{}), grpc.MaxConcurrentStreams(maxStreams), grpc.WaitForHandlers(true))
	server.RegisterService(s.description(), nil)
	defer context.AfterFunc(ctx, server.Stop)()
	if err := server.Serve(s.cfg.Listener); err != nil && ctx.Err() == nil {
		return fmt.Errorf("serving secrets on %s: %w", s.cfg.Listener.Addr(), err)
	}
	return nil
}

// request is what both variants of the protocol ask for.
type request struct {
	typeURL   string
	nonce     string
	rejection string // not empty: the client did not take the last answer
	// subscribe changes the subscription. It is not called for a request which
	// answers something that is no longer the last.
	subscribe func(*subscription)
	// always calls subscribe even then: changes of a delta stream add up.
	always bool
}

// fetch answers once with what is there.
func (s *Server) fetch(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
	var m message
	if err := decode(&m); err != nil {
		return nil, err
	}
	req, err := readSotW(m)
	if err == nil {
		err = checkType(req.typeURL)
	}
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	id := s.cfg.Workload.Current()
	if id == nil {
		return nil, status.Error(codes.Unavailable, "the workload has no certificate yet")
	}
	sub := newSubscription()
	req.subscribe(sub)
	names, unknown := sub.due(id)
	s.logUnknown(s.cfg.Logger, unknown)
	answer := writeSotW(id, "", names)
	return &answer, nil
}

// receive reads the requests of a stream until it ends.
func receive(stream grpc.ServerStream, v variant, requests chan<- *request) error {
	for {
		var m message
		if err := stream.RecvMsg(&m); err != nil {
			return err
		}
		req, err := v.read(m)
		if err == nil {
			err = checkType(req.typeURL)
		}
		if err != nil {
			return status.Error(codes.InvalidArgument, err.Error())
		}
		select {
		case requests <- req:
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}

// serve runs one stream: it sends what the client lacks whenever the client
// asks for something or the identity changes.
func (s *Server) serve(stream grpc.ServerStream, v variant) error {
	ctx, log := stream.Context(), s.cfg.Logger.With("stream", s.streams.Add(1))
	requests, failed := make(chan *request), make(chan error, 1)
	go func() { failed <- receive(stream, v, requests) }()
	sub, sent := newSubscription(), 0
	for {
		// The channel is taken before the identity is read, so that a change
		// between the two is seen in the next round.
		changed := s.cfg.Workload.Changed()
		id := s.cfg.Workload.Current()
		names, unknown := sub.due(id)
		s.logUnknown(log, unknown)
		if answer := v.write(id, strconv.Itoa(sent+1), names, unknown); answer != nil {
			if err := stream.SendMsg(&answer); err != nil {
				return err
			}
			sent++
			log.Debug("secrets sent", "resource", strings.Join(names, ","), "nonce", sent)
		}
		// Cases: a request, a new identity, the end of the client's half or of
		// the whole stream.
		select {
		case req := <-requests:
			s.apply(log, sub, req, sent)
		case <-changed:
		case err := <-failed:
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// apply takes a request into the subscription. sent is the nonce of the last
// answer.
func (s *Server) apply(log *slog.Logger, sub *subscription, req *request, sent int) {
	stale := req.nonce != "" && sent > 0 && req.nonce != strconv.Itoa(sent)
	if req.rejection != "" {
		log.Warn("Envoy rejected a secret", "nonce", req.nonce, "reason", req.rejection)
	}
	if stale {
		log.Debug("request answers an older response", "nonce", req.nonce)
	}
	if !stale || req.always {
		req.subscribe(sub)
	}
}

// logUnknown reports names that are left out of an answer.
func (s *Server) logUnknown(log *slog.Logger, names []string) {
	for _, name := range names {
		log.Warn("Envoy asks for a secret that is not served; "+NameDefault+" and "+NameRoots+" are", "resource", name)
	}
}

func checkType(typeURL string) error {
	if typeURL == "" || typeURL == secretType {
		return nil
	}
	return fmt.Errorf("resources of type %q are not served here, only %s", typeURL, secretType)
}
