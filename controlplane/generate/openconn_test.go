// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
)

// openConnection is a connection to the guarded Envoy, which sends requests one after the other.
type openConnection struct {
	t *testing.T
	net.Conn
	reader *bufio.Reader
}

func (s *guarded) open(t *testing.T, port string) *openConnection {
	t.Helper()
	conn, err := net.Dial("tcp", net.JoinHostPort(s.address, s.ports[port]))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(4 * time.Minute)); err != nil {
		t.Fatal(err)
	}
	return &openConnection{t, conn, bufio.NewReader(conn)}
}

// get sends a request over HTTP/1.1 and returns the status, and whether the connection ends with
// the response. The status is 0 if the connection has ended.
func (c *openConnection) get() (status int, ends bool) {
	c.t.Helper()
	_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: app\r\n\r\n") // reading detects an error
	resp, err := http.ReadResponse(c.reader, nil)
	if err != nil {
		return 0, true
	}
	defer func() { _ = resp.Body.Close() }() // the body is read below
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		c.t.Fatal(err)
	}
	return resp.StatusCode, resp.Close
}

// waitClosed returns when the Envoy closes a connection that sends nothing more.
func (c *openConnection) waitClosed(what string) {
	c.t.Helper()
	if n, err := io.Copy(io.Discard, c.reader); n > 0 || isTimeout(err) {
		c.t.Errorf("%s: an idle connection received %d bytes: %v", what, n, err)
	}
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

// deny applies a policy that refuses everything, and waits until it is in force for new connections.
func (s *guarded) deny(t *testing.T) {
	t.Helper()
	s.objects += "---\n" + policy("app", fmt.Sprintf(`{action: DENY, rules: [{to: [{operation: {ports: ["%s", "%s"]}}]}]}`, s.ports["HTTP"], s.ports["TCP"]))
	s.put(t, snapshot.Input{})
	for _, port := range []string{"HTTP", "TCP"} { // each is a listener, which changes by itself
		eventually(t, "the policy is in force at "+port, func() bool { status, _ := s.open(t, port).get(); return status != http.StatusOK })
	}
}

// TestEnvoyOpenConnections checks how long a replaced policy decides about requests on connections
// that were open before. Every client is asked to leave with its next response. One that stays has
// Envoy's 5 s, and none has more than the drain time.
func TestEnvoyOpenConnections(t *testing.T) {
	t.Parallel()
	t.Run("next request", func(t *testing.T) {
		t.Parallel()
		s := startDraining(t, nil, time.Hour)
		one, two := s.open(t, "HTTP"), s.openStreams(t)
		if status, leaves := one.get(); status != http.StatusOK || leaves {
			t.Fatalf("HTTP/1.1, before the policy: status %d, asked to leave: %t", status, leaves)
		}
		if status := two.get(); status != http.StatusOK || two.left {
			t.Fatalf("HTTP/2, before the policy: status %d, asked to leave: %t", status, two.left)
		}
		s.deny(t)
		// The drain time is an hour, so a limit of minutes shows that connections end before it.
		stays(t, "HTTP/1.1", one.get)
		stays(t, "HTTP/2", func() (int, bool) { return two.get(), two.left })
	})
	t.Run("drain time", func(t *testing.T) {
		t.Parallel()
		s := startDraining(t, nil, time.Second)
		silent, one, stream, two := s.open(t, "HTTP"), s.open(t, "HTTP"), s.open(t, "TCP"), s.openStreams(t)
		for _, c := range []*openConnection{one, stream} {
			if status, _ := c.get(); status != http.StatusOK {
				t.Fatalf("before the policy: status %d", status)
			}
		}
		if status := two.get(); status != http.StatusOK {
			t.Fatalf("HTTP/2, before the policy: status %d", status)
		}
		s.deny(t)
		one.waitClosed("HTTP/1.1")
		stream.waitClosed("TCP")
		if status := two.read(0); status != 0 {
			t.Errorf("HTTP/2: status %d without a request", status)
		}
		// A connection that has sent nothing has no listener yet.
		if status, _ := silent.get(); status != http.StatusForbidden {
			t.Errorf("the first request of a connection that was open: status %d", status)
		}
	})
}

// stays sends requests until they are not answered by the old policy, which must ask the client to
// leave with its first response.
func stays(t *testing.T, what string, get func() (status int, leaves bool)) {
	t.Helper()
	n, begin := 0, time.Now()
	for ; ; n++ {
		status, leaves := get()
		took := time.Since(begin)
		if status != http.StatusOK {
			t.Logf("%s: a client that stays had %d requests answered in %s", what, n, took.Round(time.Millisecond))
			return
		}
		if !leaves {
			t.Errorf("%s: response %d does not ask the client to leave", what, n)
		}
		if took > 3*time.Minute {
			t.Fatalf("%s: the old policy still decides after %s", what, took)
		}
		time.Sleep(20 * time.Millisecond) // an interval
	}
}

// openStreams is a connection over HTTP/2 whose client ignores that it is asked to leave.
type openStreams struct {
	*openConnection
	framer *http2.Framer
	id     uint32
	left   bool // the client was asked to leave
}

func (s *guarded) openStreams(t *testing.T) *openStreams {
	t.Helper()
	c := &openStreams{openConnection: s.open(t, "HTTP"), id: 1}
	if _, err := io.WriteString(c, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	c.framer = http2.NewFramer(c.Conn, c.reader)
	c.framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	if err := c.framer.WriteSettings(); err != nil {
		t.Fatal(err)
	}
	return c
}

// get sends a request and returns the status, which is 0 if the request was refused or the
// connection has ended.
func (c *openStreams) get() int {
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	encoder.SetMaxDynamicTableSize(0)
	for _, field := range [][2]string{{":method", "GET"}, {":scheme", "http"}, {":authority", "app"}, {":path", "/"}} {
		if err := encoder.WriteField(hpack.HeaderField{Name: field[0], Value: field[1]}); err != nil {
			c.t.Fatal(err)
		}
	}
	id := c.id
	c.id += 2
	if c.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block.Bytes(), EndStream: true, EndHeaders: true}) != nil {
		return 0
	}
	return c.read(id)
}

// read returns the status of the response to a request when the response has ended.
func (c *openStreams) read(id uint32) (status int) {
	for {
		frame, err := c.framer.ReadFrame()
		if err != nil {
			if isTimeout(err) {
				c.t.Errorf("HTTP/2: neither a response nor an end: %v", err)
			}
			return 0
		}
		ended := false
		switch f := frame.(type) {
		case *http2.SettingsFrame:
			if !f.IsAck() && c.framer.WriteSettingsAck() != nil {
				return 0
			}
		case *http2.GoAwayFrame:
			c.left = true
			if f.LastStreamID < id {
				return 0
			}
		case *http2.RSTStreamFrame:
			if f.StreamID == id {
				return 0
			}
		case *http2.MetaHeadersFrame:
			status, _ = strconv.Atoi(f.PseudoValue("status")) // 0 fails the test
			ended = f.StreamEnded()
		case *http2.DataFrame:
			ended = f.StreamEnded()
		}
		if ended && frame.Header().StreamID == id {
			return status
		}
	}
}
