// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package xdsproxy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/outrigger-mesh/outrigger/internal/connlimit"
	"github.com/outrigger-mesh/outrigger/internal/localonly"

	"github.com/outrigger-mesh/outrigger/xdsproxy/wire"
)

// Limits of the debug port.
const (
	debugAskHTTP   = 5 * time.Second
	debugAskGRPC   = 15 * time.Second
	debugRead      = 30 * time.Second
	debugWrite     = 60 * time.Second
	debugIdle      = 90 * time.Second
	maxDebugAsk    = 64 << 10 // bytes of a question
	maxDebugNames  = 16
	maxDebugHeader = 16 << 10
	maxDebugConns  = 64
	debugStall     = 10 * time.Second // without reading anything of an answer
)

// DebugConfig configures a [Debug].
type DebugConfig struct {
	// Listener must listen on a loopback address. Run closes it.
	Listener net.Listener
	// Proxy has the streams on which the control plane is asked.
	Proxy  *Proxy
	Logger *slog.Logger
}

// Debug serves debug questions from this machine, over HTTP and gRPC, by forwarding them
// to the control plane.
type Debug struct {
	listener net.Listener
	proxy    *Proxy
	log      *slog.Logger
	// Timeouts of answers.
	askHTTP, askGRPC time.Duration
}

// NewDebug returns a debug server. It starts nothing; see Run.
func NewDebug(cfg DebugConfig) (*Debug, error) {
	if cfg.Listener == nil || cfg.Proxy == nil {
		return nil, errors.New("debug port needs a listener and a relay")
	}
	if a, ok := cfg.Listener.Addr().(*net.TCPAddr); !ok || !a.IP.IsLoopback() {
		return nil, fmt.Errorf("debug port would listen on %s: it must be a loopback address, because it shows configuration to every caller", cfg.Listener.Addr())
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Debug{listener: cfg.Listener, proxy: cfg.Proxy, log: cfg.Logger, askHTTP: debugAskHTTP, askGRPC: debugAskGRPC}, nil
}

// Run serves until ctx ends, and returns nil then.
func (d *Debug) Run(ctx context.Context) error {
	rpc := grpc.NewServer(grpc.ForceServerCodecV2(codec{}), grpc.MaxRecvMsgSize(maxDebugAsk), grpc.MaxSendMsgSize(d.proxy.maxMessage))
	rpc.RegisterService(&grpc.ServiceDesc{ServiceName: service, HandlerType: (*any)(nil), Streams: []grpc.StreamDesc{
		{StreamName: methodSotW, Handler: d.serveGRPC, ServerStreams: true, ClientStreams: true},
	}}, nil)
	mux := http.NewServeMux()
	mux.HandleFunc("/debug", d.serveHTTP)
	mux.HandleFunc("/debug/", d.serveHTTP)
	mux.HandleFunc("GET /agent/xds", d.serveStatus)
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	server := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !localonly.Request(r) {
				http.Error(w, "only requests from this machine are answered", http.StatusForbidden)
				return
			}
			if r.ProtoMajor == 2 && strings.HasPrefix(r.Header.Get("Content-Type"), "application/grpc") {
				rpc.ServeHTTP(w, r) // web pages cannot send gRPC; clients choose the authority
				return
			}
			if err := localonly.Foreign(r); err != nil {
				http.Error(w, err.Error(), http.StatusForbidden)
				return
			}
			mux.ServeHTTP(w, r)
		}),
		Protocols: &protocols, ReadTimeout: debugRead, WriteTimeout: debugWrite, IdleTimeout: debugIdle, MaxHeaderBytes: maxDebugHeader,
		HTTP2: &http.HTTP2Config{MaxConcurrentStreams: maxQuestions}, ConnState: connlimit.ConnState,
		ErrorLog:    slog.NewLogLogger(d.log.Handler(), slog.LevelDebug),
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	listener := connlimit.Listen(d.listener, connlimit.Config{Total: maxDebugConns, Evict: true, Stall: debugStall})
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve debug port: %w", err)
		}
		return nil
	})
	g.Go(func() error {
		<-ctx.Done()
		return server.Close()
	})
	return g.Wait()
}

// serveHTTP asks the question of the path: /debug/syncz is the type
// istio.io/debug/syncz.
func (d *Debug) serveHTTP(w http.ResponseWriter, r *http.Request) {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		http.Error(w, fmt.Sprintf("The query %q cannot be read: %v.", r.URL.RawQuery, err), http.StatusBadRequest)
		return
	}
	var names []string
	if name := query.Get("resourceName"); name != "" {
		names = []string{name}
	}
	ctx, cancel := context.WithTimeout(r.Context(), d.askHTTP)
	defer cancel()
	answer, err := d.ask(ctx, "istio.io"+r.URL.Path, names)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		http.Error(w, fmt.Sprintf("The control plane has not responded to %s within %s.", r.URL.Path, d.askHTTP), http.StatusGatewayTimeout)
	case errors.Is(err, errNoText):
		http.Error(w, err.Error(), http.StatusBadRequest)
	case err != nil:
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	default:
		writeJSON(w, readable(answer))
	}
}

// serveStatus serves the status of the relay.
func (d *Debug) serveStatus(w http.ResponseWriter, _ *http.Request) { writeJSON(w, d.proxy.Status()) }

func writeJSON(w http.ResponseWriter, v any) {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(append(b, '\n')) // a disconnected peer needs no answer
}

// serveGRPC answers one question of a stream, as istioctl sends it.
func (d *Debug) serveGRPC(_ any, stream grpc.ServerStream) error {
	var f frame
	if err := stream.RecvMsg(&f); err != nil {
		return err
	}
	r := readRequest(f.data, false)
	var names []string
	eachName(wire.NewCursor(f.data), func(name string) { names = append(names, name) })
	f.free()
	if !strings.HasPrefix(r.typeURL, debugPrefix) || len(names) > maxDebugNames {
		return status.Errorf(codes.InvalidArgument, "type %q with %d names: this port serves types that begin with %s/, with at most %d names",
			r.typeURL, len(names), debugPrefix, maxDebugNames)
	}
	ctx, cancel := context.WithTimeout(stream.Context(), d.askGRPC)
	defer cancel()
	answer, err := d.ask(ctx, r.typeURL, names)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return status.Errorf(codes.DeadlineExceeded, "the control plane has not responded to %s within %s", r.typeURL, d.askGRPC)
	case errors.Is(err, errNoText):
		return status.Error(codes.InvalidArgument, err.Error())
	case err != nil:
		return status.Error(codes.Unavailable, err.Error())
	}
	return stream.SendMsg(frameOf(answer))
}

var errNoText = errors.New("type and names of a query must be UTF-8")

// ask asks the control plane and counts the result. Questions that are not UTF-8 are
// rejected: because of them a control plane would end the stream of Envoy's
// configuration.
func (d *Debug) ask(ctx context.Context, typeURL string, names []string) ([]byte, error) {
	if !utf8.ValidString(typeURL) || slices.ContainsFunc(names, func(name string) bool { return !utf8.ValidString(name) }) {
		return nil, errNoText
	}
	answer, err := d.proxy.ask(ctx, typeURL, names)
	result := "answered"
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		result = "timeout"
	case err != nil:
		result = "unavailable"
	}
	d.proxy.metrics.questions.WithLabelValues(result).Inc()
	return answer, err
}
