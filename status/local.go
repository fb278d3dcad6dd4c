// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package status

import (
	"net/http"
	"net/http/pprof"

	"github.com/outrigger-mesh/outrigger/internal/localonly"
)

// loopbackOnly refuses peers on other machines, requests that a proxy on this machine
// forwards, and requests of web pages.
func loopbackOnly(next http.HandlerFunc) http.HandlerFunc {
	return loopbackPeer(func(w http.ResponseWriter, r *http.Request) {
		if localonly.Forwarded(r.Header) {
			answer(w, http.StatusForbidden, "Only requests from localhost are allowed")
			return
		}
		next(w, r)
	})
}

// loopbackPeer refuses peers on other machines and requests of web pages. Envoy may
// forward requests: its port of merged metrics authenticates the caller.
func loopbackPeer(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if !localonly.Peer(r.RemoteAddr) {
			answer(w, http.StatusForbidden, "Only requests from localhost are allowed")
			return
		}
		if err := localonly.Foreign(r); err != nil {
			answer(w, http.StatusForbidden, err.Error())
			return
		}
		next(w, r)
	}
}

func (s *Server) serveQuit(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		answer(w, http.StatusMethodNotAllowed, "only POST is allowed")
		return
	}
	s.cfg.Logger.Info("quit requested", "address", r.RemoteAddr)
	answer(w, http.StatusOK, "OK")
	// Answer first: the next call may end the process.
	_ = http.NewResponseController(w).Flush()
	s.cfg.Loopback.Quit()
}

// serveDrain answers once the drain is over. A disconnect of the peer does not stop it.
func (s *Server) serveDrain(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		answer(w, http.StatusMethodNotAllowed, "only POST is allowed")
		return
	}
	s.cfg.Logger.Info("drain requested", "address", r.RemoteAddr)
	s.cfg.Loopback.Drain(r.Context())
	answer(w, http.StatusOK, "drained")
}

func (s *Server) serveLogging(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodPost {
		s.cfg.Logger.Info("change of log levels requested", "address", r.RemoteAddr)
		s.cfg.Loopback.Logging.ServeHTTP(w, r)
		return
	}
	getOnly(s.cfg.Loopback.Logging)(w, r)
}

// getOnly refuses methods other than GET and HEAD.
func getOnly(next http.Handler) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			answer(w, http.StatusMethodNotAllowed, "only GET is allowed")
			return
		}
		next.ServeHTTP(w, r)
	}
}

func handleProfiles(mux *http.ServeMux) {
	for path, handler := range map[string]http.HandlerFunc{
		"/debug/pprof/":        pprof.Index,
		"/debug/pprof/cmdline": pprof.Cmdline,
		"/debug/pprof/profile": pprof.Profile,
		"/debug/pprof/symbol":  pprof.Symbol,
		"/debug/pprof/trace":   pprof.Trace,
	} {
		mux.HandleFunc(path, loopbackOnly(handler))
	}
}
