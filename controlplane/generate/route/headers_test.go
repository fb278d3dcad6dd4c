// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package route

import (
	"strings"
	"testing"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/expression"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

func TestHeaderValue(t *testing.T) {
	t.Parallel()
	tests := map[string]string{
		"":                                    "",
		"plain":                               "plain",
		"%PROTOCOL%":                          "%PROTOCOL%",
		"a %REQ(x-a?:path):12% b":             "a %REQ(x-a?:path):12% b",
		"already %% escaped":                  "already %% escaped",
		"50%":                                 "50%%",
		"t=%START_TIME(%s.%3f)%":              "t=%START_TIME(%s.%3f)%",
		"%STREAM_ID%%UPSTREAM_METADATA(a:b)%": "%STREAM_ID%%UPSTREAM_METADATA(a:b)%",
		"%START_TIME(%s)%.%":                  "%%START_TIME(%%s)%%.%%",
		"%DYNAMIC_METADATA(a.b:c)%":           "%DYNAMIC_METADATA(a.b:c)%",
		"%DYNAMIC_METADATA()%":                "%%DYNAMIC_METADATA()%%",
		"50% of %PROTOCOL%":                   "50%% of %%PROTOCOL%%",
		"%NO_SUCH_COMMAND%":                   "%%NO_SUCH_COMMAND%%",
		"%REQ(%":                              "%%REQ(%%",
		"%DOWNSTREAM_PEER_URI_SAN% and %":     "%%DOWNSTREAM_PEER_URI_SAN%% and %%",
	}
	for in, want := range tests {
		if got, _, _ := headerValue(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

// TestTooNew leaves out a header with a command that the proxy's Envoy lacks.
func TestTooNew(t *testing.T) {
	t.Parallel()
	in := &networkingv1alpha3.Headers_HeaderOperations{Set: map[string]string{"x-old": "%STREAM_ID%", "x-span": "%SPAN_ID%"}}
	for version, want := range map[string]int{"1.36.2": 1, "1.38.3": 2, "": 2} {
		b := &Builder{Proxy: &model.Proxy{Envoy: version}}
		out := b.headerOperations(in)
		if len(out.add) != want || len(b.tooNew) != 2-want {
			t.Errorf("Envoy %q: headers %v, problems %q", version, out.add, b.tooNew)
		}
		for _, problem := range b.tooNew {
			if !strings.Contains(problem, "x-span") || !strings.Contains(problem, "1.38") || !strings.Contains(problem, "%SPAN_ID%") {
				t.Errorf("problem %q", problem)
			}
		}
	}
}

// FuzzHeaderValue checks that Envoy reads each result.
func FuzzHeaderValue(f *testing.F) {
	for _, seed := range []string{"", "%", "%%", "%REQ(a)%", "x %PROTOCOL% y", "%REQ(a)", "%%%PROTOCOL%%%"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, in string) {
		out, _, _ := headerValue(in)
		if _, _, err := expression.Header(out); err != nil {
			t.Fatalf("%q became %q: %v", in, out, err)
		}
	})
}
