// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package mesh

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/outrigger-mesh/outrigger/mesh/isolation"
)

// Ways to separate workloads.
const (
	// IsolateAuto means IsolateNetns for root, if the system allows it, and otherwise IsolateNone.
	IsolateAuto = "auto"
	// IsolateNetns runs each workload in its own network namespace, whose connections are redirected
	// to its Envoy.
	IsolateNetns = "netns"
	// IsolateNone runs the workloads in the network of this machine, each with a loopback address.
	// Applications use Envoy as their HTTP proxy.
	IsolateNone = "none"
)

// isolates decides whether workloads have network namespaces, and returns lines that say so.
func isolates(ctx context.Context, way string) (yes bool, notes []string, problems []Problem) {
	switch way {
	case "", IsolateNone:
		return false, nil, nil
	case IsolateAuto, IsolateNetns:
	default:
		return false, nil, []Problem{{Text: fmt.Sprintf("--isolate=%s: use %s, %s or %s", way, IsolateNetns, IsolateNone, IsolateAuto)}}
	}
	if way == IsolateAuto && os.Geteuid() != 0 {
		return false, nil, nil
	}
	err := isolation.Check(ctx)
	switch {
	case err == nil:
		return true, []string{"each workload has its own network namespace; --isolate=none turns this off"}, nil
	case way == IsolateAuto:
		return false, []string{fmt.Sprintf("the workloads share the network of this machine, as with --isolate=none: %v", err)}, nil
	}
	const cure = "run outrigger up as root, for example with sudo; or with users of /etc/subuid, in " +
		"unshare --user --map-root-user --map-auto outrigger up; or use --isolate=none, which needs no privileges"
	return false, nil, []Problem{{Text: fmt.Sprintf("--isolate=netns: %v: %s", err, cure)}}
}

// isolation returns how the workloads are isolated.
func (u *Mesh) isolation() string {
	if u.mesh.isolated {
		return IsolateNetns
	}
	return IsolateNone
}

// isolate creates the network of isolated workloads and publishes their ports on this machine.
func (u *Mesh) isolate(ctx context.Context, s *state) error {
	for _, note := range u.cfg.Notes {
		u.screen.say(colorCyan, "outrigger: %s", note)
	}
	if !u.mesh.isolated {
		return nil
	}
	if err := s.openTo(); err != nil {
		return fmt.Errorf("state directory: %w", err)
	}
	cfg := isolation.Config{
		Outside: u.mesh.network, Dir: s.dir, Workloads: map[string]netip.Addr{}, Search: map[string][]string{},
		Control: map[uint16]netip.AddrPort{controlSecurePort: netip.AddrPortFrom(u.mesh.controlAddress(), controlSecurePort)},
	}
	for _, w := range u.mesh.workloads {
		cfg.Workloads[w.name] = w.address
		cfg.Search[w.name] = []string{w.namespace + ".svc." + clusterDomain, "svc." + clusterDomain, clusterDomain}
	}
	network, err := isolation.New(ctx, cfg)
	if err != nil {
		return fmt.Errorf("%w; --isolate=none needs no namespaces", err)
	}
	u.network, u.mesh.inside = network, network.Inside
	for _, w := range u.mesh.workloads {
		err := takeDir(s.workload(w), network.ID(w.name))
		if err == nil {
			err = u.publish(w)
		}
		if err != nil {
			network.Close()
			return fmt.Errorf("workload %q: %w", w.name, err)
		}
	}
	return nil
}

// unite releases the network of isolated workloads.
func (u *Mesh) unite() {
	if u.network != nil {
		u.network.Close()
	}
}

// publish makes the ports of a workload reachable where they are without isolation.
func (u *Mesh) publish(w *workload) error {
	for _, port := range []int{adminPort, debugPort, statusPort, healthPort, u.mesh.proxyPort, prometheusPort} {
		if err := u.network.Publish(netip.AddrPortFrom(w.address, uint16(port)), w.name, port, true); err != nil {
			return err
		}
	}
	if !w.listens() {
		return nil
	}
	application := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(w.port))
	return errors.Join(
		u.network.Publish(netip.AddrPortFrom(w.address, uint16(w.servicePort)), w.name, w.servicePort, false),
		u.network.Publish(application, w.name, w.port, true),
	)
}

// lastPrivilegedPort is the last port that needs privileges, unless the system is configured otherwise.
const lastPrivilegedPort = 1023

