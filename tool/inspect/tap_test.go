// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"unicode/utf8"
)

func TestTap(t *testing.T) {
	t.Parallel()
	const received = `{"method":"GET","path":"/items/1","authority":"cart","upstream_cluster":"inbound|8080||","downstream_peer_uri_san":"spiffe://cluster.local/ns/shop/sa/web",` +
		`"start_time":"2026-01-02T03:04:05.006Z","response_code":503,"response_flags":"UF,URX","duration":1234.5,"bytes_received":1,"bytes_sent":2048}` + "\n"
	const sent = `{"method":"POST","path":"/` + "\x7f" + `a-path-that-is-much-longer-than-its-column` + "\u009b2J\u202e" + `","authority":"pay","upstream_cluster":"outbound|80|v1|pay.shop.svc.cluster.local",` +
		`"downstream_peer_uri_san":null,"response_code":200,"response_flags":"-","sent":true}` + "\n"
	var query atomic.Value
	agentOf := func(trailer, text string) string {
		agent := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			query.Store(r.URL.Path + "?" + r.URL.RawQuery)
			w.Header().Set("Trailer", trailerDropped)
			_, _ = io.WriteString(w, text)
			if trailer != "" {
				w.Header().Set(trailerDropped, trailer)
			}
		}))
		t.Cleanup(agent.Close)
		return strings.TrimPrefix(agent.URL, "http://")
	}
	good := agentOf("7", received+`{"dropped":3}`+"\n"+sent)
	out, errs, code := run(t, "tap", "--agent", good, "--for", "5s", "--sample", "9", "--max-rate", "8", "--method", "GET", "--path", "/i", "--status", "5xx", "--source", "web", "--direction", "inbound")
	if want := "/debug/requests?direction=inbound&for=5s&method=GET&path=%2Fi&rate=8&sample=9&source=web&status=5xx"; query.Load() != want {
		t.Errorf("request to the agent: got %s, want %s", query.Load(), want)
	}
	wantAll(t, "the table", out, []string{"TIME ", ":04:05 in  shop/web ", "GET /items/1 ", "503 UF,URX", "1.2s  2.0k\n", "out pay.", "local:80 POST /"}, code)
	wantAll(t, "the notes", errs, []string{"tapping " + good, "dropped: 3 requests of " + good, "dropped: 7 requests", "2 requests, 7 dropped\n"}, code)
	several, _, code := run(t, "tap", "--agent", good, "--agent", good+".", "--for", "5s")
	wantAll(t, "the table of several", several, []string{"PROXY"}, code-1) // the second has no address
	for line := range strings.Lines(out + several) {
		if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > tableWidth || strings.Contains(line, "\x7f") {
			t.Errorf("a line has %d characters or a control character: %q", n, line)
		}
	}
	if wide, _, _ := run(t, "tap", "--agent", good, "--for", "5s", "-o", "wide"); !strings.Contains(wide, "spiffe://cluster.local/ns/shop/sa/web") || !strings.Contains(wide, "longer-than-its-column") {
		t.Errorf("-o wide: got\n%s", wide)
	}
	out, _, code = run(t, "tap", "--agent", good, "--for", "5s", "-o", "json")
	if strings.ContainsAny(out, "\x7f\u009b\u202e") || !strings.Contains(out, `\u009b2J\u202e`) {
		t.Errorf("the output contains control characters: %q", out)
	}
	decoder, all := json.NewDecoder(strings.NewReader(out)), []tapped{}
	for decoder.More() {
		var one tapped
		if err := decoder.Decode(&one); err != nil {
			t.Fatal(err)
		}
		all = append(all, one)
	}
	if len(all) != 2 || code != 0 || all[0].Source != "spiffe://cluster.local/ns/shop/sa/web" || all[0].Status != 503 || all[0].Duration != 1234.5 || all[0].Sent != 2048 || all[0].Received != 1 ||
		all[1].Direction != "outbound" || all[1].Destination != "pay.shop.svc.cluster.local:80" || all[1].Source != "" {
		t.Errorf("JSON: got exit code %d:\n%s", code, out)
	}
	for want, args := range map[string][]string{
		"Write outrigger tap PROXY":    nil,
		"as in outrigger tap catalog":  {"a", "b"},
		", or --agent HOST:PORT":       {"a", "--agent", good},
		"at most 10m0s":                {"--agent", good, "--for", "11m"},
		"wide, yaml or json":           {"--agent", good, "-o", "xml"},
		"it ended the recording early": {"--agent", agentOf("", received)},
		"read a request":               {"--agent", agentOf("0", "hello\n")},
		"too long":                     {"--agent", agentOf("0", strings.Repeat("x", 2*maxRecord))},
		"through kubectl port-forward": {"--agent", listenNowhere(t)},
		"proxy " + good + ".: ":        {"--agent", good, "--agent", good + "."},
		"name one with --control":      {"cart"},
	} {
		if out, errs, code := run(t, append([]string{"tap"}, args...)...); code == 0 || !strings.Contains(errs, want) {
			t.Errorf("%q: got exit code %d, want an error with %q:\n%s%s", args, code, want, out, errs)
		}
	}
}

func wantAll(t *testing.T, what, text string, want []string, code int) {
	t.Helper()
	for _, w := range want {
		if !strings.Contains(text, w) || code != 0 {
			t.Errorf("%s: got exit code %d, want 0 with %q:\n%s", what, code, w, text)
		}
	}
}
