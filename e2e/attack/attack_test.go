// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/e2e/ownnet"
)

func TestMain(m *testing.M) { os.Exit(ownnet.Tests(m).Run()) }

// logs writes progress to the log of a test.
type logs struct{ t *testing.T }

func (l logs) Write(b []byte) (int, error) {
	l.t.Log(strings.TrimSpace(string(b)))
	return len(b), nil
}

// TestAttacks makes every attack, with smaller loads.
func TestAttacks(t *testing.T) {
	o := options{bin: "../../bin", envoy: os.Getenv("ENVOY"), short: true}
	if err := o.find(); err != nil {
		t.Fatal(err)
	}
	s, err := newSuite(o, logs{t})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.close(); err != nil {
			t.Error(err)
		}
	})
	for _, a := range attacks() {
		t.Run(a.area+": "+a.try, func(t *testing.T) {
			r := s.launch(t.Context(), a)
			if r.skipped != "" {
				t.Skip(r.skipped)
			}
			if r.err != nil {
				t.Fatalf("promised: %s; observed: %v", a.promise, r.err)
			}
			if c := r.outcome.cost; c != nil {
				t.Logf("%s; a %s cost %.1f MB, %s of CPU time and %d lines", r.outcome.seen, c.who, float64(c.memory)/1e6, c.cpu.Round(10*time.Millisecond), c.lines)
			}
		})
	}
}

// TestDocument requires a row of docs/operations/security.md for each attack, and an attack
// for each row.
func TestDocument(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile("../../docs/operations/security.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(doc), attacksBegin)
	table, _, closed := strings.Cut(rest, markEnd)
	if !found || !closed {
		t.Fatalf("docs/operations/security.md has no lines %q and %q", attacksBegin, markEnd)
	}
	for _, a := range attacks() {
		if !strings.Contains(table, a.row()) {
			t.Errorf("docs/operations/security.md has no row %q: run make attack", a.row())
		}
	}
	if rows := strings.Count(table, "\n") - 2; rows != len(attacks()) {
		t.Errorf("docs/operations/security.md has %d rows of attacks, the code has %d: run make attack", rows, len(attacks()))
	}
	if !strings.Contains(string(doc), costsBegin) {
		t.Errorf("docs/operations/security.md has no line %q", costsBegin)
	}
}

// Names and promises are cells of a table, and no two attacks have one name.
func TestRows(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, a := range attacks() {
		if strings.ContainsAny(a.row()[1:len(a.row())-1], "\n") || strings.Count(a.row(), "|") != 4 {
			t.Errorf("%q is no row of a table", a.row())
		}
		if seen[a.area+a.try] {
			t.Errorf("two attacks are named %s: %s", a.area, a.try)
		}
		seen[a.area+a.try] = true
	}
}

func TestRounded(t *testing.T) {
	t.Parallel()
	for in, want := range map[int64]int64{-3: 0, 0: 0, 1: 1, 3: 5, 6: 10, 11: 20, 49: 50, 51: 100, 501: 1000} {
		if got := rounded(in); got != want {
			t.Errorf("rounded(%d) is %d, want %d", in, got, want)
		}
	}
	if got, want := roundedSeconds(0)+" "+roundedSeconds(2100*time.Millisecond), "under 0.5 s 5 s"; got != want {
		t.Errorf("seconds are %q, want %q", got, want)
	}
}

func TestBetween(t *testing.T) {
	t.Parallel()
	got, err := between("a\n"+costsBegin+"old\n"+markEnd+"b\n", costsBegin, "new\n")
	if want := "a\n" + costsBegin + "new\n" + markEnd + "b\n"; err != nil || got != want {
		t.Errorf("got %q, %v; want %q", got, err, want)
	}
	if _, err := between("a\n", costsBegin, "new\n"); err == nil {
		t.Error("a document without markers is accepted")
	}
}
