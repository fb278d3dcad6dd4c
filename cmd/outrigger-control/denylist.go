// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outrigger-mesh/outrigger/certs"
	"github.com/outrigger-mesh/outrigger/controlplane/authn"
	"github.com/outrigger-mesh/outrigger/controlplane/denylist"
	"github.com/outrigger-mesh/outrigger/controlplane/generate/parts"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// denyVariables are the rows of the table about who is denied.
func denyVariables() []variable {
	return []variable{
		{"OUTRIGGER_DENY_LIST", "", "file with identities and serial numbers of certificates that the mesh refuses, one in a line: spiffe://cluster.local/ns/shop/sa/web, spiffe://cluster.local/ns/shop/sa/* for a whole namespace, or serial 3F2A9C; text after # is a comment. It is read again when it changes; one with an error leaves the last good list in force", text(func(e *environment) *string { return &e.denyList })},
	}
}

// newDenyList reads the deny list, if there is one.
func (s *server) newDenyList(path string, reg prometheus.Registerer) (err error) {
	if path == "" {
		return nil
	}
	s.denyList, err = denylist.NewFollower(denylist.Config{
		Path: path, Logger: s.log.With("component", "control"), Registerer: reg,
		OnChange: func() { s.debounce.Add(model.NewChange(model.Key{Kind: model.MeshConfigKind, Name: "deny-list"})) },
	})
	if err != nil {
		return fmt.Errorf("environment variable OUTRIGGER_DENY_LIST: %w", err)
	}
	return nil
}

// denied returns why a caller is refused; nil if it is not on the deny list.
func (s *server) denied(caller *authn.Caller) error {
	if err := s.deniedIdentity(caller.ID); err != nil {
		return err
	}
	if caller.Serial != nil && s.denyList.List().DeniesSerial(denylist.SerialText(caller.Serial)) {
		return fmt.Errorf("its certificate with the serial number %X is on the deny list of this mesh", caller.Serial)
	}
	return nil
}

func (s *server) deniedIdentity(id certs.ID) error {
	list := s.denyList.List()
	if list.Len() > 0 && list.Denies(id, parts.TrustDomains(s.follower.current.Load().mesh)) {
		return fmt.Errorf("%s is on the deny list of this mesh", id)
	}
	return nil
}
