// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package exposition

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
)

// TestBlocks checks that the output does not depend on whether a source is read in blocks or byte
// by byte, and that invalid samples are not copied.
func TestBlocks(t *testing.T) {
	t.Parallel()
	var many strings.Builder
	for i := range 5000 { // several buffers, with lines across their boundaries
		if i%700 == 0 {
			fmt.Fprintf(&many, "# HELP f%d One # two.\n# TYPE f%[1]d gauge\n", i)
		}
		fmt.Fprintf(&many, "f%d{path=\"/#%d\",n=\"%s\"} %d\n", i/700*700, i, strings.Repeat("x", i%90), i)
	}
	for name, c := range map[string]struct{ contentType, accept, in, want string }{
		"nothing":            {"", acceptText, "", ""},
		"one line":           {"", acceptText, "a 1", "a 1\n"},
		"many":               {"", acceptText, many.String(), many.String()},
		"hash in a label":    {"", acceptText, "a{b=\"#\"} 1\na{b=\" # \"} 2\n", "a{b=\"#\"} 1\na{b=\" # \"} 2\n"},
		"comments only":      {"", acceptText, "# one\n#two\n", ""},
		"comment at the end": {"", acceptText, "a 1\n# TYPE b gauge", "a 1\n# TYPE b gauge\n"},
		"other ends":         {"", acceptText, "# TYPE a gauge\r\na 1\r\na{b=\"c\"} 2\r\n", "# TYPE a gauge\na 1\na{b=\"c\"} 2\n"},
		"empty lines":        {"", acceptText, "\n\n# TYPE a gauge\na 1\n\n\n# TYPE b gauge\nb 1\n\n", "# TYPE a gauge\na 1\n# TYPE b gauge\nb 1\n"},
		"empty lines, OpenMetrics": {
			"application/openmetrics-text", acceptOM, "\n# TYPE a gauge\na 1\n\na{b=\"c\"} 2\n\n# EOF\n", "# TYPE a gauge\na 1\na{b=\"c\"} 2\n# EOF\n",
		},
		"exemplars": {
			"application/openmetrics-text", acceptOM, "# TYPE a counter\na_total 1 # {id=\"#\"} 1\na_total{b=\"c\"} 1 # {} 2\n# EOF\nafter 1\n",
			"# TYPE a counter\na_total 1 # {id=\"#\"} 1\na_total{b=\"c\"} 1 # {} 2\n# EOF\n",
		},
	} {
		for reader, read := range map[string]func(io.Reader) io.Reader{
			"whole": func(r io.Reader) io.Reader { return r }, "by bytes": iotest.OneByteReader, "halves": iotest.HalfReader, "with its end": iotest.DataErrReader,
		} {
			var out bytes.Buffer
			m := NewMerger(&out, Negotiate(http.Header{"Accept": {c.accept}}))
			if err := m.Copy(read(strings.NewReader(c.in)), c.contentType); err != nil {
				t.Errorf("%s, %s: Copy() = %v", name, reader, err)
			}
			if err := m.Close(); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, out.String()); diff != "" {
				t.Errorf("%s, %s (-want +got):\n%s", name, reader, diff)
			}
		}
	}
}
