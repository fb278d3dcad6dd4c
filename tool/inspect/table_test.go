// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/outrigger-mesh/outrigger/controlplane/report"
	"github.com/outrigger-mesh/outrigger/internal/columns"
)

// TestTableWidth checks that the table fits a terminal of 80 columns for any names and states, and
// contains every state in full.
func TestTableWidth(t *testing.T) {
	t.Parallel()
	states := []report.State{report.Synced, report.Stale, report.HeldBack, report.Rejected}
	all := []string{"cds", "eds", "lds", "rds", "vhds", "ecds", "sds", "nds", "pcds"}
	for _, name := range []string{"a", strings.Repeat("n", 63) + "." + strings.Repeat("m", 63), strings.Repeat("é", 300)} {
		for mix := range 1 << 4 { // mix is a combination of states
			var list []report.Type
			want := map[report.State]bool{}
			for i, typ := range all {
				if s := states[i%len(states)]; mix&(1<<(i%len(states))) != 0 {
					list = append(list, report.Type{Name: typ, State: s, Since: ago(99999 * 24 * time.Hour), Reason: "no"})
					want[s] = true
				} else {
					list = append(list, report.Type{Name: typ, State: report.NotSent})
				}
			}
			if len(want) == 0 {
				want[report.NotSent] = true
			}
			for _, terminal := range []int{0, 5, 20, 41, 66, 120} { // columns
				v := view{out: &bytes.Buffer{}, now: now, flags: &askFlags{cfg: Config{Width: terminal}}}
				if err := v.statusTable([]report.Proxy{{Name: name, Types: list}}); err != nil {
					t.Fatal(err)
				}
				rows, _, _ := strings.Cut(v.out.(*bytes.Buffer).String(), "\n\n")
				for line := range strings.Lines(rows) {
					if strings.HasPrefix(line, "The terminal is too narrow") {
						continue
					}
					if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > v.flags.width() {
						t.Errorf("a line has %d characters on a terminal with %d: %s", n, terminal, line)
					}
				}
			}
			var out bytes.Buffer
			v := view{out: &out, now: now, flags: &askFlags{cfg: Config{Width: 1000}}}
			if err := v.statusTable([]report.Proxy{{Name: name, Types: list}}); err != nil || !strings.Contains(out.String(), name) {
				t.Errorf("%v: a wide terminal does not show the whole name:\n%s", err, &out)
			}
			out.Reset()
			v.flags = &askFlags{cfg: Config{Width: tableWidth}}
			if err := v.statusTable([]report.Proxy{{Name: name, Types: list}, {Name: "other", Types: list}}); err != nil {
				t.Fatal(err)
			}
			for line := range strings.Lines(out.String()) {
				if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > tableWidth {
					t.Errorf("a line has %d characters, want at most 80: %s", n, line)
				}
			}
			for s := range want {
				if n := strings.Count(out.String(), " "+string(s)+" "); n != 2 {
					t.Errorf("%s is shown %d times, want once for each proxy:\n%s", s, n, &out)
				}
			}
			if shortened := strings.Contains(out.String(), "-o wide"); shortened != (name != "a") {
				t.Errorf("the hint about -o wide is shown: %t:\n%s", shortened, &out)
			}
		}
	}
}

func TestProxyWithoutTypesHasRow(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if err := (view{out: &out, now: now, flags: &askFlags{}}).statusTable([]report.Proxy{{Name: "web.shop"}}); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), "web.shop   NOT SENT   -") {
		t.Errorf("the proxy has no row:\n%s", &out)
	}
}

// TestNarrowTerminal checks that all output fits very narrow terminals, and that a table says which
// columns are missing.
func TestNarrowTerminal(t *testing.T) {
	t.Parallel()
	long, success := strings.Repeat("name-", 30), 0.5
	object := virtualService()
	object.Resources = []report.Resource{{Type: "rds", Name: long}}
	proxies := []report.Proxy{{Name: long, Types: types(report.Type{Name: "lds", State: report.HeldBack, Since: ago(time.Hour)})}}
	for _, width := range []int{leastWidth, 33, 47, 59, 60} {
		var out bytes.Buffer
		writer, flags := &columns.Writer{Out: &out, Width: width}, askFlags{cfg: Config{Width: width}}
		(&topFlags{reachFlags: reachFlags{askFlags: flags}}).tables(writer, traffic{Workloads: []flow{{Destination: long, Requests: 1, Success: &success}}, Edges: []flow{{Source: long, Destination: long, Requests: 1}}}, 0)
		for _, several := range []bool{false, true} {
			tapping := &tap{out: writer, several: several, width: flags.width()}
			tapping.head()
			if err := tapping.row(proxy{name: long, namespace: "shop"}, tapped{Source: long, Method: "GET", Path: "/" + long, Status: 503, Flags: "UF,URX", Duration: 1e9, Sent: 1e9}); err != nil {
				t.Fatal(err)
			}
		}
		v := view{out: writer, now: now, flags: &flags}
		err := errors.Join(v.decision(requests()[1]), v.statusTable(proxies), v.resources(object), v.standings(object), v.outages(testOutages()[:1]), v.whatIf(change()), v.history(past()))
		if err != nil {
			t.Fatal(err)
		}
		fits(t, "all", out.String(), width)
		var page bytes.Buffer
		v.out = &page
		if err := v.statusTable(proxies); err != nil {
			t.Fatal(err)
		}
		for _, column := range []string{"STATE", "SINCE", "TYPES"} {
			if text := page.String(); !strings.Contains(text, column) {
				t.Errorf("on a terminal with %d columns, %s is missing without a word:\n%s", width, column, text)
			}
		}
	}
}
