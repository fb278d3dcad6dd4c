// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package output

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/outrigger-mesh/outrigger/internal/columns"
)

// TestWrite reads back what is written: JSON and YAML have the same fields and values, on a narrow
// terminal, too, and no character that controls it.
func TestWrite(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"web", "a <b> & c", "\x1b[2J", "a\u202eb", "1", strings.Repeat("word ", 40), "- a: b\n  c"} {
		answer := map[string]any{"a_name": text, "list": []any{map[string]any{"Name": text}, 1.5, true}}
		for _, format := range []string{JSON, YAML} {
			var out strings.Builder
			if err := Write(&columns.Writer{Out: &out, Width: 20}, format, answer); err != nil {
				t.Fatal(err)
			}
			if strings.ContainsAny(out.String(), "\x1b\u202e") || strings.Contains(out.String(), `\u003c`) {
				t.Errorf("%s of %q: %q", format, text, out.String())
			}
			raw, err := []byte(out.String()), error(nil)
			if format == YAML {
				raw, err = yaml.YAMLToJSON(raw)
			}
			var back map[string]any
			if err != nil || json.Unmarshal(raw, &back) != nil || !cmp.Equal(back, answer) {
				t.Errorf("%s of %q: %v\n%s", format, text, cmp.Diff(answer, back), out.String())
			}
		}
	}
}

// TestClock checks that a time has as much of its date as tells it from now.
func TestClock(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 2, 1, 0, 0, 0, time.FixedZone("east", 3600))
	for at, want := range map[time.Time]string{
		now.Add(-time.Minute):                           "00:59:00",
		now.Add(-2 * time.Hour).UTC():                   "Mar 01 23:00:00",
		now.AddDate(-1, 0, 0):                           "2025-03-02 01:00:00",
		time.Date(2025, 12, 31, 23, 30, 0, 0, time.UTC): "Jan 01 00:30:00",
	} {
		if got := Clock(at, now); got != want {
			t.Errorf("Clock(%s) = %s, want %s", at, got, want)
		}
	}
}
