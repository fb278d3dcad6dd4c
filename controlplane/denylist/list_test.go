// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package denylist

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outrigger-mesh/outrigger/certs"
)

func id(t *testing.T, text string) certs.ID {
	t.Helper()
	id, err := certs.ParseID(text)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func TestParse(t *testing.T) {
	t.Parallel()
	l, err := Parse([]byte("# who left\n\n spiffe://cluster.local/ns/shop/sa/web # in May\nspiffe://old.example/ns/old/sa/*\r\nserial 0A:bc\nserial 3F2A9C\nserial abc\n"))
	if err != nil {
		t.Fatal(err)
	}
	if l.Len() != 4 || !slices.Equal(l.Serials(), []string{"0abc", "3f2a9c"}) {
		t.Errorf("Len() = %d, Serials() = %v; want 4 and [0abc 3f2a9c]", l.Len(), l.Serials())
	}
	domains := []string{"cluster.local", "old.example"}
	for text, want := range map[string]bool{
		"spiffe://cluster.local/ns/shop/sa/web":  true,
		"spiffe://old.example/ns/shop/sa/web":    true, // an alias of the same trust domain
		"spiffe://other.example/ns/shop/sa/web":  false,
		"spiffe://cluster.local/ns/shop/sa/web2": false,
		"spiffe://cluster.local/ns/old/sa/any":   true,
		"spiffe://cluster.local/ns/old2/sa/any":  false,
	} {
		if got := l.Denies(id(t, text), domains); got != want {
			t.Errorf("Denies(%s) = %t, want %t", text, got, want)
		}
	}
	if l.Denies(id(t, "spiffe://old.example/ns/shop/sa/web"), nil) {
		t.Error("an identity of another trust domain is denied")
	}
	exact, prefixes := l.Patterns(domains)
	if got := fmt.Sprint(exact, prefixes); got != "[spiffe://cluster.local/ns/shop/sa/web spiffe://old.example/ns/shop/sa/web] [spiffe://cluster.local/ns/old/sa/ spiffe://old.example/ns/old/sa/]" {
		t.Error(got)
	}
	same, err := Parse([]byte("serial 3f2a9c\nserial 0abc\nspiffe://old.example/ns/old/sa/*\nspiffe://cluster.local/ns/shop/sa/web\n"))
	if err != nil || same.Version() != l.Version() || l.Version() == "" {
		t.Errorf("versions of equal lists: got %q and %q, error %v", same.Version(), l.Version(), err)
	}
	var none *List
	if none.Len() != 0 || none.Version() != "" || none.Denies(certs.ID{}, nil) || none.DeniesSerial("0abc") || none.Serials() != nil {
		t.Error("a nil list is not empty")
	}
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	for text, says := range map[string]string{
		"spiffe://cluster.local/ns/shop/sa/web":   "may be incomplete",
		"\nspiffe://cluster.local/shop\n":         "line 2:",
		"spiffe://cluster.local/ns/*/sa/*\n":      `namespace "*"`,
		"spiffe://cluster.local/ns/shop/sa/we*\n": `service account "we*"`,
		"shop/web\n":     "does not start with spiffe://",
		"serial\n":       "is not a serial number",
		"serial 0\n":     "is not a serial number",
		"serial -1\n":    "is not a serial number",
		"serial 1_2\n":   "is not a serial number",
		"serial 12 34\n": "is not a serial number",
		"serial " + strings.Repeat("f", 42) + "\n":                "is not a serial number",
		strings.Repeat("#\n", maxBytes):                           "at most",
		"spiffe://cluster.local/ns/a/sa/b spiffe://c/ns/d/sa/e\n": "line 1:",
	} {
		if _, err := Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("Parse(%.60q) = %v, want an error with %q", text, err, says)
		}
	}
	var many strings.Builder
	for n := range MaxEntries + 1 {
		fmt.Fprintf(&many, "spiffe://cluster.local/ns/shop/sa/a%d\n", n)
	}
	if _, err := Parse([]byte(many.String())); err == nil || !strings.Contains(err.Error(), "line 1001") {
		t.Errorf("Parse of too many lines = %v, want an error with line 1001", err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("spiffe://cluster.local/ns/shop/sa/web\nserial 0A:bc\nspiffe://a/ns/b/sa/*\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		l, err := Parse(text)
		if err != nil {
			return
		}
		exact, prefixes := l.Patterns(nil)
		if len(exact)+len(prefixes)+len(l.Serials()) != l.Len() {
			t.Errorf("%d entries, but the configuration of proxies has %v, %v and %v", l.Len(), exact, prefixes, l.Serials())
		}
		for _, uri := range exact {
			if !l.Denies(id(t, uri), nil) {
				t.Errorf("Denies(%s) = false for an entry of the list", uri)
			}
		}
	})
}

// TestFollower replaces the file with valid and invalid versions.
func TestFollower(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "deny")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := NewFollower(Config{Path: path}); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("NewFollower without a file = %v, want an error with the path", err)
	}
	if _, err := NewFollower(Config{Path: dir}); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("NewFollower of a directory = %v, want an error", err)
	}
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		var changes atomic.Int32
		write("serial ab\n")
		f, err := NewFollower(Config{
			Path: path, OnChange: func() { changes.Add(1) }, Logger: slog.New(slog.NewTextHandler(&log, nil)), Registerer: prometheus.NewRegistry(),
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- f.Run(ctx) }()
		after := func(text, want string, changed int32, errors int) {
			t.Helper()
			if text == "gone" {
				if err := os.Remove(path); err != nil {
					t.Fatal(err)
				}
			} else {
				write(text)
			}
			time.Sleep(3 * every)
			synctest.Wait()
			if got := fmt.Sprint(f.List().Serials()); got != want || changes.Load() != changed || strings.Count(log.String(), "level=ERROR") != errors {
				t.Errorf("after %q: serials %s after %d changes, want %s after %d; log: %s", text, got, changes.Load(), want, changed, log.String())
			}
		}
		after("serial ab\n# a comment\n", "[ab]", 0, 0)
		after("serial ab\nserial cd\n", "[ab cd]", 1, 0)
		after("serial ab\nserial no\n", "[ab cd]", 1, 1)
		after("", "[ab cd]", 1, 2)
		after("gone", "[ab cd]", 1, 3)
		after("serial ab\nserial cd\n", "[ab cd]", 1, 3)
		after("# nobody\n", "[]", 2, 3)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
