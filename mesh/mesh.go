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
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// Config says what to run and how.
type Config struct {
	// File is the mesh file.
	File string
	// StateDir is kept at the end; "" means a temporary directory.
	StateDir string
	// Programs is the directory of outrigger-agent and outrigger-control.
	Programs string
	// Envoy is the path of the Envoy to run.
	Envoy string
	// Environ is the environment of the applications.
	Environ []string
	// Timeout is how long the start may take; 0 means one minute.
	Timeout time.Duration
	// Verbose shows everything that agents, Envoys and the control plane say.
	Verbose bool
	// Display is where a person reads.
	Display Display
	// Kill, when closed, ends everything at once.
	Kill <-chan struct{}
	// Problems were found before, and are listed with the others.
	Problems []Problem
	// WorkDir shortens the paths that are shown.
	WorkDir string
}

// Mesh is a mesh on this machine.
type Mesh struct {
	cfg    Config
	mesh   *meshFile
	screen *screen
	client *http.Client
	issuer *issuer
}

// New reads the mesh file and checks it and the machine. Its error is an
// [Invalid] that lists everything that is wrong.
func New(cfg Config) (*Mesh, error) {
	if cfg.Timeout == 0 {
		cfg.Timeout = time.Minute
	}
	m, problems := load(cfg.File)
	for _, program := range []string{"outrigger-agent", "outrigger-control"} {
		path := filepath.Join(cfg.Programs, program)
		if _, err := exec.LookPath(path); err != nil {
			problems = append(problems, Problem{Text: fmt.Sprintf("there is no program %s, which belongs beside outrigger: run make build", path)})
		}
	}
	if m != nil {
		problems = append(problems, m.checkPorts()...)
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

// Run starts the mesh, shows that it is ready and keeps it running until ctx
// is done; then it ends everything and removes what it made. Its error says
// why the mesh could not be started.
func (u *Mesh) Run(ctx context.Context) (err error) {
	began := time.Now()
	s, err := openState(u.cfg.StateDir, os.TempDir())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	if err := u.makeConfigDir(); err != nil {
		return err
	}
	store := ""
	if u.mesh.configDir != "" {
		store = fileURL(u.mesh.configDir)
	}
	withdraw, err := announce(os.TempDir(), store, hostPort(u.mesh.controlAddress(), controlMonitorPort), s.path("control", "config"))
	if err != nil {
		return err
	}
	defer func() { _ = withdraw() }() // what is left behind is found to be stale
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

	// The control plane: feeds its /ready to the agents; outlives them.
	group.Go(func() error { return control.run(controlCtx) })
	// The applications at once, the agents after the control plane is ready.
	var running sync.WaitGroup
	for _, p := range workloads {
		running.Add(1)
		group.Go(func() error { defer running.Done(); return p.run(ctx) })
	}
	group.Go(func() error { running.Wait(); stopControl(); return nil })
	// The tokens: new ones at half of their life.
	group.Go(func() error { return u.refreshTokens(ctx, s) })
	// The person: waits for everything to be ready, shows the table.
	group.Go(func() error { return u.announce(ctx, began, append([]*part{control}, workloads...)) })
	// The end: says so as soon as it begins.
	group.Go(func() error {
		<-ctx.Done()
		u.screen.settle()
		u.screen.say(colorCyan, "outrigger: stopping")
		return nil
	})
	return group.Wait()
}

// makeConfigDir makes the directory of the user's configuration if it is not
// there: the first object can then be put into it while the mesh runs.
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

// writeState writes what the programs read: configuration, labels, tokens.
func (u *Mesh) writeState(s *state) error {
	objects, err := u.mesh.generated()
	if err != nil {
		return err
	}
	meshConfig, err := u.mesh.meshConfig(s.path("config"))
	if err != nil {
		return err
	}
	files := map[string][]byte{
		s.path("config", "workloads.yaml"): objects,
		s.path("control", "mesh.yaml"):     meshConfig,
	}
	for _, w := range u.mesh.workloads {
		files[s.workload(w, "etc", "istio", "pod", "labels")] = labelsFile(w.labels)
	}
	for _, path := range sortedKeys(files) {
		if err := writeFile(path, files[path]); err != nil {
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
		if err := writeFile(s.workload(w, "var", "run", "secrets", "tokens", "istio-token"), []byte(token)); err != nil {
			return fmt.Errorf("write the token of %s: %w", w.name, err)
		}
	}
	return nil
}

// refreshTokens writes new tokens at half of their life. A write that fails
// is shown and tried again: the old token is still good.
func (u *Mesh) refreshTokens(ctx context.Context, s *state) error {
	tick := time.NewTicker(clockCheck)
	defer tick.Stop()
	// Without the monotonic clock, which stands still while a machine sleeps;
	// tokens do not.
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

// copyRoot writes for an agent the root of the control plane's CA.
func (u *Mesh) copyRoot(s *state, w *workload) error {
	root, err := os.ReadFile(s.path("control", "ca", "root-cert.pem"))
	if err != nil {
		return fmt.Errorf("read the root of the control plane: %w", err)
	}
	if err := writeFile(s.workload(w, "var", "run", "secrets", "istio", "root-cert.pem"), root); err != nil {
		return fmt.Errorf("write the root of %s: %w", w.name, err)
	}
	return nil
}
