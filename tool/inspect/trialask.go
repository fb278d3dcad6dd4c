// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"time"
)

// trialPatience is how long the Envoy of a trial may take to answer.
const trialPatience = time.Minute

// caller is who sends requests, over one connection.
type caller struct {
	listener, server, peer string // peer is an address without its port, or empty
	identity, sni          string
	tls, opaque            bool // opaque TLS is not terminated
	connection             bool // it is a connection to a port whose requests are not read
}

// tried is a request of a trial.
type tried struct {
	method string
	bytes  []byte
	// allowed is what the Envoy decides.
	allowed bool
}

// ask sends the requests of a caller and sets what the Envoy decides about them.
func (t *trial) ask(ctx context.Context, from caller, requests []*tried) error {
	for len(requests) > 0 {
		n, err := t.connect(ctx, from, requests)
		if err != nil {
			return err
		}
		requests = requests[n:]
	}
	return nil
}

// connect sends requests over one connection and returns how many of them are decided. If the
// connection ends without an answer, it decides the request that waits for one.
func (t *trial) connect(ctx context.Context, from caller, requests []*tried) (decided int, err error) {
	address := t.at[from.listener]
	if address == "" {
		return 0, fmt.Errorf("the Envoy has no listener %s", from.listener)
	}
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return 0, err
	}
	defer func() { _ = conn.Close() }() // nothing is buffered
	if err := conn.SetDeadline(time.Now().Add(trialPatience)); err != nil {
		return 0, err
	}
	header, err := proxyHeader(from)
	if err != nil {
		return 0, err
	}
	if _, err := conn.Write(header); err != nil {
		return refused(requests, err)
	}
	in := bufio.NewReader(conn)
	switch {
	case from.opaque:
		first, err := hello(from.sni)
		if err != nil {
			return 0, err
		}
		_, wrote := conn.Write(first)
		if _, err := in.Discard(len(first)); err != nil { // the port returns it
			return refused(requests, errors.Join(wrote, err))
		}
	case from.tls:
		config := &tls.Config{ServerName: from.sni, InsecureSkipVerify: true, NextProtos: []string{"istio-http/1.1", "istio", "http/1.1"}} //nolint:gosec // it is the Envoy that was started
		if from.connection {
			config.NextProtos = []string{"istio"}
		}
		if from.identity != "" {
			pair, err := t.issuer.pair(from.identity)
			if err != nil {
				return 0, fmt.Errorf("a certificate for %s: %w", from.identity, err)
			}
			config.Certificates = []tls.Certificate{*pair}
		}
		conn = tls.Client(conn, config)
		in.Reset(conn)
	}
	for _, r := range requests {
		if err := conn.SetDeadline(time.Now().Add(trialPatience)); err != nil {
			return decided, err
		}
		_, wrote := conn.Write(r.bytes) // it may have an answer nevertheless
		closed, err := r.read(in)
		if err != nil && decided == 0 {
			return refused(requests, errors.Join(wrote, err))
		}
		if err != nil {
			return decided, nil //nolint:nilerr // another connection decides the request
		}
		if decided++; closed {
			return decided, nil
		}
	}
	return decided, nil
}

// hello returns the first message of a TLS client.
func hello(sni string) ([]byte, error) {
	conn := &unanswered{}
	err := tls.Client(conn, &tls.Config{ServerName: sni, InsecureSkipVerify: true}).Handshake() //nolint:gosec // nobody answers
	if conn.sent == nil {
		return nil, fmt.Errorf("TLS for the server %q: %w", sni, err)
	}
	return conn.sent, nil
}

// unanswered is a connection that nobody answers.
type unanswered struct {
	net.Conn
	sent []byte // by the first Write
}

func (c *unanswered) Read([]byte) (int, error) { return 0, io.EOF }

func (c *unanswered) Write(b []byte) (int, error) {
	if c.sent == nil {
		c.sent = bytes.Clone(b)
	}
	return len(b), nil
}

// refused decides the first request, whose connection has ended. A timeout decides nothing.
func refused(requests []*tried, err error) (int, error) {
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		return 0, fmt.Errorf("the Envoy does not answer: %w", err)
	}
	requests[0].allowed = false
	return 1, nil
}

// read reads the response of a request, and reports whether the connection ends after it.
func (r *tried) read(in *bufio.Reader) (closed bool, err error) {
	resp, err := http.ReadResponse(in, &http.Request{Method: r.method})
	if err != nil {
		return true, err
	}
	_, err = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close() // it is read
	// A path without a route is not found after all filters.
	r.allowed = resp.StatusCode == http.StatusOK || resp.StatusCode == http.StatusNotFound
	if resp.StatusCode >= http.StatusInternalServerError {
		return true, fmt.Errorf("it returned %s", resp.Status)
	}
	return resp.Close, err
}

// proxyHeader returns the beginning of a connection in the PROXY protocol, version 2. If no rule
// compares the address of the peer, it is one for documentation: Envoy requires one.
func proxyHeader(from caller) ([]byte, error) {
	server, err := netip.ParseAddrPort(from.server)
	if err != nil {
		return nil, fmt.Errorf("%q is not the address of a server: %w", from.server, err)
	}
	peer, err := netip.ParseAddr(from.peer)
	if err != nil || peer.Is4() != server.Addr().Is4() {
		peer = netip.MustParseAddr("2001:db8::1")
		if server.Addr().Is4() {
			peer = netip.MustParseAddr("192.0.2.1")
		}
	}
	const overTCP4, overTCP6, peerPort = 0x11, 0x21, 40000
	family := byte(overTCP6)
	if server.Addr().Is4() {
		family = overTCP4
	}
	addresses := append(peer.WithZone("").AsSlice(), server.Addr().WithZone("").AsSlice()...)
	out := append([]byte("\r\n\r\n\x00\r\nQUIT\n\x21"), family)
	out = binary.BigEndian.AppendUint16(out, uint16(len(addresses)+4))
	out = binary.BigEndian.AppendUint16(append(out, addresses...), peerPort)
	return binary.BigEndian.AppendUint16(out, server.Port()), nil
}
