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
	// sharedMemory is the path prefix of the memory that Envoy's processes share. Ten times the
	// base id follows.
	sharedMemory = "/dev/shm/envoy_shared_memory_"
	baseIDScale  = 10
	// socketRing is the number of distinct socket names that Envoy uses for consecutive processes:
	// the fourth process reuses the names of the first.
	socketRing = 3

	// flagInitializing is a bit in the flags of the shared memory. A starting process sets it and
	// clears it when it has taken over.
	flagInitializing = 1
)

// flagsOffset returns the offset of the flags in the shared memory, or 0 if the layout is unknown.
// The memory contains its size, the protocol version, two mutexes of the C library and the flags,
// in this order. All fields except the mutexes are 8 bytes long.
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

// maxSockets is the maximum length of HotRestart.Sockets. The kernel allows 107 bytes, and Envoy
// appends "_udp_parent_" and ten digits.
const maxSockets = 107 - 22

// line is a sequence of Envoy processes in which each takes over from the previous one.
type line struct {
	sockets  string
	baseID   uint32
	shutdown time.Duration
	// shared is the path of the memory that the processes share.
	shared string
}

// newLine returns a line with a base id that no other Envoy on the machine uses.
func newLine(sockets string, shutdown time.Duration) (*line, error) {
	for {
		var random [4]byte
		if _, err := rand.Read(random[:]); err != nil {
			return nil, fmt.Errorf("choose a base id for envoy: %w", err)
		}
		// Ten times the base id must be a positive 32-bit number for Envoy.
		l := lineOf(sockets, binary.NativeEndian.Uint32(random[:])>>5, shutdown)
		if _, err := os.Lstat(l.shared); errors.Is(err, os.ErrNotExist) {
			return l, nil
		} else if err != nil {
			return nil, fmt.Errorf("choose a base id for envoy: %w", err)
		}
	}
}

// lineOf returns the line with a base id.
func lineOf(sockets string, baseID uint32, shutdown time.Duration) *line {
	l := &line{sockets: sockets, baseID: baseID, shutdown: shutdown}
	l.shared = sharedMemory + strconv.Itoa(l.scaled(0))
	return l
}

func (l *line) scaled(epoch int) int { return int(l.baseID)*baseIDScale + epoch%socketRing }

// args returns the hot restart arguments of the Envoy with this epoch. A nil line has none.
func (l *line) args(epoch int) []string {
	if l == nil {
		return nil
	}
	return []string{
		"--base-id", strconv.FormatUint(uint64(l.baseID), 10),
		"--restart-epoch", strconv.Itoa(epoch),
		// Use socket files instead of Envoy's default, abstract socket names: any process that can
		// send to those could receive the listeners. In a pod, this includes the application.
		"--socket-path", l.sockets,
		// The time from the takeover until the new Envoy terminates the old one.
		"--parent-shutdown-time-s", strconv.Itoa(int(l.shutdown / time.Second)),
	}
}

// socket returns the name of a socket. The role is "parent" or "child".
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
		return 0, 0, fmt.Errorf("%s has an unknown layout", l.shared)
	}
	return binary.NativeEndian.Uint64(data[offset:]), offset, nil
}

// initialized clears the flag of an Envoy that was killed during its start. While the flag is set,
// every other Envoy would refuse to start.
func (l *line) initialized() error {
	flags, offset, err := l.flags()
	if err != nil || flags&flagInitializing == 0 {
		return nil // do not touch memory of unknown layout
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

// cleanSockets removes the sockets whose names begin with the path, and the shared memory that
// belongs to them, including those left by an agent that was killed.
func cleanSockets(sockets string) {
	// Match only names that Envoy creates: the path belongs to the agent.
	for _, role := range []string{"parent", "child", "udp_parent", "udp_child"} {
		prefix := sockets + "_" + role + "_"
		names, err := filepath.Glob(escapeGlob(prefix) + "*")
		if err != nil {
			continue // cannot happen: an escaped pattern is valid
		}
		for _, name := range names {
			id, err := strconv.Atoi(strings.TrimPrefix(name, prefix))
			if err != nil {
				continue
			}
			// The next agent with this path removes what cannot be removed now.
			_ = os.Remove(sharedMemory + strconv.Itoa(id-id%baseIDScale))
			_ = os.Remove(name)
		}
	}
}

func escapeGlob(path string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(path)
}
