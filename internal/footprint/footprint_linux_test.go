// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package footprint

import (
	"slices"
	"testing"
)

// TestForgettable checks that relocated pages of a position-independent program are kept, because
// they are not in the file.
func TestForgettable(t *testing.T) {
	t.Parallel()
	const smaps = `55d000000000-55d000a00000 r-xp 00000000 fd:00 42                         /usr/bin/agent
Size:              10240 kB
Rss:                6000 kB
Anonymous:             0 kB
VmFlags: rd ex mr mw me
55d000a00000-55d000b00000 r-xp 00a00000 fd:00 42                         /usr/bin/agent
Anonymous:             4 kB
55d000b00000-55d000f00000 r--p 00b00000 fd:00 42                         /usr/bin/agent
Rss:                4096 kB
Anonymous:          2048 kB
55d000f00000-55d000f80000 rw-p 00f00000 fd:00 42                         /usr/bin/agent
Anonymous:             0 kB
55d000f80000-55d001000000 r--p 00f80000 fd:00 42                         /usr/bin/agent
Rss:                   0 kB
Anonymous:             0 kB
7f0000000000-7f0000100000 r--p 00000000 fd:00 43                         /lib/agent
Anonymous:             0 kB
7f0000100000-7f0000200000 r--p 00000000 00:00 0
Anonymous:             0 kB
`
	want := []mapping{{0x55d000000000, 0x55d000a00000}, {0x55d000f80000, 0x55d001000000}}
	if got := forgettable([]byte(smaps), "/usr/bin/agent"); !slices.Equal(got, want) {
		t.Errorf("forgettable() = %x, want %x", got, want)
	}
}
