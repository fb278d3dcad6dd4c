// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/controlplane/report"
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
		}, Credentials: []lasting{
			{What: "revocations shop-tls-cacert", Until: ago(time.Minute), Then: "covered peers are refused", By: "the owner of Secret shop/shop-tls-cacert or shop/shop-tls"},
			{What: "certificate /etc/certs/tls.crt", Until: now.Add(time.Hour), Then: "peers refuse it", By: "the program that writes /etc/certs/tls.crt and /etc/certs/tls.key"},
			{What: "other credentials", Until: now.Add(72 * time.Hour), Then: "the first of 4 ends"},
		}},
		{Agent: "10.0.0.8:15020", Error: "connection refused"},
		{
			Agent: "10.0.0.9:15020", Now: now, Parts: []lasting{{What: "identity", Until: ago(time.Second), Then: "\x1b[31mred\n"}},
			Credentials: []lasting{{What: "credentials", Missing: true, Unknown: true, Then: "envoy does not answer"}},
		},
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
	// The control plane is not asked. One of the credentials has expired.
	out, errs, code := run(t, "status", "--agent", good, "--control", nowhere)
	if code != 1 || errs != "" || !strings.Contains(out, "identity        11h52m     2026-05-01T14:52:59Z   new connections fail\n") || !strings.Contains(out, good+" lost its control plane 7m ago.") {
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

// TestCertificateOfProxy checks that the details of a proxy have the expiry of its certificate, and that
// scripts see an expired one.
func TestCertificateOfProxy(t *testing.T) {
	t.Parallel()
	const host = "127.77.51.88"
	l, err := net.Listen("tcp", net.JoinHostPort(host, agentPort))
	if err != nil {
		t.Fatal(err)
	}
	until := now.Add(time.Hour)
	agent := &httptest.Server{Listener: l, Config: &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(outage{Now: now, Parts: []lasting{{What: identity, Until: until}}}) // the test sees what is missing
	})}}
	agent.Start()
	t.Cleanup(agent.Close)
	control := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		synced := []report.Type{{Name: "cds", State: report.Synced}, {Name: "lds", State: report.Synced}}
		_ = json.NewEncoder(w).Encode(report.Replica{Proxies: []report.Proxy{{Name: "web.shop", Namespace: "shop", Addresses: []string{host}, Types: synced}}}) // see above
	}))
	t.Cleanup(control.Close)
	for _, want := range []struct {
		until time.Time
		code  int
		text  string
	}{{now.Add(time.Hour), 0, "1h0m left, until "}, {now, 1, "expired at "}} {
		until = want.until
		out, errs, code := run(t, "status", "web", "--control", control.URL)
		if code != want.code || !strings.Contains(out, want.text) {
			t.Errorf("%d %s\n%s", code, errs, out)
		}
		if out, _, code = run(t, "status", "web", "--control", control.URL, "-o", "json"); code != want.code || !strings.Contains(out, `"what": "identity"`) {
			t.Errorf("%d %s", code, out)
		}
		if out, errs, code = run(t, "status", "--agent", net.JoinHostPort(host, agentPort)); code != want.code {
			t.Errorf("%d %s\n%s", code, errs, out)
		}
	}
}

// testEnds are the answers of a control plane of which some credentials end soon.
func testEnds() []answer[report.Replica] {
	return []answer[report.Replica]{{address: "127.0.0.1:15014", value: report.Replica{Name: "istiod-0", Pushed: ago(time.Minute), Credentials: []report.Credential{
		{What: "certificate of the xDS port", Until: now.Add(-time.Minute), Soon: true, Then: "agents do not connect again", By: "the program that writes /etc/tls.crt"},
		{What: "CA certificate", Until: now.Add(12 * 24 * time.Hour), Soon: true, Then: "no certificate is signed, and those of workloads have ended", By: "the owner of the files in ./etc/cacerts"},
		{What: "certificate of the webhook port", Until: now.Add(90 * 24 * time.Hour), Then: "the API server refuses the answers about injection and validation"},
	}}}}
}

// TestEndedCredential checks what is printed of credentials of a control plane, and that one that has ended
// is a failure, one that ends soon is not.
func TestEndedCredential(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"status-ends", "status-ends-wide"} {
		checkPrinted(t, name, func(v view) error { return v.table(testEnds()) })
	}
	answers := testEnds()
	list := answers[0].value.Credentials
	for i, c := range list {
		list[i].Until = c.Until.Add(time.Since(now))
	}
	if allWell(answers) {
		t.Error("with an ended certificate all is well")
	}
	answers[0].value.Credentials = list[1:]
	if !allWell(answers) {
		t.Error("with a certificate that ends in 12 days not all is well")
	}
}
