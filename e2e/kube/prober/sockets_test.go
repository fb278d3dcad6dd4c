// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package prober

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	grpcstatus "google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/kubernetes/pkg/probe"
	grpcprobe "k8s.io/kubernetes/pkg/probe/grpc"
	tcpprobe "k8s.io/kubernetes/pkg/probe/tcp"
)

// socketCase is one TCP or gRPC probe of a pod.
type socketCase struct {
	ip      string
	probe   corev1.Probe
	timeout time.Duration // the kubelet's
	want    verdict
}

// compare compares a verdict of the kubelet's TCP or gRPC prober with the one through the agent,
// whose message shows only whether it was in time.
func (c socketCase) compare(t *testing.T, straight verdict) {
	t.Helper()
	if straight.result == probe.Success {
		straight.class = "success"
	}
	c.probe.TimeoutSeconds = int32((c.timeout + time.Second - 1) / time.Second)
	port := agent(t, c.ip, map[string]corev1.Probe{"app": c.probe})
	through := ask(t, readyz("app", port, nil), c.ip, c.timeout)
	if through.result == probe.Success {
		through.class = "success"
	}
	if straight != c.want {
		t.Errorf("direct: %v, want %v", straight, c.want)
	}
	if !same(straight, through) {
		t.Errorf("direct: %v, through the agent: %v", straight, through)
	}
}

// tcp and grpcCheck are the probes of a port.
func tcp(port int, host string) corev1.Probe {
	return corev1.Probe{ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt(port), Host: host}}}
}

func grpcCheck(port int, service *string) corev1.Probe {
	return corev1.Probe{ProbeHandler: corev1.ProbeHandler{GRPC: &corev1.GRPCAction{Port: int32(port), Service: service}}}
}

var (
	success  = verdict{probe.Success, "success"}
	failure  = verdict{probe.Failure, "no answer"}
	timedOut = verdict{probe.Failure, "timeout"}
)

// full returns a port whose queue is full: packets to it are not answered, as behind a firewall.
func full(t *testing.T) int {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Close(fd) })
	address := net.ParseIP(podIP).To4()
	if err := errors.Join(
		syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte(address)}),
		syscall.Listen(fd, 0),
	); err != nil {
		t.Fatal(err)
	}
	name, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	port := name.(*syscall.SockaddrInet4).Port
	for range 8 {
		conn, err := net.DialTimeout("tcp", net.JoinHostPort(podIP, itoa(port)), 100*time.Millisecond)
		if err != nil {
			return port // it is full
		}
		t.Cleanup(func() { _ = conn.Close() })
	}
	t.Fatal("the queue of the port does not fill")
	return 0
}

func TestTCP(t *testing.T) {
	t.Parallel()
	silent := listen(t, podIP)
	serveRaw(t, silent, hold(""))
	resetting := listen(t, podIP)
	serveRaw(t, resetting, func(conn net.Conn) {
		time.Sleep(50 * time.Millisecond) // an immediate reset may arrive before connect returns, for either prober
		reset("")(conn)
	})
	closed := listen(t, podIP)
	_ = closed.Close()
	elsewhere := listen(t, "127.77.50.2")
	serveRaw(t, elsewhere, hold(""))
	for name, c := range map[string]struct {
		port    int
		host    string
		timeout time.Duration
		want    verdict
	}{
		"open":                   {portOf(silent), "", ample, success},
		"open to one that hangs": {portOf(silent), podIP, ample, success},
		"reset after it":         {portOf(resetting), "", ample, success},
		"closed":                 {portOf(closed), "", ample, failure},
		"filtered":               {full(t), "", patience, timedOut},
		"another host":           {portOf(elsewhere), "127.77.50.2", ample, success},
		"a host without a name":  {portOf(silent), "nowhere.invalid", ample, failure},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			host := c.host
			if host == "" {
				host = podIP
			}
			straight := verdictOf(tcpprobe.New().Probe(host, c.port, c.timeout))
			socketCase{podIP, tcp(c.port, c.host), c.timeout, c.want}.compare(t, straight)
		})
	}
}

// checks implements gRPC's health protocol.
type checks struct {
	healthv1.UnimplementedHealthServer
}

