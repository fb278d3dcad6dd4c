// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package mesh

import "testing"

func TestConfigProblem(t *testing.T) {
	t.Parallel()
	u := &Mesh{cfg: Config{WorkDir: "/home/me/shop"}}
	const about = ` component=config kind=VirtualService name=catalog namespace=default source=/home/me/shop/config/catalog.yaml:26 reason="unknown field \"wieght\" in spec: did you mean \"weight\"?"`
	for name, tc := range map[string]struct {
		line  string
		level level
		want  string
	}{
		"a problem": {
			"time=2026-01-01T00:00:00Z level=WARN msg=\"a configuration object has a problem\"" + about, levelWarning,
			`config/catalog.yaml:26: VirtualService default/catalog: unknown field "wieght" in spec: did you mean "weight"?`,
		},
		"it is gone": {
			"time=2026-01-01T00:00:00Z level=INFO msg=\"a problem of a configuration object is gone\"" + about, levelInfo,
			`config/catalog.yaml:26: VirtualService default/catalog: fixed: unknown field "wieght" in spec: did you mean "weight"?`,
		},
		"of a file elsewhere": {
			`level=WARN msg="a configuration object has a problem" kind="" name="" namespace="" source=/etc/x.yaml:1 reason="no YAML"`, levelWarning,
			"/etc/x.yaml:1: no YAML",
		},
		"something else": {line: `time=2026-01-01T00:00:00Z level=INFO msg="proxy connected" proxy=a`},
		"no log line":    {line: "panic: a = b"},
		"broken quotes":  {line: `msg="a configuration object`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, got, ok := u.configProblem(tc.line)
			if got != tc.want || l != tc.level || ok != (tc.want != "") {
				t.Errorf("got %d, %q, %t; want %d, %q", l, got, ok, tc.level, tc.want)
			}
		})
	}
}
