// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package envoy

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

const (
	// sharedMemory is where Envoy keeps the memory that its processes share,
	// followed by ten times the base id.
	sharedMemory = "/dev/shm/envoy_shared_memory_"
	baseIDScale  = 10
	// socketRing is how many names Envoy has for the sockets of its processes:
	// the fourth in a row gets those of the first.
	socketRing = 3

	// flagInitializing is set in the flags of the shared memory by a process that
	// starts, and cleared when it has taken over.
	flagInitializing = 1
)

// flagsOffset returns where the flags of the shared memory are, 0 when its layout
// is not known. It holds its size, the version of the protocol, two mutexes of
// the C library and the flags, in this order; all but the mutexes have 8 bytes.
func flagsOffset(memory []byte) int {
	const others, flags = 3 * 8, 8
	for _, mutex := range []int{40, 48} { // x86-64, aarch64
		size := others + 2*mutex
		if len(memory) == size && binary.NativeEndian.Uint64(memory) == uint64(size) {
			return size - flags
		}
	}
	return 0
}

// maxSockets is how long HotRestart.Sockets may be: the kernel takes 107 bytes,
// and "_udp_parent_" and ten digits follow.
const maxSockets = 107 - 22

// line is a row of Envoys of which each takes over from the one before.
type line struct {
	sockets  string
	baseID   uint32
	shutdown time.Duration
	// shared is the path of the memory that they share.
	shared string
}

// newLine chooses a base id that no other Envoy of the machine has.
func newLine(sockets string, shutdown time.Duration) (*line, error) {
	for {
		var random [4]byte
		if _, err := rand.Read(random[:]); err != nil {
			return nil, fmt.Errorf("choose a base id for envoy: %w", err)
		}
		// Ten times as much is a positive number of 32 bits for Envoy.
		l := &line{sockets: sockets, baseID: binary.NativeEndian.Uint32(random[:]) >> 5, shutdown: shutdown}
		l.shared = sharedMemory + strconv.Itoa(l.scaled(0))
		if _, err := os.Lstat(l.shared); errors.Is(err, os.ErrNotExist) {
			return l, nil
		} else if err != nil {
			return nil, fmt.Errorf("choose a base id for envoy: %w", err)
		}
	}
}

func (l *line) scaled(epoch int) int { return int(l.baseID)*baseIDScale + epoch%socketRing }

// args are the arguments of one Envoy of the line; none without a line.
func (l *line) args(epoch int) []string {
	if l == nil {
		return nil
	}
	return []string{
		"--base-id", strconv.FormatUint(uint64(l.baseID), 10),
		"--restart-epoch", strconv.Itoa(epoch),
		// Files instead of abstract names, which Envoy prefers: any process that may
		// send to those, in a pod even the application, would receive the listeners.
		"--socket-path", l.sockets,
		// When the new one ends the old one, counted from the takeover.
		"--parent-shutdown-time-s", strconv.Itoa(int(l.shutdown / time.Second)),
	}
}

// socket is the name of a socket: role is parent or child.
func (l *line) socket(role string, epoch int) string {
	return fmt.Sprintf("%s_%s_%d", l.sockets, role, l.scaled(epoch))
}

// version is the hot restart version of the Envoys that run, as `envoy
// --hot-restart-version` prints it.
func (l *line) version() (string, error) {
	data, err := os.ReadFile(l.shared)
	if err != nil {
		return "", fmt.Errorf("read envoy's shared memory: %w", err)
	}
	if len(data) < 16 {
		return "", fmt.Errorf("read envoy's shared memory: %s has %d bytes", l.shared, len(data))
	}
	return fmt.Sprintf("%d.%d", binary.NativeEndian.Uint64(data[8:]), binary.NativeEndian.Uint64(data)), nil
}

// initializing reports whether an Envoy has started and has not taken over yet. known is
// false if that cannot be determined.
func (l *line) initializing() (is, known bool) {
	flags, _, err := l.flags()
	return flags&flagInitializing != 0, err == nil
}

// flags returns the flags in the shared memory, and where they are.
func (l *line) flags() (flags uint64, offset int, err error) {
	data, err := os.ReadFile(l.shared)
	if err != nil {
		return 0, 0, err
	}
	offset = flagsOffset(data)
	if offset == 0 {
		return 0, 0, fmt.Errorf("%s has a layout that is not known", l.shared)
	}
	return binary.NativeEndian.Uint64(data[offset:]), offset, nil
}

// initialized says that no Envoy of the line is starting. One that is killed
// while it starts leaves the flag behind, and every other would refuse to start.
func (l *line) initialized() error {
	flags, offset, err := l.flags()
	if err != nil || flags&flagInitializing == 0 {
		return nil // unknown memory is left alone
	}
	file, err := os.OpenFile(l.shared, os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("repair envoy's shared memory: %w", err)
	}
	_, err = file.WriteAt(binary.NativeEndian.AppendUint64(nil, flags&^flagInitializing), int64(offset))
	if err := errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("repair envoy's shared memory: %w", err)
	}
	return nil
}

// cleanSockets removes the sockets whose names begin with a path, and the shared
// memory that belongs to them: those of an agent that was killed, too.
func cleanSockets(sockets string) {
	// Only the names that Envoy gives: the path is the agent's own.
	for _, role := range []string{"parent", "child", "udp_parent", "udp_child"} {
		prefix := sockets + "_" + role + "_"
		names, err := filepath.Glob(escapeGlob(prefix) + "*")
		if err != nil {
			continue // no pattern that was escaped is a bad one
		}
		for _, name := range names {
			id, err := strconv.Atoi(strings.TrimPrefix(name, prefix))
			if err != nil {
				continue
			}
			// What cannot be removed now is when another agent starts here.
			_ = os.Remove(sharedMemory + strconv.Itoa(id-id%baseIDScale))
			_ = os.Remove(name)
		}
	}
}

func escapeGlob(path string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(path)
}
