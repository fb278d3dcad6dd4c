// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package xdsproxy

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	grpcstatus "google.golang.org/grpc/status"
)

// socketVariable makes the test binary act as another Envoy; see runAsEnvoy.
const socketVariable = "OUTRIGGER_TEST_SOCKET"

// runAsEnvoy opens a stream and sends a request for each line of its input: a rejection with the
// line as the reason, or an acceptance if the line is empty. It prints how the stream ended.
func runAsEnvoy(socket string) {
	s, closeConn, err := openStream(context.Background(), socket)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer closeConn()
	go func() {
		lines := bufio.NewScanner(os.Stdin)
		for lines.Scan() {
			req := &discoveryv3.DiscoveryRequest{TypeUrl: clusterType, ResponseNonce: "1"}
			if lines.Text() != "" {
				req.ErrorDetail = &rpcstatus.Status{Message: lines.Text()}
			}
			_ = s.Send(req) // Recv returns the error of the stream
		}
		_ = s.CloseSend() // Recv returns the error of the stream
	}()
	fmt.Println("open")
	_, err = s.Recv()
	fmt.Println(grpcstatus.Code(err), err)
}

func openStream(ctx context.Context, socket string) (discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesClient, func(), error) {
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, nil, err
	}
	s, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(ctx)
	if err == nil {
		err = s.Send(&discoveryv3.DiscoveryRequest{TypeUrl: clusterType})
	}
	return s, func() { _ = conn.Close() }, err
}

// other is another process with its own stream.
type other struct {
	pid   int
	stdin io.WriteCloser
	out   *bufio.Scanner
}

func startOther(t *testing.T, socket string) *other {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), socketVariable+"="+socket)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have exited
		_ = cmd.Wait()
	})
	o := &other{pid: cmd.Process.Pid, stdin: stdin, out: bufio.NewScanner(stdout)}
	if line := o.line(t); line != "open" {
		t.Fatalf("the other process printed %q", line)
	}
	return o
}

func (o *other) line(t *testing.T) string {
	t.Helper()
	if !o.out.Scan() {
		t.Fatalf("the output of the other process has ended: %v", o.out.Err())
	}
	return o.out.Text()
}

func (o *other) say(t *testing.T, line string) {
	t.Helper()
	if _, err := io.WriteString(o.stdin, line+"\n"); err != nil {
		t.Fatal(err)
	}
}

type rejection struct {
	pid    int
	reason string
}

// startPeers runs a relay and returns it with its socket, its control plane, and the rejections
// that it reports.
func startPeers(t *testing.T) (p *Proxy, socket string, cp *controlPlane, rejections chan rejection) {
	t.Helper()
	cp = newControlPlane()
	l := listen(t, "127.0.0.1:0")
	cp.start(t, l)
	socket = filepath.Join(t.TempDir(), "XDS")
	unix, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	rejections = make(chan rejection, 10)
	p, err = New(Config{Listener: unix, Upstream: UpstreamConfig{Address: l.Addr().String()}, Rejected: func(pid int, typeURL, reason string) {
		if typeURL != clusterType {
			t.Errorf("rejected type %q", typeURL)
		}
		rejections <- rejection{pid, reason}
	}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("run: %v", err)
		}
	})
	return p, socket, cp, rejections
}

// TestStreamsOfTwoProcesses checks that streams of different processes coexist, and that a newer
// stream of a process ends its older one.
func TestStreamsOfTwoProcesses(t *testing.T) {
	t.Parallel()
	p, socket, cp, _ := startPeers(t)
	envoy := startOther(t, socket)
	receive(t, cp.got, "request of the other process")
	open := func() discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesClient {
		s, closeConn, err := openStream(t.Context(), socket)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(closeConn)
		receive(t, cp.got, "request")
		return s
	}
	old := open()
	newer := open()
	if _, err := old.Recv(); grpcstatus.Code(err) != codes.Aborted {
		t.Errorf("the older stream of this process ended with %v, want Aborted", err)
	}
	if err := newer.Send(&discoveryv3.DiscoveryRequest{TypeUrl: clusterType}); err != nil {
		t.Error(err)
	}
	receive(t, cp.got, "request of the newer stream")
	envoy.say(t, "")
	receive(t, cp.got, "request of the other process, whose stream is open still")
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.current) != 2 || p.current[envoy.pid] == nil || p.current[os.Getpid()] == nil {
		t.Errorf("streams %v, want one of %d and one of %d", p.current, envoy.pid, os.Getpid())
	}
}

// TestRejectedAlone checks that a rejection is reported only if one of several Envoys rejects a
// response and the others do not.
func TestRejectedAlone(t *testing.T) {
	t.Parallel()
	_, socket, cp, rejections := startPeers(t)
	first := startOther(t, socket)
	receive(t, cp.got, "request")
	first.say(t, "nobody else is there")
	receive(t, cp.got, "rejection")
	second := startOther(t, socket)
	receive(t, cp.got, "request")
	second.say(t, "as the first did")
	receive(t, cp.got, "rejection")
	first.say(t, "")
	receive(t, cp.got, "acceptance")
	second.say(t, "alone")
	receive(t, cp.got, "rejection")
	got := receive(t, rejections, "report")
	if got.pid != second.pid || got.reason != "alone" && !strings.HasSuffix(got.reason, "alone") {
		t.Errorf("reported %+v, want that of %d", got, second.pid)
	}
	if len(rejections) > 0 {
		t.Errorf("reported %+v, too", <-rejections)
	}
}

func TestConnected(t *testing.T) {
	t.Parallel()
	p, socket, cp, _ := startPeers(t)
	if err := p.Connected(); err == nil {
		t.Error("connected before there is a stream")
	}
	s, closeConn, err := openStream(t.Context(), socket)
	if err != nil {
		t.Fatal(err)
	}
	cp.answers <- &discoveryv3.DiscoveryResponse{TypeUrl: clusterType}
	if _, err := s.Recv(); err != nil {
		t.Fatal(err)
	}
	if err := p.Connected(); err != nil {
		t.Errorf("after an answer: %v", err)
	}
	closeConn()
	eventually(t, "Connected returns an error once the stream has ended", func() bool { return p.Connected() != nil })
}
