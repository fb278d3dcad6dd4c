// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package envoy

import (
	"context"
	"os"
	"os/exec"
	"time"
)

// binaryPoll is the interval at which Envoy's binary is checked for changes. Polling also detects a
// changed symlink in a parent directory, which a watch of the binary's directory misses.
const binaryPoll = time.Second

// watchBinary requests a hot restart when the binary has been replaced and has not changed since
// the last poll.
func (p *Process) watchBinary(ctx context.Context) {
	ticker := time.NewTicker(binaryPoll)
	defer ticker.Stop()
	known := identify(p.cfg.Binary)
	last := known
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		now := identify(p.cfg.Binary)
		if now != nil && now.differs(known) && !now.differs(last) {
			known = now
			p.HotRestart("envoy's binary " + p.cfg.Binary + " is another one")
		}
		last = now
	}
}

// identity identifies a file, so that a replacement at the same path is detected. The nil value
// means that there is no file.
type identity struct {
	info os.FileInfo
}

func identify(binary string) *identity {
	path, err := exec.LookPath(binary)
	if err != nil {
		return nil
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil
	}
	return &identity{info}
}

func (i *identity) differs(other *identity) bool {
	if i == nil || other == nil {
		return i != other
	}
	return !os.SameFile(i.info, other.info) || i.info.Size() != other.info.Size() || !i.info.ModTime().Equal(other.info.ModTime())
}
