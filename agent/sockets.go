// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/outrigger-mesh/outrigger/bootstrap"
	"github.com/outrigger-mesh/outrigger/internal/handover"
	"github.com/outrigger-mesh/outrigger/sds"
	"github.com/outrigger-mesh/outrigger/xdsproxy/dns"
)

const (
	ownMode    = 0o660
	sharedMode = 0o666
	// maxSocketPath is the kernel's limit of the path of a Unix socket, in bytes.
	maxSocketPath = 107
)

// sockets are the listeners of the agent. They are bound before anything runs, so that
// the agent exits on a conflict instead of working partially.
type sockets struct {
	xds net.Listener
	sds net.Listener // nil with DISABLE_ENVOY, and when external
	// external is true if another server manages the identity and serves the SDS
	// socket.
	external bool
	status   net.Listener // nil when the status port is off
	debug    net.Listener // nil when the debug port is off
	dns      []dns.Socket // none without a DNS proxy
	upstream dns.Upstream // of the DNS proxy
	// inherited reports whether they are those of an agent that this one has replaced.
	inherited bool
}

func bind(ctx context.Context, cfg *settings, log *slog.Logger) (*sockets, error) {
	s := &sockets{}
	if err := checkFiles(cfg); err != nil {
		return nil, err
	}
	if name := cfg.env.Identity.SocketFile; name != bootstrap.SDSSocketName && !cfg.env.Envoy.Disabled {
		if err := awaitSecrets(ctx, bootstrap.SDSDir+"/"+name, log.With("component", "sds")); err != nil {
			return nil, err
		}
		s.external = true
	}
	inherited := handover.Inherited()
	defer inherited.Close()
	if err := s.bind(ctx, cfg, inherited); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// secretsPoll is the interval in which awaitSecrets looks for the server, and secretsReport the one
// in which it reports what it waits for.
const (
	secretsPoll   = 200 * time.Millisecond
	secretsReport = time.Minute
)

// awaitSecrets waits until another server serves the workload's secrets at a socket. It returns an
// error when ctx is done. Without that server Envoy could not get the identity that the user wants,
// and the agent's own must not replace it.
func awaitSecrets(ctx context.Context, path string, log *slog.Logger) error {
	var reported time.Time
	for {
		err := sds.Find(ctx, path)
		if err == nil {
			log.Info("another server provides the workload's identity", "path", path)
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if time.Since(reported) >= secretsReport {
			reported = time.Now()
			log.Warn("the start waits for the server of the workload's identity, which WORKLOAD_IDENTITY_SOCKET_FILE names", "path", path, "reason", err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(secretsPoll):
		}
	}
}

// checkFiles returns an error if a required file is missing, before anything is bound
// or written.
func checkFiles(cfg *settings) error {
	if err := checkRoots(cfg); err != nil || cfg.env.Envoy.Disabled {
		return err
	}
	if _, err := exec.LookPath(cfg.proxyConfig.GetBinaryPath()); err != nil {
		return fmt.Errorf("ProxyConfig binaryPath is %q: %w; it must be an Envoy that can be executed", cfg.proxyConfig.GetBinaryPath(), err)
	}
	return nil
}

func (s *sockets) bind(ctx context.Context, cfg *settings, inherited *handover.Sockets) (err error) {
	dir := cfg.proxyConfig.GetConfigPath()
	mode := os.FileMode(ownMode)
	if cfg.env.Envoy.Disabled {
		mode = sharedMode // applications of any user open it
	}
	xds := filepath.Join(dir, bootstrap.XDSSocketName)
	s.xds = inherited.Unix(xds)
	if s.inherited = s.xds != nil; !s.inherited {
		if s.xds, err = listenUnix(ctx, xds, mode, 0o700); err != nil {
			return fmt.Errorf("ProxyConfig configPath is %q: %w", dir, err)
		}
	}
	const socket = bootstrap.SDSDir + "/" + bootstrap.SDSSocketName
	if !cfg.env.Envoy.Disabled && !s.external {
		s.sds = inherited.Unix(socket)
	}
	if !cfg.env.Envoy.Disabled && !s.external && s.sds == nil {
		if s.external, err = sds.Probe(ctx, socket); err != nil {
			return err
		}
		if !s.external {
			if s.sds, err = listenUnix(ctx, socket, ownMode, 0o750); err != nil {
				return err
			}
		}
	}
	if port := int(cfg.proxyConfig.GetStatusPort()); port > 0 {
		address := fmt.Sprintf(":%d", port)
		if cfg.env.BindAddress != "" {
			address = cfg.address(port)
		}
		if s.status, err = inherited.Listen(address); err != nil {
			cure := "free the port or set statusPort of ProxyConfig"
			if errors.Is(err, syscall.EADDRNOTAVAIL) {
				cure = "OUTRIGGER_BIND_ADDRESS must be an address of this host"
			}
			return fmt.Errorf("status port: %w; %s", err, cure)
		}
	}
	if err := s.bindDebug(cfg, inherited); err != nil {
		return err
	}
	return s.bindDNS(cfg, inherited)
}

// keep copies the sockets for the next program of this process.
func (s *sockets) keep() (handover.Kept, error) {
	var all []any
	for _, l := range []net.Listener{s.xds, s.sds, s.status, s.debug} {
		if l != nil {
			all = append(all, l)
		}
	}
	for _, d := range s.dns {
		all = append(all, d.UDP, d.TCP)
	}
	return handover.Keep(all...)
}

// close closes the sockets. It may be called several times.
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

// listenUnix binds a Unix socket. It removes a stale socket file of a dead process, and
// returns an error if another process serves the socket. The socket never has more
// permissions than mode, whatever the umask is.
func listenUnix(ctx context.Context, path string, mode, dirMode os.FileMode) (net.Listener, error) {
	if len(path) > maxSocketPath {
		return nil, fmt.Errorf("socket %s: the path has %d characters, the kernel's limit is %d: use a shorter or a relative one", path, len(path), maxSocketPath)
	}
	if err := os.MkdirAll(filepath.Dir(path), dirMode); err != nil {
		return nil, fmt.Errorf("directory of the socket %s: %w; it must be a directory that can be written", path, err)
	}
	if conn, err := net.DialTimeout("unix", path, time.Second); err == nil {
		_ = conn.Close() // it was only a probe
		return nil, fmt.Errorf("socket %s: another process serves it; is another agent running here?", path)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("socket %s: %w; its directory must be one that can be written", path, err)
	}
	// On Linux the file has the mode of the descriptor, reduced by the umask.
	early := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) { _ = syscall.Fchmod(int(fd), uint32(mode)) }) // Chmod follows
	}}
	l, err := early.Listen(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("socket %s: %w; its directory must be one that can be written", path, err)
	}
	if err := os.Chmod(path, mode); err != nil {
		_ = l.Close() // the first error is returned
		return nil, fmt.Errorf("socket %s: %w", path, err)
	}
	return l, nil
}
