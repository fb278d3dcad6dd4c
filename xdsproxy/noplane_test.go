// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package xdsproxy

import (
	"bytes"
	"io"
	"net"
	"sync/atomic"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
)

// strangers passes the first connections to a peer that is not a control plane.
type strangers struct {
	net.Listener
	meet  func(net.Conn)
	left  atomic.Int32
	ended atomic.Int32
}

func (s *strangers) Accept() (net.Conn, error) {
	for {
		conn, err := s.Listener.Accept()
		if err != nil || s.left.Add(-1) < 0 {
			return conn, err
		}
		go func() {
			s.meet(conn)
			_ = conn.Close()
			s.ended.Add(1)
		}()
	}
}

// TestNoControlPlane checks that a peer that sends nothing, responds in another protocol or floods
// the connection with data other than HTTP/2 counts as a failed attempt. Envoy's stream stays open,
// and the relay disconnects and dials again.
func TestNoControlPlane(t *testing.T) {
	t.Parallel()
	for name, meet := range map[string]func(net.Conn){
		"silent": func(c net.Conn) { _, _ = io.Copy(io.Discard, c) },
		"http1": func(c net.Conn) {
			_, _ = io.WriteString(c, "HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
		},
		"closes": func(net.Conn) {},
		"floods with zeros": func(c net.Conn) {
			zeros := make([]byte, 1<<20)
			for range 100 {
				if _, err := c.Write(zeros); err != nil {
					return
				}
			}
			t.Error("the relay took 100 MB of zeros")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := &strangers{Listener: listen(t, "127.77.102.2:0"), meet: meet}
			count := int32(2)
			if name == "silent" {
				count = 1 // each connection takes dialTimeout
			}
			l.left.Store(count)
			cp := newControlPlane()
			cp.start(t, l)
			reg := prometheus.NewRegistry()
			r := startRig(t, Config{Registerer: reg, Upstream: UpstreamConfig{Address: l.Addr().String()}}, false)
			e := r.envoy(t)
			e.ask(clusterType)
			receive(t, cp.got, "request, once a control plane is reachable")
			cp.answers <- &discoveryv3.DiscoveryResponse{TypeUrl: clusterType, Nonce: "1"}
			e.wants(clusterType, "1")
			if n := counter(t, reg, "istio_agent_istiod_connection_failures"); n < 1 {
				t.Errorf("%v failures were counted, want at least 1", n)
			}
			eventually(t, "the strangers are left", func() bool { return l.ended.Load() == count })
			if a, b := gauge(t, reg, "outrigger_agent_xds_failed_attempts"), gauge(t, reg, "outrigger_agent_xds_backoff_seconds"); a != 0 || b != 0 {
				t.Errorf("%v failed attempts and a pause of %v s after a success", a, b)
			}
		})
	}
}

// TestFloodOfFrames checks that a peer that speaks HTTP/2 but floods the relay with frames that
// require a response ends one stream only.
func TestFloodOfFrames(t *testing.T) {
	t.Parallel()
	for name, frame := range map[string]string{
		"settings": "\x00\x00\x00\x04\x00\x00\x00\x00\x00",
		"pings":    "\x00\x00\x08\x06\x00\x00\x00\x00\x0012345678",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := &strangers{Listener: listen(t, "127.77.102.2:0"), meet: func(c net.Conn) {
				_, _ = io.WriteString(c, "\x00\x00\x00\x04\x00\x00\x00\x00\x00") // the server's preface
				if !untilHeaders(c) {
					t.Error("the relay did not open a stream")
					return
				}
				go func() { _, _ = io.Copy(io.Discard, c) }()
				many := bytes.Repeat([]byte(frame), 10_000)
				for range 20 {
					if _, err := c.Write(many); err != nil {
						return
					}
				}
			}}
			l.left.Store(1)
			cp := newControlPlane()
			cp.start(t, l)
			r := startRig(t, Config{Upstream: UpstreamConfig{Address: l.Addr().String()}}, true)
			e := r.envoy(t) // the flood starts now, and may end the stream before a request
			if _, err := e.recv(); grpcstatus.Code(err) != codes.Unavailable {
				t.Errorf("the stream ended with %v, want Unavailable", err)
			}
			e = r.envoy(t)
			e.ask(clusterType)
			receive(t, cp.got, "request of the next stream")
			cp.answers <- &discoveryv3.DeltaDiscoveryResponse{TypeUrl: clusterType, Nonce: "1"}
			e.wants(clusterType, "1")
		})
	}
}

// untilHeaders reads from an HTTP/2 client until it opens a stream, and reports whether it did.
func untilHeaders(c net.Conn) bool {
	const preface, headers = 24, 1
	if _, err := io.CopyN(io.Discard, c, preface); err != nil {
		return false
	}
	for {
		var head [9]byte // length, type, flags, stream
		if _, err := io.ReadFull(c, head[:]); err != nil {
			return false
		}
		size := int64(head[0])<<16 | int64(head[1])<<8 | int64(head[2])
		if _, err := io.CopyN(io.Discard, c, size); err != nil {
			return false
		}
		if head[3] == headers {
			return true
		}
	}
}
