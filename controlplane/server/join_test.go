// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package server

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/outrigger-mesh/outrigger/certs"
	"github.com/outrigger-mesh/outrigger/controlplane/join"
	"github.com/outrigger-mesh/outrigger/sds/caclient"
)

const ordersGroups = `apiVersion: networking.istio.io/v1
kind: WorkloadGroup
metadata: {name: orders, namespace: shop}
spec:
  template: {serviceAccount: orders}
---
apiVersion: networking.istio.io/v1
kind: WorkloadGroup
metadata: {name: web-a, namespace: shop}
spec:
  template: {serviceAccount: web}
---
apiVersion: networking.istio.io/v1
kind: WorkloadGroup
metadata: {name: web-b, namespace: shop}
spec:
  template: {serviceAccount: web}
`

// joinConfig sets the configuration of a control plane in a directory, with an admin socket.
func joinConfig(t *testing.T, dir string) func(*Config) {
	t.Helper()
	config := filepath.Join(dir, "config")
	if err := os.MkdirAll(config, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(config, "groups.yaml"), []byte(ordersGroups), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "denied"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return func(c *Config) {
		c.ConfigDir, c.StateDir, c.Listen.Admin = config, filepath.Join(dir, "ca"), filepath.Join(dir, "admin")
		c.DenyList = filepath.Join(dir, "denied")
		c.CustomHosts = "mesh.example.com"
	}
}

// askAdmin posts a request to the admin socket.
func askAdmin(t *testing.T, socket string, request join.Request) (answer join.Answer, code int, text string) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", socket)
	}}}
	body, err := json.Marshal(request)
	if err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(10 * time.Millisecond) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://localhost"+join.Path, bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(content), "is not ready") && time.Now().Before(deadline) {
			continue
		}
		if resp.StatusCode == http.StatusOK {
			if err := json.Unmarshal(content, &answer); err != nil {
				t.Fatal(err)
			}
		}
		return answer, resp.StatusCode, string(content)
	}
}

func tokenFor(t *testing.T, socket string) *join.Token {
	t.Helper()
	answer, code, text := askAdmin(t, socket, join.Request{Namespace: "shop", ServiceAccount: "orders", Address: "mesh.example.com:15012"})
	if code != http.StatusOK {
		t.Fatalf("no token: %d %s", code, text)
	}
	token, err := join.Parse(answer.Token)
	if err != nil {
		t.Fatal(err)
	}
	if token.Group != "orders" || token.ID.String() != "spiffe://cluster.local/ns/shop/sa/orders" || token.Cluster != "Kubernetes" || token.Address != "mesh.example.com:15012" {
		t.Errorf("the token is %+v", *token)
	}
	return token
}

// enrol requests a certificate at the secure port with the secret of a token, or else a certificate.
func enrol(t *testing.T, s *Server, token *join.Token, own *tls.Certificate) (*tls.Certificate, error) {
	t.Helper()
	pool := x509.NewCertPool()
	for _, r := range token.Roots {
		pool.AddCert(r)
	}
	cfg := caclient.Config{
		Address: s.ports.listeners.secure.Addr().String(), ServerName: "mesh.example.com", Logger: slog.New(slog.DiscardHandler),
		TLS: func() (*tls.Config, error) {
			out := &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
			if own != nil {
				out.Certificates = []tls.Certificate{*own}
			}
			return out, nil
		},
	}
	if own == nil {
		cfg.Token = func() (string, error) { return token.Secret, nil }
	}
	client, err := caclient.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	defer func() { _ = client.Run(ended) }()
	key, err := certs.NewKey(certs.ECDSAP256)
	if err != nil {
		t.Fatal(err)
	}
	csr, err := certs.NewCSR(key, token.ID)
	if err != nil {
		t.Fatal(err)
	}
	chain, err := client.Sign(t.Context(), csr, 0)
	if err != nil {
		return nil, err
	}
	keyPEM, err := certs.MarshalKey(key)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(chain[0], keyPEM)
	if err != nil {
		t.Fatal(err)
	}
	if id, err := certs.CertificateID(pair.Leaf); err != nil || id != token.ID {
		t.Errorf("the certificate is for %s, %v", id, err)
	}
	return &pair, nil
}

