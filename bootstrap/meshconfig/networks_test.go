// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package meshconfig

import (
	"fmt"
	"strings"
	"testing"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
)

func TestParseNetworks(t *testing.T) {
	t.Parallel()
	got, err := ParseNetworks([]byte(`networks:
  near:
    endpoints: [{fromRegistry: c1}, {fromCidr: 10.0.0.0/8}]
    gateways: [{address: 192.0.2.1, port: 15443}, {address: gateway.example, port: 1}]
  far:
    gateways: [{registryServiceName: east.istio-system.svc.cluster.local, port: 15443, locality: a/b}]
`))
	if err != nil {
		t.Fatal(err)
	}
	near, far := got.GetNetworks()["near"], got.GetNetworks()["far"]
	if near.GetEndpoints()[0].GetFromRegistry() != "c1" || near.GetEndpoints()[1].GetFromCidr() != "10.0.0.0/8" ||
		near.GetGateways()[0].GetAddress() != "192.0.2.1" || far.GetGateways()[0].GetPort() != 15443 {
		t.Errorf("got %v", got)
	}
	for _, empty := range []string{"", "networks: {}\n", "networks: null\n"} {
		if got, err := ParseNetworks([]byte(empty)); err != nil || len(got.GetNetworks()) != 0 {
			t.Errorf("%q: %v, %v", empty, got, err)
		}
	}
	for doc, want := range map[string]string{
		"- a\n":           "must be a mapping of fields",
		"networks: [a]\n": "field networks",
		"networks: {n: {endpoints: [{fromCidr: 10.0.0/8}]}}":                        `networks.n.endpoints[0].fromCidr is "10.0.0/8"; it must be a range`,
		"networks: {n: {endpoints: [{}]}}":                                          "networks.n.endpoints[0] is empty",
		"networks: {n: {endpoints: [{fromCidr: 10.0.0.0/8, fromRegistry: a}]}}":     "field networks",
		"networks: {n: {gateways: [{address: a b, port: 1}]}}":                      `networks.n.gateways[0].address is "a b"`,
		"networks: {n: {gateways: [{port: 1}]}}":                                    "networks.n.gateways[0].registryServiceName",
		"networks: {n: {gateways: [{address: 192.0.2.1, port: 70000}]}}":            "networks.n.gateways[0].port is 70000; it must be from 1 to 65535",
		"networks: {n: {gateways: [{address: 192.0.2.1, port: 0}, {address: ''}]}}": "networks.n.gateways[1].address",
	} {
		if _, err := ParseNetworks([]byte(doc)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", doc, err, want)
		}
	}
}

// TestParseOver checks that later documents override earlier ones, except for fields that merge.
func TestParseOver(t *testing.T) {
	t.Parallel()
	got, err := Parse(
		[]byte("accessLogFile: /a\nconnectTimeout: 2s\ndefaultConfig: {statusPort: 1, drainDuration: 9s}\nextensionProviders: [{name: x, prometheus: {}}]\n"),
		nil,
		[]byte("accessLogFile: /b\ndefaultConfig: {statusPort: 2}\nextensionProviders: [{name: y, prometheus: {}}, {name: envoy, prometheus: {}}]\ntrustDomainAliases: [b, a]\n"),
	)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, p := range got.GetExtensionProviders() {
		names = append(names, p.GetName())
	}
	if got.GetAccessLogFile() != "/b" || got.GetConnectTimeout().AsDuration().String() != "2s" || got.GetDefaultConfig().GetStatusPort() != 2 ||
		got.GetDefaultConfig().GetDrainDuration().AsDuration().String() != "9s" || fmt.Sprint(names) != "[prometheus stackdriver envoy x y]" ||
		got.GetExtensionProviders()[2].GetPrometheus() == nil {
		t.Errorf("got %v", got)
	}
	if _, err := Parse([]byte("accessLogFile: /a\n"), []byte("connectTimeout: 3600s\n")); err == nil || !strings.Contains(err.Error(), "connectTimeout is 1h0m0s") {
		t.Errorf("got %v", err)
	}
}

func TestUnknown(t *testing.T) {
	t.Parallel()
	mesh := `accessLogFle: x
outboundTrafficPolicy: {mode: REGISTRY_ONLY, made: x}
default_config: {proxyMetadata: {ANY: x}, proxyHeaders: {servr: {}}, drainDuration: 5s}
extensionProviders: [{name: a, zipkn: {}}, {name: b, zipkn: {}}]
connectTimeout: 5s
`
	want := "[accessLogFle default_config.proxyHeaders.servr extensionProviders[].zipkn outboundTrafficPolicy.made]"
	if got := fmt.Sprint(Unknown([]byte(mesh), &meshv1alpha1.MeshConfig{})); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got := fmt.Sprint(Unknown([]byte("networks: {a: {gateway: []}}"), &meshv1alpha1.MeshNetworks{})); got != "[networks.a.gateway]" {
		t.Errorf("got %s", got)
	}
	if got := Unknown([]byte("a: ["), &meshv1alpha1.MeshConfig{}); got != nil {
		t.Errorf("got %v", got)
	}
}

func FuzzParseNetworks(f *testing.F) {
	f.Add([]byte("networks: {n: {endpoints: [{fromCidr: 10.0.0.0/8}], gateways: [{address: 192.0.2.1, port: 1}]}}"))
	f.Add([]byte("networks: {n: null}"))
	f.Fuzz(func(t *testing.T, doc []byte) {
		got, err := ParseNetworks(doc)
		if (got == nil) == (err == nil) {
			t.Errorf("%v and %v", got, err)
		}
		Unknown(doc, &meshv1alpha1.MeshNetworks{})
	})
}
