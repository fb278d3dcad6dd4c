// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package collateral

import (
	"fmt"

	"github.com/spf13/cobra"
)

// NewVersion returns the command that prints the version of a program.
func NewVersion(version string) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), version)
			return err
		},
	}
}
