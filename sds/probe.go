// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package sds

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/outrigger-mesh/outrigger/internal/localuser"
)

// probeTimeout is how long a server on the socket may take to answer.
const probeTimeout = time.Second

// Probe reports whether another server, such as SPIRE's agent, serves secrets at a
// socket, so that no Server is needed. It returns the errors of Find, and removes a socket
// without a listener.
func Probe(ctx context.Context, path string) (alive bool, err error) {
	err = Find(ctx, path)
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, errNoSocket):
		return false, nil
	case errors.Is(err, syscall.ECONNREFUSED):
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return false, fmt.Errorf("socket %s: no process listens on it, and it cannot be removed: %w; remove it or mount its directory writable", path, err)
		}
		return false, nil
	}
	return false, err
}

// errNoSocket is the error of Find if there is no socket.
var errNoSocket = errors.New("there is no socket")

// Find returns nil if another server serves secrets at a socket. It changes nothing. A server of
// another user is an error, unless that is root or the directory's owner. A listener that
// does not speak gRPC within a second is an error, too.
func Find(ctx context.Context, path string) error {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, os.ErrNotExist), err == nil && info.Mode()&os.ModeSocket == 0:
		return fmt.Errorf("looking for a secret server at %s: %w", path, errNoSocket)
	case err != nil:
		return fmt.Errorf("looking for a secret server: %w", err)
	}
	dialCtx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	conn, err := dialUnix(dialCtx, path)
	if err != nil {
		return fmt.Errorf("looking for a secret server at socket %s: %w", path, err)
	}
	trusted := isTrusted(conn, path)
	_ = conn.Close() // it was only a probe
	if !trusted {
		return fmt.Errorf("socket %s: another user serves it, who is neither root nor the owner of its directory; stop that process, or change the owner of the directory to its user", path)
	}
	if err := speaksGRPC(ctx, path); err != nil {
		return fmt.Errorf("socket %s: a process listens on it and %w; stop that process or wait until it serves secrets", path, err)
	}
	return nil
}

// isTrusted reports whether the process that serves a socket may provide the identity of
// this workload: if it runs as root, this user, or the owner of the directory. In a
// world-writable directory any user could listen. If the system does not report the user,
// every process is trusted.
func isTrusted(conn net.Conn, path string) bool {
	_, uid, ok := localuser.Peer(conn)
	if !ok || uid == 0 || uid == os.Geteuid() {
		return true
	}
	info, err := os.Stat(filepath.Dir(path))
	if err != nil {
		return false
	}
	owner, ok := localuser.Owner(info)
	return ok && uid == owner
}

// speaksGRPC returns nil once a server has answered as required by gRPC.
func speaksGRPC(ctx context.Context, path string) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	conn, err := grpc.NewClient("passthrough:///"+path, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithContextDialer(dialUnix))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // nothing was sent
	conn.Connect()
	for state := conn.GetState(); state != connectivity.Ready; state = conn.GetState() {
		if !conn.WaitForStateChange(ctx, state) {
			return fmt.Errorf("does not speak gRPC within %s", probeTimeout)
		}
	}
	return nil
}

func dialUnix(ctx context.Context, path string) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "unix", path)
}
