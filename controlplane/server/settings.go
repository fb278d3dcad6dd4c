// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package server

import (
	"fmt"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/outrigger-mesh/outrigger/controlplane/meshsettings"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// adopt takes a mesh config and networks that changed. With an error all stays as
// it was.
func (s *Server) adopt(next, before *meshsettings.Settings) error {
	if next.Mesh == before.Mesh {
		return nil
	}
	mesh, differ := meshsettings.Pin(next.Mesh, before.Mesh)
	roots, err := meshRoots(mesh)
	if err != nil {
		return err
	}
	if s.identity.authority != nil {
		if err := s.identity.clients.trust(mesh); err != nil {
			return fmt.Errorf("trustDomainAliases: %w", err)
		}
		if err := s.identity.authority.SetRoots(rootsOfMesh, roots); err != nil {
			return err
		}
	}
	for _, field := range differ {
		s.log.Warn("a field of the mesh config has changed and has its old value until the control plane is started again", "component", "control", "source", next.Place(field), "name", field)
	}
	next.Mesh = mesh
	s.selectNamespaces(mesh)
	return nil
}

// pushSettings has the next snapshot made of the settings in force.
func (s *Server) pushSettings() { s.debounce.Add(model.Change{All: true}) }

// selectNamespaces chooses the namespaces whose services are served. What cannot
// be read changes nothing.
func (s *Server) selectNamespaces(mesh *meshv1alpha1.MeshConfig) {
	if s.objects.platform == nil {
		return
	}
	if err := s.objects.platform.SelectNamespaces(mesh.GetDiscoverySelectors()); err != nil {
		s.log.Warn("the choice of namespaces stays as it was", "component", "control", "err", err)
	}
}