// TestJoin creates tokens on the admin socket and redeems them: each once, also after a restart of
// the control plane, and only for certificates. The certificate renews itself.
func TestJoin(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var log logText
	start := func() (*Server, func()) {
		cfg := testConfig(t)
		joinConfig(t, dir)(&cfg)
		s, err := New(t.Context(), cfg, slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		return s, func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	}
	socket := filepath.Join(dir, "admin")
	s, stop := start()
	if info, err := os.Stat(socket); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket is %v, %v; want mode 0600", info, err)
	}
	first, second, third := tokenFor(t, socket), tokenFor(t, socket), tokenFor(t, socket)
	pair, err := enrol(t, s, first, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := enrol(t, s, first, nil); err == nil || !strings.Contains(err.Error(), "the join token was used") {
		t.Errorf("the second use: got error %v", err)
	}
	if renewed, err := enrol(t, s, first, pair); err != nil || renewed.Leaf.SerialNumber.Cmp(pair.Leaf.SerialNumber) == 0 {
		t.Errorf("renewal with the own certificate: %v", err)
	}

	// A token opens no stream, and is not used up by that.
	pool := x509.NewCertPool()
	pool.AddCert(second.Roots[0])
	conn, err := grpc.NewClient(s.ports.listeners.secure.Addr().String(), grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: pool, ServerName: "mesh.example.com"})))
	if err != nil {
		t.Fatal(err)
	}
	code := codes.Unavailable // until the first snapshot is there
	for deadline := time.Now().Add(2 * time.Minute); code == codes.Unavailable && time.Now().Before(deadline); {
		stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+second.Secret))
		if err == nil {
			_, err = stream.Recv()
		}
		code = status.Code(err)
	}
	if code != codes.Unauthenticated {
		t.Errorf("a stream with a join token: got %s, want Unauthenticated", code)
	}
	_ = conn.Close()

	stop()
	s, stop = start()
	defer func() { stop() }()
	if _, err := enrol(t, s, second, nil); err != nil {
		t.Errorf("after a restart: %v", err)
	}
	if _, err := enrol(t, s, first, nil); err == nil {
		t.Error("a restart makes a token valid again")
	}

	if err := os.WriteFile(filepath.Join(dir, "denied"), []byte(third.ID.String()+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(2 * time.Minute); s.deniedIdentity(third.ID) == nil; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the deny list is not read")
		}
	}
	if _, err := enrol(t, s, third, nil); err == nil || !strings.Contains(err.Error(), "deny list") {
		t.Errorf("a denied identity: got error %v", err)
	}
	if log.lines("outrigger-join-") > 0 || log.lines("outrigger1.") > 0 {
		t.Error("the log has a token")
	}
	if log.lines("join token created") != 3 || log.lines("source=join_token") == 0 {
		t.Errorf("the log names %d tokens and %d certificates for them", log.lines("join token created"), log.lines("source=join_token"))
	}
}

