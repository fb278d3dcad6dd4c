// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package mesh

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/outrigger-mesh/outrigger/internal/durable"
)

const (
	statePrefix  = "outrigger-up-"
	birthPrefix  = "outrigger-new-" // prefix of a state directory that is not locked yet
	lockFile     = "lock"
	proxiesFile  = "proxies" // name, namespace and address of each
	stateDirMode = 0o700
	fileMode     = 0o600
)

// state is the state directory of a running mesh. It is locked for the lifetime of the process.
type state struct {
	dir  string
	lock *os.File
	keep bool
}

// openState creates and locks the state directory: dir, which is kept at the end, or a temporary
// one, which is removed. It also removes stale temporary directories.
func openState(dir, temp string) (*state, error) {
	if dir == "" {
		temp, err := filepath.Abs(temp) // the programs run in other directories
		if err != nil {
			return nil, fmt.Errorf("directory of temporary files: %w", err)
		}
		removeStale(temp)
		return newState(temp)
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("state directory: %w", err)
	}
	if err := os.MkdirAll(dir, stateDirMode); err != nil {
		return nil, fmt.Errorf("make the state directory: %w", err)
	}
	if err := ownDir(dir); err != nil {
		return nil, err
	}
	lock, err := lockDir(dir)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, fmt.Errorf("state directory %s is used by another outrigger up: stop it or choose another directory", dir)
	}
	if err != nil {
		return nil, err
	}
	return &state{dir: dir, lock: lock, keep: true}, nil
}

// ownDir returns an error if another user could replace files in a directory, for example that of
// somebody who runs sudo.
func ownDir(dir string) error {
	info, err := os.Stat(dir)
	if err != nil {
		return fmt.Errorf("state directory: %w", err)
	}
	if owner, ok := info.Sys().(*syscall.Stat_t); ok && int(owner.Uid) != os.Geteuid() {
		return fmt.Errorf("state directory %s belongs to user %d, and this program runs as user %d: choose a new directory, or change its owner", dir, owner.Uid, os.Geteuid())
	}
	if info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("state directory %s has mode %#o, so that other users can replace its files: run chmod go-w on it, or choose another one", dir, info.Mode().Perm())
	}
	return nil
}

// newState creates a directory and renames it to the name of a state directory only after locking
// it, so that no other process considers it stale.
func newState(temp string) (*state, error) {
	birth, err := os.MkdirTemp(temp, birthPrefix)
	if err != nil {
		return nil, fmt.Errorf("make the state directory: %w", err)
	}
	lock, err := lockDir(birth)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(birth))
	}
	dir := filepath.Join(temp, statePrefix+strings.TrimPrefix(filepath.Base(birth), birthPrefix))
	if err := os.Rename(birth, dir); err != nil {
		return nil, errors.Join(fmt.Errorf("name the state directory: %w", err), durable.Unlock(lock), os.RemoveAll(birth))
	}
	return &state{dir: dir, lock: lock}, nil
}

// close removes a temporary state directory and releases the lock.
func (s *state) close() error {
	killLeft(s.dir)
	var err error
	if !s.keep {
		err = os.RemoveAll(s.dir)
	}
	return errors.Join(err, durable.Unlock(s.lock))
}

// lockDir locks a directory. It returns EWOULDBLOCK if another process holds the lock. The kernel
// releases the lock of a process that has exited.
func lockDir(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_CREATE|os.O_RDWR, fileMode)
	if err != nil {
		return nil, fmt.Errorf("open the lock: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", dir, err), f.Close())
	}
	return f, nil
}

// removeStale removes this user's state directories that are not locked, and kills processes that
// their applications left behind. It ignores failures, which are harmless. It returns the removed
// directories, and the number of killed processes.
func removeStale(temp string) (removed []string, killed int) {
	dirs, err := filepath.Glob(filepath.Join(temp, statePrefix+"*"))
	if err != nil {
		return nil, 0
	}
	for _, dir := range dirs {
		info, err := os.Lstat(dir)
		if err != nil || !info.IsDir() {
			continue
		}
		if owner, ok := info.Sys().(*syscall.Stat_t); !ok || int(owner.Uid) != os.Getuid() {
			continue
		}
		lock, err := lockDir(dir)
		if err != nil {
			continue
		}
		killed += killLeft(dir)
		_ = os.RemoveAll(dir)    // the next run tries again
		_ = durable.Unlock(lock) // the file has been removed
		removed = append(removed, dir)
	}
	return removed, killed
}

// clearLeft removes what meshes that were killed have left, and that of a mesh with a state directory, which
// stays. It returns a line that says so, or none.
func clearLeft(dir, temp string) []string {
	temp, err := filepath.Abs(temp) // as in the mark of the processes
	if err != nil {
		return nil
	}
	removed, killed := removeStale(temp)
	if abs, err := filepath.Abs(dir); dir != "" && err == nil && ownDir(abs) == nil {
		if lock, err := lockDir(abs); err == nil { // no mesh has it
			killed += killLeft(abs)
			_ = durable.Unlock(lock) // it is locked again for the start
		}
	}
	var what []string
	if killed > 0 {
		what = append(what, fmt.Sprintf("%d processes ended", killed))
	}
	if len(removed) > 0 {
		what = append(what, strings.Join(removed, ", ")+" removed")
	}
	if len(what) == 0 {
		return nil
	}
	return []string{"an outrigger up that was killed had left something: " + strings.Join(what, ", ")}
}

// path returns a path below the state directory.
func (s *state) path(elem ...string) string {
	return filepath.Join(append([]string{s.dir}, elem...)...)
}

// objects returns the path of the generated objects.
func (s *state) objects() string { return s.path("config", "workloads.yaml") }

// meshConfig returns the path of the generated mesh config.
func (s *state) meshConfig() string { return s.path("control", "mesh.yaml") }

// workload returns a path below the working directory of a workload's agent.
func (s *state) workload(w *workload, elem ...string) string {
	return s.path(append([]string{"workloads", w.name}, elem...)...)
}

// openTo lets every user pass through the state directory and the directory of the workloads, in
// which each workload has a directory for its agent only.
func (s *state) openTo() error {
	const passable = 0o711
	if err := os.MkdirAll(s.path("workloads"), passable); err != nil {
		return err
	}
	return errors.Join(os.Chmod(s.dir, passable), os.Chmod(s.path("workloads"), passable))
}

// writeFile writes a file atomically and creates its directory.
func writeFile(path string, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), stateDirMode); err != nil {
		return err
	}
	return durable.ReplaceFast(path, data, 0o600)
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
