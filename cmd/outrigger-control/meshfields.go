// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"

	"google.golang.org/protobuf/proto"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/outrigger-mesh/outrigger/bootstrap/meshconfig"
	"github.com/outrigger-mesh/outrigger/controlplane/authn"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// servedMeshFields are the fields of MeshConfig that change what the control
// plane does; docs/reference/mesh-file.md says how.
var servedMeshFields = []string{
	"accessLogEncoding", "accessLogFile", "accessLogFormat", "caCertificates", "configSources", "connectTimeout",
	"defaultConfig", // for the most part the agents' part
	"defaultDestinationRuleExportTo", "defaultHttpRetryPolicy", "defaultServiceExportTo", "defaultVirtualServiceExportTo",
	"discoverySelectors", "dnsRefreshRate", "enableAutoMtls", "h2UpgradePolicy",
	"ingressClass", "ingressControllerMode", "ingressSelector", "ingressService", "localityLbSetting", "meshMTLS",
	"outboundTrafficPolicy", "pathNormalization", "protocolDetectionTimeout", "proxyHttpPort", "proxyInboundListenPort",
	"proxyListenPort", "rootNamespace", "serviceSettings", "tcpKeepalive", "tlsDefaults", "trustDomain", "trustDomainAliases",
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

// restartMeshFields are those that are read at the start alone: the stores are
// open, and the authority has a trust domain, as have the identities it signed.
var restartMeshFields = []string{"configSources", "trustDomain"}

// pinned gives next with those fields as they are in before, and the names of
// those that differ.
func pinned(next, before *meshv1alpha1.MeshConfig) (out *meshv1alpha1.MeshConfig, differ []string) {
	out = proto.CloneOf(next)
	to, from := out.ProtoReflect(), before.ProtoReflect()
	for _, name := range restartMeshFields {
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

// adopt takes a mesh config and networks that changed. With an error all stays as
// it was.
func (s *server) adopt(next, before *meshSettings) error {
	if next.mesh == before.mesh {
		return nil
	}
	mesh, differ := pinned(next.mesh, before.mesh)
	roots, err := meshRoots(mesh)
	if err != nil {
		return err
	}
	if s.authority != nil {
		if err := s.clients.trust(mesh); err != nil {
			return fmt.Errorf("trustDomainAliases: %w", err)
		}
		if err := s.authority.SetRoots(rootsOfMesh, roots); err != nil {
			return err
		}
	}
	for _, field := range differ {
		s.log.Warn("a field of the mesh config has changed and has its old value until the control plane is started again", "component", "control", "name", field)
	}
	next.mesh = mesh
	s.selectNamespaces(mesh)
	return nil
}

// pushSettings has the next snapshot made of the settings in force.
func (s *server) pushSettings() { s.debounce.Add(model.Change{All: true}) }

// selectNamespaces chooses the namespaces whose services are served. What cannot
// be read changes nothing.
func (s *server) selectNamespaces(mesh *meshv1alpha1.MeshConfig) {
	if s.platform == nil {
		return
	}
	if err := s.platform.SelectNamespaces(mesh.GetDiscoverySelectors()); err != nil {
		s.log.Warn("the choice of namespaces stays as it was", "component", "control", "err", err)
	}
}

// clients takes client certificates of the trust domains that the mesh config
// names now.
type clients struct {
	atomic.Pointer[authn.ClientCertificate]
}

func (c *clients) trust(mesh *meshv1alpha1.MeshConfig) error {
	certificate, err := authn.NewClientCertificate(mesh.GetTrustDomain(), mesh.GetTrustDomainAliases()...)
	if err == nil {
		c.Store(certificate)
	}
	return err
}

// Authenticate implements authn.Authenticator.
func (c *clients) Authenticate(ctx context.Context) (*authn.Caller, error) {
	return c.Load().Authenticate(ctx)
}
