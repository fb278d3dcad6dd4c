// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package capture

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
)

// ErrNotCaptured is wrapped by the error of a validation that found no redirection.
var ErrNotCaptured = errors.New("connections are not redirected to Envoy, so the workload would run without protection; " +
	"with a CNI plugin of the mesh, start the pod again once the plugin runs on this node")

// ownTable is the name of our table of nftables, in the family ip and in ip6. Nobody else changes it.
const ownTable = "outrigger"

// run applies the settings to the network namespace of the thread: it replaces the rules of an
// earlier run, or removes them, and checks that they have an effect.
func (s *Settings) run(ctx context.Context, log *slog.Logger, out io.Writer) error {
	switch {
	case s.DryRun:
		return dryRun(s, out)
	case s.Remove:
		if err := s.remove(); err != nil {
			return err
		}
		log.Info("connections are no longer redirected to Envoy")
		return nil
	}
	if !s.SkipApply {
		if err := s.apply(); err != nil {
			return err
		}
		log.Info("connections are redirected to Envoy")
	}
	if !s.Validate {
		return nil
	}
	if err := s.validate(ctx); err != nil {
		return err
	}
	log.Info("the redirection to Envoy works")
	return nil
}

func (s *Settings) apply() error {
	// Rules without their routes would lose packets, so the routes come first.
	if err := addRoutes(s); err != nil {
		return err
	}
	return replaceTables(s.Rules())
}

func (s *Settings) remove() error {
	if err := replaceTables(nil); err != nil {
		return err
	}
	return removeRoutes(s)
}

// dryRun prints the rules.
func dryRun(s *Settings, out io.Writer) error {
	if s.Remove {
		_, err := fmt.Fprintf(out, "# removes the table %s of nftables, for IPv4 and IPv6\n", ownTable)
		return err
	}
	if err := printRules(out, s.Rules(), s.RestoreFormat); err != nil {
		return err
	}
	if s.DryRunFile == "" {
		return nil
	}
	file, err := os.OpenFile(s.DryRunFile, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return fmt.Errorf("%s: %w", envDryRunFile, err)
	}
	if err := printRules(file, s.Rules(), true); err != nil {
		_ = file.Close() // the first error counts
		return fmt.Errorf("%s: %w", envDryRunFile, err)
	}
	return file.Close()
}