func TestJoinRequests(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	serve(t, joinConfig(t, dir))
	for name, c := range map[string]struct {
		request join.Request
		want    string // text of the error; empty means success
		group   string
	}{
		"account":           {request: join.Request{Namespace: "shop", ServiceAccount: "orders"}, group: "orders"},
		"group":             {request: join.Request{Namespace: "shop", Group: "web-b"}, group: "web-b"},
		"no group":          {request: join.Request{Namespace: "shop", ServiceAccount: "client"}},
		"several groups":    {request: join.Request{Namespace: "shop", ServiceAccount: "web"}, want: "has the WorkloadGroups web-a, web-b: name one"},
		"unknown group":     {request: join.Request{Namespace: "shop", Group: "x"}, want: "there is no WorkloadGroup shop/x"},
		"another account":   {request: join.Request{Namespace: "shop", Group: "orders", ServiceAccount: "web"}, want: `of service account "orders", not "web"`},
		"nobody":            {request: join.Request{Namespace: "shop"}, want: "--service-account or --group"},
		"another host":      {request: join.Request{Namespace: "shop", ServiceAccount: "a", Address: "other.example.com:15012"}, want: "ISTIOD_CUSTOM_HOST"},
		"an address":        {request: join.Request{Namespace: "shop", ServiceAccount: "a", Address: testHost + ":15012"}},
		"no port":           {request: join.Request{Namespace: "shop", ServiceAccount: "a", Address: "mesh.example.com"}, want: "--address host:port"},
		"too long":          {request: join.Request{Namespace: "shop", ServiceAccount: "a", Seconds: 90000}, want: "write 1m0s to 24h0m0s"},
		"an overflow":       {request: join.Request{Namespace: "shop", ServiceAccount: "a", Seconds: 1 << 62}, want: "write 1m0s to 24h0m0s"},
		"invalid namespace": {request: join.Request{Namespace: "a/b", ServiceAccount: "a"}, want: "--namespace"},
	} {
		if c.request.Address == "" {
			c.request.Address = "mesh.example.com:15012"
		}
		answer, code, text := askAdmin(t, filepath.Join(dir, "admin"), c.request)
		if c.want == "" && (code != http.StatusOK || answer.Group != c.group) || c.want != "" && (code != http.StatusUnprocessableEntity || !strings.Contains(text, c.want)) {
			t.Errorf("%s: got %d %s, group %q", name, code, text, answer.Group)
		}
	}
}

// TestAdminSocket replaces a socket that nobody serves, and no other file. Other users cannot use it.
func TestAdminSocket(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "admin")
	l, err := listenAdmin(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := listenAdmin(path); err == nil || !strings.Contains(err.Error(), "another process serves") {
		t.Errorf("a second control plane: got error %v", err)
	}
	unix, ok := l.(adminListener).Listener.(*net.UnixListener)
	if !ok {
		t.Fatalf("got a %T", l)
	}
	unix.SetUnlinkOnClose(false) // like a process that is killed
	_ = l.Close()
	if l, err = listenAdmin(path); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := listenAdmin(file); err == nil {
		t.Error("a file was replaced by a socket")
	}
	if os.Geteuid() != 0 {
		t.Log("skipping another user, which needs root")
		return
	}
	// The directory and the mode keep others out; the check of the peer does, too.
	if err := errors.Join(os.Chmod(path, 0o666), os.Chmod(dir, 0o755), os.Chmod(filepath.Dir(dir), 0o755)); err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Write([]byte("hello"))
			_ = conn.Close()
		}
	}()
	for uid, want := range map[int]string{0: "hello", 65534: ""} {
		if got := readAs(t, path, uid); got != want {
			t.Errorf("user %d reads %q, want %q", uid, got, want)
		}
	}
}

// readAs returns what a socket sends to a user. The thread keeps the user and ends with its goroutine.
func readAs(t *testing.T, path string, uid int) string {
	t.Helper()
	result := make(chan string, 1)
	go func() {
		defer close(result)
		runtime.LockOSThread()
		fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
		if err != nil {
			return
		}
		defer func() { _ = syscall.Close(fd) }()
		if _, _, errno := syscall.RawSyscall(syscall.SYS_SETRESUID, ^uintptr(0), uintptr(uid), ^uintptr(0)); errno != 0 {
			result <- errno.Error()
			return
		}
		if err := syscall.Connect(fd, &syscall.SockaddrUnix{Name: path}); err != nil {
			result <- err.Error()
			return
		}
		b := make([]byte, 16)
		n, _ := syscall.Read(fd, b)
		result <- string(b[:max(n, 0)])
	}()
	return <-result
}
