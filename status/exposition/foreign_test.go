// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package exposition

import (
	"bytes"
	"net/http"
	"strings"
	"testing"
)

// TestForeignText checks that a source whose response does not contain metrics, whatever its
// content type, does not affect other sources.
func TestForeignText(t *testing.T) {
	t.Parallel()
	for _, accept := range []string{acceptText, acceptOM} {
		for _, page := range []string{
			"Hello, world!\n", "OK", "<html>\n<body>1</body>\n</html>\n", `{"status": "up"}` + "\n", "[1, 2]\n", "404 page not found\n", "metrics are off\n", "\x00\x01 1\n", "a{b=\"c\" 1\n",
			strings.Repeat("good 1\n", 3) + "An error has occurred while serving metrics:\n", "good 1\ncollected metric \"a\" was collected before\n",
		} {
			var out bytes.Buffer
			m := NewMerger(&out, Negotiate(http.Header{"Accept": {accept}}))
			contentType := accept
			if err := m.Copy(strings.NewReader(page), contentType); err == nil {
				t.Errorf("%s: %q is copied as %q", accept, page, out.String())
			}
			if err := m.Copy(strings.NewReader("after 1\n"), contentType); err != nil {
				t.Errorf("%s: a source after %q: Copy() = %v", accept, page, err)
			}
			if err := m.Close(); err != nil {
				t.Error(err)
			}
			if want := "after 1\n"; strings.ReplaceAll(strings.TrimSuffix(out.String(), "# EOF\n"), "good 1\n", "") != want {
				t.Errorf("%s: output with %q: got %q", accept, page, out.String())
			}
		}
	}
}

// TestValid checks that lines which parsers accept are kept.
func TestValid(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]bool{
		"a 1": true, "a:b_C9{} 1": true, `a{b="c d # {",e="\"}"} 1 1700000000000`: true, "a\t1": true, "  a 1": true, "a NaN": true, "a +Inf": true, "a -1e-300": true, "a 1e999": true,
		`{"a.b"} 1`: true, `{"a.b",c="d"} 1`: true, `a_total 1 # {id="7"} 1 1.5`: true, "a 1 1.5": true, "  # a comment": true, `a{b="c"}1`: true,
		"": false, "a": false, "1 2": false, "a b": false, "a 1 b": false, "a 1 2 3": false, "a-b 1": false, "{} 1": false, "ä 1": false, "a{ 1": false, "a 1,5": false,
	} {
		if got := valid([]byte(line)); got != want {
			t.Errorf("valid(%q) = %t, want %t", line, got, want)
		}
	}
}
