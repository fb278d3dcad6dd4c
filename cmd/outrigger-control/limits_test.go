// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// TestHeaderLimits sends each port a header that is too long: it is refused before
// all of it has come.
func TestHeaderLimits(t *testing.T) {
	t.Parallel()
	s := serve(t, []string{"--grpcAddr", testHost + ":0", "--monitoringAddr", testHost + ":0"}, nil)
	for name, l := range map[string]net.Listener{"http": s.listeners.http, "monitoring": s.listeners.monitoring} {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		_ = c.SetDeadline(time.Now().Add(2 * time.Minute))
		sent := make(chan int, 1)
		go func() {
			n := 0
			for ; n < 64<<20; n += 8 << 10 {
				if _, err := io.WriteString(c, map[bool]string{true: "GET /ready HTTP/1.1\r\nHost: x\r\nA: "}[n == 0]+strings.Repeat("x", 8<<10)); err != nil {
					break
				}
			}
			sent <- n
		}()
		r, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil || r.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
			t.Errorf("%s answers a long header with %v, %v", name, r, err)
		}
		if n := <-sent; n >= 64<<20 {
			t.Errorf("%s reads all of a long header", name)
		}
	}
	for name, p := range map[string]struct {
		net.Listener
		creds credentials.TransportCredentials
	}{
		"secure":    {s.listeners.secure, credentials.NewTLS(&tls.Config{InsecureSkipVerify: true})}, // who it is does not matter here
		"plaintext": {s.listeners.plaintext, insecure.NewCredentials()},
	} {
		client, err := grpc.NewClient(p.Addr().String(), grpc.WithTransportCredentials(p.creds))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = client.Close() })
		ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(t.Context(), "a", strings.Repeat("x", 100<<10)), 2*time.Minute)
		defer cancel()
		stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(client).DeltaAggregatedResources(ctx)
		if err == nil {
			_, err = stream.Recv()
		}
		// The client knows the limit from the server's settings, or it is reset.
		if code := status.Code(err); code != codes.Internal && code != codes.Unavailable || strings.Contains(fmt.Sprint(err), "not ready") {
			t.Errorf("%s answers a long header with %v", name, err)
		}
	}
}
