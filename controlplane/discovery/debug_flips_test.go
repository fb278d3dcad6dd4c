// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/controlplane/discovery/debug"
	"github.com/outrigger-mesh/outrigger/controlplane/discovery/debug/debugtest"
	"github.com/outrigger-mesh/outrigger/controlplane/generate"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/report"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
)

// TestDebugWhatIfFlips checks which requests a change denies, allows and routes otherwise.
func TestDebugWhatIfFlips(t *testing.T) {
	t.Parallel()
	h := startDebug(t, true)
	objects := slices.Concat(guardedCart(), debugtest.Shop()[:6])
	objects = slices.DeleteFunc(objects, func(c *model.Config) bool {
		return c.Kind == model.AuthorizationPolicy || c.Kind == model.RequestAuthentication
	})
	h.server.Debug(debug.Config{
		Objects: objects, FlipTime: time.Hour, Preview: func() debug.Generator { return generate.New(generate.Config{}) },
		Propose: func(prev *snapshot.Mesh, p debug.Proposal) *snapshot.Mesh {
			next := slices.DeleteFunc(slices.Clone(objects), func(c *model.Config) bool { _, ok := p.Objects[c.Key]; return ok })
			for _, c := range p.Objects {
				if c != nil {
					next = append(next, c)
				}
			}
			return next.Mesh(prev)
		},
	})
	h.server.Push(objects.Mesh(nil), model.Change{All: true})
	h.join(t, "cart-1", "default")
	policy := func(spec string) string {
		return `{"apiVersion": "security.istio.io/v1", "kind": "AuthorizationPolicy", "metadata": {"name": "a"}, "spec": ` + spec + `}`
	}
	route := func(spec string) string {
		return `{"apiVersion": "networking.istio.io/v1", "kind": "VirtualService", "metadata": {"name": "web"}, "spec": {"hosts": ["web"], "http": ` + spec + `}}`
	}
	const both, web = " from none+spiffe://cluster.local/ns/default/sa/", "outbound|80||web.default.svc.cluster.local"
	for name, c := range map[string]struct {
		object string
		want   []string
	}{
		"deny all": {policy(`{"action": "DENY", "rules": [{}]}`), []string{
			"!GET cart.default.svc.cluster.local:8080/ allowed > denied rule a[0]" + both, "! cart.default.svc.cluster.local:9090 allowed > denied rule a[0]" + both,
		}},
		"allow nothing": {policy(`{}`), []string{
			"!GET cart.default.svc.cluster.local:8080/ allowed > denied no-rule" + both, "! cart.default.svc.cluster.local:9090 allowed > denied no-rule" + both,
		}},
		"one path": {policy(`{"action": "DENY", "rules": [{"to": [{"operation": {"paths": ["/admin*"], "methods": ["POST"], "ports": ["8080"]}}]}]}`), []string{
			"!POST cart.default.svc.cluster.local:8080/admin allowed > denied rule a[0]" + both,
		}},
		"one client": {policy(`{"rules": [{"from": [{"source": {"namespaces": ["default"]}}]}]}`), []string{
			"!GET cart.default.svc.cluster.local:8080/ allowed > denied no-rule from none", "! cart.default.svc.cluster.local:9090 allowed > denied no-rule from none",
		}},
		"nobody else": {policy(`{"action": "DENY", "rules": [{"from": [{"source": {"namespaces": ["other"]}}]}]}`), nil},
		"mutual TLS": {`{"apiVersion": "security.istio.io/v1", "kind": "PeerAuthentication", "metadata": {"name": "a"}, "spec": {"mtls": {"mode": "STRICT"}}}`, []string{
			"!GET cart.default.svc.cluster.local:8080/ allowed > denied connection from none", "! cart.default.svc.cluster.local:9090 allowed > denied connection from none",
		}},
		"no mutual TLS": {`{"apiVersion": "security.istio.io/v1", "kind": "PeerAuthentication", "metadata": {"name": "a"}, "spec": {"mtls": {"mode": "DISABLE"}}}`, nil},
		"another subset": {route(`[{"match": [{"uri": {"prefix": "/v1"}}], "route": [{"destination": {"host": "web", "subset": "v1"}}]}, {"route": [{"destination": {"host": "web"}}]}]`), []string{
			"GET web.default.svc.cluster.local:80/v1 " + web + " > outbound|80|v1|web.default.svc.cluster.local ",
		}},
		"unknown subset": {route(`[{"route": [{"destination": {"host": "web", "subset": "v9"}}]}]`), []string{
			"!GET web.default.svc.cluster.local:80/ " + web + " > outbound|80|v9|web.default.svc.cluster.local (the proxy has no such cluster: the host, port or subset is unknown) ",
		}},
		"abort": {route(`[{"fault": {"abort": {"httpStatus": 418, "percentage": {"value": 100}}}, "route": [{"destination": {"host": "web"}}]}]`), []string{
			"!GET web.default.svc.cluster.local:80/ " + web + " > status 418, abort 100 % with status 418 ",
		}},
		"timeout": {route(`[{"timeout": "1s", "route": [{"destination": {"host": "web"}}]}]`), nil},
	} {
		code, body := postDebug(h.server, "whatif", url.Values{"objects": {c.object}, "namespace": {"default"}})
		var answer report.WhatIf
		if err := json.Unmarshal([]byte(body), &answer); code != http.StatusOK || err != nil {
			t.Fatalf("%s: got %d %s", name, code, body)
		}
		var got []string
		for _, x := range answer.Flips {
			text := fmt.Sprintf("%s %s:%d%s %s > %s %s", x.Method, x.Host, x.Port, x.Path, x.Before, x.After, x.By)
			text = strings.Replace(text, ":0", "", 1) // the host of a route has a port
			if x.Fails {
				text = "!" + text
			}
			if x.Rule != nil {
				text += fmt.Sprintf(" %s[%d]", x.Rule.Name, x.Rule.Index)
			}
			if len(x.Clients) > 0 {
				text += " from " + strings.Join(x.Clients, "+")
			}
			got = append(got, text)
		}
		if len(got) != len(c.want) || answer.Requests == 0 || len(answer.Untried) > 0 {
			t.Errorf("%s: got %d requests, %q, untried %q", name, answer.Requests, got, answer.Untried)
		}
		for _, want := range c.want {
			if !slices.ContainsFunc(got, func(text string) bool { return strings.HasPrefix(text, want) }) {
				t.Errorf("%s: got\n%s\nwant %s", name, strings.Join(got, "\n"), want)
			}
		}
	}
}
