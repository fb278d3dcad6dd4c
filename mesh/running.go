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

// runningPrefix begins the name of the files that tell of running meshes.
const runningPrefix = "outrigger-run-"

// announce tells other commands of this user which config store the running
// mesh reads, empty for none, where its control plane answers questions, and the
// directory in which the control plane keeps the state of its stores: a line each
// of a file that is locked as long as the process lives. The result removes it.
func announce(temp, store, control, state string) (withdraw func() error, err error) {
	if _, err := Running(temp); err != nil { // removes what killed runs left
		return nil, err
	}
	f, err := os.CreateTemp(temp, runningPrefix) // mode 0600
	if err != nil {
		return nil, fmt.Errorf("tell other commands of the mesh: %w", err)
	}
	withdraw = func() error { return errors.Join(os.Remove(f.Name()), f.Close()) }
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if err == nil {
		_, err = f.WriteString(store + "\n" + control + "\n" + state + "\n")
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("tell other commands of the mesh: %w", err), withdraw())
	}
	return withdraw, nil
}

// Running returns the URLs of the config stores of the meshes that this user
// runs on this machine. Temp is the directory of temporary files.
func Running(temp string) ([]string, error) { return announced(temp, 0) }

// RunningState returns the directory in which the control plane of a mesh of this
// user keeps the state of the store with this URL; empty if no mesh that runs here
// reads it.
func RunningState(temp, store string) (string, error) {
	stores, err := announcements(temp)
	if err != nil {
		return "", err
	}
	for _, lines := range stores {
		if len(lines) > 2 && lines[0] == store {
			return lines[2], nil
		}
	}
	return "", nil
}

// RunningControls returns the addresses at which the control planes of these meshes
// answer questions.
func RunningControls(temp string) ([]string, error) { return announced(temp, 1) }

// announced returns one line of each file that tells of a running mesh, but for
// empty ones.
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

// announcements returns the lines of each file that tells of a running mesh.
func announcements(temp string) (all [][]string, err error) {
	paths, err := filepath.Glob(filepath.Join(temp, runningPrefix+"*"))
	if err != nil {
		return nil, fmt.Errorf("look for running meshes: %w", err)
	}
	for _, path := range paths {
		text, err := readAnnounced(path)
		if err != nil {
			return nil, fmt.Errorf("look for running meshes: %w", err)
		}
		all = append(all, strings.Split(text, "\n"))
	}
	return all, nil
}

// readAnnounced returns the text in the file of a running mesh of this user;
// empty for others. What a killed run left behind is removed.
func readAnnounced(path string) (string, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return "", nil //nolint:nilerr // it is gone, or somebody else's
	}
	defer func() { _ = f.Close() }() // it was only read
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
