// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package probe

import (
	"context"
	"errors"
	"fmt"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// GRPCRequest is a probe with gRPC's health protocol, in plaintext.
type GRPCRequest struct {
	// Address is a host and a port.
	Address string
	// Service is the service to check. Empty means the server as a whole.
	Service string
	// UserAgent is prepended to gRPC's own.
	UserAgent string
	// SourceIP is the source address. If empty, the kernel chooses.
	SourceIP string
}

// GRPC succeeds if the server responds that the service is serving. Like the kubelet, it retries
// the connection until ctx is done.
func GRPC(ctx context.Context, r GRPCRequest) error {
	dial, err := dialer(r.SourceIP)
	if err != nil {
		return err
	}
	conn, err := grpc.NewClient("passthrough:///"+r.Address,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) { return dial(ctx, "tcp", address) }),
		grpc.WithUserAgent(r.UserAgent),
		grpc.WithNoProxy(),
		grpc.WithDisableServiceConfig(),
	)
	if err != nil {
		return fmt.Errorf("make a connection to %s: %w", r.Address, err)
	}
	defer func() { _ = conn.Close() }() // no data can be lost
	resp, err := healthv1.NewHealthClient(conn).Check(ctx, &healthv1.HealthCheckRequest{Service: r.Service}, grpc.WaitForReady(true))
	if err != nil {
		switch status.Code(err) {
		case codes.Unimplemented:
			return errors.New("the server does not implement grpc.health.v1.Health")
		case codes.NotFound:
			return fmt.Errorf("the server does not know the service %q", r.Service)
		default:
			return err
		}
	}
	if resp.GetStatus() != healthv1.HealthCheckResponse_SERVING {
		return fmt.Errorf("service %q is %s", r.Service, resp.GetStatus())
	}
	return nil
}
