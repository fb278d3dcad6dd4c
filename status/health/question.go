// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package health

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/status/probe"
)

const (
	localhost = "localhost"
	userAgent = "istio-probe/1.0"
	maxPort   = 65535
)

// newQuestion returns a function that checks the application once.
func newQuestion(cfg Config) (func(ctx context.Context) error, error) {
	if cfg.Address == "" {
		cfg.Address = localhost
	}
	switch method := cfg.Probe.GetHealthCheckMethod().(type) {
	case *networkingv1alpha3.ReadinessProbe_HttpGet:
		return askHTTP(cfg, method.HttpGet)
	case *networkingv1alpha3.ReadinessProbe_TcpSocket:
		address, err := target("tcpSocket", method.TcpSocket.GetHost(), localhost, method.TcpSocket.GetPort())
		return func(ctx context.Context) error { return probe.TCP(ctx, address, cfg.SourceIP) }, err
	case *networkingv1alpha3.ReadinessProbe_Grpc:
		address, err := target("grpc", "", cfg.Address, method.Grpc.GetPort())
		return func(ctx context.Context) error {
			return probe.GRPC(ctx, probe.GRPCRequest{
				Address: address, Service: method.Grpc.GetService(), UserAgent: userAgent, SourceIP: cfg.SourceIP,
			})
		}, err
	case *networkingv1alpha3.ReadinessProbe_Exec:
		command := method.Exec.GetCommand()
		if len(command) == 0 || command[0] == "" {
			return nil, errors.New("exec.command is empty: name a program and its arguments")
		}
		return func(ctx context.Context) error { return probe.Exec(ctx, command) }, nil
	}
	return nil, errors.New("it has none of httpGet, tcpSocket, exec and grpc: set one")
}

// target returns the host and port to check.
func target(kind, host, otherwise string, port uint32) (string, error) {
	if port < 1 || port > maxPort {
		return "", fmt.Errorf("%s.port is %d: use a number from 1 to %d", kind, port, maxPort)
	}
	if host == "" {
		host = otherwise
	}
	return net.JoinHostPort(host, strconv.FormatUint(uint64(port), 10)), nil
}

func askHTTP(cfg Config, get *networkingv1alpha3.HTTPHealthCheckConfig) (func(ctx context.Context) error, error) {
	if _, err := target("httpGet", get.GetHost(), cfg.Address, get.GetPort()); err != nil {
		return nil, err
	}
	scheme := strings.ToLower(get.GetScheme())
	switch scheme {
	case "":
		scheme = "http"
	case "http", "https":
	default:
		return nil, fmt.Errorf("httpGet.scheme is %q: use HTTP or HTTPS", get.GetScheme())
	}
	host := get.GetHost()
	if host == "" {
		host = cfg.Address
	}
	header := http.Header{"User-Agent": {userAgent}}
	own := http.Header{}
	for _, h := range get.GetHttpHeaders() {
		if h.GetName() == "" {
			return nil, errors.New("httpGet.httpHeaders contains a header without a name")
		}
		own.Add(h.GetName(), h.GetValue())
	}
	for name, values := range own {
		header[name] = values
	}
	client, err := probe.NewClient(probe.ClientConfig{SourceIP: cfg.SourceIP})
	if err != nil {
		return nil, err
	}
	request := probe.HTTPRequest{URL: probe.URL(scheme, host, int(get.GetPort()), get.GetPath()), Host: own.Get("Host"), Header: header}
	header.Del("Host")
	return func(ctx context.Context) error {
		resp, err := client.Get(ctx, request)
		if err != nil {
			return err
		}
		defer func() { _ = resp.Body.Close() }() // read-only: closing cannot lose data
		if resp.StatusCode < http.StatusOK || resp.StatusCode >= http.StatusBadRequest {
			return fmt.Errorf("%s responded with the status %d", request.URL, resp.StatusCode)
		}
		if _, err := io.Copy(io.Discard, io.LimitReader(resp.Body, probe.MaxBody)); err != nil {
			return fmt.Errorf("read the response of %s: %w", request.URL, err)
		}
		return nil
	}, nil
}
