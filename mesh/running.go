// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package mesh

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// runningPrefix is the name prefix of the files that announce running meshes.
const runningPrefix = "outrigger-run-"

// announce publishes a running mesh to other commands of this user, in a file that is locked for
// the lifetime of the process. Its lines are the config store (may be empty), the debug address of the
// control plane, the directory in which the control plane keeps the state of its stores, how workloads
// are isolated, the mesh file, and the process. withdraw removes the file.
func announce(temp string, lines ...string) (withdraw func() error, err error) {
	if _, err := Running(temp); err != nil { // removes stale files
		return nil, err
	}
	f, err := os.CreateTemp(temp, runningPrefix) // mode 0600
	if err != nil {
		return nil, fmt.Errorf("announce the mesh to other commands: %w", err)
	}
	withdraw = func() error { return errors.Join(os.Remove(f.Name()), f.Close()) }
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if err == nil {
		_, err = f.WriteString(strings.Join(lines, "\n") + "\n")
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("announce the mesh to other commands: %w", err), withdraw())
	}
	return withdraw, nil
}

// Running returns the URLs of the config stores of the meshes that this user runs on this machine.
// temp is the directory of temporary files.
func Running(temp string) ([]string, error) { return announced(temp, 0) }

// RunningState returns the directory in which the control plane of a running mesh keeps the state
// of the store with this URL. It returns "" if no running mesh of this user uses the store.
func RunningState(temp, store string) (string, error) {
	return announcedBeside(temp, 0, store, 2)
}

// RunningControl returns the debug address of the control plane of the running mesh that uses the
// store with this URL. It returns "" if there is none.
func RunningControl(temp, store string) (string, error) {
	return announcedBeside(temp, 0, store, 1)
}

// RunningStore returns the URL of the config store of a running mesh, by the debug address of its control
// plane. It returns "" for other addresses, and for a mesh without a config directory.
func RunningStore(temp, control string) (string, error) {
	return announcedBeside(temp, 1, control, 0)
}

// RunningIsolation returns how the workloads of a running mesh are isolated, [IsolateNetns] or
// [IsolateNone], by the debug address of its control plane. It returns "" for other addresses.
func RunningIsolation(temp, control string) (string, error) {
	return announcedBeside(temp, 1, control, 3)
}

// RunningLogs returns the log files of the control plane and the agents of a running mesh, by the debug
// address of its control plane. It returns none for other addresses. Those of applications are not among
// them.
func RunningLogs(temp, control string) ([]string, error) {
	dir, err := stateOf(temp, control)
	if dir == "" || err != nil {
		return nil, err
	}
	agents, err := filepath.Glob(filepath.Join(dir, "log", "*"+logName(agentLabel(""))))
	if err != nil {
		return nil, fmt.Errorf("find the logs of the mesh: %w", err)
	}
	list := []string{filepath.Join(dir, "log", logName(controlName))}
	for _, path := range agents {
		workload := strings.TrimSuffix(filepath.Base(path), logName(agentLabel("")))
		_, of := os.Stat(filepath.Join(dir, "workloads", workload))
		_, itself := os.Stat(filepath.Join(dir, "workloads", strings.TrimSuffix(filepath.Base(path), logSuffix)))
		if of == nil && itself != nil { // not of an application whose name ends like this
			list = append(list, path)
		}
	}
	return list, nil
}

// Located is a proxy of a running mesh.
type Located struct {
	Name, Namespace string
	// Address is where its Envoy and its agent have their ports on this machine.
	Address string
}

// RunningProxies returns the proxies of a running mesh, by the debug address of its control plane, which
// need not run. It returns none for other addresses.
func RunningProxies(temp, control string) (list []Located, err error) {
	dir, err := stateOf(temp, control)
	if dir == "" || err != nil {
		return nil, err
	}
	text, err := os.ReadFile(filepath.Join(dir, proxiesFile))
	if err = ignoreGone(err); err != nil { // the mesh is starting
		return nil, fmt.Errorf("find the proxies of the mesh: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		if words := strings.Fields(line); len(words) == 3 {
			list = append(list, Located{words[0], words[1], words[2]})
		}
	}
	return list, nil
}

// stateOf returns the state directory of a running mesh, or "".
func stateOf(temp, control string) (string, error) {
	state, err := announcedBeside(temp, 1, control, 2)
	if state == "" || err != nil {
		return "", err
	}
	return filepath.Dir(filepath.Dir(state)), nil
}

// RunningFile returns the mesh file of a running mesh and the id of its process, by the debug address of
// its control plane. It returns "" for other addresses.
func RunningFile(temp, control string) (file, process string, err error) {
	if file, err = announcedBeside(temp, 1, control, 4); err != nil {
		return "", "", err
	}
	process, err = announcedBeside(temp, 1, control, 5)
	return file, process, err
}

// announcedBeside returns a line of the file that has a value in another line, or "" without one.
func announcedBeside(temp string, key int, value string, line int) (string, error) {
	all, err := announcements(temp)
	if err != nil {
		return "", err
	}
	for _, lines := range all {
		if len(lines) > max(key, line) && lines[key] == value {
			return lines[line], nil
		}
	}
	return "", nil
}

// RunningControls returns the debug addresses of the control planes of these meshes.
func RunningControls(temp string) ([]string, error) { return announced(temp, 1) }

// announced returns the given line of each file that announces a running mesh, except empty lines.
func announced(temp string, line int) ([]string, error) {
	all, err := announcements(temp)
	var out []string
	for _, lines := range all {
		if line < len(lines) && lines[line] != "" {
			out = append(out, lines[line])
		}
	}
	return out, err
}

// announcements returns the lines of each file that announces a running mesh.
func announcements(temp string) (all [][]string, err error) {
	paths, err := filepath.Glob(filepath.Join(temp, runningPrefix+"*"))
	if err != nil {
		return nil, fmt.Errorf("find running meshes: %w", err)
	}
	for _, path := range paths {
		text, err := readAnnounced(path)
		if err != nil {
			return nil, fmt.Errorf("find running meshes: %w", err)
		}
		all = append(all, strings.Split(text, "\n"))
	}
	return all, nil
}

// readAnnounced returns the content of the file of a running mesh, or "" if the mesh belongs to
// another user or no longer runs. It removes stale files.
func readAnnounced(path string) (string, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return "", nil //nolint:nilerr // it was removed, or belongs to another user
	}
	defer func() { _ = f.Close() }() // read-only: closing cannot lose data
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.Mode().IsRegular() || owner.Uid != uint32(os.Getuid()) {
		return "", nil
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB); err == nil {
		return "", ignoreGone(os.Remove(path))
	}
	text, err := io.ReadAll(io.LimitReader(f, 4096))
	return string(text), err
}

func ignoreGone(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}
