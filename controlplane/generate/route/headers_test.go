// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package route

import (
	"strings"
	"testing"
)

func TestHeaderValue(t *testing.T) {
	t.Parallel()
	tests := map[string]string{
		"":                                "",
		"plain":                           "plain",
		"%PROTOCOL%":                      "%PROTOCOL%",
		"a %REQ(x-a?:path):12% b":         "a %REQ(x-a?:path):12% b",
		"already %% escaped":              "already %% escaped",
		"50%":                             "50%%",
		"t=%START_TIME(%s.%3f)%":          "t=%START_TIME(%s.%3f)%",
		"%START_TIME(%s)%.%":              "%%START_TIME(%%s)%%.%%",
		"%DYNAMIC_METADATA(a.b:c)%":       "%DYNAMIC_METADATA(a.b:c)%",
		"%DYNAMIC_METADATA()%":            "%%DYNAMIC_METADATA()%%",
		"50% of %PROTOCOL%":               "50%% of %%PROTOCOL%%",
		"%NO_SUCH_COMMAND%":               "%%NO_SUCH_COMMAND%%",
		"%REQ(%":                          "%%REQ(%%",
		"%DOWNSTREAM_PEER_URI_SAN% and %": "%%DOWNSTREAM_PEER_URI_SAN%% and %%",
	}
	for in, want := range tests {
		if got := headerValue(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

// FuzzHeaderValue checks that each % of the result is doubled, or starts or ends a known command.
func FuzzHeaderValue(f *testing.F) {
	for _, seed := range []string{"", "%", "%%", "%REQ(a)%", "x %PROTOCOL% y", "%REQ(a)", "%%%PROTOCOL%%%"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, in string) {
		rest := headerValue(in)
		for {
			i := strings.IndexByte(rest, '%')
			if i < 0 {
				return
			}
			command := headerCommand.FindString(rest[i:])
			if command == "" {
				t.Fatalf("%q became %q", in, headerValue(in))
			}
			rest = rest[i+len(command):]
		}
	})
}
