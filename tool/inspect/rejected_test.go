// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import "testing"

// TestWordsOf checks who is named for the words of a rejection.
func TestWordsOf(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ typ, reason, want string }{
		{"lds", "code 13: error adding listener:\n\tcannot bind", "Envoy says: error adding listener:  cannot bind"},
		{"ecds", "code 0: fetch the module: 404 (requests pass)", "The agent says: fetch the module: 404 (requests pass)"},
		{"ecds", "code 13: unable to unpack", "Envoy says: unable to unpack"},
		{"lds", "code 13: refused by the agent: the Wasm file /etc/passwd", "The agent says: the Wasm file /etc/passwd"},
		{"nds", "code 13: no table", "The agent says: no table"},
		{"rds", "of an older control plane", "Envoy says: of an older control plane"},
	} {
		if got := whoSays(tc.typ, tc.reason); got != tc.want {
			t.Errorf("%s: got %q, want %q", tc.typ, got, tc.want)
		}
	}
}
