// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

//go:build linux

package node

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	cgroupRoot = "/sys/fs/cgroup"
	// cgroupPrefix begins the name of a node's cgroups; the id of the first process follows.
	cgroupPrefix    = "outrigger-node-"
	cgroupsVariable = "OUTRIGGER_TEST_NODE_CGROUPS"
)

// cgroups are the directories of one node: one in each hierarchy of version 1, or a single one of
// version 2.
type cgroups []string

func (c cgroups) String() string { return strings.Join(c, ":") }

// unified reports whether the machine has version 2 of cgroups.
func unified() bool {
	var s unix.Statfs_t
	return unix.Statfs(cgroupRoot, &s) == nil && s.Type == unix.CGROUP2_SUPER_MAGIC
}

// hierarchies returns the hierarchies of version 1 by the names of their controllers, with the
// cgroup of this process in each.
func hierarchies() (map[string]string, error) {
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	found := map[string]string{}
	for line := range strings.Lines(string(text)) {
		field := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(field) == 3 && (field[1] != "" || unified()) {
			found[field[1]] = field[2]
		}
	}
	return found, nil
}

// directory returns where a hierarchy is mounted: /sys/fs/cgroup/cpu,cpuacct for instance.
func directory(controllers string) string {
	return filepath.Join(cgroupRoot, strings.TrimPrefix(controllers, "name="))
}

// newCgroups creates cgroups below those of this process, and removes those of runs that were killed.
func newCgroups() (cgroups, error) {
	all, err := hierarchies()
	if err != nil {
		return nil, err
	}
	if len(all) == 0 {
		return nil, errors.New("the machine has no cgroups")
	}
	var made cgroups
	for controllers, own := range all {
		parent := filepath.Join(directory(controllers), own)
		sweep(parent)
		dir := filepath.Join(parent, cgroupPrefix+strconv.Itoa(os.Getpid()))
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, errors.Join(fmt.Errorf("the machine allows no cgroups: %w", err), made.remove())
		}
		made = append(made, dir)
		if !slices.Contains(strings.Split(controllers, ","), "cpuset") {
			continue
		}
		for _, name := range []string{"cpuset.cpus", "cpuset.mems"} { // a process cannot join before they are set
			value, err := os.ReadFile(filepath.Join(parent, name))
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, name), value, 0)
			}
			if err != nil {
				return nil, errors.Join(err, made.remove())
			}
		}
	}
	return made, nil
}

// sweep removes cgroups of nodes whose first process is gone.
func sweep(parent string) {
	old, _ := filepath.Glob(filepath.Join(parent, cgroupPrefix+"*")) // the pattern is valid
	for _, dir := range old {
		pid, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(dir), cgroupPrefix))
		if err == nil && errors.Is(unix.Kill(pid, 0), unix.ESRCH) {
			_ = removeTree(dir) // processes that are still exiting keep it until the next run
		}
	}
}

// remove removes the cgroups once the last process has left them.
func (c cgroups) remove() error {
	var failed error
	for _, dir := range c {
		var err error
		for range 600 {
			if err = removeTree(dir); err == nil {
				break
			}
			time.Sleep(100 * time.Millisecond)
		}
		failed = errors.Join(failed, err)
	}
	return failed
}

// removeAtEnd starts a process that removes the cgroups when this one ends, even if it is killed.
// finish ends it earlier, and returns once they are gone.
func (c cgroups) removeAtEnd() (finish func() error, err error) {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), stageVariable+"="+stageClean, cgroupsVariable+"="+c.String())
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // signals to the group of this process do not end it
	var said bytes.Buffer
	cmd.Stderr = &said
	input, err := cmd.StdinPipe() // the kernel closes it with this process
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return func() error {
		_ = input.Close() // once is enough
		if err := cmd.Wait(); err != nil {
			return fmt.Errorf("%w: %s", err, said.String())
		}
		return nil
	}, nil
}

// clean removes the cgroups of a node once its first process has ended, which is the end of its
// input.
func clean(input io.Reader) error {
	if _, err := io.Copy(io.Discard, input); err != nil {
		return err
	}
	return cgroups(strings.Split(os.Getenv(cgroupsVariable), ":")).remove()
}

// removeTree removes a cgroup and those below it.
func removeTree(dir string) error {
	var dirs []string
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.IsDir() {
			dirs = append(dirs, path)
		}
		return nil // it may have been removed
	})
	for _, d := range slices.Backward(dirs) {
		if e := unix.Rmdir(d); e != nil && !errors.Is(e, unix.ENOENT) {
			err = fmt.Errorf("remove the cgroup %s: %w", d, e)
		}
	}
	return err
}

// join moves this process to the cgroups of its node and makes them the root of what it sees.
func join(dirs cgroups) error {
	for _, dir := range dirs {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte("0"), 0); err != nil {
			return fmt.Errorf("join the cgroup %s: %w", dir, err)
		}
	}
	return unix.Unshare(unix.CLONE_NEWCGROUP)
}

// mountCgroups mounts the hierarchies on /sys/fs/cgroup of the node.
func mountCgroups(all map[string]string) error {
	if _, ok := all[""]; ok {
		if err := mount("cgroup2", cgroupRoot, "cgroup2", 0, ""); err != nil {
			return err
		}
		return delegate()
	}
	if err := mount("cgroup", cgroupRoot, "tmpfs", 0, "mode=755"); err != nil {
		return err
	}
	for controllers := range all {
		dir, options := directory(controllers), controllers
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
		if strings.HasPrefix(controllers, "name=") {
			options = "none," + controllers
		}
		if err := mount("cgroup", dir, "cgroup", 0, options); err != nil {
			return err
		}
		if parts := strings.Split(controllers, ","); len(parts) > 1 {
			for _, part := range parts {
				if err := os.Symlink(filepath.Base(dir), directory(part)); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// delegate moves the node's processes to a leaf, so that the controllers can be enabled for its
// siblings: version 2 allows processes in leaves only.
func delegate() error {
	leaf := filepath.Join(cgroupRoot, "init")
	if err := os.Mkdir(leaf, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(leaf, "cgroup.procs"), []byte("0"), 0); err != nil {
		return err
	}
	controllers, err := os.ReadFile(filepath.Join(cgroupRoot, "cgroup.controllers"))
	if err != nil {
		return err
	}
	for _, name := range strings.Fields(string(controllers)) {
		if err := os.WriteFile(filepath.Join(cgroupRoot, "cgroup.subtree_control"), []byte("+"+name), 0); err != nil {
			return fmt.Errorf("enable the cgroup controller %s: %w", name, err)
		}
	}
	return nil
}
