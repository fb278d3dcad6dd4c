// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package mesh

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/outrigger-mesh/outrigger/mesh/isolation"
)

// Config configures a mesh.
type Config struct {
	// File is the mesh file.
	File string
	// StateDir is the state directory, which is kept at the end. "" means a temporary directory.
	StateDir string
	// Programs is the directory that contains outrigger-agent and outrigger-control.
	Programs string
	// Envoy is the path of the Envoy to run.
	Envoy string
	// AllowUnsafeEnvoy allows an Envoy with known bypasses of authorization.
	AllowUnsafeEnvoy bool
	// Environ is the environment of the applications.
	Environ []string
	// Timeout is the time limit for the start; 0 means one minute.
	Timeout time.Duration
	// Verbose shows the complete output of agents, Envoys and the control plane.
	Verbose bool
	// Display is where to show output to the user.
	Display Display
	// Kill, when closed, kills all processes at once.
	Kill <-chan struct{}
	// Problems are known problems, which are reported together with those that New finds.
	Problems []Problem
	// Isolated runs each workload in its own network namespace, which needs root.
	Isolated bool
	// Notes are lines to show at the start.
	Notes []string
	// WorkDir is the directory relative to which paths are displayed.
	WorkDir string
	// Observe returns what watches the running mesh. Optional.
	Observe func(Watched) Observer
	// Open opens the dashboard of the mesh in a browser. It needs Observe.
	Open bool

	observeEvery time.Duration // 0 means observeEvery
}

// Mesh is a mesh on this machine.
type Mesh struct {
	cfg    Config
	mesh   *meshFile
	screen *screen
	client *http.Client
	issuer *issuer
	// network is that of isolated workloads; it is set while the mesh runs.
	network *isolation.Network
	sayRoot sync.Once // says that applications run as root
	live    live
}

// New reads the mesh file and validates the file and the machine. It returns an [Invalid] that
// lists all problems.
func New(cfg Config) (*Mesh, error) {
	if cfg.Timeout == 0 {
		cfg.Timeout = time.Minute
	}
	m, problems := load(cfg.File, cfg.Isolated)
	for _, program := range []string{"outrigger-agent", "outrigger-control"} {
		path := filepath.Join(cfg.Programs, program)
		if _, err := exec.LookPath(path); err != nil {
			problems = append(problems, Problem{Text: fmt.Sprintf("there is no program %s, which belongs beside outrigger: run make build", path)})
		}
	}
	if m != nil {
		problems = append(problems, m.checkPorts(os.TempDir())...)
	}
	if problems = append(slices.Clip(cfg.Problems), problems...); len(problems) > 0 {
		return nil, &Invalid{File: cfg.File, Problems: problems}
	}
	issuer, err := newIssuer()
	if err != nil {
		return nil, err
	}
	var names []string
	for _, w := range m.workloads {
		names = append(names, w.name)
	}
	return &Mesh{cfg: cfg, mesh: m, issuer: issuer, client: newClient(), screen: newScreen(cfg.Display, names)}, nil
}

// Run starts the mesh, shows when it is ready and keeps it running until ctx is done. Then it stops
// all processes and removes its files. It returns an error if the mesh could not be started.
func (u *Mesh) Run(ctx context.Context) (err error) {
	began := time.Now()
	s, err := openState(u.cfg.StateDir, os.TempDir())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	if err := u.isolate(ctx, s); err != nil {
		return err
	}
	defer u.unite()
	if err := u.makeConfigDir(); err != nil {
		return err
	}
	store := ""
	if u.mesh.configDir != "" {
		store = fileURL(u.mesh.configDir)
	}
	withdraw, err := announce(os.TempDir(), store, hostPort(u.mesh.controlAddress(), controlMonitorPort), s.path("control", "config"), u.isolation(), u.mesh.file, itoa(os.Getpid()))
	if err != nil {
		return err
	}
	defer func() { _ = withdraw() }() // a file that remains is detected as stale
	if err := u.writeState(s); err != nil {
		return err
	}
	control, workloads, err := u.parts(s)
	if err != nil {
		return err
	}
	defer closeOutputs(append(workloads, control))
	u.trackParts(control, workloads)

	group, ctx := errgroup.WithContext(ctx)
	controlCtx, stopControl := context.WithCancel(context.WithoutCancel(ctx))
	defer stopControl()
	if u.network != nil {
		group.Go(func() error { return u.network.Run(controlCtx) })
	}

	// The control plane: the agents wait for its /ready; it is stopped after them.
	group.Go(func() error { return control.run(controlCtx) })
	// The applications start at once, the agents once the control plane is ready.
	var running sync.WaitGroup
	for _, p := range workloads {
		running.Add(1)
		group.Go(func() error { defer running.Done(); return p.run(ctx) })
	}
	group.Go(func() error { running.Wait(); stopControl(); return nil })
	// The tokens: refreshed at half of their lifetime.
	group.Go(func() error { return u.refreshTokens(ctx, s) })
	// The output: waits until everything is ready, shows the table, and then what happens.
	group.Go(func() error {
		if err := u.announce(ctx, began, append([]*part{control}, workloads...)); err != nil || ctx.Err() != nil {
			return err
		}
		return u.watch(ctx, s)
	})
	// The end: reports shutdown as soon as it begins.
	group.Go(func() error {
		<-ctx.Done()
		u.screen.settle()
		u.screen.end()
		u.screen.say(colorCyan, "outrigger: stopping")
		return nil
	})
	return group.Wait()
}

