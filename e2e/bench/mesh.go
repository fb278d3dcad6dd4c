// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// writeMesh writes the Istio YAML of a mesh: services with four endpoints each; every tenth has a
// split route and two subsets.
func writeMesh(dir string, services int) {
	for i := range services {
		writeFile(serviceFile(dir, i), serviceEntry(i, fmt.Sprintf("10.200.%d.%d", i/250, i%250+1)))
		if i%10 == 0 {
			writeFile(routeFile(dir, i), route(i, "none"))
		}
	}
}

func serviceFile(dir string, i int) string { return filepath.Join(dir, fmt.Sprintf("svc-%d.yaml", i)) }

func routeFile(dir string, i int) string { return filepath.Join(dir, fmt.Sprintf("vs-%d.yaml", i)) }

// serviceEntry returns service i. first is the address of its first endpoint.
func serviceEntry(i int, first string) string {
	return serviceNamed(fmt.Sprintf("svc-%d.mesh.local", i), i, first)
}

// serviceNamed returns service i with a custom host.
func serviceNamed(host string, i int, first string) string {
	var b strings.Builder
	fmt.Fprintf(&b, `apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: svc-%[1]d, namespace: default}
spec:
  hosts: [%[5]s]
  addresses: [10.100.%[2]d.%[3]d]
  ports: [{number: 80, name: http, protocol: HTTP}]
  resolution: STATIC
  location: MESH_INTERNAL
  endpoints:
  - {address: %[4]s, labels: {app: svc-%[1]d, version: v1}}
`, i, i/250, i%250+1, first, host)
	for n, version := range []string{"v1", "v2", "v2"} {
		fmt.Fprintf(&b, "  - {address: 10.%d.%d.%d, labels: {app: svc-%d, version: %s}}\n", 201+n, i/250, i%250+1, i, version)
	}
	return b.String()
}

// writeStreams adds TCP services with an address each.
func writeStreams(dir string, services int) {
	for i := range services {
		writeFile(filepath.Join(dir, fmt.Sprintf("tcp-%d.yaml", i)), fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: tcp-%[1]d, namespace: default}
spec:
  hosts: [tcp-%[1]d.mesh.local]
  addresses: [10.110.%[2]d.%[3]d]
  ports: [{number: 9000, name: tcp, protocol: TCP}]
  resolution: STATIC
  location: MESH_INTERNAL
  endpoints: [{address: 10.210.%[2]d.%[3]d}, {address: 10.211.%[2]d.%[3]d}]
`, i, i/250, i%250+1))
	}
}

// route returns the route of service i. The marker is in a header that its second rule sets.
func route(i int, marker string) string {
	return fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: vs-%[1]d, namespace: default}
spec:
  hosts: [svc-%[1]d.mesh.local]
  http:
  - match: [{headers: {x-user: {exact: tester}}}]
    route: [{destination: {host: svc-%[1]d.mesh.local, subset: v2}}]
  - headers: {request: {set: {x-marker: %[2]q}}}
    route:
    - {destination: {host: svc-%[1]d.mesh.local, subset: v1}, weight: 90}
    - {destination: {host: svc-%[1]d.mesh.local, subset: v2}, weight: 10}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: dr-%[1]d, namespace: default}
spec:
  host: svc-%[1]d.mesh.local
  subsets: [{name: v1, labels: {version: v1}}, {name: v2, labels: {version: v2}}]
`, i, marker)
}

// direct returns the Envoy configuration of a listener that answers every request itself.
func direct(address string, port int) string {
	return fmt.Sprintf(`static_resources:
  listeners:
  - name: direct
    address: {socket_address: {address: %s, port_value: %d}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: direct
          http_filters: [{name: envoy.filters.http.router, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}]
          route_config: {virtual_hosts: [{name: all, domains: ["*"], routes: [{match: {prefix: /}, direct_response: {status: 200}}]}]}
`, address, port)
}

// writeFile writes a file, and ends the part on an error.
func writeFile(path, text string) { check(replaceFile(path, text)) }

// replaceFile atomically replaces a file. The temporary file is outside the watched directory. It
// does not wait for the disk.
func replaceFile(path, text string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	next := filepath.Join(filepath.Dir(filepath.Dir(path)), ".new-"+filepath.Base(path))
	if err := os.WriteFile(next, []byte(text), 0o600); err != nil {
		return err
	}
	return os.Rename(next, path)
}
