// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package server

import (
	"fmt"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/outrigger-mesh/outrigger/controlplane/meshsettings"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// adopt applies a changed mesh config and networks. If it returns an error, nothing has
// changed.
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
		s.log.Warn("a changed field of the mesh config takes effect only after a restart of the control plane", "component", "control", "source", next.Place(field), "name", field)
	}
	next.Mesh = mesh
	s.selectNamespaces(mesh)
	return nil
}

// pushSettings requests a snapshot with the current settings.
func (s *Server) pushSettings() { s.debounce.Add(model.Change{All: true}) }

// selectNamespaces selects the namespaces whose services are served. Invalid selectors
// change nothing.
func (s *Server) selectNamespaces(mesh *meshv1alpha1.MeshConfig) {
	if s.objects.platform == nil {
		return
	}
	if err := s.objects.platform.SelectNamespaces(mesh.GetDiscoverySelectors()); err != nil {
		s.log.Warn("invalid namespace selectors; the previous ones stay in force", "component", "control", "err", err)
	}
}
