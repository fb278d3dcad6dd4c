// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/outrigger-mesh/outrigger/bootstrap"
	"github.com/outrigger-mesh/outrigger/sds"
	"github.com/outrigger-mesh/outrigger/xdsproxy/dns"
)

const (
	ownMode    = 0o660
	sharedMode = 0o666
	// maxSocketPath is what the kernel takes for the path of a Unix socket.
	maxSocketPath = 107
)

// sockets are the listeners of the agent. They are bound before anything runs,
// so that a conflict is an exit and not a half-working agent.
type sockets struct {
	xds net.Listener
	sds net.Listener // nil with DISABLE_ENVOY, and when external
	// external: another server keeps the identity and serves the SDS socket.
	external bool
	status   net.Listener // nil when the status port is off
	debug    net.Listener // nil when the debug port is off
	dns      []dns.Socket // none without a DNS proxy
	upstream dns.Upstream // of the DNS proxy
}

func bind(ctx context.Context, cfg *settings) (*sockets, error) {
	s := &sockets{}
	if err := checkFiles(cfg); err != nil {
		return nil, err
	}
	if err := s.bind(ctx, cfg); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// checkFiles refuses files without which nothing could work, before anything
// is bound or written.
func checkFiles(cfg *settings) error {
	if err := checkRoots(cfg); err != nil || cfg.env.Envoy.Disabled {
		return err
	}
	if _, err := exec.LookPath(cfg.proxyConfig.GetBinaryPath()); err != nil {
		return fmt.Errorf("ProxyConfig binaryPath is %q: %w; it must be an Envoy that can be executed", cfg.proxyConfig.GetBinaryPath(), err)
	}
	return nil
}

func (s *sockets) bind(ctx context.Context, cfg *settings) (err error) {
	dir := cfg.proxyConfig.GetConfigPath()
	mode := os.FileMode(ownMode)
	if cfg.env.Envoy.Disabled {
		mode = sharedMode // applications open it, as whatever user they run
	}
	if s.xds, err = listenUnix(ctx, filepath.Join(dir, bootstrap.XDSSocketName), mode, 0o700); err != nil {
		return fmt.Errorf("ProxyConfig configPath is %q: %w", dir, err)
	}
	if !cfg.env.Envoy.Disabled {
		if s.external, err = sds.Probe(ctx, bootstrap.SDSSocket); err != nil {
			return err
		}
		if !s.external {
			if s.sds, err = listenUnix(ctx, bootstrap.SDSSocket, ownMode, 0o750); err != nil {
				return err
			}
		}
	}
	if port := int(cfg.proxyConfig.GetStatusPort()); port > 0 {
		address := fmt.Sprintf(":%d", port)
		if cfg.env.BindAddress != "" {
			address = cfg.address(port)
		}
		if s.status, err = net.Listen("tcp", address); err != nil {
			cure := "free the port or set statusPort of ProxyConfig"
			if errors.Is(err, syscall.EADDRNOTAVAIL) {
				cure = "OUTRIGGER_BIND_ADDRESS must be an address of this host"
			}
			return fmt.Errorf("status port: %w; %s", err, cure)
		}
	}
	if err := s.bindDebug(cfg); err != nil {
		return err
	}
	return s.bindDNS(cfg)
}

// close removes the sockets; those that were closed before do not mind.
func (s *sockets) close() {
	for _, l := range []net.Listener{s.xds, s.sds, s.status, s.debug} {
		if l != nil {
			_ = l.Close()
		}
	}
	for _, d := range s.dns {
		_ = d.Close()
	}
}

// listenUnix binds a Unix socket. A socket that a dead process left is
// removed, one that answers belongs to somebody. Nobody whom the mode keeps
// out can open it in the meantime, whatever the umask is.
func listenUnix(ctx context.Context, path string, mode, dirMode os.FileMode) (net.Listener, error) {
	if len(path) > maxSocketPath {
		return nil, fmt.Errorf("socket %s: the path has %d characters, the kernel takes %d: use a shorter or a relative one", path, len(path), maxSocketPath)
	}
	if err := os.MkdirAll(filepath.Dir(path), dirMode); err != nil {
		return nil, fmt.Errorf("directory of the socket %s: %w; it must be a directory that can be written", path, err)
	}
	if conn, err := net.DialTimeout("unix", path, time.Second); err == nil {
		_ = conn.Close() // it was only asked whether somebody is there
		return nil, fmt.Errorf("socket %s: another process serves it; another agent runs here", path)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("socket %s: %w; its directory must be one that can be written", path, err)
	}
	// On Linux the socket file has the mode of its descriptor, reduced by the umask.
	early := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) { _ = syscall.Fchmod(int(fd), uint32(mode)) }) // Chmod follows
	}}
	l, err := early.Listen(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("socket %s: %w; its directory must be one that can be written", path, err)
	}
	if err := os.Chmod(path, mode); err != nil {
		_ = l.Close() // the error that counts is the first
		return nil, fmt.Errorf("socket %s: %w", path, err)
	}
	return l, nil
}