// interception returns the environment of an agent that says how connections reach Envoy.
func (m *meshFile) interception(w *workload) []variable {
	if !m.isolated {
		out := []variable{{"ISTIO_META_INTERCEPTION_MODE", "NONE"}, {"OUTRIGGER_BIND_ADDRESS", w.address.String()}}
		if errors.Is(tryListen(hostPort(w.address, lastPrivilegedPort)), syscall.EACCES) {
			out = append(out, variable{"ISTIO_META_UNPRIVILEGED_POD", "true"})
		}
		return out
	}
	return []variable{
		{"ISTIO_META_INTERCEPTION_MODE", "REDIRECT"},
		{"OUTRIGGER_REQUIRE_INTERCEPTION", "true"},
		{"ISTIO_META_DNS_CAPTURE", "true"},
		{"ISTIO_META_DNS_AUTO_ALLOCATE", "true"},
		{"TMPDIR", "/tmp"}, // that of the caller may be for the caller only
	}
}

// Paths of programs below the state directory, where isolated agents see them.
const (
	isolatedAgent = "programs/outrigger-agent"
	isolatedEnvoy = "programs/envoy"
)

// envoyPath returns the path at which an agent finds Envoy.
func (u *Mesh) envoyPath() string {
	if u.network == nil {
		return u.cfg.Envoy
	}
	return filepath.Join(isolation.AgentRoot(), isolatedEnvoy)
}

// placeAgent runs the agent of an isolated workload in its place.
func (u *Mesh) placeAgent(s *state, w *workload, c command) (command, error) {
	if u.network == nil {
		return c, nil
	}
	place, err := u.network.AgentPlace(w.name, filepath.Join("workloads", w.name), map[string]string{isolatedAgent: c.path, isolatedEnvoy: u.cfg.Envoy})
	if err != nil {
		return command{}, fmt.Errorf("workload %q: %w", w.name, err)
	}
	root := isolation.AgentRoot()
	// The agent checks that connections of its user are not redirected.
	c.env = append(c.env, fmt.Sprintf("ENVOY_USER=%d", u.network.ID(w.name)))
	c.place, c.path = place, filepath.Join(root, isolatedAgent)
	c.dir = filepath.Join(root, strings.TrimPrefix(c.dir, s.dir))
	return c, nil
}

// placeApp runs the application of an isolated workload in its place, and returns the environment of
// its user.
func (u *Mesh) placeApp(s *state, w *workload, c *command) (env []variable, err error) {
	if u.network == nil {
		return nil, nil
	}
	user := isolation.Caller(u.cfg.Environ)
	if user.Nobody() && (!isolation.Public(c.path) || !isolation.Public(c.dir)) {
		u.sayRoot.Do(func() {
			u.screen.say(colorYellow, "outrigger: applications run as root without capabilities where the user nobody has no access to their program or directory, such as %s and %s", c.path, c.dir)
		})
		user = isolation.Root()
	}
	if c.place, err = u.network.AppPlace(w.name, user); err != nil {
		return nil, fmt.Errorf("workload %q: %w", w.name, err)
	}
	if user.Home != "" {
		env = []variable{{"HOME", user.Home}, {"USER", user.Name}, {"LOGNAME", user.Name}}
	}
	return env, nil
}

// takeDir creates the directory of an isolated agent, whose user owns it and everything in it.
func takeDir(dir string, id int) error {
	if err := os.MkdirAll(dir, stateDirMode); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }() // only a handle
	return fs.WalkDir(root.FS(), ".", func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return root.Lchown(path, id, id)
	})
}

// writeFor writes a file for an agent, below its directory. The directory of an isolated agent
// belongs to another user, whose links are not followed out of it.
func (u *Mesh) writeFor(s *state, w *workload, name string, data []byte) error {
	if u.network == nil {
		return writeFile(s.workload(w, name), data)
	}
	root, err := os.OpenRoot(s.workload(w))
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }() // only a handle
	dir, id := "", u.network.ID(w.name)
	for _, elem := range strings.Split(filepath.Dir(name), "/") {
		dir = filepath.Join(dir, elem)
		if err := root.Mkdir(dir, stateDirMode); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		if err := root.Lchown(dir, id, id); err != nil {
			return err
		}
	}
	temp := name + ".new"
	if err := root.Remove(temp); err != nil && !errors.Is(err, fs.ErrNotExist) { // of a run that was killed
		return err
	}
	f, err := root.OpenFile(temp, os.O_CREATE|os.O_EXCL|os.O_WRONLY, fileMode)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Chown(id, id), f.Close()); err != nil {
		return err
	}
	return root.Rename(temp, name)
}
