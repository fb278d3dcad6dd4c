// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package status

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/outrigger-mesh/outrigger/status/probe"
)

const (
	// grpcDefaultTimeout is Kubernetes' default timeout of gRPC probes.
	grpcDefaultTimeout = time.Second
	// timeoutGrace is added to a probe's timeout. The kubelet has the same timeout,
	// so that it times out first, as it would without the agent.
	timeoutGrace = 250 * time.Millisecond
	// maxProbeTime limits a probe without a timeout, even if the caller waits longer.
	maxProbeTime = time.Minute
)

// serveProbe serves the paths below probePrefix and hookPrefix.
func (s *Server) serveProbe(w http.ResponseWriter, r *http.Request) {
	prober, known := s.cfg.Probers[r.URL.Path]
	if !known || r.URL.RawPath != "" { // the latter: needless escapes
		answer(w, http.StatusBadRequest, fmt.Sprintf(
			"there is no probe at %q: paths are %s<container>/{livez,readyz,startupz} and %s<container>/{poststartz,prestopz}, and ISTIO_KUBE_APP_PROBERS of this agent must contain the path",
			r.URL.EscapedPath(), probePrefix, hookPrefix))
		return
	}
	hook := strings.HasPrefix(r.URL.Path, hookPrefix)
	if r.Method != http.MethodGet && (hook || r.Method != http.MethodHead) {
		w.Header().Set("Allow", http.MethodGet)
		answer(w, http.StatusMethodNotAllowed, "only GET is allowed")
		return
	}
	if hook && !s.cfg.HookSources.allows(r) {
		s.cfg.Logger.Warn("lifecycle hook refused: the peer is not known to be the kubelet; if it is, set OUTRIGGER_HOOK_SOURCES to its address, or to any",
			"path", r.URL.Path, "address", r.RemoteAddr)
		// Any answer would count as success.
		panic(http.ErrAbortHandler)
	}
	ctx, cancel := bound(r.Context(), prober, hook)
	defer cancel()
	var err error
	switch {
	case prober.HTTPGet != nil:
		err = s.probeHTTP(ctx, w, r, prober.HTTPGet)
	case prober.TCPSocket != nil:
		err = probe.TCP(ctx, s.target(prober.TCPSocket.Host, prober.TCPSocket.Port), s.cfg.ProbeSourceIP)
	case prober.GRPC != nil:
		err = probe.GRPC(ctx, probe.GRPCRequest{
			Address:   s.target("", prober.GRPC.Port),
			Service:   prober.GRPC.Service,
			UserAgent: r.UserAgent(),
			SourceIP:  s.cfg.ProbeSourceIP,
		})
	}
	s.verdict(w, r, prober, err)
}

// bound returns a context with the timeout of a probe. A hook without a timeout may
// take as long as the caller waits: the pod's grace period.
func bound(ctx context.Context, prober *Prober, hook bool) (context.Context, context.CancelFunc) {
	switch {
	case prober.Timeout > 0:
		return context.WithTimeout(ctx, prober.Timeout+timeoutGrace)
	case prober.GRPC != nil:
		return context.WithTimeout(ctx, grpcDefaultTimeout+timeoutGrace)
	case hook:
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, maxProbeTime)
}

// verdict answers a probe with its result. A successful HTTP probe has been answered
// before.
func (s *Server) verdict(w http.ResponseWriter, r *http.Request, prober *Prober, err error) {
	if err == nil {
		if prober.HTTPGet == nil {
			answer(w, http.StatusOK, "ok")
		}
		return
	}
	address := s.addressOf(prober)
	if strings.HasPrefix(r.URL.Path, hookPrefix) {
		s.cfg.Logger.Warn("the application did not answer a lifecycle hook", "path", r.URL.Path, "address", address, "err", err)
		// Any answer would count as success.
		panic(http.ErrAbortHandler)
	}
	s.cfg.Logger.Debug("application probe failed", "path", r.URL.Path, "address", address, "err", err)
	answer(w, http.StatusInternalServerError, fmt.Sprintf("probe of the application at %s: %v", address, err))
}

// addressOf returns the host and port of a probe.
func (s *Server) addressOf(prober *Prober) string {
	switch {
	case prober.HTTPGet != nil:
		return s.target(prober.HTTPGet.Host, prober.HTTPGet.Port)
	case prober.TCPSocket != nil:
		return s.target(prober.TCPSocket.Host, prober.TCPSocket.Port)
	}
	return s.target("", prober.GRPC.Port)
}

// target returns the host and port to probe.
func (s *Server) target(host string, port int) string {
	return net.JoinHostPort(s.hostOf(host), strconv.Itoa(port))
}

func (s *Server) hostOf(host string) string {
	if host == "" {
		return s.cfg.InstanceIP
	}
	return host
}

// probeHTTP probes and passes the answer on. An error means that there is none.
func (s *Server) probeHTTP(ctx context.Context, w http.ResponseWriter, r *http.Request, get *HTTPGet) error {
	client, hook := get.Client, strings.HasPrefix(r.URL.Path, hookPrefix)
	if client == nil {
		cfg := probe.ClientConfig{SourceIP: s.cfg.ProbeSourceIP}
		if hook {
			cfg = hookClient(cfg)
		}
		var err error
		if client, err = probe.NewClient(cfg); err != nil {
			return err
		}
	}
	request := s.request(r, get)
	resp, err := client.Get(ctx, request)
	if probe.IsPlain(err) && hook {
		// The kubelet retries hooks, but not probes, without TLS.
		request.URL.Scheme = "http"
		request.Header.Del("Authorization")
		resp, err = client.Get(ctx, request)
	}
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }() // only read: nothing can be lost
	switch {
	case resp.StatusCode < http.StatusOK && hook:
		// The kubelet accepts any answer to a hook, but some cannot be passed on.
		answer(w, http.StatusOK, fmt.Sprintf("it responded with the status %d", resp.StatusCode))
		return nil
	case resp.StatusCode < http.StatusOK:
		return fmt.Errorf("it responded with the status %d, which is not a final response", resp.StatusCode)
	}
	pass(w, r, resp)
	return nil
}

// pass streams an answer: its status first, so that the caller sees a slow or
// truncated body as it would without the agent.
func pass(w http.ResponseWriter, r *http.Request, resp *http.Response) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	if encoding := resp.Header.Get("Content-Encoding"); encoding != "" {
		w.Header().Set("Content-Encoding", encoding)
	}
	if resp.ContentLength > 0 {
		w.Header().Set("Content-Length", strconv.FormatInt(min(resp.ContentLength, probe.MaxBody), 10))
	}
	w.WriteHeader(passedCode(resp.StatusCode))
	if resp.ContentLength == 0 || r.Method == http.MethodHead {
		return
	}
	// A disconnected peer needs no answer.
	_ = http.NewResponseController(w).Flush()
	if _, err := io.Copy(w, io.LimitReader(resp.Body, probe.MaxBody)); err != nil {
		// The answer must not look complete: close its connection.
		panic(http.ErrAbortHandler)
	}
}

// passedCode returns the status to answer with. A redirect that was not followed
// counts as success, and causes a warning of the kubelet. The caller must not follow
// it from here: Go's clients do not follow status 300.
func passedCode(code int) int {
	switch code {
	case http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther, http.StatusTemporaryRedirect, http.StatusPermanentRedirect:
		return http.StatusMultipleChoices
	}
	return code
}
