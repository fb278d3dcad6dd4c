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

// forgetProgram drops the resident pages of the program's executable from this process. Pages that
// are used again are loaded from the page cache; most were needed only during the start.
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
			return fmt.Errorf("release %x-%x: %w", m.from, m.to, errno)
		}
	}
	return nil
}

// mapping is a range of this process's memory.
type mapping struct{ from, to uintptr }

// forgettable returns the mappings of the executable whose pages are identical to the file. A
// mapping that is not writable now may have been modified before: the linker relocates addresses in
// position-independent programs, and a debugger sets breakpoints. The kernel reports modified pages
// as anonymous; they exist nowhere else.
func forgettable(smaps []byte, exe string) []mapping {
	var found []mapping
	var m mapping
	own := false // m belongs to the program and is not writable
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
