// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package sds_test

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	secretv3 "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	"google.golang.org/grpc"

	"github.com/outrigger-mesh/outrigger/sds"
)

// foreign is a secret server of another program, based on the generated service.
type foreign struct {
	secretv3.UnimplementedSecretDiscoveryServiceServer
}

func (foreign) StreamSecrets(s secretv3.SecretDiscoveryService_StreamSecretsServer) error {
	req, err := s.Recv()
	if err != nil {
		return err
	}
	return s.Send(&discoveryv3.DiscoveryResponse{TypeUrl: req.GetTypeUrl(), VersionInfo: "foreign"})
}

func listenUnix(t *testing.T, path string) *net.UnixListener {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestProbe(t *testing.T) {
	t.Parallel()
	probe := func(t *testing.T, path string, want bool, wantErr string) {
		t.Helper()
		alive, err := sds.Probe(t.Context(), path)
		if alive != want || (err == nil) != (wantErr == "") || err != nil && !strings.Contains(err.Error(), wantErr) {
			t.Errorf("got %v, error %v; want %v and %q", alive, err, want, wantErr)
		}
	}
	there := func(path string) bool {
		_, err := os.Lstat(path)
		return !errors.Is(err, os.ErrNotExist)
	}
	t.Run("nothing is there", func(t *testing.T) {
		t.Parallel()
		probe(t, filepath.Join(t.TempDir(), "a", "socket"), false, "")
	})
	t.Run("a file", func(t *testing.T) {
		t.Parallel()
		path := filepath.Join(t.TempDir(), "socket")
		write(t, path, nil)
		probe(t, path, false, "")
		if !there(path) {
			t.Error("a regular file was removed")
		}
	})
	t.Run("a dead socket", func(t *testing.T) {
		t.Parallel()
		path := filepath.Join(t.TempDir(), "socket")
		l := listenUnix(t, path)
		l.SetUnlinkOnClose(false)
		_ = l.Close()
		if !there(path) {
			t.Fatal("the socket was removed with its server")
		}
		probe(t, path, false, "")
		if there(path) {
			t.Error("the dead socket was not removed")
		}
	})
	t.Run("somebody who does not speak gRPC", func(t *testing.T) {
		t.Parallel()
		path := filepath.Join(t.TempDir(), "socket")
		l := listenUnix(t, path)
		defer func() { _ = l.Close() }()
		probe(t, path, false, "does not speak gRPC within 1s")
		if !there(path) {
			t.Error("a socket with a listener was removed")
		}
	})
	t.Run("a server of somebody else", func(t *testing.T) {
		t.Parallel()
		path := filepath.Join(t.TempDir(), "socket")
		server := grpc.NewServer()
		secretv3.RegisterSecretDiscoveryServiceServer(server, foreign{})
		l, done := listenUnix(t, path), make(chan error, 1)
		go func() { done <- server.Serve(l) }()
		probe(t, path, true, "")
		probe(t, path, true, "")
		server.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
		probe(t, path, false, "")
	})
	t.Run("our own server", func(t *testing.T) {
		t.Parallel()
		probe(t, newRig(t, newAuthority(t)).socket, true, "")
	})
}

// TestProbeOfAnotherUser checks that a process of another user cannot provide an identity by
// listening in a directory that everyone can write to.
func TestProbeOfAnotherUser(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("another user needs root")
	}
	const other = 65534
	dir := t.TempDir()
	path := filepath.Join(dir, "socket")
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	listening, served := make(chan error, 1), make(chan struct{})
	server := grpc.NewServer()
	go func() {
		defer close(served)
		runtime.LockOSThread() // the thread ends with the goroutine
		// Use the raw system call, which affects only this thread; the functions of package syscall
		// affect all threads.
		if _, _, no := syscall.RawSyscall(syscall.SYS_SETRESUID, other, other, other); no != 0 {
			listening <- no
			return
		}
		l, err := net.Listen("unix", path)
		listening <- err
		if err == nil {
			_ = server.Serve(l) // returns after Stop
		}
	}()
	t.Cleanup(func() {
		server.Stop()
		<-served
	})
	switch err := <-listening; {
	case errors.Is(err, syscall.EACCES):
		t.Skipf("another user cannot enter the temporary directory: %v", err)
	case err != nil:
		t.Fatal(err)
	}
	if alive, err := sds.Probe(t.Context(), path); alive || err == nil || !strings.Contains(err.Error(), "another user serves it") {
		t.Errorf("Probe() of a server of another user = %v, %v", alive, err)
	}
	if err := os.Chown(dir, other, other); err != nil {
		t.Fatal(err)
	}
	if alive, err := sds.Probe(t.Context(), path); !alive || err != nil {
		t.Errorf("Probe() of a server of the owner of the directory = %v, %v", alive, err)
	}
}
