// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"strings"
	"testing"
)

// TestComplete completes proxies, objects and namespaces like a shell does.
func TestComplete(t *testing.T) {
	t.Parallel()
	c := startControl(t, "istiod-0")
	c.proxy(t, "web-1", "")
	c.proxy(t, "web-2", "")
	for line, want := range map[string]string{
		"status |":                          "web-1.shop web-2.shop",
		"proxy clusters web-2|":             "web-2.shop",
		"top web-1.shop |":                  "",
		"tap we|":                           "web-1.shop web-2.shop",
		"explain web|":                      "web-1.shop web-2.shop",
		"explain workloadg|":                "workloadgroup/",
		"explain se/|":                      "se/web.shop",
		"explain IST014|":                   "IST0144 IST0145 IST0146 IST0147 IST0149",
		"history serviceentry |":            "web",
		"history se/w|":                     "se/web.shop",
		"history me|":                       "mesh",
		"explain nothing/|":                 "",
		"top -n |":                          "shop",
		"status -o |":                       "json table wide yaml",
		"proxy bootstrap web -o j|":         "json",
		"analyze --code OUT000|":            "OUT0001 OUT0002 OUT0003 OUT0004 OUT0005 OUT0006 OUT0007 OUT0008 OUT0009",
		"analyze --code IST0101,IST012|":    "IST0101,IST0122 IST0101,IST0123 IST0101,IST0125 IST0101,IST0127 IST0101,IST0128 IST0101,IST0129",
		"proxy log --level |":               "critical debug error info off trace warning",
		"proxy log --agent --level warn,n|": "warn,none",
		"proxy endpoints --status u|":       "unhealthy",
		"proxy listeners --type t|":         "tcp",
		"explain request --from |":          "web-1.shop web-2.shop",
		"explain request --to x|":           "",
		"explain vs/a vs/b |":               "",
		"proxy listeners -n s|":             "shop",
		"proxy clusters web-1 --fqdn w|":    "web.shop.svc.cluster.local",
		"proxy clusters web-1 --port 8|":    "80",
		"proxy all nobody --fqdn |":         "",
		"proxy log web-1 --level rbac=d|":   "rbac=debug",
		"history destinationrule/|":         "destinationrule/a.b.default",
	} {
		text, _ := strings.CutSuffix(line, "|")
		words := strings.Split(text, " ")
		last := words[len(words)-1]
		args := append([]string{"__complete"}, words[:len(words)-1]...)
		if flag := words[max(len(words)-2, 0)]; strings.HasPrefix(flag, "-") {
			args = append(args[:len(args)-1], "--control", c.http, flag, last)
		} else {
			args = append(args, "--control", c.http, last)
		}
		out, _, code := run(t, args...)
		var got []string
		for line := range strings.Lines(out) {
			if line = strings.TrimSuffix(line, "\n"); !strings.HasPrefix(line, ":") {
				got = append(got, line)
			}
		}
		if code != 0 || strings.Join(got, " ") != want {
			t.Errorf("%s: code %d, %q, want %q", line, code, got, want)
		}
	}
	if out, _, _ := run(t, "__complete", "status", "--control", listenNowhere(t), ""); !strings.HasPrefix(out, ":") {
		t.Errorf("without a control plane: %q, want nothing", out)
	}
}
