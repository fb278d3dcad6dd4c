// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package status

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/outrigger-mesh/outrigger/status/probe"
)

const (
	// grpcDefaultTimeout is what Kubernetes takes for a probe that names none.
	grpcDefaultTimeout = time.Second
	// maxProbeTime bounds a probe without a timeout, should whoever asks wait forever.
	maxProbeTime = time.Minute
)

func (s *Server) serveProbe(w http.ResponseWriter, r *http.Request) {
	prober, known := s.cfg.Probers[r.URL.Path]
	if !known {
		answer(w, http.StatusBadRequest, fmt.Sprintf(
			"there is no probe at %q: paths are %s<container>/{livez,readyz,startupz}, and ISTIO_KUBE_APP_PROBERS of this agent must hold the path",
			r.URL.Path, probePrefix))
		return
	}
	timeout := prober.Timeout
	if timeout == 0 {
		timeout = maxProbeTime
		if prober.GRPC != nil {
			timeout = grpcDefaultTimeout
		}
	}
	ctx, cancel := context.WithTimeout(r.Context(), timeout)
	defer cancel()
	switch {
	case prober.HTTPGet != nil:
		s.probeHTTP(ctx, w, r, prober.HTTPGet)
	case prober.TCPSocket != nil:
		address := s.target(prober.TCPSocket.Host, prober.TCPSocket.Port)
		s.verdict(w, r, address, probe.TCP(ctx, address, s.cfg.ProbeSourceIP))
	case prober.GRPC != nil:
		address := s.target("", prober.GRPC.Port)
		s.verdict(w, r, address, probe.GRPC(ctx, probe.GRPCRequest{
			Address:   address,
			Service:   prober.GRPC.Service,
			UserAgent: r.UserAgent(),
			SourceIP:  s.cfg.ProbeSourceIP,
		}))
	}
}

func (s *Server) probeHTTP(ctx context.Context, w http.ResponseWriter, r *http.Request, get *HTTPGet) {
	address := s.target(get.Host, get.Port)
	resp, err := probe.HTTP(ctx, probe.HTTPRequest{
		URL:      get.url(address),
		Host:     hostHeader(r, get),
		Header:   headers(r, get),
		SourceIP: s.cfg.ProbeSourceIP,
	})
	switch {
	case err != nil:
		s.verdict(w, r, address, err)
	case resp.Code < 200:
		s.verdict(w, r, address, fmt.Errorf("it answered with the status %d, which is not an answer", resp.Code))
	case resp.Code >= 300 && resp.Code < 400:
		// Whoever asks must not follow the redirect from here: it is relative to
		// the application. The kubelet takes it for a success.
		answer(w, http.StatusOK, fmt.Sprintf("the application at %s answered %d, to %q, which counts as success", address, resp.Code, resp.Location))
	default:
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.WriteHeader(resp.Code)
		_, _ = w.Write(resp.Body) // a peer that has gone needs no answer
	}
}

// verdict answers a probe that is right or wrong, without a status of its own.
func (s *Server) verdict(w http.ResponseWriter, r *http.Request, address string, err error) {
	if err == nil {
		answer(w, http.StatusOK, "ok")
		return
	}
	s.cfg.Logger.Debug("application probe failed", "path", r.URL.Path, "address", address, "err", err)
	answer(w, http.StatusInternalServerError, fmt.Sprintf("probe of the application at %s: %v", address, err))
}

// target returns the host and port to probe.
func (s *Server) target(host string, port int) string {
	if host == "" {
		host = s.cfg.InstanceIP
	}
	return net.JoinHostPort(host, strconv.Itoa(port))
}

// url keeps the path as it was written, with its query and escapes, as the kubelet does.
func (g *HTTPGet) url(address string) string {
	u, err := url.Parse(g.Path)
	if err != nil || u.Host != "" {
		u = &url.URL{Path: g.Path}
	}
	u.Scheme, u.Host = g.Scheme, address
	return u.String()
}

// hostHeader chooses the Host that the application sees: that of the probe's
// headers; else the one that the request came with, unless it only names this
// port, which the application has never heard of; else the application's address.
func hostHeader(r *http.Request, get *HTTPGet) string {
	if host := get.Header.Get("Host"); host != "" {
		return host
	}
	if own, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok && r.Host == own.String() {
		return ""
	}
	return r.Host
}

// headers returns what is sent to the application: the headers of the request,
// without those that concern its connection and the one that only an Envoy may
// write, then those of the probe.
func headers(r *http.Request, get *HTTPGet) http.Header {
	h := r.Header.Clone()
	for _, list := range r.Header["Connection"] {
		for name := range strings.SplitSeq(list, ",") {
			h.Del(strings.TrimSpace(name))
		}
	}
	for _, name := range []string{
		"Connection", "Keep-Alive", "Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade",
		"Accept-Encoding", // the body is handed back as it is
		"Content-Length",  // a GET without a body
		"X-Forwarded-Client-Cert",
	} {
		h.Del(name)
	}
	for name, values := range get.Header {
		if name != "Host" {
			h[name] = values
		}
	}
	return h
}
