// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"slices"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/outrigger-mesh/outrigger/bootstrap/meshconfig"
)

// servedMeshFields are the fields of MeshConfig that change what the control
// plane does; docs/MESH-FILE.md says how.
var servedMeshFields = []string{
	"accessLogEncoding", "accessLogFile", "accessLogFormat", "caCertificates", "configSources", "connectTimeout",
	"defaultConfig", // the agents' part
	"defaultHttpRetryPolicy", "dnsRefreshRate", "enableAutoMtls", "h2UpgradePolicy", "meshMTLS",
	"pathNormalization", "protocolDetectionTimeout", "proxyHttpPort", "rootNamespace", "tcpKeepalive",
	"trustDomain", "trustDomainAliases",
}

// withoutEffect gives the fields whose value was changed from the default in
// vain.
func withoutEffect(mesh *meshv1alpha1.MeshConfig) []string {
	var names []string
	got, defaults := mesh.ProtoReflect(), meshconfig.Default().ProtoReflect()
	fields := got.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		if !slices.Contains(servedMeshFields, f.JSONName()) && !got.Get(f).Equal(defaults.Get(f)) {
			names = append(names, f.JSONName())
		}
	}
	slices.Sort(names)
	return names
}
