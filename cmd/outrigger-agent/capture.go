// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"github.com/spf13/cobra"

	"github.com/outrigger-mesh/outrigger/agent/logging"
	"github.com/outrigger-mesh/outrigger/envoy/capture"
)

const captureLong = `istio-iptables redirects the TCP connections of its network namespace to Envoy, and with
--redirect-dns the DNS queries to the agent. It needs the capability NET_ADMIN and no other
program: it replaces its rules of nftables in one transaction. Each flag can also be set by
an environment variable, such as PROXY_UID for --proxy-uid.`

func newCaptureCommand(p process, logs *logging.Flags) *cobra.Command {
	var f capture.Flags
	cmd := &cobra.Command{
		Use: "istio-iptables", Short: "Redirect connections to Envoy", Long: captureLong,
		// Start scripts of machines pass their own argument.
		Args: cobra.OnlyValidArgs, ValidArgs: []string{"init"},
		Example: "  outrigger-agent istio-iptables -p 15001 -z 15006 -u 1337 -m REDIRECT -i '*' -b '*' -d 15090,15021,15020",
		RunE:    func(cmd *cobra.Command, _ []string) error { return runCapture(cmd, p, logs, &f) },
	}
	f.Add(cmd.Flags())
	return cmd
}

func newCleanCommand(p process, logs *logging.Flags) *cobra.Command {
	var f capture.Flags
	cmd := &cobra.Command{
		Use: "istio-clean-iptables", Short: "Remove the rules of istio-iptables", Args: cobra.NoArgs,
		Long:    "istio-clean-iptables removes the rules of istio-iptables and the routes of TPROXY.",
		Example: "  outrigger-agent istio-clean-iptables",
		RunE:    func(cmd *cobra.Command, _ []string) error { return runCapture(cmd, p, logs, &f) },
	}
	f.AddRemoval(cmd.Flags())
	return cmd
}

func runCapture(cmd *cobra.Command, p process, logs *logging.Flags, f *capture.Flags) error {
	log, err := logs.Logger()
	if err != nil {
		return err
	}
	return logs.Report(log, f.Run(cmd.Context(), log, p.environ, cmd.OutOrStdout()))
}
