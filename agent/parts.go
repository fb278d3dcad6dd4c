// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/outrigger-mesh/outrigger/envoy"
	"github.com/outrigger-mesh/outrigger/internal/footprint"
	"github.com/outrigger-mesh/outrigger/internal/handover"
	"github.com/outrigger-mesh/outrigger/internal/sdnotify"
	"github.com/outrigger-mesh/outrigger/sds"
	"github.com/outrigger-mesh/outrigger/sds/caclient"
	"github.com/outrigger-mesh/outrigger/status"
	"github.com/outrigger-mesh/outrigger/status/health"
	"github.com/outrigger-mesh/outrigger/xdsproxy"
	"github.com/outrigger-mesh/outrigger/xdsproxy/dns"
	"github.com/outrigger-mesh/outrigger/xdsproxy/lastgood"
	"github.com/outrigger-mesh/outrigger/xdsproxy/wasm"
)

// parts are the components of the agent.
type parts struct {
	files       *sds.Files       // nil if another server manages the identity
	ca          *caclient.Client // nil if the identity is in files
	workload    *sds.Workload    // nil if another server manages the identity
	secrets     *sds.Server      // nil without Envoy, or if another server serves it
	output      *sds.Output      // nil without OUTPUT_CERTS
	relay       *xdsproxy.Proxy
	lastGood    *lastgood.Store // nil when nothing is kept
	keeps       bool            // the identity is kept too
	debug       *xdsproxy.Debug // nil when the debug port is off
	dns         *dns.Server     // nil without a DNS proxy
	wasm        *wasm.Cache     // nil when modules are left to Envoy
	health      *health.Checker // nil if a kubelet probes the application
	status      *status.Server  // nil when the status port is off
	envoy       *envoy.Process  // nil with DISABLE_ENVOY
	credentials *credentials    // nil with DISABLE_ENVOY
	manager     sdnotify.Manager
	state       sdnotify.Check // for the manager
	binary      string
	unsafe      bool // an Envoy with known bypasses of authorization is allowed
	hot         bool // SIGHUP triggers a hot restart
	limited     bool // the agent limits its memory: the user has not tuned Go

	socks *sockets
	// kept are copies of the sockets while another agent replaces this one, else nil.
	kept atomic.Pointer[handover.Kept]
}

// run runs the components until ctx is done or one of them stops. Envoy always stops
// first, while the others still serve it.
func (p *parts) run(ctx context.Context, log *slog.Logger) error {
	var g errgroup.Group
	proxying, stopEnvoy := context.WithCancel(ctx)
	defer stopEnvoy()
	helping, stopHelpers := context.WithCancel(context.WithoutCancel(ctx))
	defer stopHelpers()
	start := func(name string, run func(context.Context) error) {
		g.Go(func() error {
			defer func() {
				if p.kept.Load() == nil {
					stopEnvoy()
				}
			}()
			if err := run(helping); err != nil {
				log.Error("component stopped unexpectedly; shutting down the agent", "name", name, "err", err)
				return fmt.Errorf("%s: %w", name, err)
			}
			return nil
		})
	}
	if p.files != nil {
		start("files", p.files.Run) // reads certificates that others write, feeds workload and secrets
	}
	if p.ca != nil {
		start("ca", p.ca.Run) // reads requests to sign, feeds the certificate authority
	}
	if p.workload != nil {
		start("workload", p.workload.Run) // reads signed certificates, feeds secrets and every TLS handshake
	}
	if p.secrets != nil {
		start("sds", p.secrets.Run) // reads the workload's identity, feeds Envoy over the SDS socket
	}
	if p.output != nil {
		start("output", p.output.Run) // reads the workload's identity, feeds the files of OUTPUT_CERTS
	}
	start("xdsproxy", p.relay.Run) // reads the control plane's stream, feeds Envoy over the XDS socket, and back
	if p.lastGood != nil {
		start("lastgood", p.lastGood.Run) // reads what Envoy acknowledges, feeds the disk
	}
	if p.keeps {
		start("identity", func(ctx context.Context) error { return p.keepIdentity(ctx, log) }) // reads the workload's identity, feeds the disk
	}
	if p.debug != nil {
		start("debug", p.debug.Run) // reads debug questions, feeds the control plane
	}
	if p.dns != nil {
		start("dns", p.serveDNS) // reads name tables and the system's resolvers, feeds the application's lookups
	}
	if p.wasm != nil {
		start("wasm", p.wasm.Run) // reads its clock, deletes modules that nothing uses
	}
	if p.health != nil {
		start("healthcheck", p.health.Run) // reads the application, feeds the control plane
	}
	if p.status != nil {
		start("status", p.status.Run) // reads Envoy's admin port, the identity and the application, feeds probes and scrapes
	}
	p.support(helping, &g, proxying.Done(), log)
	ended, tooOld := make(chan struct{}), make(chan error, 1)
	if p.envoy == nil { // the applications speak to the control plane themselves
		g.Go(func() error {
			defer stopHelpers()
			<-proxying.Done()
			return nil
		})
		return g.Wait()
	}
	g.Go(func() error { // reads Envoy's version, feeds the one sentence that an Envoy too old needs
		err := p.checkVersion(proxying, log, ended)
		if err != nil {
			stopEnvoy()
		}
		tooOld <- err
		return nil
	})
	g.Go(func() error { // reads signals, asks Envoy's part for a hot restart
		p.hotRestarts(helping, log)
		return nil
	})
	g.Go(func() error { // Envoy: reads both sockets, feeds the application; drains before it ends
		defer stopHelpers()
		err := p.envoy.Run(proxying)
		if errors.Is(err, envoy.ErrHandedOver) {
			err = p.keep()
		}
		close(ended)
		if old := <-tooOld; old != nil {
			return old
		}
		return err
	})
	return g.Wait()
}

