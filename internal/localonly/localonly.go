// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package localonly

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"

	"github.com/outrigger-mesh/outrigger/internal/connlimit"
	"github.com/outrigger-mesh/outrigger/internal/specialaddr"
)

// Check returns nil if a request comes from a program on this machine, and otherwise an error that
// states the reason.
func Check(r *http.Request) error {
	if !Request(r) {
		return errors.New("only requests from this machine are answered")
	}
	return Foreign(r)
}

// Request reports whether a request comes from this machine and was not forwarded on behalf of
// another client.
func Request(r *http.Request) bool { return Peer(r.RemoteAddr) && !Forwarded(r.Header) }

// Peer reports whether the address of a peer, with its port, belongs to this machine. It excludes
// 127.0.0.6 and ::6, which Envoy uses as source for forwarded connections.
func Peer(address string) bool {
	peer, err := netip.ParseAddrPort(address)
	return err == nil && connlimit.Loopback(peer.Addr())
}

// Forwarded reports whether a request was sent by a proxy, which adds one of several headers, with
// any value.
func Forwarded(h http.Header) bool {
	for name := range h {
		switch {
		case strings.HasPrefix(name, "X-Forwarded-"), strings.HasPrefix(name, "X-Envoy-"):
			return true
		}
		switch name {
		case "Forwarded", "Via", "X-Real-Ip", "X-Client-Ip", "True-Client-Ip", "Cf-Connecting-Ip":
			return true
		}
	}
	return false
}

// Foreign returns an error if a web page of another origin sent a request from a browser, or if a
// local request names a host other than localhost: a page can make its own host name resolve to
// this machine.
func Foreign(r *http.Request) error {
	if site := r.Header.Get("Sec-Fetch-Site"); r.Header.Get("Origin") != "" || site != "" && site != "none" && site != "same-origin" {
		return errors.New("requests of web pages are not answered")
	}
	host, _, err := net.SplitHostPort(r.Host)
	if err != nil {
		host = r.Host
	}
	if _, err := specialaddr.ParseHost(host); err != nil && host != "" && !strings.EqualFold(host, "localhost") && Peer(r.RemoteAddr) {
		return fmt.Errorf("the request is for the host %q: from this machine, use an address or localhost", host)
	}
	return nil
}
