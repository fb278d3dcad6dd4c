// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package probe

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"

	"github.com/outrigger-mesh/outrigger/e2e/ownnet"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(ownnet.Tests(m)) }

// get sends a probe to an address and returns the status and the body.
func get(ctx context.Context, cfg ClientConfig, address string) (*http.Response, string, error) {
	client, err := NewClient(cfg)
	if err != nil {
		return nil, "", err
	}
	u, err := url.Parse(address)
	if err != nil {
		return nil, "", err
	}
	resp, err := client.Get(ctx, HTTPRequest{URL: u})
	if err != nil {
		return nil, "", err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	return resp, string(body), err
}

func TestSourceIP(t *testing.T) {
	t.Parallel()
	app := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write([]byte(r.RemoteAddr))
	}))
	t.Cleanup(app.Close)
	_, peer, err := get(t.Context(), ClientConfig{SourceIP: "127.0.0.6"}, app.URL)
	if err != nil || !strings.HasPrefix(peer, "127.0.0.6:") {
		t.Errorf("probe from %v, error %v; want 127.0.0.6", peer, err)
	}
	// The other IP version cannot be reached from this address.
	_, peer, err = get(t.Context(), ClientConfig{SourceIP: "::1"}, app.URL)
	if err != nil || !strings.HasPrefix(peer, "127.0.0.1:") {
		t.Errorf("probe from %v, error %v; want 127.0.0.1", peer, err)
	}
	const wrong = "not an address"
	_, httpErr := NewClient(ClientConfig{SourceIP: wrong})
	tcpErr := TCP(t.Context(), app.Listener.Addr().String(), wrong)
	grpcErr := GRPC(t.Context(), GRPCRequest{Address: app.Listener.Addr().String(), SourceIP: wrong})
	for _, err := range []error{httpErr, tcpErr, grpcErr} {
		if err == nil || !strings.Contains(err.Error(), wrong) {
			t.Errorf("error = %v, want one that names %q", err, wrong)
		}
	}
}

func TestEnvironmentProxyIsIgnored(t *testing.T) {
	// Not parallel, because it changes the environment.
	t.Setenv("HTTP_PROXY", "http://127.0.0.1:1")
	t.Setenv("HTTPS_PROXY", "http://127.0.0.1:1")
	// Use a name, because proxies are never used for loopback addresses.
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	short, end := context.WithTimeout(ctx, time.Second) // limits the retries of a gRPC probe
	defer end()
	_, _, err := get(ctx, ClientConfig{}, "http://nowhere.invalid/")
	if err == nil || !strings.Contains(err.Error(), "nowhere.invalid") || strings.Contains(err.Error(), "proxyconnect") || strings.Contains(err.Error(), "127.0.0.1:1:") {
		t.Errorf("error = %v, want one of the name itself", err)
	}
	err = GRPC(short, GRPCRequest{Address: "nowhere.invalid:1"})
	if err == nil || strings.Contains(err.Error(), "dial tcp 127.0.0.1:1") {
		t.Errorf("error = %v, want one of the name itself", err)
	}
}

func TestRedirects(t *testing.T) {
	t.Parallel()
	var asked []string
	app := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.URL.Path)
		switch r.URL.Path {
		case "/here":
			http.Redirect(w, r, "/there", http.StatusMovedPermanently)
		case "/there":
			http.Redirect(w, r, "http://localhost:1/away", http.StatusFound)
		}
	}))
	t.Cleanup(app.Close)
	resp, _, err := get(t.Context(), ClientConfig{}, app.URL+"/here")
	if err != nil || resp.StatusCode != http.StatusFound || resp.Header.Get("Location") != "http://localhost:1/away" {
		t.Errorf("response = %+v, %v; want the redirect to another host", resp, err)
	}
	if strings.Join(asked, " ") != "/here /there" {
		t.Errorf("requested paths: got %v", asked)
	}
}

func TestGRPCWithoutHealthService(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-done; err != nil {
			t.Errorf("serve gRPC: %v", err)
		}
	})
	err = GRPC(t.Context(), GRPCRequest{Address: listener.Addr().String()})
	if err == nil || !strings.Contains(err.Error(), "does not implement grpc.health.v1.Health") {
		t.Errorf("error = %v, want one about the missing health service", err)
	}
}

func TestSilentServer(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	address := listener.Addr().String()
	for name, probe := range map[string]func(context.Context) error{
		"http": func(ctx context.Context) error {
			_, _, err := get(ctx, ClientConfig{}, "http://"+address)
			return err
		},
		"grpc": func(ctx context.Context) error { return GRPC(ctx, GRPCRequest{Address: address}) },
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		begin := time.Now()
		err := probe(ctx)
		cancel()
		if err == nil || time.Since(begin) > time.Minute {
			t.Errorf("%s of a silent server = %v after %s, want an error within a minute", name, err, time.Since(begin))
		}
	}
	// It accepts connections, which is sufficient for a TCP probe.
	if err := TCP(t.Context(), address, ""); err != nil {
		t.Errorf("TCP() = %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := TCP(ctx, address, ""); !errors.Is(err, context.Canceled) {
		t.Errorf("TCP() with a context that has ended = %v", err)
	}
}
