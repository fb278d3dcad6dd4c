// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"strings"
	"testing"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/outrigger-mesh/outrigger/xdsproxy/wire"
)

func buffers(texts ...string) mem.BufferSlice {
	var s mem.BufferSlice
	for _, t := range texts {
		s = append(s, mem.SliceBuffer(t))
	}
	return s
}

// TestContains checks that a marker is found even if it spans several buffers.
func TestContains(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		in   []string
		want bool
	}{
		"in one":            {[]string{"..10.77.0.1.."}, true},
		"cut in two":        {[]string{"..10.7", "7.0.1.."}, true},
		"cut after a byte":  {[]string{"..1", "0.77.0.1"}, true},
		"cut to bytes":      {strings.Split("..10.77.0.1..", ""), true},
		"over three":        {[]string{"..10", ".77", ".0.1"}, true},
		"empty between":     {[]string{"..10.7", "", "7.0.1.."}, true},
		"other":             {[]string{"..10.77.0", ".2.."}, false},
		"pieces out of row": {[]string{"7.0.1", "10.7"}, false},
		"nothing":           {nil, false},
	} {
		if got := contains(buffers(c.in...), []byte("10.77.0.1")); got != c.want {
			t.Errorf("%s: contains(%q) = %t, want %t", name, c.in, got, c.want)
		}
	}
}

// TestHead checks that the header fields of a response are read however it is split into buffers,
// and resources are skipped.
func TestHead(t *testing.T) {
	t.Parallel()
	b := appendText(nil, wire.ResponseVersion, "v1")
	b = appendText(b, 2, strings.Repeat("resource", 100))
	b = protowire.AppendTag(b, 3, protowire.VarintType)
	b = protowire.AppendVarint(b, 1)
	b = appendText(b, wire.ResponseTypeURL, typeRoute)
	b = appendText(b, wire.ResponseNonce, "first")
	b = appendText(b, wire.ResponseNonce, "last")
	for _, cut := range []int{1, 7, len(b)} {
		var pieces []string
		for rest := string(b); rest != ""; rest = rest[min(cut, len(rest)):] {
			pieces = append(pieces, rest[:min(cut, len(rest))])
		}
		got, err := head(buffers(pieces...), wire.ResponseVersion, wire.ResponseTypeURL, wire.ResponseNonce)
		if err != nil {
			t.Fatal(err)
		}
		if len(got) != 3 || got[wire.ResponseVersion] != "v1" || got[wire.ResponseTypeURL] != typeRoute || got[wire.ResponseNonce] != "last" {
			t.Errorf("pieces of %d bytes: got %v", cut, got)
		}
	}
	if _, err := head(buffers(string(b[:len(b)-1])), wire.ResponseNonce); err == nil {
		t.Error("a message without its end is read without an error")
	}
}

func TestTable(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	err := printTable(&out, "2 cores", []figure{
		{Name: "binary", Unit: megabytes, Ours: 15.5e6, Target: 20e6},
		{Name: "relay", Unit: milliseconds, Ours: 0.003, Straight: 0.001, TargetRatio: 2},
		{Name: "sync", Unit: seconds, Ours: 1.5, Straight: 1},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := `2 cores

figure  ours      straight  ratio  target
binary  15.50 MB  -         -      20.00 MB
relay   3.000 ms  1.000 ms  3.00x  2.0x  missed
sync    1.500 s   1.000 s   1.50x  -
`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
}

// TestWantedService checks that a proxy that waits for a new service looks for its route and
// subscribes to the endpoints of its cluster; without delta, together with all others.
func TestWantedService(t *testing.T) {
	t.Parallel()
	for delta, typeURL := range map[bool]string{false: typeRoute, true: typeVirtualHost} {
		subs := subscriptions{kind: kind{delta: delta}, names: map[string][]byte{typeEndpoint: encodeNames([]string{"outbound|80||old"})}}
		var l load
		changes := l.changes(subs, true)
		w := changes[len(changes)-1].wanted(subs, "new.mesh.local")
		if w.typeURL != typeURL || string(w.added) != string(encodeNames([]string{"outbound|80||new.mesh.local"})) {
			t.Errorf("delta %t: looks in %s, adds %q", delta, w.typeURL, w.added)
		}
		if want := string(encodeNames([]string{"outbound|80||old", "outbound|80||new.mesh.local"})); string(w.all) != want {
			t.Errorf("delta %t: asks for %q, want %q", delta, w.all, want)
		}
		if w := changes[0].wanted(subs, "x"); w.added != nil || w.typeURL != typeURL {
			t.Errorf("delta %t: for a route looks in %s, adds %q", delta, w.typeURL, w.added)
		}
	}
}
