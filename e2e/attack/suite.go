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

// attack is one entry of the list in the document.
type attack struct {
	area    string
	try     string // what is tried
	promise string // what must happen instead
	run     func(context.Context, *suite) (outcome, error)
}

// outcome is what an attack observed. An attack whose promise did not hold, or
// that could not be made, returns an error instead.
type outcome struct {
	// seen has no figures that differ from machine to machine, other than rounded ones.
	seen string
	cost *cost // nil if it was not measured
}

// cost is what an attacker made a program use.
type cost struct {
	memory int64 // bytes, at most
	cpu    time.Duration
	lines  int // of the log
}

// result is an attack and what came of it.
type result struct {
	attack
	outcome outcome
	skipped string // why it was not made
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

// errSkipped is wrapped by attacks that cannot be made on this machine.
var errSkipped = errors.New("not tried")

// attacks returns all attacks, in the order of the document.
func attacks() []attack {
	return slices.Concat(identityAttacks(), claimAttacks(), secretAttacks(), floodAttacks(), webhookAttacks(), workloadAttacks(), tenantAttacks(), sidecarAttacks(), labAttacks(), fileAttacks(), bootstrapAttacks(), wasmAttacks(), dnsAttacks())
}

// matches reports whether the area or the name of an attack contains a text.
func (a attack) matches(text string) bool {
	return strings.Contains(a.area+": "+a.try, text)
}

// suite is what attacks share.
type suite struct {
	options
	dir    string
	stderr io.Writer
	net    [3]byte // the first bytes of its addresses
	hosts  byte    // that were given out
	shared *plane  // the control plane of attacks that leave no traces; nil before the first

	network *lab // of attacks that need several machines; nil before the first
}

func newSuite(o options, stderr io.Writer) (*suite, error) {
	dir, err := os.MkdirTemp("", "outrigger-attack-")
	if err != nil {
		return nil, fmt.Errorf("make the temporary directory: %w", err)
	}
	// Programs of other users read below it.
	if err := os.Chmod(dir, 0o755); err != nil {
		return nil, err
	}
	return &suite{options: o, dir: dir, stderr: stderr, net: [3]byte{127, byte(64 + rand.IntN(180)), byte(rand.IntN(256))}}, nil
}

// close ends what is shared and removes the directory.
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

// launch makes one attack.
func (s *suite) launch(ctx context.Context, a attack) result {
	r := result{attack: a}
	r.outcome, r.err = a.run(ctx, s)
	if errors.Is(r.err, errSkipped) {
		r.skipped, r.err = r.err.Error(), nil
	}
	return r
}

// address returns a loopback address that nothing else of this run uses.
func (s *suite) address() string {
	s.hosts++
	return fmt.Sprintf("%d.%d.%d.%d", s.net[0], s.net[1], s.net[2], s.hosts)
}

// some returns the size of a load.
func (s *suite) some(full, short int) int {
	if s.short {
		return short
	}
	return full
}

// say reports progress.
func (s *suite) say(format string, args ...any) {
	_, _ = fmt.Fprintf(s.stderr, time.Now().Format("15:04:05 ")+format+"\n", args...) // progress is not worth an end
}

// folder makes a directory for one part of an attack.
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

// patience is how long something that must happen may take. It is generous:
// machines are slow, and it says nothing about them.
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
