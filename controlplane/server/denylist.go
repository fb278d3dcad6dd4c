// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package server

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outrigger-mesh/outrigger/certs"
	"github.com/outrigger-mesh/outrigger/controlplane/authn"
	"github.com/outrigger-mesh/outrigger/controlplane/denylist"
	"github.com/outrigger-mesh/outrigger/controlplane/generate/envoyconf"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// newDenyList reads the deny list, if one is configured.
func (s *Server) newDenyList(path string, reg prometheus.Registerer) (err error) {
	if path == "" {
		return nil
	}
	s.objects.denyList, err = denylist.NewFollower(denylist.Config{
		Path: path, Logger: s.log.With("component", "control"), Registerer: reg,
		OnChange: func() { s.debounce.Add(model.NewChange(model.Key{Kind: model.MeshConfigKind, Name: "deny-list"})) },
	})
	if err != nil {
		return fmt.Errorf("environment variable OUTRIGGER_DENY_LIST: %w", err)
	}
	return nil
}

// denied returns the reason why a caller is refused, or nil if it is not on the deny list.
func (s *Server) denied(caller *authn.Caller) error {
	if err := s.deniedIdentity(caller.ID); err != nil {
		return err
	}
	if caller.Serial != nil && s.objects.denyList.List().DeniesSerial(denylist.SerialText(caller.Serial)) {
		return fmt.Errorf("its certificate with the serial number %X is on the deny list of this mesh", caller.Serial)
	}
	return nil
}

func (s *Server) deniedIdentity(id certs.ID) error {
	list := s.objects.denyList.List()
	if list.Len() > 0 && list.Denies(id, envoyconf.TrustDomains(s.settings.Current().Mesh)) {
		return fmt.Errorf("%s is on the deny list of this mesh", id)
	}
	return nil
}
