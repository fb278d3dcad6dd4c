// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package otel

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
)

const logsSettings = `
extensionProviders:
- {name: text, envoyOtelAls: {service: collector.observe.svc.cluster.local, port: 4317, logName: errors, logFormat: {text: "%REQ(:path)% %RESPONSE_CODE%"}}}
- {name: labels, envoyOtelAls: {service: collector.observe.svc.cluster.local, port: 4317, logFormat: {labels: {path: "%REQ(:path)%", code: "%RESPONSE_CODE%", more: {agent: "%REQ(user-agent)%"}}}}}
`

// TestEnvoyLogs has an Envoy send logs of both formats: one with a filter, one of all requests. Make
// test-envoys runs it, since Envoy before 1.37 is configured with other fields.
func TestEnvoyLogs(t *testing.T) {
	t.Parallel()
	c := newCollector(t)
	c.run(t)
	m := meshOf(t, mesh{"127.77.95", []string{"logs"}}, c, logsSettings,
		telemetryOf("logs", `accessLogging: [{providers: [{name: text}], filter: {expression: response.code >= 400}}, {providers: [{name: labels}]}]`))
	nth := func(i int) (path, code string) {
		if i%2 == 1 {
			return fmt.Sprintf("/missing?logs-%d", i), "404"
		}
		return fmt.Sprintf("/?logs-%d", i), "200"
	}
	for i := range eachRequests {
		path, want := nth(i)
		if code := fmt.Sprint(m.get(t, "logs", path)); code != want {
			t.Errorf("%s: %s, want %s", path, code, want)
		}
	}
	named := func(name string) func(record) bool {
		return func(r record) bool { return r.resource["log_name"] == name }
	}
	all := await(t, eachRequests, c.records, named("otel_envoy_accesslog"))
	failed := await(t, eachRequests/2, c.records, named("errors"))
	if len(all) != eachRequests || len(failed) != eachRequests/2 {
		t.Errorf("%d records and %d of errors, want %d and %d", len(all), len(failed), eachRequests, eachRequests/2)
	}
	for i := range eachRequests {
		path, code := nth(i)
		if code == "404" && !slices.ContainsFunc(failed, func(r record) bool { return r.body == path+" 404" && len(r.attributes) == 0 }) {
			t.Errorf("no record of the error %s: %+v", path, failed)
		}
		want := map[string]any{"path": path, "code": code, "more": map[string]any{"agent": "Go-http-client/1.1"}}
		if !slices.ContainsFunc(all, func(r record) bool {
			return reflect.DeepEqual(r.attributes, want) && strings.Contains(r.body, `"GET `+path+` HTTP/1.1" `+code+" ") && !strings.HasSuffix(r.body, "\n")
		}) {
			t.Errorf("no record of %s: %+v", path, all)
		}
	}
}
