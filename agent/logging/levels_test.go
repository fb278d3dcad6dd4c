// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package logging

import (
	"bytes"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestLevels changes the levels of a log while loggers of it are in use.
func TestLevels(t *testing.T) {
	t.Parallel()
	f := parsedLogFlags(t, "--log_output_level=warn,ca:error")
	rules, _, err := f.rules()
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	log := slog.New(limitLog(newHandler(&out, rules, false)))
	ca, relay := log.With("component", "ca"), log.With("component", "xdsproxy").With("proxy", "a")
	lines := func() []string {
		out.Reset()
		for _, l := range []*slog.Logger{log, ca, relay} {
			l.Debug("d")
			l.Info("i")
			l.Warn("w")
			l.Error("e")
		}
		return textLines(t, out.String())
	}
	const rest = "error\tca\te~warn\txdsproxy\tw\tproxy=a~error\txdsproxy\te\tproxy=a"
	for _, tc := range []struct {
		method, query string
		code          int
		says          string
		lines         string // separated by ~; "" for those before
	}{
		{"GET", "", 200, "ca: error\ndefault: warn\n", "warn\tw~error\te~" + rest},
		{"POST", "", 200, "xdsproxy: warn\n", ""},
		{"GET", "?level=debug", 405, "only POST changes levels", ""},
		{"POST", "?xdsproxy=loud", 400, `xdsproxy is "loud": the level must be debug`, ""},
		{"POST", "?level=debug&nobody=info", 400, `no component "nobody"`, ""},
		{"POST", "?default=none", 200, "default: none\n", "error\tca\te"},
		{"POST", "?xdsproxy=debug", 200, "xdsproxy: debug\n", "error\tca\te~debug\txdsproxy\td\tproxy=a~info\txdsproxy\ti\tproxy=a~warn\txdsproxy\tw\tproxy=a~error\txdsproxy\te\tproxy=a"},
		{"POST", "?xdsproxy=warn&level=error", 200, "ca: error\n", "error\te~error\tca\te~warn\txdsproxy\tw\tproxy=a~error\txdsproxy\te\tproxy=a"},
		{"POST", "?citadelclient=none&default=none", 200, "ca: none\n", "warn\txdsproxy\tw\tproxy=a~error\txdsproxy\te\tproxy=a"},
		{"POST", "?reset", 200, "ca: error\ndefault: warn\n", "warn\tw~error\te~" + rest},
	} {
		before := lines()
		answer := httptest.NewRecorder()
		f.Levels().ServeHTTP(answer, httptest.NewRequest(tc.method, "/debug/logging"+tc.query, http.NoBody))
		if answer.Code != tc.code || !strings.Contains(answer.Body.String(), tc.says) {
			t.Errorf("%s %s: %d %s", tc.method, tc.query, answer.Code, answer.Body)
		}
		want := before
		if tc.lines != "" {
			want = strings.Split(tc.lines, "~")
		}
		if diff := cmp.Diff(want, lines()); diff != "" {
			t.Errorf("%s %s: %s", tc.method, tc.query, diff)
		}
	}
	for _, name := range components() {
		if component, ok := componentOf(name); !ok || component != name {
			t.Errorf("the component %s of the list is unknown to flags", name)
		}
	}
}
