// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package meshsettings

import (
	"slices"

	"google.golang.org/protobuf/proto"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/outrigger-mesh/outrigger/bootstrap/meshconfig"
)

// authorizersField is the field of external authorizers. Providers of other
// kinds in it have no effect.
const authorizersField = "extensionProviders"

// providersField is the field of default providers, of which those of metrics have an effect.
const providersField = "defaultProviders"

// servedFields are the fields of MeshConfig that change what the control
// plane does; docs/reference/mesh-file.md says how.
var servedFields = []string{
	"accessLogEncoding", "accessLogFile", "accessLogFormat", "caCertificates", "configSources", "connectTimeout",
	"defaultConfig", // for the most part the agents' part
	"defaultDestinationRuleExportTo", "defaultHttpRetryPolicy", providersField, "defaultServiceExportTo", "defaultVirtualServiceExportTo",
	"discoverySelectors", "dnsRefreshRate", "enableAutoMtls", "enablePrometheusMerge", authorizersField, "h2UpgradePolicy",
	"ingressClass", "ingressControllerMode", "ingressSelector", "ingressService", "localityLbSetting", "meshMTLS",
	"outboundTrafficPolicy", "pathNormalization", "protocolDetectionTimeout", "proxyHttpPort", "proxyInboundListenPort",
	"proxyListenPort", "rootNamespace", "serviceSettings", "tcpKeepalive", "tlsDefaults", "trustDomain", "trustDomainAliases",
}

// withoutEffect returns the fields whose value was changed from the default in
// vain. Of extensionProviders, external authorizers and Prometheus have an effect, of
// defaultProviders the metrics.
func withoutEffect(mesh *meshv1alpha1.MeshConfig) []string {
	var names []string
	got, defaults := inVain(mesh).ProtoReflect(), inVain(meshconfig.Default()).ProtoReflect()
	fields := got.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		partly := f.JSONName() == authorizersField || f.JSONName() == providersField
		if (partly || !slices.Contains(servedFields, f.JSONName())) && !got.Get(f).Equal(defaults.Get(f)) {
			names = append(names, f.JSONName())
		}
	}
	slices.Sort(names)
	return names
}

// inVain returns a copy without the parts of fields that have an effect.
func inVain(mesh *meshv1alpha1.MeshConfig) *meshv1alpha1.MeshConfig {
	mesh = proto.CloneOf(mesh)
	mesh.ExtensionProviders = slices.DeleteFunc(mesh.ExtensionProviders, func(p *meshv1alpha1.MeshConfig_ExtensionProvider) bool {
		return meshconfig.AuthorizerOf(p) != nil || p.GetPrometheus() != nil
	})
	if mesh.GetDefaultProviders() != nil {
		mesh.DefaultProviders.Metrics = nil
	}
	return mesh
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
