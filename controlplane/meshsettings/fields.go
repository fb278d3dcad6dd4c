// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package meshsettings

import (
	"slices"

	"google.golang.org/protobuf/proto"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/outrigger-mesh/outrigger/bootstrap/meshconfig"
)

// providersField is the field of extension providers. Those of a kind without an
// implementation have no effect.
const providersField = "extensionProviders"

// servedFields are the fields of MeshConfig that change what the control
// plane does; docs/reference/mesh-file.md says how.
var servedFields = []string{
	"accessLogEncoding", "accessLogFile", "accessLogFormat", "caCertificates", "configSources", "connectTimeout",
	"defaultConfig", // for the most part the agents' part
	"defaultDestinationRuleExportTo", "defaultHttpRetryPolicy", "defaultProviders", "defaultServiceExportTo", "defaultVirtualServiceExportTo",
	"disableEnvoyListenerLog", "discoverySelectors", "dnsRefreshRate", "enableAutoMtls", "enableEnvoyAccessLogService", "enablePrometheusMerge",
	"enableTracing", providersField, "h2UpgradePolicy",
	"inboundClusterStatName", "ingressClass", "ingressControllerMode", "ingressSelector", "ingressService", "localityLbSetting", "meshMTLS",
	"outboundClusterStatName", "outboundTrafficPolicy", "pathNormalization", "protocolDetectionTimeout", "proxyHttpPort", "proxyInboundListenPort",
	"proxyListenPort", "rootNamespace", "serviceSettings", "tcpKeepalive", "tlsDefaults", "trustDomain", "trustDomainAliases",
	"zoneAwareLbSetting",
}

// withoutEffect returns the fields whose value was changed from the default in
// vain.
func withoutEffect(mesh *meshv1alpha1.MeshConfig) []string {
	var names []string
	mesh = proto.CloneOf(mesh)
	mesh.ExtensionProviders = slices.DeleteFunc(mesh.ExtensionProviders, func(p *meshv1alpha1.MeshConfig_ExtensionProvider) bool {
		return p.GetSds() == nil && (p.GetStackdriver() == nil || p.GetName() == "stackdriver") // the default ones have no effect either
	})
	got, defaults := mesh.ProtoReflect(), meshconfig.Default().ProtoReflect()
	fields := got.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		if f.JSONName() == providersField && got.Has(f) || !slices.Contains(servedFields, f.JSONName()) && !got.Get(f).Equal(defaults.Get(f)) {
			names = append(names, f.JSONName())
		}
	}
	slices.Sort(names)
	return names
}

// restartFields are those that are read at the start alone: the stores are
// open, and the authority has a trust domain, as have the identities it signed.
var restartFields = []string{"configSources", "trustDomain"}

// Pin returns next with the fields that are read at the start alone as they are
// in before, and the names of those that differ.
func Pin(next, before *meshv1alpha1.MeshConfig) (out *meshv1alpha1.MeshConfig, differ []string) {
	out = proto.CloneOf(next)
	to, from := out.ProtoReflect(), before.ProtoReflect()
	for _, name := range restartFields {
		f := to.Descriptor().Fields().ByJSONName(name)
		if to.Get(f).Equal(from.Get(f)) {
			continue
		}
		differ = append(differ, name)
		if from.Has(f) {
			to.Set(f, from.Get(f))
		} else {
			to.Clear(f)
		}
	}
	return out, differ
}
