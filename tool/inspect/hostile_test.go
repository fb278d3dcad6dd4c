// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"bytes"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/outrigger-mesh/outrigger/controlplane/report"
)

// TestProxyTextIsEscaped checks texts that a proxy reports about itself, such as its version and
// cluster. They must not move the terminal's cursor, start a line that looks like that of another
// proxy, or reverse the direction of text.
func TestProxyTextIsEscaped(t *testing.T) {
	t.Parallel()
	const evil = "x\x1b[2J\u009b31m\r\nadmin.kube-system\tSYNCED\u202e\x7f"
	p := report.Proxy{
		Name: evil, Namespace: evil, Cluster: evil, Role: evil, Addresses: []string{evil}, Identity: evil, Envoy: evil, Agent: evil, Replica: evil,
		Types: []report.Type{{Name: "cds", State: report.Rejected, Reason: evil}, {Name: "lds", State: evil}},
		Held:  []report.Held{{Type: evil, Name: evil, By: evil, Reason: evil}},
	}
	var out bytes.Buffer
	v := view{out: &out, now: time.Now(), flags: &askFlags{}}
	for _, show := range []func() error{
		func() error {
			return v.table([]answer[report.Replica]{{address: "a:1", value: report.Replica{Name: evil, Version: evil, Proxies: []report.Proxy{p}}}})
		},
		func() error { return v.proxy(p) },
		func() error {
			return v.decided(report.Decided{Proxy: p, Objects: []report.Part{{Ref: report.Ref{Kind: evil, Name: evil}, Resources: map[string]int{evil: 1}, Role: evil}}})
		},
		func() error {
			return v.object(report.Object{
				Found: true, InForce: true, Ref: report.Ref{Kind: evil, Name: evil}, Replica: evil, Others: 1, Resources: []report.Resource{{Type: evil, Name: evil}},
				Proxies:  []report.Standing{{Proxy: evil, State: report.Rejected, What: evil, By: evil, Reason: evil}},
				Problems: []report.Problem{{Reason: evil, Source: evil}},
			})
		},
		func() error {
			v.say("%v\n", pick([]answer[report.Replica]{{value: report.Replica{Proxies: []report.Proxy{p}}}}, "y").Error())
			return nil
		},
	} {
		if err := show(); err != nil {
			t.Fatal(err)
		}
	}
	for line := range strings.Lines(out.String()) {
		if strings.HasPrefix(line, "admin.") {
			t.Errorf("a text of the proxy starts a line: %q", line)
		}
		for _, r := range strings.TrimSuffix(line, "\n") {
			if unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) {
				t.Fatalf("the output contains %U in %q", r, line)
			}
		}
	}
}
