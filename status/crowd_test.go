// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package status

import (
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"
)

// TestManyConnections: peers that open connections and ask nothing, or nothing
// more, or not all of it, keep nobody from an answer.
func TestManyConnections(t *testing.T) {
	t.Parallel()
	for name, begin := range map[string]string{
		"silent": "",
		"slow":   "GET /healthz/ready HTTP/1.1\r\nX-A: ",
		"idle":   "GET /healthz/ready HTTP/1.1\r\nHost: x\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, address := serve(t, nil)
			const surplus = 50
			conns := make([]net.Conn, maxConns+surplus)
			for i := range conns {
				conn, err := net.Dial("tcp", address)
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = conn.Close() }() // it may be closed
				conns[i] = conn
				_, _ = io.WriteString(conn, begin) // as above
				if name == "idle" {
					_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
					if _, err := conn.Read(make([]byte, 1)); err != nil {
						t.Fatalf("connection %d: %v", i, err)
					}
				}
			}
			wantAnswer(t, address, "/healthz/ready", http.StatusOK, "ready")
			if name != "idle" {
				return // the time for headers ends those, too
			}
			// The first have gone, more or less: which of two waits longer is
			// known to the server only. The last has not.
			closed := map[int]bool{}
			for deadline := time.Now().Add(20 * time.Second); len(closed) < surplus; {
				if time.Now().After(deadline) {
					t.Fatalf("%d connections are closed, want %d", len(closed), surplus)
				}
				for i, conn := range conns[:len(conns)/2] {
					if closed[i] {
						continue
					}
					_ = conn.SetReadDeadline(time.Now().Add(time.Millisecond))
					if _, err := io.Copy(io.Discard, conn); !errors.Is(err, os.ErrDeadlineExceeded) {
						closed[i] = true
					}
				}
			}
			last := conns[len(conns)-1]
			_, _ = io.WriteString(last, begin) // the answer tells
			_ = last.SetReadDeadline(time.Now().Add(10 * time.Second))
			answers := make([]byte, 4096)
			n, err := io.ReadAtLeast(last, answers, 200)
			if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) || !strings.Contains(string(answers[:n]), "HTTP/1.1 200 OK") {
				t.Errorf("the last connection answers %q, %v", answers[:n], err)
			}
		})
	}
}
