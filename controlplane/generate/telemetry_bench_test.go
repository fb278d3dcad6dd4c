// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"fmt"
	"testing"

	"github.com/outrigger-mesh/outrigger/bootstrap/meshconfig"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
)

const benchCollector = `
---
kind: ServiceEntry
metadata: {name: collector, namespace: default}
spec: {hosts: [collector.example.com], resolution: STATIC, ports: [{number: 4317, name: grpc, protocol: GRPC}], endpoints: [{address: 127.0.0.1}]}
`

const benchProviders = `
enableTracing: true
extensionProviders:
- {name: file, envoyFileAccessLog: {path: /dev/null}}
- {name: otlp, opentelemetry: {service: collector.example.com, port: 4317}}
`

// BenchmarkEnvoyTelemetry measures the CPU time that Envoy needs for a request to a workload that
// counts it, logs it, and traces one of a hundred.
func BenchmarkEnvoyTelemetry(b *testing.B) {
	const address = "127.77.61.2"
	variants := []struct{ name, spec string }{
		{"none", "{}"},
		{"metrics", "{metrics: [{providers: [{name: prometheus}]}]}"},
		{"log", "{accessLogging: [{providers: [{name: file}]}]}"},
		{"traces", "{tracing: [{providers: [{name: otlp}], randomSamplingPercentage: 1}]}"},
		{"all", "{metrics: [{providers: [{name: prometheus}]}], accessLogging: [{providers: [{name: file}]}], tracing: [{providers: [{name: otlp}], randomSamplingPercentage: 1}]}"},
	}
	settings, err := meshconfig.Parse([]byte(benchProviders))
	if err != nil {
		b.Fatal(err)
	}
	minor := envoyMinor(b)
	var proxies []guardedProxy
	for _, v := range variants {
		proxy := proxyAt(address)
		proxy.Envoy = fmt.Sprintf("1.%d.0", minor)
		proxies = append(proxies, guardedProxy{
			verdict:  verdict{v.name, "kind: Telemetry\nmetadata: {name: t, namespace: default}\nspec: " + v.spec + "\n", ""},
			settings: &snapshot.Input{Mesh: settings}, objects: verdictObjects + benchCollector, proxy: proxy,
		})
	}
	c := newCourtOf(b, address, proxies)
	var clients []*benchClient
	for i := range variants {
		clients = append(clients, newBenchClient(b, c, i, "default/caller", "/api/v1/items"))
	}
	var names []string
	for _, v := range variants {
		names = append(names, v.name)
	}
	measure(b, c, clients, names)
}