// support runs what the service manager and the system need until helping is done. stopped is closed
// when the proxy stops.
func (p *parts) support(helping context.Context, g *errgroup.Group, stopped <-chan struct{}, log *slog.Logger) {
	stopping := make(chan struct{}) // not closed for a handover
	g.Go(func() error {             // reads the end of the proxy, feeds the service manager
		select {
		case <-stopped:
			close(stopping)
		case <-helping.Done():
		}
		return nil
	})
	g.Go(func() error { // reads readiness and the relay's status, feeds the service manager
		p.manager.Run(helping, stopping, log.With("component", "sdnotify"), p.state)
		return nil
	})
	g.Go(func() error { // reads nothing, feeds the system: memory that only the start needed
		footprint.GiveBack(helping, giveBackAfter[:]...)
		return nil
	})
	if p.limited {
		g.Go(func() error { // reads what garbage collections find, feeds the runtime's memory limit
			footprint.Limit(helping, memoryFloor)
			return nil
		})
	}
}

// versionDelay delays the check of Envoy's version, which briefly starts a second
// Envoy, so that it does not slow down the start.
const versionDelay = time.Second

// checkVersion returns an error for an Envoy that is too old or unsafe, shortly after its start
// or when it has exited: an old one may reject the bootstrap, and the log would not
// say why. It checks nothing once the agent drains. A running Envoy is not stopped
// because its binary does not print a version: that may be missing or busy.
func (p *parts) checkVersion(ctx context.Context, log *slog.Logger, ended <-chan struct{}) error {
	timer := time.NewTimer(versionDelay)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ended:
	case <-ctx.Done():
	}
	if ctx.Err() != nil {
		return nil
	}
	v, err := envoy.CheckVersion(ctx, p.binary, p.unsafe)
	if why := v.Untested(); err == nil && why != "" {
		log.With("component", "envoy").Warn("the agent is not tested with this build of envoy", "version", v.String(), "path", p.binary, "reason", why)
	}
	if fault := v.Unsafe(); err == nil && fault != nil {
		log.With("component", "envoy").Warn("authorization policies can be bypassed with this envoy", "version", v.String(), "path", p.binary, "reason", fault)
	}
	if err == nil || ctx.Err() != nil {
		return nil // or interrupted
	}
	select {
	case <-ended:
		return err
	default:
	}
	if v.Full == "" {
		log.With("component", "envoy").Warn("envoy is running, but its version is unknown", "err", err)
		return nil
	}
	return err
}

// memoryFloor is how much memory, in bytes, the agent keeps. Memory beyond that, which
// a large configuration needed, is returned to the system.
const memoryFloor = 32 << 20

// giveBackAfter are the pauses after which memory is returned to the system: while Envoy starts, after
// the start, and after a start that a busy machine made slow.
var giveBackAfter = [...]time.Duration{100 * time.Millisecond, 1400 * time.Millisecond, 10 * time.Second, time.Minute}
