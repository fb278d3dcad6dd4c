// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package cni

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
)

const ownEntry = `{"type":"outrigger-cni","name":"istio-cni"}`

// TestInsertPlugin adds the plugin and removes it. Spaces do not count.
func TestInsertPlugin(t *testing.T) {
	t.Parallel()
	const own = ownEntry
	for name, c := range map[string]struct{ before, after, removed string }{
		"at the end":     {`{"name":"n","plugins":[{"type":"a"},{"type":"b"}]}`, `{"name":"n","plugins":[{"type":"a"},{"type":"b"},` + own + `]}`, ""},
		"one plugin":     {`{"cniVersion":"0.4.0","name":"n","type":"a","x":1}`, `{"cniVersion":"0.4.0","name":"n","plugins":[{"cniVersion":"0.4.0","name":"n","type":"a","x":1},` + own + `]}`, `{"cniVersion":"0.4.0","name":"n","plugins":[{"cniVersion":"0.4.0","name":"n","type":"a","x":1}]}`},
		"where it is":    {`{"name":"n","plugins":[{"type":"a"},{"type":"outrigger-cni","old":1},{"type":"b"}]}`, `{"name":"n","plugins":[{"type":"a"},` + own + `,{"type":"b"}]}`, `{"name":"n","plugins":[{"type":"a"},{"type":"b"}]}`},
		"twice":          {`{"name":"n","plugins":[{"type":"a"},` + own + `,` + own + `]}`, `{"name":"n","plugins":[{"type":"a"},` + own + `]}`, `{"name":"n","plugins":[{"type":"a"}]}`},
		"unchanged":      {`{"plugins":[{"type":"a"},` + own + `],"name":"n"}`, `{"plugins":[{"type":"a"},` + own + `],"name":"n"}`, `{"name":"n","plugins":[{"type":"a"}]}`},
		"values as text": {`{"disableCheck":true,"loadOnlyInlinedPlugins":false,"name":"n","plugins":[{"type":"a","u":"<\u00e9>","n":1.50,"big":123456789012345678901234567890,"null":null}]}`, `{"disableCheck":true,"loadOnlyInlinedPlugins":false,"name":"n","plugins":[{"type":"a","u":"<\u00e9>","n":1.50,"big":123456789012345678901234567890,"null":null},` + own + `]}`, ""},
	} {
		got, err := insertPlugin([]byte(c.before), json.RawMessage(own))
		if err != nil || compact(t, got) != c.after {
			t.Errorf("%s: %s, want %s (%v)", name, got, c.after, err)
		}
		if again, err := insertPlugin(got, json.RawMessage(own)); err != nil || !bytes.Equal(again, got) {
			t.Errorf("%s: inserted again: %s (%v)", name, again, err)
		}
		if c.removed == "" {
			c.removed = c.before
		}
		if without, err := removePlugin(got); err != nil || compact(t, without) != c.removed {
			t.Errorf("%s: removed: %s, want %s (%v)", name, without, c.removed, err)
		}
	}
	for text, problem := range map[string]string{
		``: "not an object", `[]`: "not an object", `{"plugins":[{"type":"a"}]}`: "no name", `{"name":"n"}`: "no type", `{"name":"n","plugins":{}}`: "plugins",
		`{"name":"n","plugins":[]}`: "no plugins", `{"name":"n","plugins":[{"type":"a"},{}]}`: "plugin 1 has no type",
	} {
		if _, err := insertPlugin([]byte(text), json.RawMessage(own)); err == nil || !strings.Contains(err.Error(), problem) {
			t.Errorf("%s: error %v, want %q", text, err, problem)
		}
	}
	if left, err := removePlugin([]byte(own)); left != nil || err != nil {
		t.Errorf("nothing is left of a configuration of its own: %s (%v)", left, err)
	}
}

func compact(t *testing.T, text []byte) string {
	t.Helper()
	var b bytes.Buffer
	if err := json.Compact(&b, text); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return b.String()
}

// FuzzInsertPlugin inserts the plugin into any text: the result is valid and has it once.
func FuzzInsertPlugin(f *testing.F) {
	f.Add([]byte(`{"name":"n","plugins":[{"type":"a"},{"type":"outrigger-cni"}]}`))
	f.Add([]byte(`{"cniVersion":"0.4.0","name":"n","type":"a"}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		got, err := insertPlugin(text, json.RawMessage(ownEntry))
		if err != nil {
			return
		}
		n, err := parseNetwork(got)
		if err != nil {
			t.Fatalf("%s: %v", got, err)
		}
		own := 0
		for _, p := range n.plugins {
			if isOwn(p) {
				own++
			}
		}
		if own != 1 || n.single {
			t.Errorf("%s has the plugin %d times", got, own)
		}
	})
}
