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

// logs writes progress messages to the log of a test.
type logs struct{ t *testing.T }

func (l logs) Write(b []byte) (int, error) {
	l.t.Log(strings.TrimSpace(string(b)))
	return len(b), nil
}

// TestAttacks runs every attack with smaller loads.
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
			t.Log(r.outcome.seen)
		})
	}
}

// TestDocument requires that docs/operations/security.md lists exactly the attacks of this program,
// each with its promise and observation.
func TestDocument(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile("../../docs/operations/security.md")
	if err != nil {
		t.Fatal(err)
	}
	observed, err := observations(string(doc), attacks())
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range attacks() {
		if observed[a.try] == "" {
			t.Errorf("docs/operations/security.md does not list the attack %q: run make attack", a.try)
		}
	}
	want, err := updated(string(doc), attacks(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if want != string(doc) {
		t.Error("the list of attacks in docs/operations/security.md is not what the code makes of it: run make attack")
	}
}

// TestNames checks that an attack is found in the document by its entry.
func TestNames(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, a := range attacks() {
		if strings.ContainsAny(a.area+a.try+a.promise, "\n*") || strings.Contains(a.try+a.promise, "  ") {
			t.Errorf("%q is no entry of a list", a.try)
		}
		if seen[a.try] {
			t.Errorf("two attacks are named %s", a.try)
		}
		seen[a.try] = true
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

func TestUpdated(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("a word ", 20) + "and the end"
	all := []attack{{area: "one", try: "first", promise: "refused"}, {area: "two", try: "second", promise: "served"}, {area: "one", try: long, promise: "refused"}}
	doc := "before\n" + listBegin + list(all, map[string]string{"first": "old", "second": long, long: "3 of 3"}) + listEnd + "after\n"
	for line := range strings.Lines(doc) {
		if len(line) > lineWidth+1 {
			t.Errorf("%q is too long", line)
		}
	}
	got, err := updated(doc, all, []result{{attack: all[0], outcome: outcome{seen: "new"}}})
	if want := strings.Replace(doc, "**old**", "**new**", 1); err != nil || got != want || got == doc {
		t.Errorf("got %q, %v; want %q", got, err, want)
	}
	if _, err := updated(doc, all, []result{{attack: all[0], skipped: "not tried"}}); err == nil {
		t.Error("an attack that was not tried is written")
	}
	if _, err := updated("before\n", all, nil); err == nil {
		t.Error("a document without markers is accepted")
	}
}
