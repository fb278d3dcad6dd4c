// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package status

import (
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/outrigger-mesh/outrigger/status/probe"
)

// request returns the request for the application. Its path, port and host are those of
// the variable, whatever the incoming request contains.
func (s *Server) request(r *http.Request, get *HTTPGet) probe.HTTPRequest {
	host, knownHost := s.hostHeader(r, get)
	own, _ := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	follow := knownHost && knownHeaders(r.Header, get)
	return probe.HTTPRequest{
		URL:    probe.URL(get.Scheme, s.hostOf(get.Host), get.Port, get.Path),
		Host:   host,
		Header: headers(r.Header, get),
		Follow: func(to *url.URL) bool {
			// The kubelet follows redirects to all ports of the host. Here, a
			// redirect to the status port might never end. One that a stranger
			// caused, by headers that the application uses, would bypass Envoy
			// and reach any port of this host.
			return follow && (own == nil || to.Port() != strconv.Itoa(own.Port))
		},
	}
}

// hostHeader returns the Host that the application receives, and reports whether the
// kubelet would send it. The kubelet derives a Host with the status port from the
// address that it connects to: the application receives its own port instead, as it
// would without the agent, or the Host of the variable.
func (s *Server) hostHeader(r *http.Request, get *HTTPGet) (host string, known bool) {
	given := get.Header.Get("Host")
	name, port, err := net.SplitHostPort(r.Host)
	own, _ := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	switch {
	case r.Host == "":
		return given, true
	case err != nil || own == nil || port != strconv.Itoa(own.Port):
		return r.Host, r.Host == given
	}
	known = name == own.IP.String() || name == s.hostOf(get.Host)
	if given != "" {
		return given, known
	}
	return net.JoinHostPort(name, strconv.Itoa(get.Port)), known
}

// ownHeaders are the headers that the kubelet sends by default.
var ownHeaders = []string{"Accept", "Accept-Encoding", "Connection", "User-Agent"}

// knownHeaders reports whether all headers of a request are the kubelet's own or those
// of the variable.
func knownHeaders(incoming http.Header, get *HTTPGet) bool {
	for name, values := range incoming {
		if !slices.Contains(ownHeaders, name) && !slices.Equal(values, get.Header[name]) {
			return false
		}
	}
	return true
}

// headers returns the headers for the application: those of the request, without
// those of its connection and the one that only Envoy may set, and those of the
// variable that are still missing.
func headers(incoming http.Header, get *HTTPGet) http.Header {
	h := incoming.Clone()
	upgrade := false
	for _, list := range incoming["Connection"] {
		for name := range strings.SplitSeq(list, ",") {
			if name = strings.TrimSpace(name); strings.EqualFold(name, "Upgrade") {
				upgrade = true // of the probe, not of this connection
			} else {
				h.Del(name)
			}
		}
	}
	for _, name := range []string{
		"Connection", "Keep-Alive", "Proxy-Connection", "Te", "Trailer", "Transfer-Encoding",
		"Content-Length", // a GET without a body
		"X-Forwarded-Client-Cert",
	} {
		h.Del(name)
	}
	if upgrade {
		h.Set("Connection", "Upgrade")
	} else {
		h.Del("Upgrade")
	}
	for name, values := range get.Header {
		// The kubelet treats an empty Accept as none.
		if _, given := h[name]; !given && name != "Host" && (name != "Accept" || values[0] != "") {
			h[name] = slices.Clone(values)
		}
	}
	return h
}