// makeConfigDir creates the directory of the user's configuration if it does not exist, so that the
// first object can be added while the mesh runs.
func (u *Mesh) makeConfigDir() error {
	if !u.mesh.newConfig {
		return nil
	}
	switch err := os.Mkdir(u.mesh.configDir, 0o755); {
	case err == nil:
		u.screen.say("", "outrigger: made the empty directory %s for the configuration", u.mesh.configDir)
	case !errors.Is(err, fs.ErrExist):
		return fmt.Errorf("make the directory of the configuration: %w", err)
	}
	return nil
}

// writeState writes the files that the programs read: configuration, labels and tokens.
func (u *Mesh) writeState(s *state) error {
	objects, err := u.mesh.generated()
	if err != nil {
		return err
	}
	meshConfig, err := u.mesh.meshConfig(s.path("config"))
	if err != nil {
		return err
	}
	var proxies strings.Builder
	for _, w := range u.mesh.workloads {
		fmt.Fprintf(&proxies, "%s %s %s\n", w.name, w.namespace, w.address)
	}
	files := map[string][]byte{
		s.objects():         objects,
		s.meshConfig():      meshConfig,
		s.path(proxiesFile): []byte(proxies.String()),
	}
	for _, path := range sortedKeys(files) {
		if err := writeFile(path, files[path]); err != nil {
			return fmt.Errorf("write the state: %w", err)
		}
	}
	for _, w := range u.mesh.workloads {
		if err := u.writeFor(s, w, "etc/istio/pod/labels", labelsFile(w.labels)); err != nil {
			return fmt.Errorf("write the state: %w", err)
		}
	}
	return u.writeTokens(s, time.Now())
}

func (u *Mesh) writeTokens(s *state, now time.Time) error {
	for _, w := range u.mesh.workloads {
		token, err := u.issuer.token(w, now)
		if err != nil {
			return err
		}
		if err := u.writeFor(s, w, "var/run/secrets/tokens/istio-token", []byte(token)); err != nil {
			return fmt.Errorf("write the token of %s: %w", w.name, err)
		}
	}
	return nil
}

// refreshTokens writes new tokens at half of their lifetime. A failed write is shown and retried,
// since the old token is still valid.
func (u *Mesh) refreshTokens(ctx context.Context, s *state) error {
	tick := time.NewTicker(clockCheck)
	defer tick.Stop()
	// Strip the monotonic clock reading, which stops while a machine sleeps; tokens expire
	// nevertheless.
	written := time.Now().Round(0)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		now := time.Now().Round(0)
		if now.Sub(written) < tokenLife/2 {
			continue
		}
		if err := u.writeTokens(s, now); err != nil {
			u.screen.say(colorRed, "outrigger: %v; trying again in a minute", err)
			continue
		}
		written = now
	}
}

// copyRoot writes the root certificate of the control plane's CA for an agent.
func (u *Mesh) copyRoot(s *state, w *workload) error {
	root, err := os.ReadFile(s.path("control", "ca", "root-cert.pem"))
	if err != nil {
		return fmt.Errorf("read the root of the control plane: %w", err)
	}
	if err := u.writeFor(s, w, "var/run/secrets/istio/root-cert.pem", root); err != nil {
		return fmt.Errorf("write the root of %s: %w", w.name, err)
	}
	return nil
}
