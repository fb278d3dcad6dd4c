// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package isolation

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// The users and groups of agents with their Envoys, whose connections are not redirected. Each
// workload has its own, so that no agent reads the memory or the files of another one. These numbers
// are the ones that systemd leaves to nobody.
const (
	firstID = 60706
	lastID  = 61183
)

// mount shows a file or directory at another path. Without from, it is an empty directory in memory.
type mount struct{ from, to string }

// Place is where and as whom a process runs.
type Place struct {
	ns         namespace
	mounts     []mount
	credential syscall.Credential
}

// AgentPlace returns the place of a workload's agent. The agent sees its own directory, a path below
// [Config.Dir], at the same path below [AgentRoot], the programs at their paths there, and an empty
// directory instead of [Config.Dir].
func (n *Network) AgentPlace(workload, own string, programs map[string]string) (*Place, error) {
	id := uint32(n.ID(workload))
	p := &Place{ns: n.workloads[workload], credential: syscall.Credential{Uid: id, Gid: id}}
	root := n.viewPath(workload, "agent")
	p.mounts = append(n.viewMounts(workload), mount{from: filepath.Join(n.cfg.Dir, own), to: filepath.Join(root, own)})
	if err := makePassable(root, own); err != nil {
		return nil, err
	}
	for path, program := range programs {
		if err := makePassable(root, filepath.Dir(path)); err != nil {
			return nil, err
		}
		if err := os.WriteFile(filepath.Join(root, path), nil, 0o444); err != nil {
			return nil, fmt.Errorf("make a file for a program: %w", err)
		}
		p.mounts = append(p.mounts, mount{from: program, to: filepath.Join(root, path)})
	}
	// The directory and the programs may be below AgentRoot, so what they are mounted to comes last.
	p.mounts = append(p.mounts, mount{from: root, to: AgentRoot()})
	if rest, below := strings.CutPrefix(n.cfg.Dir, AgentRoot()); !below || rest != "" && rest[0] != '/' { // else it is hidden
		p.mounts = append(p.mounts, mount{from: n.emptyDir(), to: n.cfg.Dir})
	}
	if exists(sharedMemory) { // Envoys with hot restart share it, with the same names in each namespace
		p.mounts = append(p.mounts, mount{to: sharedMemory})
	}
	return p, nil
}

// makePassable makes a directory below root, and lets every user pass through it and root, whatever
// the umask is.
func makePassable(root, path string) error {
	const mode = 0o711
	if err := os.MkdirAll(filepath.Join(root, path), mode); err != nil {
		return err
	}
	for dir := path; dir != "."; dir = filepath.Dir(dir) {
		if err := os.Chmod(filepath.Join(root, dir), mode); err != nil {
			return err
		}
	}
	return os.Chmod(root, mode)
}

// AppPlace returns the place of a workload's application, which runs as a user and sees an empty
// directory instead of [Config.Dir].
func (n *Network) AppPlace(workload string, u User) (*Place, error) {
	p := &Place{ns: n.workloads[workload], mounts: append(n.viewMounts(workload), mount{from: n.emptyDir(), to: n.cfg.Dir})}
	p.credential = syscall.Credential{Uid: uint32(u.UID), Gid: uint32(u.GID), Groups: u.Groups}
	return p, nil
}

const sharedMemory = "/dev/shm"

// AgentRoot returns a directory that every system has and that agents do not need.
func AgentRoot() string {
	for _, dir := range []string{"/mnt", "/media", "/srv"} {
		if info, err := os.Stat(dir); err == nil && info.IsDir() {
			return dir
		}
	}
	return "/boot"
}

// Credential returns the user of the process.
func (p *Place) Credential() *syscall.Credential { return &p.credential }

// Enter moves the calling thread, and the processes that it starts afterwards, to the place. The
// thread must be locked and must not be unlocked, so that it ends with the goroutine. The processes
// never have capabilities. Pipes that the thread makes belong to their user, who may thus open
// /dev/stdout.
func (p *Place) Enter() error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("make a mount namespace: %w", err)
	}
	// What is mounted here must not appear on the machine.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("separate the mounts: %w", err)
	}
	for _, m := range p.mounts {
		var err error
		if m.from == "" {
			err = unix.Mount("tmpfs", m.to, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=1777")
		} else {
			err = unix.Mount(m.from, m.to, "", unix.MS_BIND|unix.MS_REC, "")
		}
		if err != nil {
			return fmt.Errorf("mount %q at %s: %w", m.from, m.to, err)
		}
	}
	if err := p.ns.enter(); err != nil {
		return err
	}
	if err := dropCapabilities(); err != nil {
		return err
	}
	if err := errors.Join(unix.Setfsgid(int(p.credential.Gid)), unix.Setfsuid(int(p.credential.Uid))); err != nil {
		return fmt.Errorf("become the owner of new files: %w", err)
	}
	return nil
}

// dropCapabilities takes all capabilities from the processes that the calling thread starts
// afterwards. Set-user-ID bits and capabilities of files have no effect there.
func dropCapabilities() error {
	for c := uintptr(0); ; c++ {
		err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0)
		if errors.Is(err, unix.EINVAL) { // the last capability was the one before
			break
		}
		if err != nil {
			return fmt.Errorf("drop capability %d: %w", c, err)
		}
	}
	// A program of root has the inheritable capabilities too, which some containers have.
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	if err := unix.Capget(&header, &sets[0]); err != nil {
		return fmt.Errorf("read the capabilities: %w", err)
	}
	sets[0].Inheritable, sets[1].Inheritable = 0, 0
	if err := unix.Capset(&header, &sets[0]); err != nil {
		return fmt.Errorf("drop the inheritable capabilities: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("forbid new privileges: %w", err)
	}
	return nil
}
