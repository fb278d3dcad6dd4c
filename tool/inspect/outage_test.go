// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// testOutages are the answers of an agent that lost its control plane, of one that never had one,
// and of one that is connected.
func testOutages() []outage {
	const fails = "new connections fail"
	return []outage{
		{Agent: "127.0.0.1:15020", Now: now, Since: ago(7 * time.Minute), Parts: []lasting{
			{What: "identity", Until: now.Add(11*time.Hour + 52*time.Minute + 59*time.Second), Then: fails},
			{What: "revocations", Until: now.Add(time.Minute), Then: "covered peers are refused"},
			{What: "configuration", Then: "changes are missing"},
			{What: "last good", Until: now.Add(72 * time.Hour), Then: "a new Envoy stays empty"},
			{What: "token keys", Then: "new keys are missing"},
			{What: "names", Missing: true, Then: "changes are missing"},
		}},
		{Agent: "10.0.0.8:15020", Error: "connection refused"},
		{Agent: "10.0.0.9:15020", Now: now, Parts: []lasting{{What: "identity", Until: ago(time.Second), Then: "\x1b[31mred\n"}}},
		{Agent: "10.0.0.10:15020", Now: now, Since: ago(time.Hour), Connected: true, Parts: []lasting{{What: "identity", Until: now.Add(59 * time.Second), Then: fails}}},
	}
}

func TestOutage(t *testing.T) {
	t.Parallel()
	agent := func(code int, body string) string {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/debug/outage" {
				code = http.StatusTeapot
			}
			w.WriteHeader(code)
			_, _ = w.Write([]byte(body)) // the test sees what is missing
		}))
		t.Cleanup(s.Close)
		return strings.TrimPrefix(s.URL, "http://")
	}
	doc, err := json.Marshal(testOutages()[0])
	if err != nil {
		t.Fatal(err)
	}
	good, old, other, text, nowhere := agent(200, string(doc)), agent(404, "404"), agent(200, "{}"), agent(200, "hello"), listenNowhere(t)
	// The control plane is not asked.
	out, errs, code := run(t, "status", "--agent", good, "--control", nowhere)
	if code != 0 || errs != "" || !strings.Contains(out, "identity        11h52m     2026-05-01T14:52:59Z   new connections fail\n") || !strings.Contains(out, good+" lost its control plane 7m ago.") {
		t.Errorf("%d %s\n%s", code, errs, out)
	}
	out, errs, code = run(t, "status", "--agent", good+","+nowhere, "-o", "json")
	var list []outage
	if err := json.Unmarshal([]byte(out), &list); err != nil || len(list) != 2 || list[0].Agent != good || len(list[0].Parts) != 6 || list[1].Error == "" || code != 1 || !strings.Contains(errs, "kubectl port-forward") {
		t.Errorf("%d %s %v\n%s", code, errs, err, out)
	}
	for address, want := range map[string]string{old: "its version is too old", other: "names nothing that lasts", text: "read the response", nowhere: "refused"} {
		if out, errs, code := run(t, "status", "--agent", address); code != 1 || out != "" || !strings.Contains(errs, want) {
			t.Errorf("%d %s %s, want %q", code, out, errs, want)
		}
	}
	if _, errs, code := run(t, "status", "web", "--agent", good); code != 2 || !strings.Contains(errs, "leave out PROXY") {
		t.Errorf("with a proxy: %d %s", code, errs)
	}
}