func (checks) Check(ctx context.Context, r *healthv1.HealthCheckRequest) (*healthv1.HealthCheckResponse, error) {
	switch r.GetService() {
	case "", "well":
		return &healthv1.HealthCheckResponse{Status: healthv1.HealthCheckResponse_SERVING}, nil
	case "ill":
		return &healthv1.HealthCheckResponse{Status: healthv1.HealthCheckResponse_NOT_SERVING}, nil
	case "unknown":
		return &healthv1.HealthCheckResponse{Status: healthv1.HealthCheckResponse_UNKNOWN}, nil
	case "service unknown":
		return &healthv1.HealthCheckResponse{Status: healthv1.HealthCheckResponse_SERVICE_UNKNOWN}, nil
	case "slow":
		<-ctx.Done()
		return nil, ctx.Err()
	case "internal":
		return nil, grpcstatus.Error(codes.Internal, "it broke")
	case "unavailable":
		return nil, grpcstatus.Error(codes.Unavailable, "not now")
	case "denied":
		return nil, grpcstatus.Error(codes.PermissionDenied, "not you")
	}
	return nil, grpcstatus.Error(codes.NotFound, "unknown service")
}

// serveGRPC runs a server until the test ends and returns its port.
func serveGRPC(t *testing.T, checks healthv1.HealthServer, options ...grpc.ServerOption) int {
	t.Helper()
	return serveGRPCAt(t, podIP, checks, options...)
}

// serveGRPCAt is serveGRPC at another address.
func serveGRPCAt(t *testing.T, ip string, checks healthv1.HealthServer, options ...grpc.ServerOption) int {
	t.Helper()
	listener := listen(t, ip)
	server := grpc.NewServer(options...)
	if checks != nil {
		healthv1.RegisterHealthServer(server, checks)
	}
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-done; err != nil {
			t.Errorf("serve gRPC: %v", err)
		}
	})
	return portOf(listener)
}

func TestGRPC(t *testing.T) {
	t.Parallel()
	plain := serveGRPC(t, checks{})
	standard := serveGRPC(t, health.NewServer())
	bare := serveGRPC(t, nil)
	secure := serveGRPC(t, checks{}, grpc.Creds(credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{certificate(t, podIP, time.Now().Add(time.Hour))},
	})))
	silent, web, closed := listen(t, podIP), listen(t, podIP), listen(t, podIP)
	serveRaw(t, silent, hold(""))
	serve(t, &http.Server{Handler: http.HandlerFunc(mirror)}, web)
	_ = closed.Close()
	for name, c := range map[string]struct {
		port    int
		service string
		timeout time.Duration
		want    verdict
	}{
		"serving":              {plain, "", ample, success},
		"a service":            {plain, "well", ample, success},
		"the standard server":  {standard, "", ample, success},
		"not serving":          {plain, "ill", ample, failure},
		"unknown":              {plain, "unknown", ample, failure},
		"service unknown":      {plain, "service unknown", ample, failure},
		"wrong service":        {plain, "other", ample, failure},
		"wrong service, too":   {standard, "other", ample, failure},
		"unimplemented":        {bare, "", ample, failure},
		"unimplemented check":  {serveGRPC(t, healthv1.UnimplementedHealthServer{}), "", ample, failure},
		"an internal error":    {plain, "internal", ample, failure},
		"unavailable":          {plain, "unavailable", ample, failure},
		"permission denied":    {plain, "denied", ample, failure},
		"slow":                 {plain, "slow", patience, timedOut},
		"TLS":                  {secure, "", patience, timedOut},
		"a port without gRPC":  {portOf(web), "", patience, timedOut},
		"a port that is mute":  {portOf(silent), "", patience, timedOut},
		"a closed port":        {portOf(closed), "", patience, timedOut},
		"a port that is full":  {full(t), "", patience, timedOut},
		"an empty name of one": {plain, "", ample, success},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			straight := verdictOf(grpcprobe.New().Probe(podIP, c.service, c.port, c.timeout))
			service := &c.service
			if c.service == "" && name != "an empty name of one" {
				service = nil
			}
			socketCase{podIP, grpcCheck(c.port, service), c.timeout, c.want}.compare(t, straight)
		})
	}
}

// TestSocketsOverIPv6 probes TCP and gRPC in a pod with only an IPv6 address.
func TestSocketsOverIPv6(t *testing.T) {
	t.Parallel()
	const ip = "::1"
	if listener, err := net.Listen("tcp", net.JoinHostPort(ip, "0")); err != nil {
		t.Skipf("there is no IPv6 on this machine: %v", err)
	} else {
		_ = listener.Close()
	}
	open, closed := listen(t, ip), listen(t, ip)
	serveRaw(t, open, hold(""))
	_ = closed.Close()
	for port, want := range map[int]verdict{portOf(open): success, portOf(closed): failure} {
		socketCase{ip, tcp(port, ""), ample, want}.compare(t, verdictOf(tcpprobe.New().Probe(ip, port, ample)))
	}
	port := serveGRPCAt(t, ip, checks{})
	for service, want := range map[string]verdict{"well": success, "ill": failure} {
		socketCase{ip, grpcCheck(port, &service), ample, want}.compare(t, verdictOf(grpcprobe.New().Probe(ip, service, port, ample)))
	}
}
