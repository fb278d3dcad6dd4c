// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package status

import (
	"net"
	"net/http"
	"net/http/pprof"
	"strings"
)

// loopbackOnly refuses peers that are not on this machine, and browsers that
// are, when a page of somebody else sends them.
func loopbackOnly(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if !isLocal(r.RemoteAddr) {
			answer(w, http.StatusForbidden, "Only requests from localhost are allowed")
			return
		}
		if r.Header.Get("Origin") != "" || !ownHost(r.Host) {
			answer(w, http.StatusForbidden, "Only requests for localhost or an address are allowed, and none of a web page")
			return
		}
		next(w, r)
	}
}

// isLocal tells whether a peer's address is one of this machine's own requests.
// 127.0.0.6 is not: Envoy hands on with it what came from elsewhere.
func isLocal(peer string) bool {
	host, _, err := net.SplitHostPort(peer)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback() && !ip.Equal(net.IPv4(127, 0, 0, 6))
}

// ownHost tells whether a Host header is one that nobody can point here: no
// name but localhost.
func ownHost(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	return host == "" || host == "localhost" || net.ParseIP(strings.Trim(host, "[]")) != nil
}

func (s *Server) serveQuit(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		answer(w, http.StatusMethodNotAllowed, "only POST is allowed")
		return
	}
	s.cfg.Logger.Info("asked to quit", "address", r.RemoteAddr)
	answer(w, http.StatusOK, "OK")
	// The answer goes first: what follows may end the process.
	_ = http.NewResponseController(w).Flush()
	s.cfg.Loopback.Quit()
}

// serveDrain answers when the drain is over. That the peer goes away does not end it.
func (s *Server) serveDrain(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		answer(w, http.StatusMethodNotAllowed, "only POST is allowed")
		return
	}
	s.cfg.Logger.Info("asked to drain", "address", r.RemoteAddr)
	s.cfg.Loopback.Drain(r.Context())
	answer(w, http.StatusOK, "drained")
}

// getOnly refuses what is not there to read.
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
