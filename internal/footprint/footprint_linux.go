// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package footprint

import (
	"bufio"
	"bytes"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// forgetProgram takes the pages of the program's own file out of this process.
// Those that are used come back from the page cache; those that only the start
// needed, most of them, do not.
func forgetProgram() error {
	exe, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return err
	}
	smaps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		return err
	}
	for _, m := range forgettable(smaps, exe) {
		if _, _, errno := unix.Syscall(unix.SYS_MADVISE, m.from, m.to-m.from, unix.MADV_DONTNEED); errno != 0 {
			return fmt.Errorf("give back %x-%x: %w", m.from, m.to, errno)
		}
	}
	return nil
}

// mapping is a part of this process's memory.
type mapping struct{ from, to uintptr }

// forgettable are the parts of the program that are what its file holds. Those
// that cannot be written to now may have been before: the linker writes
// addresses into those of a position-independent program, a debugger its
// breakpoints. The kernel calls such pages anonymous, and they exist nowhere else.
func forgettable(smaps []byte, exe string) []mapping {
	var found []mapping
	var m mapping
	own := false // m is of the program, and nobody may write to it
	for lines := bufio.NewScanner(bytes.NewReader(smaps)); lines.Scan(); {
		line := lines.Bytes()
		if name, value, ok := bytes.Cut(line, []byte(": ")); ok && !bytes.ContainsRune(name, ' ') {
			if own && string(name) == "Anonymous" && string(bytes.TrimSpace(value)) == "0 kB" {
				found = append(found, m)
			}
			continue
		}
		own = false
		if !bytes.HasSuffix(line, []byte(" "+exe)) {
			continue
		}
		var mode string
		if _, err := fmt.Sscanf(string(line), "%x-%x %s", &m.from, &m.to, &mode); err == nil {
			own = len(mode) > 1 && mode[1] != 'w'
		}
	}
	return found
}
