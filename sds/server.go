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
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/outrigger-mesh/outrigger/internal/connlimit"
)

// Limits of the socket. Envoy has one connection, and opens a stream for each name that
// it subscribes to; maxNames is the limit of names of one stream.
const (
	maxConns   = 64
	maxStreams = 1000
	maxNames   = 1000
	maxRequest = 1 << 20  // bytes
	maxName    = 16 << 10 // bytes: two paths
	maxHeader  = 64 << 10 // bytes
	window     = 64 << 10 // unread bytes of a stream
	unused     = time.Minute
	handshake  = 20 * time.Second
	keepalive  = 2 * time.Hour // the kernel reports disconnects of local peers
	pingEvery  = 15 * time.Second
)

// ServerConfig configures a Server.
type ServerConfig struct {
	Listener net.Listener // unix socket of Envoy's cluster sds-grpc; closed by Run
	Workload *Workload    // whose secrets are served
	Files    *Files       // follows named files; nil means that names of files are not served
	// KeyProvider is the private key provider of Envoy; nil means none.
	KeyProvider *KeyProvider
	Logger      *slog.Logger // nil means slog.Default()
}

// Server serves the secrets of a Workload and of files.
type Server struct {
	cfg     ServerConfig
	streams atomic.Uint64 // numbers streams in the log
}

// NewServer returns a Server. It starts nothing; see Run.
func NewServer(cfg ServerConfig) (*Server, error) {
	if cfg.Listener == nil || cfg.Workload == nil {
		return nil, errors.New("secret server: it needs both a listener and a workload")
	}
	if err := cfg.KeyProvider.validate(); err != nil {
		return nil, fmt.Errorf("secret server: %w", err)
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	return &Server{cfg: cfg}, nil
}

// Run serves until ctx is done.
func (s *Server) Run(ctx context.Context) error {
	server := connlimit.NewGRPCServer(insecure.NewCredentials(), connlimit.GRPC{
		HeaderBytes: maxHeader, MessageBytes: maxRequest, Streams: maxStreams, Window: window,
		Handshake: handshake, Keepalive: keepalive, Answer: handshake, PingEvery: pingEvery,
	}, grpc.ForceServerCodecV2(codec{}), grpc.WaitForHandlers(true))
	server.RegisterService(s.description(), nil)
	defer context.AfterFunc(ctx, server.Stop)()
	if err := server.Serve(connlimit.Listen(s.cfg.Listener, connlimit.Config{Total: maxConns, Evict: true, Unused: unused})); err != nil && ctx.Err() == nil {
		return fmt.Errorf("serving secrets on %s: %w", s.cfg.Listener.Addr(), err)
	}
	return nil
}

// request is a request of either variant of the protocol.
type request struct {
	typeURL   string
	nonce     string
	rejection string // not empty if the client rejected the last answer
	// subscribe changes the subscription. It is not called for a request that
	// answers an older response than the last one.
	subscribe func(*subscription)
	// always calls subscribe even then: requests of a delta stream are increments.
	always bool
}

// fetch answers once with the current secrets.
func (s *Server) fetch(_ any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
	connlimit.UseOf(ctx)
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
	sub := newSubscription()
	req.subscribe(sub)
	if err := sub.check(); err != nil {
		return nil, err
	}
	var missing error
	items, unknown := sub.due(func(name string) (*material, bool) {
		m, served, err := s.once(name)
		if err != nil && missing == nil {
			missing = fmt.Errorf("%s: %w", name, err)
		}
		return m, served
	})
	for _, name := range unknown {
		s.logUnknown(s.cfg.Logger, name)
	}
	if missing != nil {
		return nil, status.Error(codes.Unavailable, missing.Error())
	}
	answer := writeSotW(items, "", s.cfg.KeyProvider)
	return &answer, nil
}

// once returns the secret of a name without following its files. The error is the reason
// why there is none yet.
func (s *Server) once(name string) (m *material, served bool, err error) {
	r, err := parseName(name)
	switch {
	case err != nil || r.ofFiles() && s.cfg.Files == nil:
		return nil, false, nil
	case r.ofFiles():
		m, err = r.load()
	default:
		if m = s.cfg.Workload.secret(r.kind); m == nil {
			err = errors.New("there is none yet")
		}
	}
	return m, true, err
}

// receive receives the requests of a stream until it ends.
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

// serve runs one stream: it sends missing secrets whenever the client requests some or a
// secret changes.
func (s *Server) serve(stream grpc.ServerStream, v variant) error {
	connlimit.UseOf(stream.Context())
	ctx, log := stream.Context(), s.cfg.Logger.With("stream", s.streams.Add(1))
	requests, failed := make(chan *request), make(chan error, 1)
	go func() { failed <- receive(stream, v, requests) }()
	sub, sent := newSubscription(), 0
	own := &acquired{files: s.cfg.Files, names: map[string]error{}}
	defer own.release()
	for {
		// The channels are taken before the secrets are read, so that a change
		// between the two is seen in the next round.
		changed, filesChanged := s.cfg.Workload.Changed(), own.changed()
		items, unknown := sub.due(func(name string) (*material, bool) { return s.look(own, name) })
		for _, name := range unknown {
			s.logUnknown(log, name)
		}
		if answer := v.write(items, unknown, strconv.Itoa(sent+1), s.cfg.KeyProvider); answer != nil {
			if err := stream.SendMsg(&answer); err != nil {
				return err
			}
			sent++
			log.Debug("secrets sent", "resource", namesOf(items), "nonce", sent)
		}
		// Cases: a request, a new identity or new roots, a changed file, the
		// end of the client's half or of the whole stream.
		select {
		case req := <-requests:
			s.apply(log, sub, req, sent)
			if err := sub.check(); err != nil {
				return err
			}
			own.keep(sub.sent)
		case <-changed:
		case <-filesChanged:
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

// look returns the current secret of a name.
func (s *Server) look(own *acquired, name string) (m *material, served bool) {
	r, err := parseName(name)
	switch {
	case err != nil:
		return nil, false
	case r.ofFiles():
		return own.get(name, r)
	default:
		return s.cfg.Workload.secret(r.kind), true
	}
}

func namesOf(items []item) string {
	names := make([]string, len(items))
	for n, i := range items {
		names[n] = i.name
	}
	return strings.Join(names, ",")
}

// apply applies a request to the subscription. sent is the nonce of the last answer.
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

// logUnknown logs a name that is not served.
func (s *Server) logUnknown(log *slog.Logger, name string) {
	reason := "secrets of files are not served here, or too many are watched"
	if _, err := parseName(name); err != nil {
		reason = err.Error()
	}
	log.Warn("Envoy requests a secret that is not served", "resource", name, "reason", reason)
}

func checkType(typeURL string) error {
	if typeURL == "" || typeURL == secretType {
		return nil
	}
	return fmt.Errorf("resources of type %q are not served here; only %s are", typeURL, secretType)
}
