// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/bootstrap/meshconfig"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// TestStreamsTellCallersApart checks that two callers of one namespace receive different
// connection matches by their labels, although no request match uses labels.
func TestStreamsTellCallersApart(t *testing.T) {
	t.Parallel()
	for kind, routes := range map[string]string{
		"tcp": "tcp: [{match: [{sourceLabels: {app: old}}], route: [{destination: {host: db.test, subset: old}}]}, {route: [{destination: {host: db.test}}]}]",
		"tls": "tls: [{match: [{sniHosts: [db.test], sourceLabels: {app: old}}], route: [{destination: {host: db.test, subset: old}}]}, {match: [{sniHosts: [db.test]}], route: [{destination: {host: db.test}}]}]",
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			objects := decode(t, strings.NewReplacer("ROUTES", routes, "KIND", strings.ToUpper(kind)).Replace(`
kind: ServiceEntry
metadata: {name: db, namespace: default}
spec: {hosts: [db.test], addresses: [10.96.0.1], resolution: STATIC, ports: [{number: 5432, name: db, protocol: KIND}], endpoints: [{address: 10.0.0.1}]}
---
kind: VirtualService
metadata: {name: db, namespace: default}
spec: {hosts: [db.test], ROUTES}
`))
			mesh, g := snapshot.Build(nil, inputOf(objects, meshconfig.Default()), model.Change{All: true}), New(Config{})
			leads := func(app string) bool {
				proxy := proxyAt("10.0.0.9")
				proxy.Interception, proxy.Labels = model.InterceptionRedirect, map[string]string{"app": app}
				r := g.Generate(mesh, proxy, xds.TypeListener).Get("10.96.0.1_5432")
				if r == nil {
					t.Fatal("no listener for the service")
				}
				return strings.Contains(string(r.Any), "outbound|5432|old|db.test")
			}
			if first, second := leads("new"), leads("old"); first || !second {
				t.Errorf("the callers new and old are sent to the old server: %t, %t; want the second alone", first, second)
			}
		})
	}
}
