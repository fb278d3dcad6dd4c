// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package e2e

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthgrpc "google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
)

// appVariable makes the test binary an application of a mesh: "greeter", "health" or "asker".
const appVariable = "OUTRIGGER_TEST_APP"

// undeclaredPort is a port of all addresses that the application opens and no service declares.
const undeclaredPort = "7777"

// runApp runs an application until it is killed.
func runApp(name string) error {
	l, err := net.Listen("tcp", "127.0.0.1:"+os.Getenv("PORT"))
	if err != nil {
		return err
	}
	switch name {
	case "greeter":
		return greet(l)
	case "health":
		s := grpc.NewServer()
		grpc_health_v1.RegisterHealthServer(s, healthgrpc.NewServer())
		return s.Serve(l)
	}
	open, err := net.Listen("tcp", "0.0.0.0:"+undeclaredPort)
	if err != nil {
		return err
	}
	go func() { _ = http.Serve(open, http.HandlerFunc(whoAsks)) }() // ends with the process
	mux := http.NewServeMux()
	mux.HandleFunc("/", whoAsks)
	mux.HandleFunc("/ask", ask)
	return http.Serve(l, mux)
}

// greet speaks first on each connection and then echoes its input.
func greet(l net.Listener) error {
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer func() { _ = c.Close() }() // the peer reports it
			_, _ = io.WriteString(c, "hello\n")
			_, _ = io.Copy(c, c) // as above
		}()
	}
}

// ask executes the action of the parameters in this application's namespaces: get a URL, talk to a
// greeter, check the health of a gRPC server, resolve a name, or read a file.
func ask(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), 20*time.Second)
	defer cancel()
	q := r.URL.Query()
	text, err := "", error(nil)
	switch {
	case q.Has("get"):
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
		var code int
		code, text, err = request(ctx, client, q.Get("get"), q.Get("host"))
		text = fmt.Sprintf("%d %s", code, text)
	case q.Has("greet"):
		text, err = talkTo(ctx, q.Get("greet"))
	case q.Has("grpc"):
		text, err = checkHealth(ctx, q.Get("grpc"))
	case q.Has("resolve"):
		var all []string
		all, err = net.DefaultResolver.LookupHost(ctx, q.Get("resolve"))
		text = fmt.Sprint(all)
	case q.Has("read"):
		var b []byte
		b, err = os.ReadFile(q.Get("read"))
		text = string(b)
	}
	if err != nil {
		text = "error: " + err.Error()
	}
	_, _ = io.WriteString(w, text) // the calling test notices missing data
}

func talkTo(ctx context.Context, address string) (string, error) {
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return "", err
	}
	defer func() { _ = c.Close() }() // no more data is expected
	if deadline, ok := ctx.Deadline(); ok {
		_ = c.SetDeadline(deadline) // a real connection accepts any deadline
	}
	in := bufio.NewReader(c)
	first, err := in.ReadString('\n')
	if err != nil {
		return first, err
	}
	if _, err := io.WriteString(c, "and back\n"); err != nil {
		return first, err
	}
	back, err := in.ReadString('\n')
	return first + back, err
}

func checkHealth(ctx context.Context, address string) (string, error) {
	conn, err := grpc.NewClient("dns:///"+address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }() // the answer has arrived
	answer, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{})
	return answer.GetStatus().String(), err
}
