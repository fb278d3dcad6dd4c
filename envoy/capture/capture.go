// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package capture

import (
	"fmt"
	"io"
	"os"
)

// ownTable is the name of our table of nftables, in the family ip and in ip6. Nobody else changes it.
const ownTable = "outrigger"

// Run applies the settings to the network namespace of the process: it replaces the rules of an
// earlier run, or removes them. A dry run writes the rules to out instead.
func Run(s *Settings, out io.Writer) error {
	switch {
	case s.DryRun:
		return dryRun(s, out)
	case s.Remove:
		if err := replaceTables(nil); err != nil {
			return err
		}
		return removeRoutes(s)
	}
	// Rules without their routes would lose packets, so the routes come first.
	if err := addRoutes(s); err != nil {
		return err
	}
	return replaceTables(s.Rules())
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
