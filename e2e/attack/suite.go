// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// attack is an entry of the list in the document.
type attack struct {
	area    string
	try     string // what the attacker tries
	promise string // what must happen instead
	run     func(context.Context, *suite) (outcome, error)
}

// outcome is the observation of an attack. An attack whose promise did not hold, or that could not
// be made, returns an error instead.
type outcome struct {
	// seen contains no figures that differ between machines, except rounded ones.
	seen string
	cost *cost // nil if not measured
}

// cost is the resource usage that an attacker caused in a program.
type cost struct {
	memory int64 // peak in bytes
	cpu    time.Duration
	lines  int // of the log
}

// result is an attack and its result.
type result struct {
	attack
	outcome outcome
	skipped string // the reason why it was not made
	err     error
}

func (r result) verdict() string {
	switch {
	case r.skipped != "":
		return "skip"
	case r.err != nil:
		return "FAIL"
	}
	return "pass"
}

func (r result) seen() string {
	switch {
	case r.skipped != "":
		return r.skipped
	case r.err != nil:
		return r.err.Error()
	}
	return r.outcome.seen
}

// errSkipped is wrapped by errors of attacks that cannot be made on this machine.
var errSkipped = errors.New("not tried")

// attacks returns all attacks, in the order of the document.
func attacks() []attack {
	return slices.Concat(identityAttacks(), claimAttacks(), secretAttacks(), floodAttacks(), webhookAttacks(), workloadAttacks(), tenantAttacks(), keyAttacks(), sidecarAttacks(), labAttacks(), fileAttacks(), bootstrapAttacks(), wasmAttacks(), dnsAttacks())
}

// matches reports whether the area or the name of an attack contains the text.
func (a attack) matches(text string) bool {
	return strings.Contains(a.area+": "+a.try, text)
}

// suite is the state shared by attacks.
type suite struct {
	options
	dir    string
	stderr io.Writer
	net    [3]byte // the first bytes of its addresses
	hosts  byte    // number of addresses in use
	shared *plane  // the control plane for attacks that leave no traces; nil before the first one

	network *lab // for attacks that need several machines; nil before the first one
}

func newSuite(o options, stderr io.Writer) (*suite, error) {
	dir, err := os.MkdirTemp("", "outrigger-attack-")
	if err != nil {
		return nil, fmt.Errorf("make the temporary directory: %w", err)
	}
	// Programs of other users read files below it.
	if err := os.Chmod(dir, 0o755); err != nil {
		return nil, err
	}
	return &suite{options: o, dir: dir, stderr: stderr, net: [3]byte{127, byte(64 + rand.IntN(180)), byte(rand.IntN(256))}}, nil
}

// close stops shared processes and removes the directory.
func (s *suite) close() error {
	if s.shared != nil {
		s.shared.Stop()
	}
	if s.keep {
		s.say("logs and files are in %s", s.dir)
		return nil
	}
	return os.RemoveAll(s.dir)
}

// launch runs one attack.
func (s *suite) launch(ctx context.Context, a attack) result {
	r := result{attack: a}
	r.outcome, r.err = a.run(ctx, s)
	if errors.Is(r.err, errSkipped) {
		r.skipped, r.err = r.err.Error(), nil
	}
	return r
}

// address returns a loopback address that is not used elsewhere in this run.
func (s *suite) address() string {
	s.hosts++
	return fmt.Sprintf("%d.%d.%d.%d", s.net[0], s.net[1], s.net[2], s.hosts)
}

// some returns the size of a load, depending on the mode.
func (s *suite) some(full, short int) int {
	if s.short {
		return short
	}
	return full
}

// say prints progress.
func (s *suite) say(format string, args ...any) {
	_, _ = fmt.Fprintf(s.stderr, time.Now().Format("15:04:05 ")+format+"\n", args...) // ignore errors of progress output
}

// folder creates a directory for a part of an attack.
func (s *suite) folder(name string) (string, error) {
	dir, err := os.MkdirTemp(s.dir, name+"-")
	if err != nil {
		return "", err
	}
	return dir, os.Chmod(dir, 0o755)
}

// write writes a file and the directories above it.
func write(path, text string, mode os.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, []byte(text), mode)
}

// patience is the timeout for everything that must happen. It is generous, because slow machines
// must not fail.
const patience = 2 * time.Minute

// eventually calls a function until it returns nil.
func eventually(ctx context.Context, f func() error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := f()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("after %s: %w", patience, err)
		case <-tick.C:
		}
	}
}
